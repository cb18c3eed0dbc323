//! The models: small, because FP16 products are slow on most CPUs, and large enough to learn the digits.

use clap::ValueEnum;
use tch::Tensor;
use tch::nn::{self, Module, ModuleT};

use crate::fault::Plant;

const DIGITS: i64 = 10;

/// Which model is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelKind {
    /// Three fully connected layers, ReLU between them.
    Mlp,
    /// Two convolutions with BatchNorm, two fully connected layers.
    Conv,
}

impl ModelKind {
    /// Builds the model below `root`.
    pub fn build(self, root: &nn::Path) -> Box<dyn Model> {
        match self {
            Self::Mlp => Box::new(Mlp::new(root)),
            Self::Conv => Box::new(Conv::new(root)),
        }
    }

    /// The names of the layers, from the input to the output.
    pub fn layers(self) -> &'static [&'static str] {
        match self {
            Self::Mlp => &["fc1", "fc2", "fc3"],
            Self::Conv => &["conv1", "bn1", "conv2", "bn2", "fc1", "fc2"],
        }
    }

    /// Where a fault goes when no layer is named: in the middle, with layers on both sides.
    pub fn middle_layer(self) -> &'static str {
        match self {
            Self::Mlp => "fc2",
            Self::Conv => "conv2",
        }
    }
}

/// Images in, logits out.
pub trait Model {
    /// Logits (`[n, 10]`) of images (`[n, 64]`); each layer's output passes through the plant.
    fn forward(&self, images: &Tensor, train: bool, plant: &Plant) -> Tensor;
}

struct Mlp {
    fc1: nn::Linear,
    fc2: nn::Linear,
    fc3: nn::Linear,
}

impl Mlp {
    fn new(root: &nn::Path) -> Self {
        Self {
            fc1: nn::linear(root / "fc1", 64, 64, Default::default()),
            fc2: nn::linear(root / "fc2", 64, 64, Default::default()),
            fc3: nn::linear(root / "fc3", 64, DIGITS, Default::default()),
        }
    }
}

impl Model for Mlp {
    fn forward(&self, images: &Tensor, _train: bool, plant: &Plant) -> Tensor {
        let x = plant.output("fc1", self.fc1.forward(images)).relu();
        let x = plant.output("fc2", self.fc2.forward(&x)).relu();
        plant.output("fc3", self.fc3.forward(&x))
    }
}

struct Conv {
    conv1: nn::Conv2D,
    bn1: nn::BatchNorm,
    conv2: nn::Conv2D,
    bn2: nn::BatchNorm,
    fc1: nn::Linear,
    fc2: nn::Linear,
}

impl Conv {
    fn new(root: &nn::Path) -> Self {
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
    fn forward(&self, images: &Tensor, train: bool, plant: &Plant) -> Tensor {
        let x = images.view([-1, 1, 8, 8]);
        let x = plant.output("conv1", self.conv1.forward(&x));
        let x = plant.output("bn1", self.bn1.forward_t(&x, train)).relu();
        let x = plant.output("conv2", self.conv2.forward(&x));
        let x = plant.output("bn2", self.bn2.forward_t(&x, train)).relu();
        let x = plant.output("fc1", self.fc1.forward(&x.flatten(1, -1))).relu();
        plant.output("fc2", self.fc2.forward(&x))
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn the_layers_are_those_that_own_parameters() {
        for kind in [ModelKind::Mlp, ModelKind::Conv] {
            let vs = nn::VarStore::new(Device::Cpu);
            let _model = kind.build(&vs.root());
            let mut owners: Vec<String> =
                vs.variables().into_keys().filter_map(|name| Some(name.rsplit_once('.')?.0.to_owned())).collect();
            owners.sort();
            owners.dedup();
            let mut layers = kind.layers().to_vec();
            layers.sort_unstable();
            assert_eq!(owners, layers);
            assert!(layers.contains(&kind.middle_layer()));
        }
    }

    #[test]
    fn the_plant_sees_every_layer_once() {
        for kind in [ModelKind::Mlp, ModelKind::Conv] {
            let vs = nn::VarStore::new(Device::Cpu);
            let plant = Plant::none();
            let logits =
                kind.build(&vs.root()).forward(&Tensor::zeros([2, 64], (Kind::Float, Device::Cpu)), true, &plant);
            assert_eq!(logits.size(), [2, DIGITS]);
            assert_eq!(plant.layers_seen(), kind.layers());
        }
    }
}
