//! A schedule that counts steps that were never taken.

use tch::Tensor;

use super::Fault;
use crate::options::Options;

/// Steps whose gradients overflow.
const BAD_STEPS: u64 = 3;
/// Steps over which the learning rate halves each time.
const HALVINGS: u64 = 3;

pub(super) struct SchedulerAhead;

impl Fault for SchedulerAhead {
    fn name(&self) -> &'static str {
        "scheduler-ahead"
    }

    fn about(&self) -> &'static str {
        "three batches overflow, and a schedule halves the learning rate at each of them"
    }

    fn is_setting(&self) -> bool {
        true
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        options.need_scaler()
    }

    fn loss_after(&self, loss: Tensor, steps: u64) -> Tensor {
        if steps < BAD_STEPS { overflowing(&loss) } else { loss }
    }

    fn lr_factor_after(&self, steps: u64) -> f64 {
        0.5f64.powi(steps.min(HALVINGS) as i32)
    }
}

/// The same loss, with gradients that are infinite once they are scaled.
fn overflowing(loss: &Tensor) -> Tensor {
    const LARGE: f64 = 1e38;
    let large = loss * LARGE;
    &large - large.detach() + loss.detach()
}
