//! A step that somebody wrote by hand.

use ampdoctor_torch::{AmpOptimizer, MasterWeights, ScalerError};
use anyhow::Result;
use tch::nn::{self, OptimizerConfig};
use tch::{Tensor, no_grad};

use super::Fault;
use crate::options::Options;
use crate::precision::Precision;
use crate::stepper::Stepper;

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandStep {
    /// The new values are copied into parameters in FP16, which have no FP32 copies.
    Copied,
    /// The new values are computed and dropped.
    Unassigned,
}

impl Fault for HandStep {
    fn name(&self) -> &'static str {
        match self {
            Self::Copied => "copied-step",
            Self::Unassigned => "unassigned-step",
        }
    }

    fn about(&self) -> &'static str {
        match self {
            Self::Copied => {
                "a step written by hand copies new values into parameters in FP16: what change was meant, nobody can see"
            }
            Self::Unassigned => {
                "a step written by hand computes new values and does not assign them; in any precision without FP32 copies"
            }
        }
    }

    fn is_setting(&self) -> bool {
        *self == Self::Copied
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        let needed = match self {
            Self::Copied => Precision::Fp16Pure,
            Self::Unassigned if options.precision.has_masters() => Precision::Fp16,
            Self::Unassigned => options.precision,
        };
        options.need_precision(needed).into_iter().collect()
    }

    fn steps_by_hand(&self) -> Option<HandStep> {
        Some(*self)
    }
}

/// An optimizer whose step is replaced by one written by hand in the faulty steps.
pub struct HandStepper {
    masters: Option<MasterWeights>,
    hand: Hand,
}

/// What steps the parameters, or their FP32 copies where the precision has some.
struct Hand {
    mistake: HandStep,
    optimizer: nn::Optimizer,
    lr: f64,
    faulty: bool,
}

impl HandStepper {
    /// An optimizer, and plain SGD by hand at the same learning rate: on the model, or on its FP32 copies where the precision has some.
    pub fn new(mistake: HandStep, options: &Options, vs: &nn::VarStore) -> Result<Self> {
        let lr = options.learning_rate();
        let masters = options.precision.has_masters().then(|| MasterWeights::new(vs)).transpose()?;
        let stepped = masters.as_ref().map_or(vs, MasterWeights::vars);
        let optimizer = options.optimizer_config().build(stepped, lr)?;
        Ok(Self { masters, hand: Hand { mistake, optimizer, lr, faulty: false } })
    }
}

impl Hand {
    fn step_by_hand(&self) {
        no_grad(|| {
            for mut parameter in self.parameters().into_iter().filter(|p| p.grad().defined()) {
                let stepped = &parameter - parameter.grad() * self.lr;
                if self.mistake == HandStep::Copied {
                    parameter.copy_(&stepped);
                }
            }
        });
    }
}

impl AmpOptimizer for Hand {
    fn parameters(&self) -> Vec<Tensor> {
        self.optimizer.trainable_variables()
    }

    fn apply(&mut self) {
        if self.faulty { self.step_by_hand() } else { self.optimizer.step() }
    }
}

impl AmpOptimizer for HandStepper {
    fn parameters(&self) -> Vec<Tensor> {
        self.hand.parameters()
    }

    /// # Panics
    /// Where the copies cannot be written back; the loop calls `try_apply`.
    fn apply(&mut self) {
        self.try_apply().unwrap_or_else(|error| panic!("{error}"));
    }

    fn prepare(&mut self) -> Result<(), ScalerError> {
        match &mut self.masters {
            Some(masters) => masters.optimizer(&mut self.hand).prepare(),
            None => self.hand.prepare(),
        }
    }

    fn try_apply(&mut self) -> Result<(), ScalerError> {
        match &mut self.masters {
            Some(masters) => masters.optimizer(&mut self.hand).try_apply(),
            None => self.hand.try_apply(),
        }
    }
}

impl Stepper for HandStepper {
    fn optimizer(&mut self) -> &mut nn::Optimizer {
        &mut self.hand.optimizer
    }

    fn zero_grad(&mut self) {
        match &mut self.masters {
            Some(masters) => masters.zero_grad(),
            None => self.hand.optimizer.zero_grad(),
        }
    }

    fn masters(&self) -> Option<&MasterWeights> {
        self.masters.as_ref()
    }

    fn masters_mut(&mut self) -> Option<&mut MasterWeights> {
        self.masters.as_mut()
    }

    fn begin_step(&mut self, faulty: bool) {
        self.hand.faulty = faulty;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tch::{Device, Kind};

    use super::*;
    use crate::model::Fp32Layers;

    /// A weight of 1 with a gradient of 2, at a learning rate of 1/4: after a sound step, and after a faulty one.
    fn stepped(mistake: HandStep) -> (f64, f64) {
        let options = Options::parse_from(["t", "--optimizer", "sgd", "--lr", "0.25"]);
        let vs = nn::VarStore::new(Device::Cpu);
        let w = vs.root().var("w", &[1], nn::Init::Const(1.0));
        let mut stepper = HandStepper::new(mistake, &options, &vs).unwrap();
        let mut step = |faulty| {
            stepper.begin_step(faulty);
            stepper.zero_grad();
            (&w * 2.0).sum(Kind::Float).backward();
            stepper.apply();
            w.double_value(&[0])
        };
        (step(false), step(true))
    }

    #[test]
    fn a_step_by_hand_is_that_of_plain_sgd_and_one_that_is_not_assigned_moves_nothing() {
        assert_eq!(stepped(HandStep::Copied), (0.5, 0.0));
        assert_eq!(stepped(HandStep::Unassigned), (0.5, 0.5));
    }
    #[test]
    fn a_step_by_hand_on_fp32_copies_reaches_the_model_rounded() {
        let options = Options::parse_from(["t", "--precision", "bf16-masters", "--optimizer", "sgd", "--lr", "0.25"]);
        let mut vs = nn::VarStore::new(Device::Cpu);
        let w = vs.root().var("w", &[1], nn::Init::Const(1.0));
        options.precision.cast_model(&mut vs, options.model, &Fp32Layers::none());
        let mut stepper = HandStepper::new(HandStep::Copied, &options, &vs).unwrap();
        stepper.begin_step(true);
        stepper.zero_grad();
        (&w * 2.0).sum(Kind::Float).backward();
        stepper.prepare().unwrap();
        stepper.try_apply().unwrap();
        assert_eq!((w.kind(), w.double_value(&[0])), (Kind::BFloat16, 0.5));
        assert!(stepper.masters_mut().unwrap().check().is_ok());
    }
}
