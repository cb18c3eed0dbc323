//! What steps the parameters: an optimizer on the model, or one on FP32 copies of it.

use ampdoctor_torch::{AmpOptimizer, MasterWeights, MasteredOptimizer};
use anyhow::Result;
use tch::nn::{self, OptimizerConfig};

use crate::options::Options;

/// An optimizer as the loop uses it.
pub trait Stepper: AmpOptimizer {
    /// The optimizer itself, to clip with and to set the learning rate of.
    fn optimizer(&mut self) -> &mut nn::Optimizer;

    /// A second optimizer, which steps after this one.
    fn second(&mut self) -> Option<&mut nn::Optimizer> {
        None
    }

    /// Sets the learning rate.
    fn set_lr(&mut self, lr: f64) {
        self.optimizer().set_lr(lr);
        if let Some(second) = self.second() {
            second.set_lr(lr);
        }
    }

    /// Lets go of all gradients.
    fn zero_grad(&mut self);

    /// The FP32 copies, where there are some.
    fn masters(&self) -> Option<&MasterWeights> {
        None
    }

    /// The same, to be changed.
    fn masters_mut(&mut self) -> Option<&mut MasterWeights> {
        None
    }

    /// Says that a step begins, and whether a planted fault is at work in it.
    fn begin_step(&mut self, _faulty: bool) {}
}

/// The stepper of a sound run.
pub fn sound_stepper(options: &Options, vs: &nn::VarStore) -> Result<Box<dyn Stepper>> {
    let (kind, lr) = (options.optimizer_config(), options.learning_rate());
    if !options.precision.has_masters() {
        return Ok(Box::new(kind.build(vs, lr)?));
    }
    let masters = MasterWeights::new(vs)?;
    Ok(Box::new(masters.build(kind, lr)?))
}

impl Stepper for nn::Optimizer {
    fn optimizer(&mut self) -> &mut nn::Optimizer {
        self
    }

    fn zero_grad(&mut self) {
        nn::Optimizer::zero_grad(self);
    }
}

impl Stepper for MasteredOptimizer {
    fn optimizer(&mut self) -> &mut nn::Optimizer {
        self
    }

    fn zero_grad(&mut self) {
        MasteredOptimizer::zero_grad(self);
    }

    fn masters(&self) -> Option<&MasterWeights> {
        Some(MasteredOptimizer::masters(self))
    }

    fn masters_mut(&mut self) -> Option<&mut MasterWeights> {
        Some(MasteredOptimizer::masters_mut(self))
    }
}
