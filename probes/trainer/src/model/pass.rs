//! A forward pass through a model: the dtype in which each layer computes, and what is planted in it.

use ampdoctor_torch::no_autocast;
use tch::{Kind, Tensor};

use super::Fp32Layers;
use crate::fault::Plant;
use crate::precision::Precision;

/// How one forward pass runs the layers of a model.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    precision: Precision,
    fp32: &'a Fp32Layers,
    plant: &'a Plant,
}

impl<'a> Pass<'a> {
    /// A pass in this precision, but for the layers that are kept in FP32.
    pub fn new(precision: Precision, fp32: &'a Fp32Layers, plant: &'a Plant) -> Self {
        Self { precision, fp32, plant }
    }

    /// The precision of the run.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// What is planted.
    pub fn plant(&self) -> &'a Plant {
        self.plant
    }

    /// What the layer `name` makes of its input; what is planted there is part of its computation, and runs in its dtype.
    pub fn layer(&self, name: &str, input: &Tensor, forward: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
        self.within(name, input, |x| self.plant.output(name, forward(x), self.by_hand(name)))
    }

    /// What `body` makes of an input as a part of the module `path`: outside of autocast and in FP32 where that is kept in FP32.
    ///
    /// Elsewhere a model in 16 bits is given its own dtype, whatever the layer before it gave; under autocast the operators cast for themselves.
    pub fn within(&self, path: &str, input: &Tensor, body: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
        if self.fp32.covers(path) {
            return no_autocast(|| body(&cast(input, Kind::Float)));
        }
        match self.precision.model_kind() {
            Kind::Float => body(input),
            kind => body(&cast(input, kind)),
        }
    }

    /// The dtype of code that casts to FP16 by hand: it is gone from a layer that is kept in FP32.
    fn by_hand(&self, layer: &str) -> Kind {
        let in_fp32 = self.precision == Precision::Fp32 || self.fp32.covers(layer);
        if in_fp32 { Kind::Float } else { Kind::Half }
    }
}

/// Numbers in this dtype; characters and positions stay what they are.
fn cast(input: &Tensor, kind: Kind) -> Tensor {
    match input.kind() {
        Kind::Int64 => input.shallow_clone(),
        is if is == kind => input.shallow_clone(),
        _ => input.to_kind(kind),
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, nn};

    use super::*;
    use crate::data::Data;
    use crate::fault::FaultSpec;
    use crate::model::ModelKind;

    const KINDS: [ModelKind; 3] = [ModelKind::Mlp, ModelKind::Conv, ModelKind::Transformer];

    fn fp32(model: ModelKind, names: &[&str]) -> Fp32Layers {
        Fp32Layers::of(model, &names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()).unwrap()
    }

    /// The dtype in which each layer gave its output, in the order of forward.
    fn kinds(model: ModelKind, precision: Precision, names: &[&str]) -> Vec<(String, Kind)> {
        let (mut vs, layers, plant) = (nn::VarStore::new(Device::Cpu), fp32(model, names), Plant::none());
        let net = model.build(&vs.root());
        precision.cast_model(&mut vs, model, &layers);
        let (inputs, targets) = Data::load(model.data()).unwrap().train.at(&[0, 1]);
        let pass = Pass::new(precision, &layers, &plant);
        precision.loss(&inputs, &targets, |x| net.forward(x, true, &pass)).backward();
        for (name, tensor) in vs.variables().iter().filter(|(_, tensor)| tensor.requires_grad()) {
            assert_eq!(tensor.grad().kind(), tensor.kind(), "{precision} {name}");
        }
        plant.layers_seen().into_iter().zip(plant.kinds_seen()).collect()
    }

    #[test]
    fn a_layer_that_is_kept_in_fp32_gives_fp32_and_its_neighbours_do_not() {
        for precision in [Precision::Fp16, Precision::Fp16Masters, Precision::Fp16Pure, Precision::Bf16Masters] {
            for model in KINDS {
                let middle = model.middle_layer();
                for (layer, kind) in kinds(model, precision, &[middle]) {
                    // Autocast has no need of 16 bits for an embedding, and on the CPU none for a norm of FP32 activations.
                    let may_be_wide = precision == Precision::Fp16
                        && ["tok", "pos", "norm", "bn2"].iter().any(|part| layer.contains(part));
                    if !may_be_wide {
                        assert_eq!(kind == Kind::Float, layer == middle, "{precision} {layer} {kind:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_layer_alone_and_all_together_can_be_kept_in_fp32() {
        for precision in [Precision::Fp16, Precision::Bf16, Precision::Fp16Masters, Precision::Fp16Pure] {
            for model in KINDS {
                for &layer in model.layers() {
                    assert!(kinds(model, precision, &[layer]).contains(&(layer.to_owned(), Kind::Float)));
                }
                assert!(kinds(model, precision, model.layers()).iter().all(|(_, kind)| *kind == Kind::Float));
            }
        }
    }

    #[test]
    fn a_module_stands_for_all_that_is_in_it() {
        let wide = kinds(ModelKind::Transformer, Precision::Fp16Masters, &["block.0.attn"]);
        let wide: Vec<&str> = wide.iter().filter(|(_, kind)| *kind == Kind::Float).map(|(name, _)| &name[..]).collect();
        assert_eq!(wide, ["block.0.attn.qkv", "block.0.attn.out"]);
    }

    #[test]
    fn what_is_planted_in_a_layer_runs_in_its_dtype() {
        for precision in [Precision::Fp16, Precision::Fp16Masters] {
            let largest = |names: &[&str]| {
                let (mut vs, layers) = (nn::VarStore::new(Device::Cpu), fp32(ModelKind::Mlp, names));
                let net = ModelKind::Mlp.build(&vs.root());
                precision.cast_model(&mut vs, ModelKind::Mlp, &layers);
                let spec: FaultSpec = "overflow@0:fc3".parse().unwrap();
                let plant = spec.plant(&clap::Parser::parse_from(["t"])).unwrap();
                plant.begin_step(0);
                let (inputs, _) = Data::load(ModelKind::Mlp.data()).unwrap().train.at(&[0, 1]);
                let pass = Pass::new(precision, &layers, &plant);
                precision.logits(&inputs, |x| net.forward(x, true, &pass)).abs().max().double_value(&[])
            };
            assert!(largest(&[]).is_infinite(), "{precision}");
            assert!((1e-3..100.0).contains(&largest(&["fc3"])), "{precision}");
        }
    }
}
