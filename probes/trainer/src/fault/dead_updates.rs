//! Parameters in 16 bits and updates too small for them.

use super::Fault;
use crate::options::Options;
use crate::precision::Precision;

pub(super) struct DeadUpdates;

impl Fault for DeadUpdates {
    fn name(&self) -> &'static str {
        "dead-updates"
    }

    fn about(&self) -> &'static str {
        "parameters in 16 bits without FP32 copies, the learning rate multiplied by 0.002 (STRENGTH): most updates round to nothing"
    }

    fn is_setting(&self) -> bool {
        true
    }

    fn default_strength(&self) -> Option<f64> {
        Some(0.002)
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        if options.precision.is_pure() {
            return Vec::new();
        }
        options.need_precision(Precision::Fp16Pure).into_iter().collect()
    }

    fn lr_factor(&self, strength: f64) -> f64 {
        strength
    }
}
