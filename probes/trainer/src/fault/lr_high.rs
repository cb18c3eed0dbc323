//! A learning rate that throws the weights about.

use super::Fault;

pub(super) struct LrHigh;

impl Fault for LrHigh {
    fn name(&self) -> &'static str {
        "lr-high"
    }

    fn about(&self) -> &'static str {
        "the learning rate is a hundred times too high (STRENGTH 100); in any precision"
    }

    fn default_strength(&self) -> Option<f64> {
        Some(100.0)
    }

    fn lr_factor(&self, strength: f64) -> f64 {
        strength
    }
}
