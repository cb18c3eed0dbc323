//! An activation larger than FP16's largest number.

use tch::{Kind, Tensor};

use super::Fault;

/// The largest output of a layer of these models is above 0.1: this many times it is above 65504.
const GAIN: f64 = 1e6;

pub(super) struct Overflow;

impl Fault for Overflow {
    fn name(&self) -> &'static str {
        "overflow"
    }

    fn about(&self) -> &'static str {
        "the output of LAYER exceeds 65504 in FP16"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn is_felt_in_fp16_alone(&self) -> bool {
        true
    }

    fn output(&self, output: Tensor, active: bool, _by_hand: Kind) -> Tensor {
        output * if active { GAIN } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_half_output_becomes_infinite() {
        let y = Overflow.output(Tensor::from_slice(&[0.1f32, -3.0]).to_kind(Kind::Half), true, Kind::Half);
        assert_eq!(f64::try_from(y.isinf().all()).unwrap(), 1.0);
    }
}
