//! A loss scale that grows again before it has been of use.

use super::Fault;
use crate::options::Options;

pub(super) struct ShortInterval;

impl Fault for ShortInterval {
    fn name(&self) -> &'static str {
        "short-interval"
    }

    fn about(&self) -> &'static str {
        "the loss scale grows after every 10 clean steps (STRENGTH 10), so that every eleventh is skipped"
    }

    fn is_setting(&self) -> bool {
        true
    }

    fn default_strength(&self) -> Option<f64> {
        Some(10.0)
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        options.need_scaler()
    }

    fn growth_interval(&self, strength: f64) -> Option<u32> {
        Some(strength as u32)
    }
}
