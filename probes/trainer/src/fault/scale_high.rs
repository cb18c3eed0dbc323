//! A static loss scale at which the gradients overflow.

use super::Fault;
use crate::options::Options;

/// The gradient of the logits of 64 images, or of 256 characters, is up to 2^-6 or 2^-8 at each: with it all are beyond 65504.
const HIGH: f64 = (1u64 << 26) as f64;

pub(super) struct ScaleHigh;

impl Fault for ScaleHigh {
    fn name(&self) -> &'static str {
        "scale-high"
    }

    fn about(&self) -> &'static str {
        "a static loss scale of 2^26 (STRENGTH), at which gradients overflow and every step is skipped"
    }

    fn is_setting(&self) -> bool {
        true
    }

    fn default_strength(&self) -> Option<f64> {
        Some(HIGH)
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        options.need_scaler()
    }

    fn scale(&self, strength: f64) -> Option<f64> {
        Some(strength)
    }
}
