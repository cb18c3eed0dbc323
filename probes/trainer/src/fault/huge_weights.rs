//! Weights that outgrow FP16, unseen behind a normalisation.

use super::Fault;

pub(super) struct HugeWeights;

impl Fault for HugeWeights {
    fn name(&self) -> &'static str {
        "huge-weights"
    }

    fn about(&self) -> &'static str {
        "the weights of one layer are ten million times larger (STRENGTH), which a normalisation behind it hides in FP32 and FP16 cannot hold"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn default_strength(&self) -> Option<f64> {
        Some(1e7)
    }

    fn is_felt_in_fp16_alone(&self) -> bool {
        true
    }

    fn weight_factor(&self, strength: f64) -> Option<f64> {
        Some(strength)
    }
}
