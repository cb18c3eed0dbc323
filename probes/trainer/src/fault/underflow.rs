//! Gradients too small for FP16: everywhere, by a loss scale of next to nothing, or in the gradient of one layer.

use tch::{Kind, Tensor};

use super::Fault;
use crate::options::Options;

/// The largest gradients of these models stand between 2^-10 and 2^-6: with it all are below 2^-20, and those of most layers are lost.
const TINY_SCALE: f64 = 1.0 / 16_384.0;
/// At the usual scales the largest gradient of a layer stands between 2^2 and 2^12: next to nothing is left of it, and of most layers a few
/// subnormals.
const SHRINK: f64 = 1.0 / (1u64 << 34) as f64;

pub(super) struct Underflow;

impl Fault for Underflow {
    fn name(&self) -> &'static str {
        "underflow"
    }

    fn about(&self) -> &'static str {
        "gradients below what FP16 holds: by a static loss scale of 2^-14, or with :LAYER in the gradient of that layer"
    }

    fn is_felt_in_fp16_alone(&self) -> bool {
        true
    }

    /// A loss scale is what the fault is, where it is in no layer.
    fn prepare(&self, options: &mut Options) -> Vec<String> {
        let in_layer = options.fault.as_ref().is_some_and(|spec| spec.layer.is_some());
        if in_layer { Vec::new() } else { options.need_scaler() }
    }

    /// The same values, and 2^-34 of the gradient.
    ///
    /// In FP32 the small part does not change the sum; its gradient is lost on the way back to FP16. No intermediate value is zero: where
    /// nothing passes forward, a gradient of zero would be by design.
    fn output(&self, output: Tensor, active: bool, _by_hand: Kind) -> Tensor {
        let passing = if active { SHRINK } else { 1.0 };
        let wide = output.to_kind(Kind::Float);
        let sum = &wide * passing + wide.detach() * (1.0 - passing);
        sum.to_kind(output.kind())
    }

    fn scale(&self, _strength: f64) -> Option<f64> {
        Some(TINY_SCALE)
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn values_stay_and_the_gradient_shrinks() {
        for (active, gradient) in [(false, 1.0), (true, SHRINK)] {
            let x = Tensor::from_slice(&[1.5f32, -2.0, 0.1]).set_requires_grad(true);
            let y = Underflow.output(x.shallow_clone(), active, Kind::Half);
            assert_eq!(y, x);
            y.sum(Kind::Float).backward();
            assert_eq!(x.grad(), Tensor::full([3], gradient, (Kind::Float, Device::Cpu)));
        }
    }
}
