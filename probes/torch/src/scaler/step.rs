//! The second half of a step: unscale, step, update.

use ampdoctor::observation::{Refusal, ScalerEvent};
use tch::{Kind, Tensor};

use super::optimizer::{AmpOptimizer, Stage};
use super::policy::ScaleState;
use super::{GradScaler, ScalerError, StepOutcome, builder, names, unscale};
use crate::events;

impl GradScaler {
    /// Divides the gradients of an optimizer by the scale, in place, and checks that all are finite, before and after.
    ///
    /// Needed only where gradients are clipped or looked at before `step`, which otherwise does it. Once per optimizer and step, after
    /// the last micro-batch of an accumulation. Parameters without a gradient are skipped, and so is an optimizer none of whose parameters
    /// has one; of a sparse gradient the values are divided. FP16 gradients are an error, and stay as they were.
    pub fn unscale<O: AmpOptimizer + ?Sized>(&mut self, optimizer: &mut O) -> Result<(), ScalerError> {
        if !self.enabled {
            return optimizer.prepare();
        }
        self.require_scaled("unscale")?;
        let parameters = optimizer.parameters();
        let number = self.optimizers.number(&parameters);
        match self.optimizers.in_flight(number).map(|optimizer| optimizer.stage) {
            None => self.unscale_parameters(number, optimizer).map(|_| ()),
            Some(Stage::Unscaled) => {
                events::emit_refusal(Some(number), Refusal::UnscaledTwice, &[]);
                Err(ScalerError::AlreadyUnscaled { optimizer: number })
            }
            Some(Stage::Stepped) => {
                events::emit_refusal(Some(number), Refusal::UnscaledAfterStep, &[]);
                Err(ScalerError::UnscaledAfterStep { optimizer: number })
            }
        }
    }

    /// Steps the optimizer if its gradients are finite, and leaves it alone if not; unscales them first where `unscale` has not.
    ///
    /// What was found at `unscale` decides: clipping afterwards is not checked again. A disabled scaler always steps.
    pub fn step<O: AmpOptimizer + ?Sized>(&mut self, optimizer: &mut O) -> Result<StepOutcome, ScalerError> {
        if !self.enabled {
            optimizer.prepare()?;
            optimizer.try_apply()?;
            return Ok(StepOutcome::Applied);
        }
        self.require_scaled("step")?;
        let parameters = optimizer.parameters();
        let number = self.optimizers.number(&parameters);
        let found_inf = match self.optimizers.in_flight(number) {
            None => self.unscale_parameters(number, optimizer)?,
            Some(optimizer) if optimizer.stage == Stage::Unscaled => Some(optimizer.found_inf),
            Some(_) => {
                events::emit_refusal(Some(number), Refusal::SteppedTwice, &[]);
                return Err(ScalerError::AlreadyStepped { optimizer: number });
            }
        };
        let Some(found_inf) = found_inf else {
            let parameters = optimizer.parameters();
            events::emit_refusal(Some(number), Refusal::NoGradients, &parameters);
            let parameters = names::list(&self.names, &parameters);
            return Err(ScalerError::NoGradients { optimizer: number, parameters });
        };
        if found_inf {
            events::emit_withheld(&parameters);
        } else {
            optimizer.try_apply()?;
        }
        self.optimizers.stepped(number);
        events::emit(ScalerEvent::Stepped { optimizer: number, applied: !found_inf });
        Ok(if found_inf { StepOutcome::Skipped } else { StepOutcome::Applied })
    }

    /// Moves the scale by what the checks of this step have found, and makes every optimizer ready for the next one.
    ///
    /// Once per step, after every optimizer has stepped. A disabled scaler does nothing.
    pub fn update(&mut self) -> Result<(), ScalerError> {
        if !self.enabled {
            return Ok(());
        }
        self.require_scaled("update")?;
        let Some(found_inf) = self.optimizers.found_inf() else {
            events::emit_refusal(None, Refusal::NothingChecked, &[]);
            return Err(ScalerError::NothingChecked);
        };
        if let Some(tensors) = &mut self.tensors {
            tensors.update(&self.policy, self.state, found_inf)?;
        }
        self.finish_update(self.policy.next(self.state, found_inf));
        Ok(())
    }

    /// Sets the scale, whatever was found, and makes every optimizer ready for the next step; the growth tracker stays, as in PyTorch.
    ///
    /// A scale outside of floor and ceiling is brought to the nearer one; one that is not positive and finite in FP32 is an error.
    pub fn update_to(&mut self, new_scale: f64) -> Result<(), ScalerError> {
        if !self.enabled {
            return Ok(());
        }
        self.require_scaled("update")?;
        let scale = self.policy.bounded(builder::valid_scale("new_scale", new_scale)?);
        let next = ScaleState { scale, ..self.state };
        if let Some(tensors) = &mut self.tensors {
            tensors.write(next)?;
        }
        self.finish_update(next);
        Ok(())
    }

    fn require_scaled(&self, call: &'static str) -> Result<(), ScalerError> {
        if self.tensors.is_some() {
            return Ok(());
        }
        events::emit_refusal(None, Refusal::NothingScaled, &[]);
        Err(ScalerError::NothingScaled { call })
    }

    /// Whether a gradient was not finite; `None` where there was none, and then the optimizer is still ready.
    fn unscale_parameters<O: AmpOptimizer + ?Sized>(
        &mut self,
        number: u32,
        optimizer: &mut O,
    ) -> Result<Option<bool>, ScalerError> {
        optimizer.prepare()?;
        let parameters = optimizer.parameters();
        let gradients = self.gradients(number, &parameters)?;
        if gradients.is_empty() {
            return Ok(None);
        }
        let scale = self.state.scale;
        let found_inf = events::as_scaler(|| tch::no_grad(|| unscale::unscale(&gradients, scale)))?;
        self.optimizers.unscaled(number, found_inf, parameters);
        events::emit(ScalerEvent::Unscaled { optimizer: number, scale: f64::from(scale), found_inf });
        Ok(Some(found_inf))
    }

    /// The numbers of every gradient that there is; an error where one of them is FP16.
    fn gradients(&self, number: u32, parameters: &[Tensor]) -> Result<Vec<Tensor>, ScalerError> {
        let (mut gradients, mut half) = (Vec::with_capacity(parameters.len()), Vec::new());
        for parameter in parameters {
            let gradient = parameter.grad();
            match gradient.defined() {
                true if gradient.kind() == Kind::Half => half.push(parameter.shallow_clone()),
                true => gradients.push(unscale::values(gradient)?),
                false => {}
            }
        }
        if half.is_empty() {
            return Ok(gradients);
        }
        events::emit_refusal(Some(number), Refusal::HalfGradients, &half);
        Err(ScalerError::HalfGradients { parameters: names::list(&self.names, &half) })
    }

    /// Ends the step: the scale as decided, every optimizer ready, the listeners told.
    fn finish_update(&mut self, next: ScaleState) {
        let (from, to) = (f64::from(self.state.scale), f64::from(next.scale));
        self.state = next;
        self.optimizers.reset();
        self.announce();
        events::emit(ScalerEvent::Updated { from, to, growth_tracker: next.growth_tracker });
    }
}

#[cfg(test)]
mod tests {
    use ampdoctor::observation::ScalerEvent::{Scaled, Stepped, Unscaled, Updated};
    use tch::nn::{self, OptimizerConfig};
    use tch::{Device, Kind, Tensor};

    use super::*;
    use crate::events::Signal;
    use crate::events::testing::Heard;

    fn model() -> (nn::VarStore, Tensor, nn::Optimizer) {
        tch::set_num_threads(1);
        let vs = nn::VarStore::new(Device::Cpu);
        let p = vs.root().ones("p", &[2]);
        let optimizer = nn::Sgd::default().build(&vs, 0.5).unwrap();
        (vs, p, optimizer)
    }

    fn scaler() -> GradScaler {
        GradScaler::builder().init_scale(16.0).min_scale(1.0).build().unwrap()
    }

    fn configs(signals: &[Signal]) -> usize {
        signals.iter().filter(|signal| matches!(signal, Signal::Config(_))).count()
    }

    #[test]
    fn a_step_is_told_in_the_order_in_which_it_happens() {
        let (_a, p, mut a) = model();
        let (_b, q, mut b) = model();
        let heard = Heard::listening();
        let mut scaler = scaler();
        scaler.backward(&p.sum(Kind::Float));
        scaler.backward(&(q.sum(Kind::Float) * f64::INFINITY));
        scaler.unscale(&mut a).unwrap();
        scaler.step(&mut a).unwrap();
        scaler.step(&mut b).unwrap();
        scaler.update().unwrap();
        let expected = [
            Scaled { scale: 16.0 },
            Scaled { scale: 16.0 },
            Unscaled { optimizer: 0, scale: 16.0, found_inf: false },
            Stepped { optimizer: 0, applied: true },
            Unscaled { optimizer: 1, scale: 16.0, found_inf: true },
            Stepped { optimizer: 1, applied: false },
            Updated { from: 16.0, to: 8.0, growth_tracker: 0 },
        ];
        assert_eq!(heard.events(), expected);
    }

    #[test]
    fn the_settings_are_told_once_and_again_when_they_change_or_somebody_joins() {
        let (_vs, p, _) = model();
        let heard = Heard::listening();
        let mut scaler = scaler();
        let two_losses = |scaler: &mut GradScaler| {
            let _ = scaler.scale(&p.sum(Kind::Float));
            let _ = scaler.scale(&p.sum(Kind::Float));
            heard.take()
        };
        let signals = two_losses(&mut scaler);
        let Signal::Config(config) = &signals[0] else { panic!("the settings come first: {signals:?}") };
        assert_eq!((config.init_scale, config.min_scale, config.max_scale), (16.0, Some(1.0), None));
        assert!(!config.foreign && !config.is_static());
        assert_eq!(configs(&signals), 1);
        assert_eq!(configs(&two_losses(&mut scaler)), 0);
        scaler.set_growth_interval(7).unwrap();
        assert_eq!(configs(&two_losses(&mut scaler)), 1);
        let second = Heard::listening();
        assert_eq!(configs(&two_losses(&mut scaler)), 1);
        assert_eq!(configs(&second.take()), 1);
    }

    #[test]
    fn a_disabled_scaler_says_nothing() {
        let (_vs, p, mut optimizer) = model();
        let heard = Heard::listening();
        let mut scaler = GradScaler::builder().enabled(false).build().unwrap();
        scaler.backward(&p.sum(Kind::Float));
        scaler.step(&mut optimizer).unwrap();
        scaler.update().unwrap();
        assert_eq!(heard.take(), []);
    }

    #[test]
    fn a_run_is_the_same_with_and_without_somebody_who_listens() {
        let run = || {
            let (_vs, p, mut optimizer) = model();
            let mut scaler = GradScaler::builder().init_scale(3.0).growth_interval(2).build().unwrap();
            for _ in 0..5 {
                optimizer.zero_grad();
                scaler.backward(&p.square().sum(Kind::Float));
                scaler.step(&mut optimizer).unwrap();
                scaler.update().unwrap();
            }
            (Vec::<f32>::try_from(&p).unwrap(), scaler.state_dict())
        };
        let alone = run();
        let _heard = Heard::listening();
        assert_eq!(run(), alone);
    }
}
