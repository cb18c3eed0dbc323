//! A loss that is not finite where nothing else is seen to be.

use super::super::text::measured;
use super::super::{Firing, Limits, Severity, Threshold};
use super::{NAME, every_step, has_ruined_parameter};
use crate::aggregate::Aggregate;
use crate::observation::Tier;

/// Steps in a row with a non-finite loss that need no scan to be a fault.
pub(super) const LOSS_STEPS: Threshold = Threshold::new(
    NAME,
    "loss-steps",
    3.0,
    "steps in a row",
    "A loss that is not finite so often is a fault, seen or not; one may be scanned at the next step.",
);
/// A loss that is non-finite while nothing observed is.
pub(super) fn loss(aggregate: &Aggregate, limits: &Limits) -> Option<Firing> {
    let nf = &aggregate.non_finite;
    let step = aggregate.latest.as_ref()?;
    if nf.first_unguarded.is_some() || !nf.latest.forward_is_clean() || has_ruined_parameter(aggregate) {
        return None;
    }
    let (since, cause, remedy) = match (step.tier, nf.unseen_loss, nf.loss_bad) {
        (Tier::Full, _, Some((since, _))) if nf.unseen_loss.is_none() => (
            since,
            "Every observed tensor of that step was finite: it was made by operators that are not observed.",
            "Look at what is done to the loss after the model: a logarithm, a division by a count that may be zero, a product in FP16.".into(),
        ),
        (Tier::Full, Some(since), _) => (since, "That step was not scanned: of unobserved origin.", every_step()),
        (_, Some(since), Some((_, n))) if n >= limits.count(&LOSS_STEPS) => (since, "None of these steps was scanned: of unobserved origin.", every_step()),
        _ => return None,
    };
    Some(Firing {
        severity: Severity::Error,
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since,
        strength: 1.0,
        evidence: step.loss.map(|l| measured("loss", l)).into_iter().collect(),
        explanation: format!("The loss was not finite at step {since}. {cause}"),
        remedy: remedy.into(),
    })
}

/// While a non-finite loss of an unscanned step may still be explained by the next scan.
pub(super) fn waits_for_a_scan(aggregate: &Aggregate, limits: &Limits) -> Option<String> {
    let nf = &aggregate.non_finite;
    let since = nf.unseen_loss?;
    let tier = aggregate.latest.as_ref()?.tier;
    let lasts = nf.loss_bad.is_some_and(|(_, n)| n >= limits.count(&LOSS_STEPS));
    (tier != Tier::Full && !lasts && aggregate.end.is_none()).then(|| {
        format!(
            "the loss was not finite at step {since}, which was not scanned; the next scanned step tells more. {}",
            every_step()
        )
    })
}
