//! A schedule that never leaves zero.

use super::Fault;

pub(super) struct LrZero;

impl Fault for LrZero {
    fn name(&self) -> &'static str {
        "lr-zero"
    }

    fn about(&self) -> &'static str {
        "the learning rate is zero: gradients are well, and nothing moves; in any precision"
    }

    fn is_setting(&self) -> bool {
        true
    }

    fn lr_factor(&self, _strength: f64) -> f64 {
        0.0
    }
}
