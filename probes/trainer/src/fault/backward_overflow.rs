//! A factor that forward does not feel, and backward does.

use tch::Tensor;

use super::Fault;
use crate::options::Options;

/// What is taken back by the next operator: the gradient between the two is this many times as large.
const FACTOR: f64 = 1000.0;
/// The largest gradients of these models stand at 2^10 there.
const SCALE: f64 = 65536.0;

pub(super) struct BackwardOverflow;

impl Fault for BackwardOverflow {
    fn name(&self) -> &'static str {
        "backward-overflow"
    }

    fn about(&self) -> &'static str {
        "behind LAYER a factor of 0.001 that the next operator takes back: forward is small, the gradient between the two overflows; static scale"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        options.static_scale.get_or_insert(SCALE);
        options.need_scaler()
    }

    fn output(&self, output: Tensor, active: bool) -> Tensor {
        let factor = if active { FACTOR } else { 1.0 };
        output * (1.0 / factor) * factor
    }
}
