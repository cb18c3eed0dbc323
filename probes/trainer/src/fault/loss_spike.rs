//! One batch whose gradient is finite, and its square is not.

use tch::Tensor;

use super::Fault;
use crate::optimizer::OptimizerKind;
use crate::options::Options;
use crate::precision::Precision;

/// Gradients of 1e-3 and more become 1e23, whose squares FP32 cannot hold.
const GAIN: f64 = 1e26;

pub(super) struct LossSpike;

impl Fault for LossSpike {
    fn name(&self) -> &'static str {
        "loss-spike"
    }

    fn about(&self) -> &'static str {
        "the loss of one batch is so large that Adam's second moment becomes infinite, in FP32"
    }

    fn lasts(&self) -> u64 {
        1
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        let precision = options.need_precision(Precision::Fp32);
        precision.into_iter().chain(options.need_optimizer(OptimizerKind::Adam)).collect()
    }

    fn loss(&self, loss: Tensor, _draw: f64, _strength: f64) -> Tensor {
        loss * GAIN
    }
}
