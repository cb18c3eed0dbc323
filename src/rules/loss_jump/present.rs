//! What has become of a jump by now: the loss at present, and whether anything of what was learnt is left.

use super::{AFTER, UNDONE};
use crate::aggregate::{Aggregate, Loss, Losses, median};
use crate::rules::text::number;
use crate::rules::{Evidence, Finding, Severity, Value};

/// The evidence that is kept up to date.
pub(super) const LOSS_NOW: &str = "loss_now";
/// The evidence that all but the highest outliers before the jump lay below this.
pub(super) const TOP: &str = "loss_before_at_most";

/// A run that is within this part of its first loss is where it began.
const BEGAN: f64 = 0.97;
/// Part of the first loss that must have been learnt for it to be lost.
const LEARNT: f64 = 0.1;

/// Adds to what is said of the jump how high the loss is now. Information on a jump becomes a warning once nothing of what was learnt is left for
/// as long as losses are remembered.
pub(super) fn tell(finding: &mut Finding, aggregate: &Aggregate) {
    let (Some(before), Some(top)) = (of(finding, "loss_before"), of(finding, TOP)) else { return };
    let Some(latest) = aggregate.losses.recent.back() else { return };
    let Some(now) = aggregate.losses.present().filter(|_| latest.loss.is_finite()) else {
        finding.explanation += &format!(" At step {} it is not finite.", latest.step);
        return;
    };
    if let Some(evidence) = finding.evidence.iter_mut().find(|e| e.name == LOSS_NOW) {
        evidence.value = Value::Number(now);
    }
    let initial = aggregate.losses.initial().unwrap_or(f64::NAN);
    let is_lost = nothing_is_left(&aggregate.losses, finding.onset_step, before);
    let became = match () {
        () if is_lost => {
            finding.severity = finding.severity.max(Severity::Warning);
            format!(
                "it began at {}, and for {} losses nothing of what was learnt has come back",
                number(initial),
                Losses::WINDOW
            )
        }
        () if initial > before && now - before >= UNDONE * (initial - before) => {
            format!("it began at {}, and what was learnt is gone so far", number(initial))
        }
        () if now > top => "it is still up".into(),
        () => "it has come down again".into(),
    };
    finding.explanation += &format!(" At step {} the loss is {}: {became}.", latest.step, number(now));
}

fn of(finding: &Finding, name: &str) -> Option<f64> {
    finding.evidence.iter().find(|e| e.name == name).and_then(|Evidence { value, .. }| match value {
        Value::Number(x) => Some(*x),
        _ => None,
    })
}

/// Whether all losses that are remembered came after the jump and lie where the run began, the oldest as well as the latest.
fn nothing_is_left(losses: &Losses, onset: u64, before: f64) -> bool {
    let Some(initial) = losses.initial().filter(|&initial| initial > 0.0 && before <= (1.0 - LEARNT) * initial) else {
        return false;
    };
    let recent = || losses.recent.iter().map(|at: &Loss| at.loss).filter(|loss| loss.is_finite());
    let are_after = losses.recent.len() == Losses::WINDOW && losses.recent.front().is_some_and(|at| at.step >= onset);
    let is_high = |some: Option<f64>| some.is_some_and(|loss| loss >= BEGAN * initial);
    let middle = median(recent());
    are_after && is_high(median(recent().take(AFTER))) && is_high(middle) && is_high(losses.present())
}
