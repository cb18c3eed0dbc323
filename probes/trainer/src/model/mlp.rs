//! Three fully connected layers.

use tch::Tensor;
use tch::nn::{self, Module};

use super::{DIGITS, Model, Pass};

pub(super) const LAYERS: &[&str] = &["fc1", "fc2", "fc3"];

pub(super) struct Mlp {
    fc1: nn::Linear,
    fc2: nn::Linear,
    fc3: nn::Linear,
}

impl Mlp {
    pub(super) fn new(root: &nn::Path) -> Self {
        Self {
            fc1: nn::linear(root / "fc1", 64, 64, Default::default()),
            fc2: nn::linear(root / "fc2", 64, 64, Default::default()),
            fc3: nn::linear(root / "fc3", 64, DIGITS, Default::default()),
        }
    }
}

impl Model for Mlp {
    fn forward(&self, images: &Tensor, _train: bool, pass: &Pass<'_>) -> Tensor {
        let x = pass.layer("fc1", images, |x| self.fc1.forward(x)).relu();
        let x = pass.layer("fc2", &x, |x| self.fc2.forward(x)).relu();
        pass.layer("fc3", &x, |x| self.fc3.forward(x))
    }
}
