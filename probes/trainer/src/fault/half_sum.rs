//! A sum in FP16 over more than it can hold.

use tch::{Kind, Tensor};

use super::Fault;

pub(super) struct HalfSum;

impl Fault for HalfSum {
    fn name(&self) -> &'static str {
        "half-sum"
    }

    fn about(&self) -> &'static str {
        "what LAYER gives is divided by a sum over it, taken in FP16: it exceeds 65504"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn is_felt_in_fp16_alone(&self) -> bool {
        true
    }

    fn output(&self, output: Tensor, active: bool, by_hand: Kind) -> Tensor {
        let counted = output.to_kind(by_hand).abs() * if active { 100.0 } else { 0.02 };
        &output / (counted.sum(by_hand) * 1e-6 + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_infinite_and_nothing_is_left() {
        let x = Tensor::ones([1024], (Kind::Half, tch::Device::Cpu));
        let largest = |active| f64::try_from(HalfSum.output(x.shallow_clone(), active, Kind::Half).max()).unwrap();
        assert!(largest(false) > 0.99);
        assert_eq!(largest(true), 0.0);
    }
}
