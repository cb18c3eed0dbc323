//! A sum in FP16 over more than it can hold.

use tch::{Kind, Tensor};

use super::Fault;
use crate::options::Options;

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

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        options.need_fp16()
    }

    fn output(&self, output: Tensor, active: bool) -> Tensor {
        let counted = output.to_kind(Kind::Half).abs() * if active { 100.0 } else { 0.02 };
        &output / (counted.sum(Kind::Half) * 1e-6 + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_infinite_and_nothing_is_left() {
        let x = Tensor::ones([1024], (Kind::Half, tch::Device::Cpu));
        let largest = |active| f64::try_from(HalfSum.output(x.shallow_clone(), active).max()).unwrap();
        assert!(largest(false) > 0.99);
        assert_eq!(largest(true), 0.0);
    }
}
