//! How a loss scale moves: the arithmetic of ATen's `_amp_update_scale_`, with bounds and hysteresis added.
//!
//! The scaler keeps its scale on the host, so that nothing waits for a device to read it; the tensor that ATen updates is its
//! twin. Both are computed in the same way: the product in f64, rounded once to f32, kept where it would be infinite.

/// What decides how a scale moves; every value has been validated.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Policy {
    pub growth_factor: f64,
    pub backoff_factor: f64,
    pub growth_interval: u64,
    pub min_scale: Option<f32>,
    pub max_scale: Option<f32>,
    pub hysteresis: u64,
}

/// Where a scale stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ScaleState {
    pub scale: f32,
    /// Clean steps since the scale last moved.
    pub growth_tracker: u64,
    /// Non-finite steps in a row.
    pub bad_steps: u64,
}

impl Policy {
    /// The state after a step in which a gradient was not finite (`found_inf`), or none was.
    pub(super) fn next(&self, state: ScaleState, found_inf: bool) -> ScaleState {
        let moved = self.aten(state, found_inf);
        let bad_steps = if found_inf { state.bad_steps.saturating_add(1).min(self.hysteresis) } else { 0 };
        let scale = if found_inf && self.holds(state) { state.scale } else { self.bounded(moved.scale) };
        ScaleState { scale, bad_steps, ..moved }
    }

    /// What ATen's operator makes of scale and growth tracker: neither bounds nor hysteresis.
    pub(super) fn aten(&self, state: ScaleState, found_inf: bool) -> ScaleState {
        if found_inf {
            return ScaleState { scale: times(state.scale, self.backoff_factor), growth_tracker: 0, ..state };
        }
        let growth_tracker = state.growth_tracker + 1;
        if growth_tracker != self.growth_interval {
            return ScaleState { growth_tracker, ..state };
        }
        let grown = times(state.scale, self.growth_factor);
        ScaleState { scale: if grown.is_finite() { grown } else { state.scale }, growth_tracker: 0, ..state }
    }

    /// Whether one more non-finite step leaves the scale where it is, because of hysteresis.
    pub(super) fn holds(&self, state: ScaleState) -> bool {
        state.bad_steps.saturating_add(1) < self.hysteresis
    }

    /// `scale` brought between floor and ceiling.
    pub(super) fn bounded(&self, scale: f32) -> f32 {
        scale.max(self.min_scale.unwrap_or(0.0)).min(self.max_scale.unwrap_or(f32::MAX))
    }
}

/// Rounded once, as ATen does it.
fn times(scale: f32, factor: f64) -> f32 {
    (f64::from(scale) * factor) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy {
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2,
            min_scale: None,
            max_scale: None,
            hysteresis: 1,
        }
    }

    fn at(scale: f32) -> ScaleState {
        ScaleState { scale, growth_tracker: 0, bad_steps: 0 }
    }

    fn scales(policy: &Policy, start: f32, found: &[bool]) -> Vec<f32> {
        let mut state = at(start);
        let step = |&found_inf: &bool| {
            state = policy.next(state, found_inf);
            state.scale
        };
        found.iter().map(step).collect()
    }

    #[test]
    fn the_scale_grows_after_the_interval_and_falls_at_once() {
        assert_eq!(
            scales(&policy(), 8.0, &[false, false, false, true, false, false]),
            [8.0, 16.0, 16.0, 8.0, 8.0, 16.0]
        );
    }

    #[test]
    fn growth_that_would_be_infinite_is_not_taken_but_counts_as_growth() {
        let top = 2f32.powi(127);
        let state = policy().next(ScaleState { growth_tracker: 1, ..at(top) }, false);
        assert_eq!(state, at(top));
    }

    #[test]
    fn without_a_floor_the_scale_can_fall_to_zero() {
        assert_eq!(scales(&policy(), f32::from_bits(1), &[true, true]), [0.0, 0.0]);
    }

    #[test]
    fn the_floor_and_the_ceiling_hold() {
        let bounded = Policy { min_scale: Some(3.0), max_scale: Some(20.0), ..policy() };
        assert_eq!(scales(&bounded, 8.0, &[true, true, true]), [4.0, 3.0, 3.0]);
        assert_eq!(scales(&bounded, 8.0, &[false, false, false, false]), [8.0, 16.0, 16.0, 20.0]);
    }

    #[test]
    fn hysteresis_waits_for_bad_steps_in_a_row() {
        let patient = Policy { hysteresis: 3, ..policy() };
        assert_eq!(
            scales(&patient, 8.0, &[true, true, false, true, true, true, true]),
            [8.0, 8.0, 8.0, 8.0, 8.0, 4.0, 2.0]
        );
    }

    #[test]
    fn a_held_bad_step_still_resets_the_growth_tracker() {
        let patient = Policy { hysteresis: 2, ..policy() };
        let state = patient.next(ScaleState { growth_tracker: 1, ..at(8.0) }, true);
        assert_eq!(state, ScaleState { bad_steps: 1, ..at(8.0) });
    }

    #[test]
    fn a_static_scale_never_moves() {
        let fixed = Policy { growth_factor: 1.0, backoff_factor: 1.0, ..policy() };
        assert_eq!(scales(&fixed, 128.0, &[true, false, false, false, true]), [128.0; 5]);
    }
}
