//! ## What it finds
//!
//! Gradients that FP16 cannot hold because they are too small: they fade into the subnormals below 2^-14 = 6.1e-5, where each halving costs a
//! bit, and at 2^-25 they are rounded to zero. What is judged is the gradient *as FP16 held it*, that is, times the loss scale.
//!
//! Fading and lost are told apart. *Fading* is measured: those elements are there. *Lost* is an estimate, and called one: what was rounded to
//! zero leaves no trace in FP16. A comparison with FP32 by `doctor.shadow` measures it, for the layer; a gradient that is whole by such a one is not alarmed about. Without, the
//! estimate continues the power law that the five lowest binades of the gradient follow, and means "or more" where it
//! saturates. Only where backward cast an FP32 gradient to FP16 is it measured, for there both sides are seen.
//!
//! ## Why it matters
//!
//! A layer whose gradient is lost does not learn, and every layer nearer the input gets what is left. The loss flattens early, or
//! drifts, and nothing is NaN. Near the limit training may also diverge, because what is lost often has one sign.
//!
//! ## How it decides
//!
//! Each FP16 gradient of at least 64 elements is given Ehat, the predicted `1 - cosine` between the gradient and what FP16 kept of it, from its
//! exponent histogram alone. A condition holds when it holds in three samples in a row: one small batch is no trend.
//!
//! * **Error**: Ehat above 1e-3 in the median gradient. Of 37 runs that underflow had harmed, all reached 2.2e-3; of 28 healthy ones
//!   none left the floor of 1.7e-8. The median, because one gradient may be starved by design.
//! * **Warning**: Ehat above 1e-4 in the median gradient, or above 1e-2 in one layer.
//! * **Warning**: the largest value of more than half of the gradients lies below 2^-14 = 6.1e-5, as FP16 held it, for three scanned steps. It never alarmed on a healthy run and never missed a harmed one, but comes
//!   about five octaves before harm.
//! * A gradient that is all zero has Ehat 1 only where something was seen to fade: it lay below 2^-14 when it was last non-zero (or would have
//!   at the loss scale in force now), or the gradient it was computed from is starved or too small to survive the next operation. Any other zero
//!   may be exact, as that of a satisfied margin loss is.
//!
//! Where a higher scale would help and there is none, rule `no-loss-scale` speaks instead, and where the scale is static or at its ceiling, rule `static-scale-wrong`.
//!
//! The layer named is the one nearest the loss at which it begins: every layer nearer the input inherits the loss, and is counted. Where
//! the whole gradient is too small from its beginning, no layer is to blame and the finding is about the run.
//!
//! A share of subnormals decides nothing: up to 90 % of a gradient may be subnormal without harm, for its energy lies in its largest elements.
//!
//! ## What to do
//!
//! Set the loss scale that the finding names. It is a power of two out of the window in which every gradient that was seen keeps Ehat below
//! 1e-4 and the largest keeps a bit of headroom. Where that window is empty no scale is good for all layers, and the finding says
//! which layer to change.
//!
//! ## When it stays silent
//!
//! On gradients held in FP32 and BF16. On tensors of less than 64 elements, on steps with a non-finite gradient, on gradients that are zero
//! by design: never non-zero, frozen, behind a gate that starts at zero, behind dead or saturated units, on a branch not taken, under a margin
//! that is satisfied. On a side path: all that may have been lost of it is next to nothing beside the gradient that reaches the layer's parameters by
//! another path. Behind a forward that overflowed. After the scale collapsed because of non-finite gradients: then
//! these are the fault, and rule `non-finite-origin` or `gradient-overflow` names it.

use super::underflow::{Cause, SAMPLES, Seen, THRESHOLDS, may_have_fp16_gradients, see};
use super::{Limits, Needs, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::Aggregate;

/// See the page of the rule.
pub struct GradientUnderflow;

static INFO: RuleInfo = RuleInfo {
    code: "AMP201",
    name: "gradient-underflow",
    severity: Severity::Error,
    summary: "Gradients are too small for FP16 at this loss scale: they fade, and are rounded to zero.",
    source: include_str!("gradient_underflow.rs"),
};

impl Rule for GradientUnderflow {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Scans { steps: SAMPLES as u64, applies: may_have_fp16_gradients }
    }

    fn thresholds(&self) -> &'static [Threshold] {
        THRESHOLDS
    }

    fn thresholds_by_layer(&self) -> &'static [&'static str] {
        &["layer-harmed"]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        match see(aggregate, limits) {
            Seen::Fault(Cause::Other, firing) => vec![Verdict::Firing(firing)],
            Seen::Nothing(Some(samples)) => {
                vec![Verdict::Unsure(format!(
                    "{samples} of {SAMPLES} samples of the gradient were seen; let it run on"
                ))]
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
