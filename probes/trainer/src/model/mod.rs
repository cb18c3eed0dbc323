//! The models: small, because FP16 products are slow on most CPUs, and large enough to learn what they are shown.

mod conv;
mod fp32_layers;
mod mlp;
mod pass;
mod transformer;

use clap::ValueEnum;
use tch::{Tensor, nn};

pub use self::fp32_layers::{Fp32Layers, UnknownLayer};
pub use self::pass::Pass;
use crate::data::DataKind;

const DIGITS: i64 = 10;

/// Which model is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelKind {
    /// Three fully connected layers, ReLU between them; learns digits.
    Mlp,
    /// Two convolutions with BatchNorm, two fully connected layers; learns digits.
    Conv,
    /// Two causal blocks with LayerNorm, the head tied to the embedding; learns characters.
    Transformer,
}

impl ModelKind {
    /// Builds the model below `root`.
    pub fn build(self, root: &nn::Path) -> Box<dyn Model> {
        match self {
            Self::Mlp => Box::new(mlp::Mlp::new(root)),
            Self::Conv => Box::new(conv::Conv::new(root)),
            Self::Transformer => Box::new(transformer::Transformer::new(root)),
        }
    }

    /// What it learns.
    pub fn data(self) -> DataKind {
        match self {
            Self::Mlp | Self::Conv => DataKind::Digits,
            Self::Transformer => DataKind::Text { context: transformer::CONTEXT },
        }
    }

    /// Examples in a batch when nothing else is asked for.
    pub fn default_batch(self) -> u64 {
        match self {
            Self::Mlp | Self::Conv => 64,
            Self::Transformer => 8,
        }
    }

    /// The names of the layers, from the input to the output.
    pub fn layers(self) -> &'static [&'static str] {
        match self {
            Self::Mlp => mlp::LAYERS,
            Self::Conv => conv::LAYERS,
            Self::Transformer => transformer::LAYERS,
        }
    }

    /// The layers that stay in FP32 in a model of FP16 or BF16.
    ///
    /// BatchNorm alone: its running statistics move by a tenth of a small difference a step, which FP16 would round away. On the CPU as
    /// on CUDA, ATen takes FP16 activations with FP32 parameters and statistics.
    pub fn norms_in_fp32(self) -> &'static [&'static str] {
        match self {
            Self::Conv => conv::NORMS,
            Self::Mlp | Self::Transformer => &[],
        }
    }

    /// Where a fault goes when no layer is named: in the middle, with layers on both sides.
    pub fn middle_layer(self) -> &'static str {
        match self {
            Self::Mlp => "fc2",
            Self::Conv => "conv2",
            Self::Transformer => "block.0.mlp.up",
        }
    }
}

/// Inputs in, logits out.
pub trait Model {
    /// Logits (`[n, 10]` of images, `[n, t, 70]` of characters); the pass says in which dtype each layer computes.
    fn forward(&self, inputs: &Tensor, train: bool, pass: &Pass<'_>) -> Tensor;
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::data::{Data, VOCABULARY};
    use crate::fault::Plant;
    use crate::precision::Precision;

    const KINDS: [ModelKind; 3] = [ModelKind::Mlp, ModelKind::Conv, ModelKind::Transformer];

    #[test]
    fn the_layers_are_those_that_own_parameters() {
        for kind in KINDS {
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
            assert!(kind.norms_in_fp32().iter().all(|layer| layers.contains(layer)));
        }
    }

    #[test]
    fn the_plant_sees_every_layer_once() {
        for kind in KINDS {
            let vs = nn::VarStore::new(Device::Cpu);
            let (plant, none) = (Plant::none(), Fp32Layers::none());
            let pass = Pass::new(Precision::Fp32, &none, &plant);
            let (inputs, _) = Data::load(kind.data()).unwrap().train.at(&[0, 1]);
            let logits = kind.build(&vs.root()).forward(&inputs, true, &pass);
            let classes = if kind == ModelKind::Transformer { VOCABULARY } else { DIGITS };
            assert_eq!((logits.size()[0], logits.size().last().copied()), (2, Some(classes)));
            assert_eq!(plant.layers_seen(), kind.layers());
        }
    }
}
