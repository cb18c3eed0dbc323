//! A scale as ATen's operators see it: the twin, on the device of the loss, of the state that the host keeps.

use tch::{Device, Kind, Tensor};

use super::ScalerError;
use super::policy::{Policy, ScaleState};
use crate::events;

/// One FP32 scale and one int32 growth tracker, as `_amp_update_scale_` wants them.
#[derive(Debug)]
pub(super) struct ScaleTensors {
    scale: Tensor,
    growth_tracker: Tensor,
}

impl ScaleTensors {
    pub(super) fn new(state: ScaleState, device: Device) -> Result<ScaleTensors, ScalerError> {
        Ok(ScaleTensors {
            scale: Tensor::f_full([1], f64::from(state.scale), (Kind::Float, device))?,
            growth_tracker: Tensor::f_full([1], state.growth_tracker as i64, (Kind::Int, device))?,
        })
    }

    /// Brings the tensors from `state` to what the policy makes of it. ATen's operator moves them, as in every scaler, so that whoever observes
    /// operators sees it; bounds and hysteresis are written over it. Nothing waits for the device.
    pub(super) fn update(&mut self, policy: &Policy, state: ScaleState, found_inf: bool) -> Result<(), ScalerError> {
        let next = policy.next(state, found_inf);
        let moved = if found_inf && policy.holds(state) {
            state
        } else {
            self.move_by_aten(policy, found_inf)?;
            policy.aten(state, found_inf)
        };
        if (moved.scale, moved.growth_tracker) != (next.scale, next.growth_tracker) {
            self.write(next)?;
        }
        Ok(())
    }

    /// Sets the tensors to `state`.
    pub(super) fn write(&mut self, state: ScaleState) -> Result<(), ScalerError> {
        let _ = self.scale.f_fill_(f64::from(state.scale))?;
        let _ = self.growth_tracker.f_fill_(state.growth_tracker as i64)?;
        Ok(())
    }

    fn move_by_aten(&mut self, policy: &Policy, found_inf: bool) -> Result<(), ScalerError> {
        let found_inf = f64::from(u8::from(found_inf));
        let found_inf = Tensor::f_full([1], found_inf, (Kind::Float, self.scale.device()))?;
        let _ = events::as_scaler(|| {
            self.scale.f_internal_amp_update_scale_(
                &self.growth_tracker,
                &found_inf,
                policy.growth_factor,
                policy.backoff_factor,
                policy.growth_interval as i64,
            )
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies() -> Vec<Policy> {
        let plain = Policy {
            growth_factor: 1.3,
            backoff_factor: 0.7,
            growth_interval: 2,
            min_scale: None,
            max_scale: None,
            hysteresis: 1,
        };
        let bounded = Policy { min_scale: Some(0.9), max_scale: Some(5.5), ..plain.clone() };
        let patient = Policy { hysteresis: 2, growth_interval: 1, ..plain.clone() };
        let fixed = Policy { growth_factor: 1.0, backoff_factor: 1.0, ..plain.clone() };
        vec![plain, bounded, patient, fixed]
    }

    /// A fixed sequence of clean and bad steps with runs of both: the parity of a linear congruential generator's high bits.
    fn steps(seed: u64) -> impl Iterator<Item = bool> {
        let next = |x: &u64| Some(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        std::iter::successors(Some(seed), next).skip(1).map(|x| (x >> 60) < 6).take(400)
    }

    #[test]
    fn the_host_and_the_tensors_never_part() {
        tch::set_num_threads(1);
        let starts = [3.0, 5.0e37, f32::from_bits(9)];
        for (seed, policy) in policies().iter().enumerate() {
            for start in starts {
                let mut state = ScaleState { scale: policy.bounded(start), growth_tracker: 0, bad_steps: 0 };
                let mut tensors = ScaleTensors::new(state, Device::Cpu).unwrap();
                for found_inf in steps(seed as u64) {
                    tensors.update(policy, state, found_inf).unwrap();
                    state = policy.next(state, found_inf);
                    assert_eq!(f64::try_from(&tensors.scale).unwrap(), f64::from(state.scale), "{policy:?}");
                    assert_eq!(
                        i64::try_from(&tensors.growth_tracker).unwrap(),
                        state.growth_tracker as i64,
                        "{policy:?}"
                    );
                }
            }
        }
    }
}
