//! A layer norm written by hand in FP16, over values that grow.

use tch::{Kind, Tensor};

use super::Fault;

/// The outputs of these models have a spread of 0.3 to 2: this many times it is in the hundreds, and its square beyond 65504.
const GAIN: f64 = 500.0;
const EPS: f64 = 1e-5;

pub(super) struct HalfNorm;

impl Fault for HalfNorm {
    fn name(&self) -> &'static str {
        "half-norm"
    }

    fn about(&self) -> &'static str {
        "a layer norm by hand in FP16 behind LAYER, over values of some hundreds: its variance is infinite, its output zero"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn is_felt_in_fp16_alone(&self) -> bool {
        true
    }

    fn output(&self, output: Tensor, active: bool, by_hand: Kind) -> Tensor {
        let x = output.to_kind(by_hand) * if active { GAIN } else { 1.0 };
        let difference = &x - x.mean_dim(-1, true, by_hand);
        let variance = difference.square().mean_dim(-1, true, by_hand);
        difference / (variance + EPS).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_normalises_until_it_gives_zeros() {
        let x = Tensor::from_slice(&[-1.0f32, 0.0, 1.0]).to_kind(Kind::Half);
        let largest =
            |active| f64::try_from(HalfNorm.output(x.shallow_clone(), active, Kind::Half).abs().max()).unwrap();
        assert!((largest(false) - 1.2247).abs() < 1e-2);
        assert_eq!(largest(true), 0.0);
    }
}
