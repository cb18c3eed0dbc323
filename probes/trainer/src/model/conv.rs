//! Two convolutions with BatchNorm, two fully connected layers.

use tch::Tensor;
use tch::nn::{self, Module, ModuleT};

use super::{DIGITS, Model, Pass};

pub(super) const LAYERS: &[&str] = &["conv1", "bn1", "conv2", "bn2", "fc1", "fc2"];
pub(super) const NORMS: &[&str] = &["bn1", "bn2"];

pub(super) struct Conv {
    conv1: nn::Conv2D,
    bn1: nn::BatchNorm,
    conv2: nn::Conv2D,
    bn2: nn::BatchNorm,
    fc1: nn::Linear,
    fc2: nn::Linear,
}

impl Conv {
    pub(super) fn new(root: &nn::Path) -> Self {
        let convolution = nn::ConvConfig { padding: 1, stride: 2, bias: false, ..Default::default() };
        // tch draws the scale of a BatchNorm from 0..1 by default; 1 is what everybody else begins with.
        let norm = nn::BatchNormConfig { ws_init: nn::Init::Const(1.0), ..Default::default() };
        Self {
            conv1: nn::conv2d(root / "conv1", 1, 8, 3, nn::ConvConfig { stride: 1, ..convolution }),
            bn1: nn::batch_norm2d(root / "bn1", 8, norm),
            conv2: nn::conv2d(root / "conv2", 8, 16, 3, convolution),
            bn2: nn::batch_norm2d(root / "bn2", 16, norm),
            fc1: nn::linear(root / "fc1", 16 * 4 * 4, 32, Default::default()),
            fc2: nn::linear(root / "fc2", 32, DIGITS, Default::default()),
        }
    }
}

impl Model for Conv {
    fn forward(&self, images: &Tensor, train: bool, pass: &Pass<'_>) -> Tensor {
        let x = images.view([-1, 1, 8, 8]);
        let x = pass.layer("conv1", &x, |x| self.conv1.forward(x));
        let x = pass.layer("bn1", &x, |x| self.bn1.forward_t(x, train)).relu();
        let x = pass.layer("conv2", &x, |x| self.conv2.forward(x));
        let x = pass.layer("bn2", &x, |x| self.bn2.forward_t(x, train)).relu();
        let x = pass.layer("fc1", &x.flatten(1, -1), |x| self.fc1.forward(x)).relu();
        pass.layer("fc2", &x, |x| self.fc2.forward(x))
    }
}
