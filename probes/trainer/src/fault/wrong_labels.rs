//! Data that changes under the run: examples come with the labels of others.

use tch::Tensor;

use super::Fault;

pub(super) struct WrongLabels;

impl Fault for WrongLabels {
    fn name(&self) -> &'static str {
        "wrong-labels"
    }

    fn about(&self) -> &'static str {
        "each example comes with the labels of its neighbour in the batch: the loss jumps, and it is the data; in any precision"
    }

    fn labels(&self, targets: Tensor) -> Tensor {
        targets.roll(1, 0)
    }
}
