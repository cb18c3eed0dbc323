//! An intermediate result that comes near FP16's end.

use tch::Tensor;

use super::Fault;
use crate::options::Options;

/// The largest output of a layer of these models lies between 2 and 8.
const GAIN: f64 = 5000.0;

pub(super) struct NearOverflow;

impl Fault for NearOverflow {
    fn name(&self) -> &'static str {
        "near-overflow"
    }

    fn about(&self) -> &'static str {
        "behind LAYER a product comes within three bits of 65504, and is divided again"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        options.need_fp16()
    }

    fn output(&self, output: Tensor, active: bool) -> Tensor {
        let gain = if active { GAIN } else { 1.0 };
        output * gain / gain
    }
}
