//! A binary cross-entropy by hand in FP16: the sigmoid is exactly 1, and the logarithm of what is left infinite.

use tch::{Kind, Tensor};

use super::Fault;

/// FP16's sigmoid is 1 from 8.3 on.
const GAIN: f64 = 30.0;
/// Zero in FP16.
const EPS: f64 = 1e-8;

pub(super) struct SaturatedLog;

impl Fault for SaturatedLog {
    fn name(&self) -> &'static str {
        "saturated-log"
    }

    fn about(&self) -> &'static str {
        "behind LAYER the logarithm of 1 - sigmoid + 1e-8 in FP16: the sigmoid becomes exactly 1"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn is_felt_in_fp16_alone(&self) -> bool {
        true
    }

    fn output(&self, output: Tensor, active: bool, by_hand: Kind) -> Tensor {
        let p = (output.to_kind(by_hand) * if active { GAIN } else { 0.1 }).sigmoid();
        let rest: Tensor = 1.0 - p;
        let surprise = (rest + EPS).log();
        output + surprise * 0.01
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_output_becomes_infinite() {
        let x = Tensor::from_slice(&[1.0f32, -1.0]).to_kind(Kind::Half);
        let is_finite = |active| {
            f64::try_from(SaturatedLog.output(x.shallow_clone(), active, Kind::Half).isfinite().all()).unwrap()
        };
        assert_eq!((is_finite(false), is_finite(true)), (1.0, 0.0));
    }
}
