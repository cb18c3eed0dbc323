//! A factor that forward does not feel, and backward does.

use tch::{Kind, Tensor};

use super::Fault;
use crate::options::Options;

/// What is taken back by the next operator: the gradient between the two is this many times as large.
const FACTOR: f64 = 4096.0;
/// At it the largest gradient of these models has five octaves of headroom, and that of the planted layer has less than the factor.
const SCALE: f64 = 8192.0;

pub(super) struct BackwardOverflow;

impl Fault for BackwardOverflow {
    fn name(&self) -> &'static str {
        "backward-overflow"
    }

    fn about(&self) -> &'static str {
        "behind LAYER a factor of 2^-12 that the next operator takes back: forward is small, the gradient between the two overflows; static scale"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn is_felt_in_fp16_alone(&self) -> bool {
        true
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        options.static_scale.get_or_insert(SCALE);
        Vec::new()
    }

    fn output(&self, output: Tensor, active: bool, _by_hand: Kind) -> Tensor {
        let factor = if active { FACTOR } else { 1.0 };
        output * (1.0 / factor) * factor
    }
}
