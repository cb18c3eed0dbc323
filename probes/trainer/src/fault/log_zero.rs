//! A loss that is the logarithm of zero, in every batch.

use tch::Tensor;

use super::Fault;

pub(super) struct LogZero;

impl Fault for LogZero {
    fn name(&self) -> &'static str {
        "log-zero"
    }

    fn about(&self) -> &'static str {
        "the loss of every batch takes the logarithm of an exact zero; in any precision"
    }

    fn loss(&self, loss: Tensor, _draw: f64, _strength: f64) -> Tensor {
        let zero = &loss - loss.detach();
        loss + zero.log()
    }
}
