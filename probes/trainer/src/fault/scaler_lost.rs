//! A scaler that is made anew in the middle of a run, as after a checkpoint that does not hold its state.

use super::Fault;
use crate::options::Options;

pub(super) struct ScalerLost;

/// A scale that no model's gradients fit, so that there is a place to be found and lost.
const TOO_HIGH: f64 = 16_777_216.0;

impl Fault for ScalerLost {
    fn name(&self) -> &'static str {
        "scaler-lost"
    }

    fn about(&self) -> &'static str {
        "the scaler is made anew, as after a checkpoint without its state; its init_scale, 2^24, is too high"
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        options.init_scale = TOO_HIGH;
        options.need_scaler()
    }

    fn renews_scaler(&self) -> bool {
        true
    }
}
