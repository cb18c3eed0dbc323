//! Optimizers over master weights, as a scaler and a loop step them.

use std::ops::{Deref, DerefMut};

use tch::nn::{Optimizer, OptimizerConfig};
use tch::{Tensor, nn};

use super::{MasterWeights, MastersError};
use crate::scaler::{AmpOptimizer, ScalerError};

impl MasterWeights {
    /// Lends the copies and the optimizer that was built on [`vars`](Self::vars) to one call of a scaler.
    ///
    /// ```no_run
    /// # use ampdoctor_torch::{GradScaler, MasterWeights};
    /// # use tch::nn::{self, OptimizerConfig};
    /// # fn step(masters: &mut MasterWeights, opt: &mut nn::Optimizer, scaler: &mut GradScaler) -> Result<(), Box<dyn std::error::Error>> {
    /// scaler.unscale(&mut masters.optimizer(opt))?;
    /// opt.clip_grad_norm(1.0);
    /// scaler.step(&mut masters.optimizer(opt))?;
    /// scaler.update()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn optimizer<'a, O: AmpOptimizer + ?Sized>(&'a mut self, optimizer: &'a mut O) -> MasterOptimizer<'a, O> {
        MasterOptimizer { masters: self, optimizer }
    }

    /// The optimizer of this configuration on the copies, which belong to it from here on; loops use it as the `nn::Optimizer` it stands for.
    pub fn build(self, config: impl OptimizerConfig, lr: f64) -> Result<MasteredOptimizer, MastersError> {
        let optimizer = config.build(&self.vars, lr)?;
        Ok(MasteredOptimizer { masters: self, optimizer })
    }
}

/// Master weights and the optimizer that steps them, for one call; from [`MasterWeights::optimizer`].
///
/// A scaler's `unscale` pulls the model's gradients over first, and its `step` writes the stepped copies back. An optimizer that was built on
/// the model, or on something else, is an error of both.
#[derive(Debug)]
pub struct MasterOptimizer<'a, O: ?Sized> {
    masters: &'a mut MasterWeights,
    optimizer: &'a mut O,
}

impl<O: AmpOptimizer + ?Sized> MasterOptimizer<'_, O> {
    /// Pulls what gradients there are, steps the copies and writes them back: a step without a scaler.
    pub fn step(&mut self) -> Result<(), ScalerError> {
        self.prepare()?;
        self.try_apply()
    }
}

impl<O: AmpOptimizer + ?Sized> AmpOptimizer for MasterOptimizer<'_, O> {
    fn parameters(&self) -> Vec<Tensor> {
        self.optimizer.parameters()
    }

    /// # Panics
    /// Where [`try_apply`](AmpOptimizer::try_apply), which scalers call, returns an error.
    fn apply(&mut self) {
        self.try_apply().unwrap_or_else(|error| panic!("{error}"));
    }

    fn prepare(&mut self) -> Result<(), ScalerError> {
        self.masters.require_copies(&self.optimizer.parameters())?;
        self.optimizer.prepare()?;
        Ok(self.masters.pull_gradients()?)
    }

    fn try_apply(&mut self) -> Result<(), ScalerError> {
        self.masters.require_copies(&self.optimizer.parameters())?;
        self.masters.refuse_gradients_left()?;
        self.optimizer.try_apply()?;
        Ok(self.masters.write_back()?)
    }
}

/// An optimizer of `tch` with the master weights that it steps; from [`MasterWeights::build`].
///
/// Everything that steps or zeroes gradients does so for both, model and copies. What else an `nn::Optimizer` has is reached through it: clipping
/// works on the FP32 gradients, after `scaler.unscale` or [`pull_gradients`](Self::pull_gradients); learning rates are set as always.
#[derive(Debug)]
pub struct MasteredOptimizer {
    masters: MasterWeights,
    optimizer: Optimizer,
}

impl MasteredOptimizer {
    /// The master weights.
    pub fn masters(&self) -> &MasterWeights {
        &self.masters
    }

    /// The master weights, to check, load or refresh them.
    pub fn masters_mut(&mut self) -> &mut MasterWeights {
        &mut self.masters
    }

    /// Lets go of the gradients of the model and of the copies.
    pub fn zero_grad(&mut self) {
        self.masters.zero_grad();
    }

    /// Moves the model's gradients over to the copies; what a loop without a scaler calls before it clips.
    pub fn pull_gradients(&mut self) -> Result<(), MastersError> {
        self.masters.pull_gradients()
    }

    /// Pulls what gradients there are, steps the copies and writes them back.
    pub fn step(&mut self) -> Result<(), MastersError> {
        self.masters.pull_gradients()?;
        self.optimizer.step();
        self.masters.write_back()
    }

    /// Zeroes the gradients, runs backward on `loss`, and steps.
    pub fn backward_step(&mut self, loss: &Tensor) -> Result<(), MastersError> {
        self.backward(loss)?;
        self.step()
    }

    /// [`backward_step`](Self::backward_step) with every FP32 gradient clipped to `max` in magnitude.
    pub fn backward_step_clip(&mut self, loss: &Tensor, max: f64) -> Result<(), MastersError> {
        self.backward(loss)?;
        self.optimizer.clip_grad_value(max);
        self.step()
    }

    /// [`backward_step`](Self::backward_step) with the FP32 gradients clipped to a norm of `max`, taken over all of them.
    pub fn backward_step_clip_norm(&mut self, loss: &Tensor, max: f64) -> Result<(), MastersError> {
        self.backward(loss)?;
        self.optimizer.clip_grad_norm(max);
        self.step()
    }

    fn backward(&mut self, loss: &Tensor) -> Result<(), MastersError> {
        self.masters.zero_grad();
        loss.f_backward()?;
        self.masters.pull_gradients()
    }
}

impl Deref for MasteredOptimizer {
    type Target = nn::Optimizer;

    fn deref(&self) -> &nn::Optimizer {
        &self.optimizer
    }
}

impl DerefMut for MasteredOptimizer {
    fn deref_mut(&mut self) -> &mut nn::Optimizer {
        &mut self.optimizer
    }
}

impl AmpOptimizer for MasteredOptimizer {
    fn parameters(&self) -> Vec<Tensor> {
        self.optimizer.trainable_variables()
    }

    /// # Panics
    /// Where [`try_apply`](AmpOptimizer::try_apply), which scalers call, returns an error.
    fn apply(&mut self) {
        self.masters.optimizer(&mut self.optimizer).apply();
    }

    fn prepare(&mut self) -> Result<(), ScalerError> {
        self.masters.optimizer(&mut self.optimizer).prepare()
    }

    fn try_apply(&mut self) -> Result<(), ScalerError> {
        self.masters.optimizer(&mut self.optimizer).try_apply()
    }
}
