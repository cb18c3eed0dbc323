//! A loss that is multiplied on its way to backward, and reported as it was before.

use super::Fault;

pub(super) struct WeightedLoss;

impl Fault for WeightedLoss {
    fn name(&self) -> &'static str {
        "weighted-loss"
    }

    fn about(&self) -> &'static str {
        "the loss that is trained on is four times (STRENGTH) the one that is reported, and that its FP32 shadow computes; in any precision"
    }

    fn default_strength(&self) -> Option<f64> {
        Some(4.0)
    }

    fn gradient_factor(&self, strength: f64, _steps: u64) -> f64 {
        strength
    }
}
