//! FP32 copies that no longer belong to the model they were made of.

use ampdoctor_torch::{AmpOptimizer, MasterWeights, ScalerError};
use anyhow::Result;
use tch::nn::{self, OptimizerConfig};
use tch::{Tensor, no_grad};

use super::Fault;
use crate::options::Options;
use crate::precision::Precision;
use crate::stepper::Stepper;

/// What the model's weights are multiplied by behind the copies' back, every step.
const DECAY: f64 = 0.99;

/// The mistakes that a loop of its own makes with master weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenMasters {
    /// Something changes the model after the write-back; the next one undoes it.
    ModelChanged,
    /// The optimizer was built on the model: the copies have the gradients, and nothing steps them.
    Unused,
    /// The optimizer was built on the model, and steps it with its own gradients; the next write-back undoes it.
    Bypassed,
    /// The copies are stepped and not written back.
    Unwritten,
}

impl Fault for BrokenMasters {
    fn name(&self) -> &'static str {
        match self {
            Self::ModelChanged => "model-changed",
            Self::Unused => "masters-unused",
            Self::Bypassed => "masters-bypassed",
            Self::Unwritten => "masters-unwritten",
        }
    }

    fn about(&self) -> &'static str {
        match self {
            Self::ModelChanged => {
                "a weight decay by hand on a model in 16 bits, which the write-back of its FP32 copies undoes"
            }
            Self::Unused => {
                "FP32 copies of a model in BF16 get the gradients, and the optimizer was built on the model"
            }
            Self::Bypassed => "the optimizer steps a model in BF16, and its FP32 copies are written back over it",
            Self::Unwritten => "FP32 copies are stepped and not written back into the model",
        }
    }

    /// A scaler refuses an optimizer on FP16 parameters; without one, in BF16, nobody does.
    fn prepare(&self, options: &mut Options) -> Vec<String> {
        let needed = match self {
            Self::Unused | Self::Bypassed => Precision::Bf16Masters,
            _ if options.precision.has_masters() => options.precision,
            _ => Precision::Fp16Masters,
        };
        options.need_precision(needed).into_iter().collect()
    }

    fn breaks_masters(&self) -> Option<BrokenMasters> {
        Some(*self)
    }
}

/// Master weights stepped by a loop of its own, which makes its mistake in the faulty steps.
pub struct BrokenStepper {
    mistake: BrokenMasters,
    masters: MasterWeights,
    optimizer: nn::Optimizer,
    on_model: nn::Optimizer,
    faulty: bool,
}

impl BrokenStepper {
    /// Copies of a model's parameters, and one optimizer on each of the two.
    pub fn new(mistake: BrokenMasters, options: &Options, vs: &nn::VarStore) -> Result<Self> {
        let (kind, lr) = (options.optimizer_config(), options.learning_rate());
        let masters = MasterWeights::new(vs)?;
        let optimizer = kind.build(masters.vars(), lr)?;
        Ok(Self { mistake, masters, optimizer, on_model: kind.build(vs, lr)?, faulty: false })
    }

    fn step_soundly(&mut self) -> Result<(), ScalerError> {
        self.masters.optimizer(&mut self.optimizer).try_apply()
    }

    fn step_faultily(&mut self) -> Result<(), ScalerError> {
        match self.mistake {
            BrokenMasters::ModelChanged => {
                self.step_soundly()?;
                no_grad(|| self.on_model.trainable_variables().iter_mut().for_each(decay));
                Ok(())
            }
            BrokenMasters::Unused => {
                self.on_model.step();
                Ok(self.masters.write_back()?)
            }
            BrokenMasters::Bypassed => {
                self.on_model.step();
                self.masters.zero_grad();
                Ok(self.masters.write_back()?)
            }
            BrokenMasters::Unwritten => {
                self.optimizer.step();
                Ok(())
            }
        }
    }
}

fn decay(parameter: &mut Tensor) {
    let _ = parameter.g_mul_scalar_(DECAY);
}

impl AmpOptimizer for BrokenStepper {
    fn parameters(&self) -> Vec<Tensor> {
        self.optimizer.trainable_variables()
    }

    /// # Panics
    /// Where the step fails; the loop calls `try_apply`.
    fn apply(&mut self) {
        self.try_apply().unwrap_or_else(|error| panic!("{error}"));
    }

    fn prepare(&mut self) -> Result<(), ScalerError> {
        if self.faulty && self.mistake == BrokenMasters::Bypassed {
            return Ok(());
        }
        Ok(self.masters.pull_gradients()?)
    }

    fn try_apply(&mut self) -> Result<(), ScalerError> {
        if self.faulty { self.step_faultily() } else { self.step_soundly() }
    }
}

impl Stepper for BrokenStepper {
    fn optimizer(&mut self) -> &mut nn::Optimizer {
        let bypassed = self.faulty && self.mistake == BrokenMasters::Bypassed;
        if bypassed { &mut self.on_model } else { &mut self.optimizer }
    }

    fn zero_grad(&mut self) {
        self.masters.zero_grad();
    }

    fn masters(&self) -> Option<&MasterWeights> {
        Some(&self.masters)
    }

    fn masters_mut(&mut self) -> Option<&mut MasterWeights> {
        Some(&mut self.masters)
    }

    fn begin_step(&mut self, faulty: bool) {
        self.faulty = faulty;
    }
}

#[cfg(test)]
mod tests {
    use ampdoctor_torch::{Broken, MastersError};
    use clap::Parser;
    use tch::{Device, Kind};

    use super::*;
    use crate::model::Fp32Layers;

    /// What a check finds after a sound step and two faulty ones.
    fn found(mistake: BrokenMasters) -> Broken {
        let mut options = Options::parse_from(["t"]);
        mistake.prepare(&mut options);
        let mut vs = nn::VarStore::new(Device::Cpu);
        let w = vs.root().var("w", &[3], nn::Init::Const(1.0));
        options.precision.cast_model(&mut vs, options.model, &Fp32Layers::none());
        let mut stepper = BrokenStepper::new(mistake, &options, &vs).unwrap();
        for faulty in [false, true, true] {
            stepper.masters.check().unwrap_or_else(|error| assert!(faulty, "{error}"));
            stepper.begin_step(faulty);
            stepper.zero_grad();
            w.square().sum(Kind::Float).backward();
            stepper.prepare().unwrap();
            stepper.try_apply().unwrap();
        }
        match stepper.masters.check() {
            Err(MastersError::Broken(mut broken)) => broken.remove(0),
            other => panic!("{mistake:?}: {other:?}"),
        }
    }

    #[test]
    fn each_mistake_is_what_the_check_of_master_weights_calls_it() {
        assert!(matches!(found(BrokenMasters::ModelChanged), Broken::ModelChanged { differing: 3, .. }));
        assert!(matches!(found(BrokenMasters::Unwritten), Broken::NotWrittenBack { differing: 3, .. }));
    }

    #[test]
    fn an_optimizer_on_the_model_leaves_everything_where_it_was() {
        for mistake in [BrokenMasters::Unused, BrokenMasters::Bypassed] {
            let options = Options::parse_from(["t", "--precision", "bf16-masters"]);
            let mut vs = nn::VarStore::new(Device::Cpu);
            let w = vs.root().var("w", &[3], nn::Init::Const(1.0));
            options.precision.cast_model(&mut vs, options.model, &Fp32Layers::none());
            let mut stepper = BrokenStepper::new(mistake, &options, &vs).unwrap();
            stepper.begin_step(true);
            stepper.zero_grad();
            w.square().sum(Kind::Float).backward();
            stepper.prepare().unwrap();
            stepper.try_apply().unwrap();
            assert_eq!(w.to_kind(Kind::Float), Tensor::ones([3], (Kind::Float, Device::Cpu)), "{mistake:?}");
        }
    }
}
