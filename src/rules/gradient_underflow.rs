//! ## What it finds
//!
//! Gradients too small for FP16: they fade below 2^-14 = 6.1e-5, where each halving costs a bit, and at 2^-25 = 3.0e-8 they are rounded to zero. What
//! is judged is the gradient *as FP16 held it*, that is, times the loss scale; the finding also tells its size without.
//!
//! *Fading* is measured: those elements are there to be counted. *Lost* is an estimate, and called one, for what was rounded to zero leaves no trace
//! in FP16. It continues the tail of the exponents that are left, and means "or more" where it ends. It is measured only where backward cast an FP32
//! gradient to FP16, so that both sides were seen, and by `doctor.shadow`.
//!
//! ## Why it matters
//!
//! A layer whose gradient is lost does not learn, and every layer nearer the input gets what is left. The loss flattens early, or drifts, and nothing
//! is NaN. Close to the limit training may also diverge, because what is lost often has one sign.
//!
//! ## How it decides
//!
//! By Ehat of each FP16 gradient of 64 elements or more. Each condition has to hold in three scanned steps in a row: one small batch is no trend.
//!
//! * **Error**: half of the gradients or more have an Ehat above 1e-3 (their median). Of 37 runs that underflow had harmed all reached 2.2e-3; of 28
//!   healthy ones none left 1.7e-8. The median, because a single gradient may be tiny by design.
//! * **Warning**: the median is above 1e-4, or one layer is above 1e-2.
//! * **Warning**: more than half of the gradients lie wholly below 2^-14 = 6.1e-5. This never alarmed on a healthy run and never missed a harmed one,
//!   but comes about five octaves before harm.
//!
//! A gradient that is all zero counts as lost (Ehat 1) only where something was seen to fade: it lay below 2^-14 when it was last non-zero, or the
//! gradient it was computed from is lost or too small to survive the next operator. Any other zero may be right, as that of a margin loss that is
//! satisfied.
//!
//! The layer named is the one nearest the loss at which it begins: every layer nearer the input inherits the loss, and is counted. Where the gradient
//! is too small from the loss on, no layer is to blame and the finding is about the run. Where there is no loss scale, rule `no-loss-scale` speaks
//! instead; where it is static or at its ceiling, rule `static-scale-wrong`.
//!
//! The share of subnormals decides nothing: up to 90 % of a gradient may be subnormal without harm, because its largest elements make its direction.
//!
//! ## What to do
//!
//! Set the loss scale that the finding names: `GradScaler::builder().init_scale(8192.0).build()?`. It is a power of two at which every gradient that
//! was seen keeps Ehat below 1e-4 and the largest keeps a bit of headroom. Where no scale does both, the finding names the layer to change: look
//! there for a factor that shrinks what passes backward (a temperature, a mean over many elements, a tiny gain), or run that layer in FP32,
//! `no_autocast(|| layer.forward(&x.to_kind(Kind::Float)))`. `ampdoctor whatif RUN` shows every scale, layer by layer.
//!
//! ## When it stays silent
//!
//! * On gradients held in FP32 or BF16, on tensors of less than 64 elements, on steps with a gradient that is not finite.
//! * On gradients that are zero by design: never non-zero, frozen, behind a gate that starts at zero, behind dead or saturated units, on a branch not
//!   taken, under a margin that is satisfied.
//! * On a gradient that `doctor.shadow` found to be whole, and on a side path of which little is missing beside the gradient that reaches the layer's
//!   parameters by another path.
//! * Where forward overflowed, or the scale collapsed because gradients were not finite: then that is the fault, and rule `activation-overflow`,
//!   `non-finite-origin` or `gradient-overflow` names it.

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
