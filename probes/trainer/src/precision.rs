//! In which numbers a run computes, and in which it keeps its parameters.

use std::fmt;

use ampdoctor_torch::autocast;
use clap::ValueEnum;
use tch::{Device, Kind, Tensor, nn};

use crate::model::{Fp32Layers, ModelKind};

/// The precision of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// FP32 throughout.
    Fp32,
    /// FP32 parameters, autocast to BF16.
    Bf16,
    /// FP32 parameters, autocast to FP16, loss scaling.
    Fp16,
    /// A model in FP16 whose FP32 copies are stepped, loss scaling.
    Fp16Masters,
    /// A model in BF16 whose FP32 copies are stepped.
    Bf16Masters,
    /// A model in FP16 that is stepped itself: small updates are lost, and gradients go without a scale.
    Fp16Pure,
    /// A model in BF16 that is stepped itself: small updates are lost.
    Bf16Pure,
}

impl Precision {
    /// The dtype that autocast casts to, where it does.
    fn autocast_kind(self) -> Option<Kind> {
        match self {
            Self::Fp16 => Some(Kind::Half),
            Self::Bf16 => Some(Kind::BFloat16),
            _ => None,
        }
    }

    /// The dtype of the model's parameters.
    pub fn model_kind(self) -> Kind {
        match self {
            Self::Fp32 | Self::Bf16 | Self::Fp16 => Kind::Float,
            Self::Fp16Masters | Self::Fp16Pure => Kind::Half,
            Self::Bf16Masters | Self::Bf16Pure => Kind::BFloat16,
        }
    }

    /// The 16 bits of a run; FP16 where it has none of its own.
    pub fn low_kind(self) -> Kind {
        match self {
            Self::Bf16 | Self::Bf16Masters | Self::Bf16Pure => Kind::BFloat16,
            Self::Fp32 | Self::Fp16 | Self::Fp16Masters | Self::Fp16Pure => Kind::Half,
        }
    }

    /// Whether FP32 copies are stepped.
    pub fn has_masters(self) -> bool {
        matches!(self, Self::Fp16Masters | Self::Bf16Masters)
    }

    /// Whether the optimizer steps parameters in 16 bits.
    pub fn is_pure(self) -> bool {
        matches!(self, Self::Fp16Pure | Self::Bf16Pure)
    }

    /// Whether the loss is scaled. FP16 parameters that are stepped themselves would need it, but no scaler takes their gradients.
    pub fn scales_loss(self) -> bool {
        matches!(self, Self::Fp16 | Self::Fp16Masters)
    }

    /// Whether the parameters are FP32 and forward is cast.
    pub fn is_autocast(self) -> bool {
        self.autocast_kind().is_some()
    }

    /// Casts a model that was just built, all but its BatchNorms and the layers that are kept in FP32.
    pub fn cast_model(self, vs: &mut nn::VarStore, model: ModelKind, fp32: &Fp32Layers) {
        match self.model_kind() {
            Kind::Half => vs.half(),
            Kind::BFloat16 => vs.bfloat16(),
            _ => return,
        }
        for path in model.norms_in_fp32().iter().copied().chain(fp32.paths()) {
            path.split('.').fold(vs.root(), |path, part| path / part).float();
        }
    }

    /// The loss of a forward pass in this precision: the mean cross-entropy of all logits (`[.., classes]`), in FP32.
    pub fn loss(self, inputs: &Tensor, targets: &Tensor, forward: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
        self.run(|| cross_entropy(&forward(&self.cast_inputs(inputs)), targets))
    }

    /// Logits in this precision.
    pub fn logits(self, inputs: &Tensor, forward: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
        self.run(|| forward(&self.cast_inputs(inputs)))
    }

    fn run<T>(self, body: impl FnOnce() -> T) -> T {
        match self.autocast_kind() {
            Some(kind) => autocast(Device::Cpu, kind, body),
            None => body(),
        }
    }

    /// Images become what the model's parameters are; characters are no numbers, and stay.
    fn cast_inputs(self, inputs: &Tensor) -> Tensor {
        if inputs.is_floating_point() { inputs.to_kind(self.model_kind()) } else { inputs.shallow_clone() }
    }
}

/// The mean cross-entropy in FP32 of logits in any precision.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Tensor {
    logits.to_kind(Kind::Float).flatten(0, -2).cross_entropy_for_logits(&targets.flatten(0, -1))
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_norm_stays_in_fp32_in_a_model_of_fp16() {
        let mut vs = nn::VarStore::new(Device::Cpu);
        let _model = ModelKind::Conv.build(&vs.root());
        Precision::Fp16Masters.cast_model(&mut vs, ModelKind::Conv, &Fp32Layers::none());
        for (name, tensor) in vs.variables() {
            let expected = if name.starts_with("bn") { Kind::Float } else { Kind::Half };
            assert_eq!(tensor.kind(), expected, "{name}");
        }
    }

    #[test]
    fn every_model_gives_an_fp32_loss_and_gradients_of_its_own_kind_in_every_precision() {
        for (&precision, model) in Precision::value_variants().iter().flat_map(|precision| {
            [ModelKind::Mlp, ModelKind::Conv, ModelKind::Transformer].map(|model| (precision, model))
        }) {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = model.build(&vs.root());
            let none = Fp32Layers::none();
            precision.cast_model(&mut vs, model, &none);
            let (inputs, targets) = crate::data::Data::load(model.data()).unwrap().train.at(&[0, 1, 2]);
            let plant = crate::fault::Plant::none();
            let pass = crate::model::Pass::new(precision, &none, &plant);
            let loss = precision.loss(&inputs, &targets, |x| net.forward(x, true, &pass));
            assert_eq!(loss.kind(), Kind::Float, "{precision} {model:?}");
            loss.backward();
            for (name, tensor) in vs.variables().iter().filter(|(_, tensor)| tensor.requires_grad()) {
                assert_eq!(tensor.grad().kind(), tensor.kind(), "{precision} {name}");
                assert_eq!(i64::try_from(tensor.grad().isfinite().all()).unwrap(), 1, "{precision} {name}");
            }
        }
    }
}
