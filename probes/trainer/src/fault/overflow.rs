//! An activation larger than FP16's largest number.

use tch::{Kind, Tensor};

use super::Fault;

/// The largest output of a layer of these models is above 0.1: this many times it is above 65504.
const GAIN: f64 = (1u64 << 20) as f64;

pub(super) struct Overflow;

impl Fault for Overflow {
    fn name(&self) -> &'static str {
        "overflow"
    }

    fn about(&self) -> &'static str {
        "behind LAYER a product exceeds 65504, and is divided again: FP32 does not feel it"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn is_felt_in_fp16_alone(&self) -> bool {
        true
    }

    /// Infinite in FP16, and infinite still when divided; elsewhere the same values, to the bit.
    fn output(&self, output: Tensor, active: bool, _by_hand: Kind) -> Tensor {
        let gain = if active { GAIN } else { 1.0 };
        output * gain / gain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_half_output_becomes_infinite_and_a_wider_one_stays_what_it_was() {
        for (kind, infinite) in [(Kind::Half, true), (Kind::BFloat16, false), (Kind::Float, false)] {
            let x = Tensor::from_slice(&[0.1f32, -3.0]).to_kind(kind);
            let y = Overflow.output(x.shallow_clone(), true, Kind::Half);
            assert_eq!(f64::try_from(y.isinf().all()).unwrap() == 1.0, infinite, "{kind:?}");
            assert_eq!(y == x, !infinite, "{kind:?}");
        }
    }
}
