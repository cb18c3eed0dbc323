//! A softmax over scores that were cast to FP16 by hand.

use tch::{Kind, Tensor};

use super::Fault;

/// Scores of some hundreds, which FP16 rounds to quarters.
const GAIN: f64 = 60.0;

pub(super) struct HalfSoftmax;

impl Fault for HalfSoftmax {
    fn name(&self) -> &'static str {
        "half-softmax"
    }

    fn about(&self) -> &'static str {
        "behind LAYER a softmax over FP32 scores of some hundreds that are cast to FP16 by hand"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn is_felt_in_fp16_alone(&self) -> bool {
        true
    }

    fn output(&self, output: Tensor, active: bool, by_hand: Kind) -> Tensor {
        let scores = output.to_kind(Kind::Float) * if active { GAIN } else { 1.0 };
        let weights = scores.to_kind(by_hand).softmax(-1, by_hand);
        output + weights
    }
}
