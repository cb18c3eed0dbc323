//! A gradient too large for FP16 in a layer whose forward is ordinary.

use tch::{Kind, Tensor};

use super::Fault;

/// At the usual scales the largest gradient of a layer stands between 2^2 and 2^12: whatever the scale does, this is beyond 65504 for long.
const GROWTH: f64 = (1u64 << 30) as f64;

pub(super) struct Inflated;

impl Fault for Inflated {
    fn name(&self) -> &'static str {
        "inflated-gradient"
    }

    fn about(&self) -> &'static str {
        "the gradient of LAYER is 2^30 times larger than it should be, its output is ordinary"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn is_felt_in_fp16_alone(&self) -> bool {
        true
    }

    /// The same values: what is added is zero, and only its gradient is not.
    fn output(&self, output: Tensor, active: bool, _by_hand: Kind) -> Tensor {
        let wide = output.to_kind(Kind::Float);
        let more = &wide * if active { GROWTH } else { 0.0 };
        (wide + (&more - more.detach())).to_kind(output.kind())
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn values_stay_and_the_gradient_grows() {
        for (active, gradient) in [(false, 1.0), (true, GROWTH + 1.0)] {
            let x = Tensor::from_slice(&[1.5f32, -2.0, 0.1]).set_requires_grad(true);
            let y = Inflated.output(x.shallow_clone(), active, Kind::Half);
            assert_eq!(y, x);
            y.sum(Kind::Float).backward();
            assert_eq!(x.grad(), Tensor::full([3], gradient, (Kind::Float, Device::Cpu)));
        }
    }
}
