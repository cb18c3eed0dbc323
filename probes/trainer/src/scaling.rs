//! How a loss becomes a step of the optimizer.

use ampdoctor_torch::{GradScaler, GradScalerBuilder, ScalerError};
use anyhow::Result;
use tch::Tensor;

use crate::fault::BrokenRecipe;
use crate::options::Options;
use crate::stepper::Stepper;

/// Backward and step, with a loss scaler where the precision needs one.
pub struct Scaling {
    scaler: Option<GradScaler>,
    held: Option<f64>,
}

impl Scaling {
    /// A scaler with the settings of the command line, or none; `always`: in any precision.
    pub fn new(options: &Options, always: bool) -> Result<Self> {
        if !options.scales_loss() && !always {
            return Ok(Self { scaler: None, held: None });
        }
        let scaler = match options.static_scale {
            Some(scale) => GradScaler::builder().static_scale(scale),
            None => dynamic(options),
        };
        Ok(Self { scaler: Some(scaler.build()?), held: options.static_scale })
    }

    /// From now on, holds this loss scale; nothing happens without a scaler, or when it is held already.
    pub fn hold(&mut self, scale: f64) -> Result<()> {
        if self.scaler.is_some() && self.held != Some(scale) {
            self.scaler = Some(GradScaler::builder().static_scale(scale).build()?);
            self.held = Some(scale);
        }
        Ok(())
    }

    /// From now on, goes on from this scale times `factor`, set as a loop sets it that knows better; nothing happens without a scaler.
    pub fn multiply(&mut self, factor: f64) -> Result<(), ScalerError> {
        match &mut self.scaler {
            Some(scaler) => scaler.update_to(scaler.get_scale() * factor),
            None => Ok(()),
        }
    }

    /// From now on, steps with the gradients as they are.
    pub fn drop_scaler(&mut self) {
        self.scaler = None;
    }

    /// From now on, grows after so many clean steps; nothing happens without a scaler.
    pub fn grow_every(&mut self, steps: u32) -> Result<()> {
        let steps = u64::from(steps.max(1));
        if let Some(scaler) = self.scaler.as_mut().filter(|scaler| scaler.get_growth_interval() != steps) {
            scaler.set_growth_interval(steps)?;
        }
        Ok(())
    }

    /// Sets the scale in the midst of an accumulation, twice as high and back by turns; nothing happens without a scaler.
    pub fn disturb(&mut self, micro_batch: u64) -> Result<(), ScalerError> {
        let Some(scaler) = &mut self.scaler else { return Ok(()) };
        let factor = if micro_batch.is_multiple_of(2) { 0.5 } else { 2.0 };
        scaler.update_to(scaler.get_scale() * factor)
    }

    /// Adds the gradients of a loss, times the scale, to those that are there.
    pub fn backward(&mut self, loss: &Tensor) -> Result<()> {
        match &mut self.scaler {
            Some(scaler) => scaler.f_backward(loss)?,
            None => loss.f_backward()?,
        }
        Ok(())
    }

    /// One step with the gradients that are there, clipped to a norm of `clip`; whether it was applied.
    pub fn step(
        &mut self,
        stepper: &mut dyn Stepper,
        clip: Option<f64>,
        mistake: Option<BrokenRecipe>,
    ) -> Result<bool, ScalerError> {
        let Some(scaler) = &mut self.scaler else {
            stepper.prepare()?;
            clip_to(stepper, clip);
            stepper.try_apply()?;
            if let Some(second) = stepper.second() {
                second.step();
            }
            return Ok(true);
        };
        if let Some(mistake) = mistake {
            return mistake.step(scaler, stepper, |stepper| clip_to(stepper, clip));
        }
        if clip.is_some() {
            scaler.unscale(stepper)?;
            if let Some(second) = stepper.second() {
                scaler.unscale(second)?;
            }
            clip_to(stepper, clip);
        }
        let mut applied = scaler.step(stepper)?.applied();
        if let Some(second) = stepper.second() {
            applied &= scaler.step(second)?.applied();
        }
        scaler.update()?;
        Ok(applied)
    }

    /// The loss scale now.
    pub fn scale(&self) -> Option<f64> {
        self.scaler.as_ref().map(GradScaler::get_scale)
    }
}

/// A dynamic scaler with the settings of the command line; it begins within its bounds.
fn dynamic(options: &Options) -> GradScalerBuilder {
    let mut builder = GradScaler::builder().growth_interval(u64::from(options.growth_interval));
    let mut scale = options.init_scale;
    if let Some(floor) = options.min_scale {
        (builder, scale) = (builder.min_scale(floor), scale.max(floor));
    }
    if let Some(ceiling) = options.max_scale {
        (builder, scale) = (builder.max_scale(ceiling), scale.min(ceiling));
    }
    builder.init_scale(scale)
}

fn clip_to(stepper: &mut dyn Stepper, norm: Option<f64>) {
    if let Some(norm) = norm {
        stepper.optimizer().clip_grad_norm(norm);
        if let Some(second) = stepper.second() {
            second.clip_grad_norm(norm);
        }
    }
}
