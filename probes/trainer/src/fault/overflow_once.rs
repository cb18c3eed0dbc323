//! One batch whose activations exceed FP16.

use tch::{Kind, Tensor};

use super::Fault;
use super::overflow::Overflow;

pub(super) struct OverflowOnce;

impl Fault for OverflowOnce {
    fn name(&self) -> &'static str {
        "overflow-once"
    }

    fn about(&self) -> &'static str {
        "the output of LAYER exceeds 65504 in FP16 for one batch; a BatchNorm behind it keeps that for ever"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn lasts(&self) -> u64 {
        1
    }

    fn is_felt_in_fp16_alone(&self) -> bool {
        true
    }

    fn output(&self, output: Tensor, active: bool, by_hand: Kind) -> Tensor {
        Overflow.output(output, active, by_hand)
    }
}
