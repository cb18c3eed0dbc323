//! A static loss scale at which the gradients vanish.

use super::Fault;
use crate::options::Options;

/// The largest gradients of these models stand between 2^-10 and 2^-6: with it all are below 2^-25, which FP16 rounds to zero.
const LOW: f64 = 1.0 / (1u64 << 20) as f64;

pub(super) struct ScaleLow;

impl Fault for ScaleLow {
    fn name(&self) -> &'static str {
        "scale-low"
    }

    fn about(&self) -> &'static str {
        "a static loss scale of 2^-20 (STRENGTH), at which gradients vanish"
    }

    fn is_setting(&self) -> bool {
        true
    }

    fn default_strength(&self) -> Option<f64> {
        Some(LOW)
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        options.need_scaler()
    }

    fn scale(&self, strength: f64) -> Option<f64> {
        Some(strength)
    }
}
