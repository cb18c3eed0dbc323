//! ## What it finds
//!
//! The first operator, in the order of execution, that made a NaN or an infinity out of finite numbers, in forward or in backward. Also data that
//! came in non-finite, and a parameter that was ruined by its update.
//!
//! ## Why it matters
//!
//! By the time the loss is NaN everything is, and the last layer looks as guilty as the first. No scaler cures a value that the loss scale did not
//! make: it skips the step, halves the scale, and does so again until nothing is left of it.
//!
//! ## How it decides
//!
//! * Forward, **error** at once, in any precision: activations carry no loss scale, so it cannot be the cause.
//! * Backward, **error** at once, where no scale is to blame: the derivative of the operator is infinite (the root, the norm or a power of exact
//!   zero), the gradient is held in FP32 or BF16, or there is no scaler.
//! * Backward in FP16 under a scaler, **error** only for a gradient that is NaN from its beginning, and only when the scale cannot have made it so:
//!   it was seen at two scales that differ by 2^8, or at a scale below 1, or twice while the same gradient had stood 2^8 below 65504. Under a static
//!   scale: three times in 32 steps.
//! * Parameter, **error**: not finite after the step, while nothing before it was.
//! * Loss, **error**: not finite, while every tensor that was looked at is.
//!
//! Where the value arose at a step that was not scanned, the finding says that its origin was not observed.
//!
//! ## What to do
//!
//! Look at the operator named and at its input.
//!
//! * A logarithm, a root or a division needs an epsilon that FP16 can hold, above 2^-24 = 6e-8: `(x + 1e-6).log()`, `x.clamp_min(1e-6).sqrt()`. The
//!   usual 1e-8 is zero in FP16.
//! * A softmax needs one unmasked element in every row.
//! * Take the fused forms: `log_softmax` and `cross_entropy_for_logits`, not `softmax` and then `log`.
//! * For the batch that brings the NaN: `x.isfinite().all()` before forward.
//!
//! Where the origin was not observed, scan every step: `Doctor::builder().every(1).attach(&vs)`. Weights that are NaN do not recover: go back to a
//! checkpoint.
//!
//! ## When it stays silent
//!
//! * On a gradient that is not finite and reaches no parameter: the scaler found all of them finite.
//! * On FP16 gradients that overflow and recover, while a dynamic scaler finds its scale or probes its ceiling.
//! * On -inf that a mask put there, as long as nothing is made of it.
//! * On all that follows from an origin already known: later layers, ruined weights, later steps.
//! * Where another rule says it better: weights ruined by an optimizer's `eps` (`vanishing-eps`), a softmax over a row that is masked as a whole
//!   (`masked-row`), buffers (`poisoned-buffer`).

mod advice;
mod backward;
mod forward;
mod loss;
mod parameter;

pub(super) use self::backward::is_pole_of_derivative;
use self::backward::{INDEPENDENT_RATIO, REPEATED, REPEATED_STATIC, backward};
use self::forward::{brought_in, forward};
use self::loss::{LOSS_STEPS, loss, waits_for_a_scan};
use self::parameter::parameter;
use super::text::{counted, measured, said};
use super::{Firing, Limits, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict, masked_row};
use crate::aggregate::{Aggregate, Origin};
use crate::observation::{Probe, Site};

const NAME: &str = "non-finite-origin";
/// See the page of the rule.
pub struct NonFiniteOrigin;

static INFO: RuleInfo = RuleInfo {
    code: "AMP501",
    name: NAME,
    severity: Severity::Error,
    summary: "The first operator that made a NaN or an infinity, not because of the loss scale.",
    source: include_str!("non_finite_origin.rs"),
};

impl Rule for NonFiniteOrigin {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[INDEPENDENT_RATIO, REPEATED, REPEATED_STATIC, LOSS_STEPS]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        if let Some(unsure) = waits_for_a_scan(aggregate, limits) {
            return vec![Verdict::Unsure(unsure)];
        }
        if masked_row::origin(aggregate).is_some() {
            return Vec::new();
        }
        // Between two scans nothing new is seen: then it was last seen at the scan before.
        let is_seen_now = aggregate.non_finite.is_of_latest_step(aggregate.latest.as_ref());
        let seen = || is_seen_now.then_some(aggregate);
        let first = seen()
            .and_then(forward)
            .or_else(|| seen().and_then(brought_in))
            .or_else(|| seen().and_then(parameter))
            .or_else(|| seen().and_then(|aggregate| backward(aggregate, limits)))
            .or_else(|| loss(aggregate, limits));
        first.into_iter().map(|f| Verdict::Firing(Box::new(f))).collect()
    }
}

/// Whether a parameter is not finite: then all that forward and backward make of it is a consequence.
pub(super) fn has_ruined_parameter(aggregate: &Aggregate) -> bool {
    aggregate.sites.iter().any(|s| s.site.probe == Probe::Param && s.latest().is_some_and(|l| l.stats.non_finite() > 0))
}

fn firing(
    aggregate: &Aggregate,
    site: &Site,
    origin: &Origin,
    cause: &str,
    explanation: String,
    remedy: Remedy,
) -> Firing {
    let mut evidence = vec![
        said("cause", cause),
        said("dtype", site.dtype.name()),
        counted("nan_elements", origin.nan),
        counted("infinite_elements", origin.inf),
        counted("elements", origin.count),
    ];
    evidence.extend(origin.loss_scale.map(|s| measured("loss_scale", s)));
    evidence.extend(aggregate.latest.as_ref().and_then(|s| s.loss).map(|l| measured("loss", l)));
    Firing {
        severity: Severity::Error,
        layer: site.layer.clone(),
        operator: site.operator.clone(),
        probe: Some(site.probe),
        since: origin.step,
        strength: 1.0,
        evidence,
        explanation,
        remedy,
    }
}

/// The last scanned step, where steps that were not scanned lie between it and the latest.
fn unobserved_since(aggregate: &Aggregate) -> Option<u64> {
    let nf = &aggregate.non_finite;
    match nf.previous_full_step {
        Some(previous) => (nf.latest_step > previous + 1).then_some(previous),
        None => (nf.latest_step > 0).then_some(0),
    }
}

fn every_step() -> String {
    "Scan every step to see where it begins: `Doctor::builder().every(1)`.".into()
}

fn kind(origin: &Origin) -> &'static str {
    match (origin.nan, origin.inf) {
        (_, 0) => "NaN",
        (0, _) => "an infinity",
        _ => "NaN and infinities",
    }
}

#[cfg(test)]
mod tests;
