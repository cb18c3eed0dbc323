//! Gradients that fade from layer to layer.

use tch::Tensor;

use super::Fault;

pub(super) struct Fading;

impl Fault for Fading {
    fn name(&self) -> &'static str {
        "fading"
    }

    fn about(&self) -> &'static str {
        "each layer hands on a hundredth of its gradient (STRENGTH 0.01), as saturated units do; FP16 loses it on the way to the input"
    }

    fn default_strength(&self) -> Option<f64> {
        Some(0.01)
    }

    fn is_felt_in_fp16_alone(&self) -> bool {
        true
    }

    /// The value stays what it was, the gradient shrinks.
    fn every_output(&self, output: Tensor, strength: f64) -> Tensor {
        let passed = &output * strength;
        let rest = (&output - &passed).detach();
        passed + rest
    }
}
