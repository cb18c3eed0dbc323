//! A loss scale that somebody sets higher in the middle of a run.

use super::Fault;
use crate::options::Options;

pub(super) struct ScaleRaised;

impl Fault for ScaleRaised {
    fn name(&self) -> &'static str {
        "scale-raised"
    }

    fn about(&self) -> &'static str {
        "the scaler's scale is set 2^12 times higher at one step (STRENGTH); it skips until it has found its place again"
    }

    fn default_strength(&self) -> Option<f64> {
        Some(4096.0)
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        options.need_scaler()
    }

    fn scale_factor(&self, strength: f64) -> f64 {
        strength
    }
}
