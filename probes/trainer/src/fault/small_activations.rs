//! Activations too small for FP16.

use tch::{Kind, Tensor};

use super::Fault;

/// FP16's numbers end at 6e-8: of outputs around 1 a few bits are left.
const FACTOR: f64 = 1e-7;

pub(super) struct SmallActivations;

impl Fault for SmallActivations {
    fn name(&self) -> &'static str {
        "small-activations"
    }

    fn about(&self) -> &'static str {
        "the output of LAYER is a ten-millionth of what it was: FP16 keeps a few bits of it"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn is_felt_in_fp16_alone(&self) -> bool {
        true
    }

    fn output(&self, output: Tensor, active: bool, _by_hand: Kind) -> Tensor {
        output * if active { FACTOR } else { 1.0 }
    }
}
