//! FP16 without a loss scale, under a loss whose gradients need one.

use tch::Tensor;

use super::Fault;
use crate::options::Options;

pub(super) struct NoScaler;

impl Fault for NoScaler {
    fn name(&self) -> &'static str {
        "no-scaler"
    }

    fn about(&self) -> &'static str {
        "FP16 without a loss scale, the loss weighted with 2^-14 (STRENGTH), so that its gradients need one"
    }

    fn is_setting(&self) -> bool {
        true
    }

    fn default_strength(&self) -> Option<f64> {
        Some(1.0 / 16_384.0)
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        options.need_scaler()
    }

    /// As of a term that is weighted against larger ones, or a mean over every pixel: Adam does not mind in FP32.
    fn loss(&self, loss: Tensor, _draw: f64, strength: f64) -> Tensor {
        loss * strength
    }

    fn drops_scaler(&self) -> bool {
        true
    }
}
