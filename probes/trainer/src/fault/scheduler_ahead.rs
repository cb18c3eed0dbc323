//! A schedule that counts steps that were never taken.

use super::Fault;
use crate::options::Options;

/// So far above what gradients of these models bear that the scaler withholds more than three steps before it fits.
const TOO_HIGH: f64 = (1u64 << 26) as f64;
/// Steps over which the learning rate halves each time.
const HALVINGS: u64 = 3;

pub(super) struct SchedulerAhead;

impl Fault for SchedulerAhead {
    fn name(&self) -> &'static str {
        "scheduler-ahead"
    }

    fn about(&self) -> &'static str {
        "the loss scale begins too high, and a schedule halves the learning rate at each of the first three steps that are withheld for it"
    }

    fn is_setting(&self) -> bool {
        true
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        options.init_scale = TOO_HIGH;
        options.need_scaler()
    }

    fn lr_factor_after(&self, _strength: f64, steps: u64) -> f64 {
        0.5f64.powi(steps.min(HALVINGS) as i32)
    }
}
