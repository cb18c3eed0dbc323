//! An evaluation that rounds what training does not.

use tch::{Kind, Tensor};

use super::Fault;

pub(super) struct RoundedEvaluation;

impl Fault for RoundedEvaluation {
    fn name(&self) -> &'static str {
        "rounded-evaluation"
    }

    fn about(&self) -> &'static str {
        "evaluation takes its logits through FP16 with an offset of 2048, where FP16 counts in twos; needs --eval-every"
    }

    /// As of a score that is kept as a running sum, or of a mean that is taken off too late.
    fn evaluated(&self, logits: Tensor) -> Tensor {
        (logits.to_kind(Kind::Float) + 2048.0).to_kind(Kind::Half).to_kind(Kind::Float) - 2048.0
    }
}
