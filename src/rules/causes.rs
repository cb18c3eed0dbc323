//! Which findings follow from which: several symptoms of one cause are one finding, with its consequences under it.
//!
//! [`ROWS`] is the whole knowledge: a cause, what follows from it, where and when. A finding for which no row holds stands on its own; so does one
//! that began before what could explain it, or in a layer that the cause does not reach. Information explains nothing graver than information.
//!
//! As a graph of codes the table has no cycle, so that of two findings one is the cause and never each of the other.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::exploding_updates::SKIPPED_BEFORE;
use super::underflow::MEDIAN_EHAT;
use super::{Finding, Severity, Value};
use crate::aggregate::Aggregate;
use crate::observation::Probe;

/// Where a consequence lies, seen from its cause. What is said of the run as a whole lies in every layer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Anywhere,
    /// In the layer itself.
    Here,
    /// There, or later in the order of forward: what a layer hands on.
    Onward,
    /// There, or nearer the input: what a gradient hands on.
    Back,
}

/// When a consequence begins, seen from its cause.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Time {
    /// At any time from the cause on: what was done stays done.
    Ever,
    /// While the cause is there, or soon after.
    While,
    /// Soon after the cause began.
    Soon,
    /// Also before: another view of the same fault.
    Whenever,
}

struct Row {
    cause: &'static str,
    place: Place,
    time: Time,
    effects: &'static [&'static [&'static str]],
}

const fn row(cause: &'static str, place: Place, time: Time, effects: &'static [&'static [&'static str]]) -> Row {
    Row { cause, place, time, effects }
}

/// A loss that jumped for no reason of its own that is known: no learning rate and no update. As a cause it is nothing; it is the mark of what began there.
const JUMP_OF_SOMETHING: &str = "AMP701 of something";
/// A loss that is reported with its scale: nothing happened to the run.
const JUMP_IN_THE_REPORT: &str = "AMP701 in the report";

/// A loss that jumped by the update of a gradient which had overflowed for some steps before, and then fitted.
const JUMP_AFTER_OVERFLOW: &str = "AMP701 after an overflow";
/// A loss that is flat because a scaler withholds its steps.
const FLAT_BY_SKIPS: &str = "AMP702 by skipped steps";

/// An update that exploded when the scale had come down so far that a gradient which had overflowed fits.
const EXPLODED_AFTER_OVERFLOW: &str = "AMP403 after an overflow";

/// A scale that cannot move and is too low: it makes nothing overflow, and may have been set for the sake of a layer that does.
const SCALE_TOO_LOW: &str = "AMP307 too low";

/// The finding as the table names it: its code, for a static scale which way it is wrong, and for a jump of the loss, a flat one and an update that exploded what made it.
fn name_of(finding: &Finding) -> &'static str {
    let made_by = finding.evidence.iter().find(|e| e.name == "cause").map(|e| &e.value);
    let by = match made_by {
        Some(Value::Text(by)) => by.as_str(),
        _ => "",
    };
    let after_overflow = finding.evidence.iter().any(|e| e.name == SKIPPED_BEFORE);
    match (finding.code, by) {
        ("AMP701", "update" | "gradient") if after_overflow => JUMP_AFTER_OVERFLOW,
        ("AMP701", "unknown" | "data" | "forward") => JUMP_OF_SOMETHING,
        ("AMP701", "loss scale reported with the loss") => JUMP_IN_THE_REPORT,
        ("AMP702", "steps skipped") => FLAT_BY_SKIPS,
        ("AMP403", _) if after_overflow => EXPLODED_AFTER_OVERFLOW,
        ("AMP307", _) if finding.evidence.iter().any(|e| e.name == MEDIAN_EHAT) => SCALE_TOO_LOW,
        _ => finding.code,
    }
}

/// Steps within which a thing happens soon.
const SOON: u64 = 32;

const LARGE_ACTIVATIONS: &[&str] = &["AMP101", "AMP102", "AMP103"];
const FADING_GRADIENTS: &[&str] = &["AMP201", "AMP203", "AMP205"];
const SCALE_FALLS: &[&str] = &["AMP302", "AMP303"];
const NOT_FINITE: &[&str] = &["AMP501", "AMP502", "AMP503", "AMP703"];
const FORWARD_CHANGED: &[&[&str]] = &[&[JUMP_OF_SOMETHING]];
const NOT_LEARNING: &[&str] = &["AMP406", "AMP702", "AMP704"];

/// What follows from what. Where a chain leads from one to the other through a third, that one need not have been found: so each row is complete.
const ROWS: &[Row] = {
    use Place::{Anywhere, Back, Here, Onward};
    use Time::{Ever, Soon, Whenever, While};
    &[
        // The recipe comes before all that it does.
        row("AMP601", Anywhere, Ever, &[&["AMP401", "AMP402"], FADING_GRADIENTS, NOT_LEARNING]),
        row("AMP602", Anywhere, Ever, &[&["AMP401", "AMP402"], NOT_LEARNING]),
        row("AMP603", Anywhere, Ever, &[&["AMP202", "AMP304"], FADING_GRADIENTS, SCALE_FALLS, NOT_LEARNING]),
        row("AMP604", Anywhere, Ever, &[&["AMP301", "AMP306"], FADING_GRADIENTS, SCALE_FALLS, NOT_LEARNING]),
        row(
            "AMP605",
            Anywhere,
            Ever,
            &[&["AMP403", "AMP701"], LARGE_ACTIVATIONS, &["AMP202"], SCALE_FALLS, NOT_FINITE, NOT_LEARNING],
        ),
        row(
            "AMP606",
            Anywhere,
            Ever,
            &[&["AMP403", "AMP701"], LARGE_ACTIVATIONS, &["AMP202"], SCALE_FALLS, NOT_FINITE, NOT_LEARNING],
        ),
        // The first overflow is a step before the first gradient that was not cleared after it.
        row("AMP606", Anywhere, Whenever, &[&["AMP202", "AMP501"], SCALE_FALLS]),
        row("AMP607", Anywhere, Ever, &[&["AMP306", "AMP403", "AMP701", "AMP202"], FADING_GRADIENTS, NOT_LEARNING]),
        row("AMP608", Anywhere, Ever, &[&["AMP306", "AMP403", "AMP701", "AMP202"], FADING_GRADIENTS, NOT_LEARNING]),
        row("AMP609", Anywhere, Ever, &[&["AMP202"], FADING_GRADIENTS, SCALE_FALLS, NOT_FINITE, NOT_LEARNING]),
        // The product of loss and scale is seen as an activation that overflows.
        row("AMP609", Anywhere, Soon, &[LARGE_ACTIVATIONS]),
        row("AMP610", Anywhere, Ever, &[&["AMP701", "AMP702", "AMP703"]]),
        row("AMP611", Anywhere, Ever, &[&["AMP304", "AMP309", "AMP408"], NOT_LEARNING]),
        row("AMP612", Anywhere, Ever, &[&["AMP702", "AMP704"]]),
        // What is wrong with the weights that are stepped.
        row("AMP411", Anywhere, Ever, &[&["AMP401", "AMP402", "AMP404", "AMP407", "AMP409"], NOT_LEARNING]),
        row("AMP405", Anywhere, Ever, &[&["AMP401", "AMP402", "AMP404", "AMP408"], NOT_LEARNING]),
        row("AMP401", Anywhere, Ever, &[&["AMP402", "AMP409"], NOT_LEARNING]),
        // Of the same copies that are missing: the decay, which is the smallest part of an update, is lost first.
        row("AMP401", Anywhere, Whenever, &[&["AMP404"]]),
        row("AMP402", Anywhere, Ever, &[&["AMP404", "AMP409"], NOT_LEARNING]),
        row(
            "AMP407",
            Anywhere,
            Ever,
            &[&["AMP403", "AMP701", "AMP202"], LARGE_ACTIVATIONS, SCALE_FALLS, NOT_FINITE, NOT_LEARNING],
        ),
        row("AMP408", Anywhere, Ever, &[NOT_LEARNING]),
        row("AMP406", Anywhere, Ever, &[&["AMP702", "AMP704"]]),
        row("AMP404", Anywhere, Ever, &[&["AMP704"]]),
        row("AMP409", Anywhere, Ever, &[&["AMP704"]]),
        // Steps that are too large ruin the weights: what comes later comes of it. A jump of the loss that they made is the same, less surely.
        row(
            "AMP403",
            Anywhere,
            Ever,
            &[
                &["AMP701", "AMP105", "AMP202", "AMP410"],
                LARGE_ACTIVATIONS,
                FADING_GRADIENTS,
                SCALE_FALLS,
                NOT_FINITE,
                NOT_LEARNING,
            ],
        ),
        // Not every AMP701, for a jump explains overflows of gradients itself: only one that came after such an overflow.
        row(
            EXPLODED_AFTER_OVERFLOW,
            Anywhere,
            Ever,
            &[
                &[JUMP_AFTER_OVERFLOW, "AMP105", "AMP410"],
                LARGE_ACTIVATIONS,
                FADING_GRADIENTS,
                SCALE_FALLS,
                NOT_FINITE,
                NOT_LEARNING,
            ],
        ),
        row(
            JUMP_AFTER_OVERFLOW,
            Anywhere,
            While,
            &[&["AMP105", "AMP410"], LARGE_ACTIVATIONS, SCALE_FALLS, NOT_FINITE, &["AMP702", "AMP704"]],
        ),
        row(
            "AMP701",
            Anywhere,
            While,
            &[&["AMP105", "AMP202", "AMP410"], LARGE_ACTIVATIONS, SCALE_FALLS, NOT_FINITE, &["AMP702", "AMP704"]],
        ),
        row(JUMP_OF_SOMETHING, Anywhere, Ever, &[&["AMP702"]]),
        row("AMP410", Onward, Ever, &[LARGE_ACTIVATIONS, NOT_FINITE]),
        // A loss that jumped when forward changed, by no update: what changed in forward is its cause.
        row("AMP102", Anywhere, Soon, FORWARD_CHANGED),
        row("AMP104", Anywhere, Soon, FORWARD_CHANGED),
        row("AMP105", Anywhere, Soon, FORWARD_CHANGED),
        row("AMP106", Anywhere, Soon, FORWARD_CHANGED),
        row("AMP107", Anywhere, Soon, FORWARD_CHANGED),
        row("AMP410", Anywhere, Soon, FORWARD_CHANGED),
        row("AMP501", Anywhere, Soon, FORWARD_CHANGED),
        row("AMP502", Anywhere, Soon, FORWARD_CHANGED),
        row("AMP504", Anywhere, Soon, FORWARD_CHANGED),
        // Forward: from the layer on, and whatever the loss then makes of it.
        row("AMP106", Onward, While, &[LARGE_ACTIVATIONS, &["AMP104", "AMP105", "AMP501"]]),
        row("AMP106", Anywhere, While, &[FADING_GRADIENTS, SCALE_FALLS, &["AMP503", "AMP703"], NOT_LEARNING]),
        row("AMP101", Here, Ever, &[&["AMP102", "AMP103"]]),
        row("AMP101", Onward, While, &[LARGE_ACTIVATIONS, NOT_FINITE]),
        row("AMP102", Onward, While, &[&["AMP102", "AMP103", "AMP501"]]),
        row("AMP102", Anywhere, While, &[FADING_GRADIENTS, SCALE_FALLS, &["AMP503", "AMP703"], NOT_LEARNING]),
        // A buffer stays poisoned when its cause is gone, which therefore says what to reset.
        row("AMP102", Anywhere, Ever, &[&["AMP502"]]),
        row("AMP104", Onward, While, &[&["AMP105"]]),
        row("AMP104", Back, While, &[&["AMP201", "AMP203"]]),
        // Where zeros come of an overflow they are told in its layer, and they are what the run suffers from.
        row("AMP105", Here, While, &[&["AMP102", "AMP501"]]),
        row("AMP105", Onward, While, &[&["AMP105"]]),
        row("AMP105", Back, While, &[&["AMP201", "AMP203"]]),
        row("AMP105", Anywhere, Ever, &[NOT_LEARNING]),
        row("AMP504", Onward, While, &[&["AMP501"]]),
        row("AMP504", Anywhere, While, &[SCALE_FALLS, &["AMP503", "AMP703"], NOT_LEARNING]),
        row("AMP501", Onward, While, &[&["AMP501"]]),
        // AMP302 too: it tells of the same batches, and what they do to the scale.
        row("AMP501", Anywhere, While, &[FADING_GRADIENTS, SCALE_FALLS]),
        row("AMP501", Anywhere, Ever, &[&["AMP502", "AMP503", "AMP703"], NOT_LEARNING]),
        row("AMP502", Anywhere, Ever, &[&["AMP704"]]),
        // Backward, and the scale that is lowered for it.
        row("AMP202", Back, While, &[&["AMP202"]]),
        row("AMP202", Anywhere, While, &[&[EXPLODED_AFTER_OVERFLOW, JUMP_AFTER_OVERFLOW]]),
        row("AMP202", Back, Whenever, &[&["AMP204"]]),
        row("AMP202", Anywhere, While, &[FADING_GRADIENTS, SCALE_FALLS]),
        row("AMP202", Anywhere, Ever, &[NOT_FINITE, NOT_LEARNING]),
        row("AMP202", Anywhere, Whenever, &[&[SCALE_TOO_LOW]]),
        row("AMP310", Anywhere, Soon, &[&["AMP306", "AMP202"], FADING_GRADIENTS]),
        row("AMP306", Anywhere, Soon, &[&["AMP202"], FADING_GRADIENTS]),
        row("AMP307", Anywhere, Whenever, &[&["AMP202", "AMP204"]]),
        row("AMP307", Anywhere, Ever, &[FADING_GRADIENTS, NOT_FINITE, NOT_LEARNING]),
        row(SCALE_TOO_LOW, Anywhere, Ever, &[FADING_GRADIENTS, NOT_LEARNING]),
        row("AMP308", Anywhere, Ever, &[FADING_GRADIENTS, NOT_LEARNING]),
        row("AMP302", Anywhere, Ever, &[&["AMP303"], FADING_GRADIENTS, NOT_LEARNING]),
        row("AMP303", Anywhere, Ever, &[FADING_GRADIENTS, NOT_LEARNING]),
        row("AMP309", Anywhere, Whenever, &[&["AMP304"]]),
        row("AMP201", Back, While, &[&["AMP201", "AMP203"]]),
        row("AMP201", Anywhere, Whenever, &[&["AMP203", "AMP205"]]),
        row("AMP201", Anywhere, Ever, &[NOT_LEARNING]),
        row("AMP203", Anywhere, Whenever, &[&["AMP205"]]),
        row("AMP203", Anywhere, Ever, &[NOT_LEARNING]),
        row("AMP205", Anywhere, Ever, &[NOT_LEARNING]),
        row("AMP702", Anywhere, Ever, &[&["AMP704"]]),
        // A loss is flat from its first value on, before anything makes the steps skip that keep it so.
        row("AMP102", Anywhere, Whenever, &[&[FLAT_BY_SKIPS]]),
        row("AMP106", Anywhere, Whenever, &[&[FLAT_BY_SKIPS]]),
        row("AMP202", Anywhere, Whenever, &[&[FLAT_BY_SKIPS]]),
        row("AMP307", Anywhere, Whenever, &[&[FLAT_BY_SKIPS]]),
        row("AMP410", Anywhere, Whenever, &[&[FLAT_BY_SKIPS]]),
        row("AMP501", Anywhere, Whenever, &[&[FLAT_BY_SKIPS]]),
        row("AMP504", Anywhere, Whenever, &[&[FLAT_BY_SKIPS]]),
    ]
};

impl Row {
    fn has(&self, effect: &Finding) -> bool {
        let name = name_of(effect);
        self.effects.iter().copied().flatten().any(|&one| one == effect.code || one == name)
    }

    fn holds(&self, cause: &Finding, effect: &Finding, run: &Course<'_>) -> bool {
        self.cause == name_of(cause)
            && self.has(effect)
            && self.time.holds(cause, effect, run.stride)
            && self.place.holds(&cause.layer, &effect.layer, run)
    }
}

impl Time {
    /// Onsets are known to the distance of two scans, `stride`; and an update of one step is seen in the next.
    fn holds(self, cause: &Finding, effect: &Finding, stride: u64) -> bool {
        let began = effect.onset_step + stride >= cause.onset_step;
        match self {
            Time::Whenever => true,
            Time::Ever => began,
            Time::While => began && effect.onset_step <= cause.last_step + SOON + stride,
            Time::Soon => began && effect.onset_step <= cause.onset_step + SOON + stride,
        }
    }
}

impl Place {
    fn holds(self, cause: &str, effect: &str, run: &Course<'_>) -> bool {
        if cause.is_empty() || effect.is_empty() || cause == effect {
            return true;
        }
        match (self, run.order.get(cause), run.order.get(effect)) {
            (Place::Anywhere, ..) => true,
            (Place::Onward, Some(cause), Some(effect)) => cause < effect,
            (Place::Back, Some(cause), Some(effect)) => cause > effect,
            _ => false,
        }
    }
}

/// What the table has to know of a run.
struct Course<'a> {
    /// The place of each layer in the order of forward.
    order: BTreeMap<&'a str, usize>,
    /// Steps from one scan to the next, on average; 1 at least.
    stride: u64,
}

impl<'a> Course<'a> {
    fn of(aggregate: &'a Aggregate) -> Self {
        let mut order = BTreeMap::new();
        // Sites are numbered as they are met, activations in the order of the first forward.
        for (at, summary) in aggregate.sites.iter().enumerate().filter(|(_, s)| s.site.probe == Probe::Activation) {
            order.entry(summary.site.layer.as_str()).or_insert(at);
        }
        let seen = &aggregate.instrument;
        Self { order, stride: (seen.steps / seen.full_steps.max(1)).max(1) }
    }

    fn explains(&self, cause: &Finding, effect: &Finding) -> bool {
        let graver = cause.severity == Severity::Info && effect.severity > Severity::Info;
        // Of two of one kind the earlier is the cause, so that neither can be each of the other.
        let is_first = cause.code != effect.code || self.age(cause) < self.age(effect) || self.are_apart(cause, effect);
        !graver && is_first && ROWS.iter().any(|row| row.holds(cause, effect, self))
    }

    /// Whether two findings began at one step in two layers whose order is known: then the row's direction decides, which holds one way only.
    fn are_apart(&self, one: &Finding, other: &Finding) -> bool {
        let place = |finding: &Finding| self.order.get(finding.layer.as_str());
        one.onset_step == other.onset_step
            && place(one).is_some()
            && place(other).is_some()
            && place(one) != place(other)
    }

    fn age<'f>(&self, finding: &'f Finding) -> (u64, Option<usize>, &'f str) {
        (finding.onset_step, self.order.get(finding.layer.as_str()).copied(), &finding.layer)
    }

    /// The most probable of the findings that explain this one: in the same layer, and of those that did not begin after it, the latest; the graver of two that began together.
    fn cause(&self, findings: &[Finding], effect: &Finding) -> Option<usize> {
        let causes = findings.iter().enumerate().filter(|(_, cause)| self.explains(cause, effect));
        let nearest = causes.max_by_key(|(at, cause)| {
            let is_before = cause.onset_step <= effect.onset_step;
            (cause.layer == effect.layer, is_before, cause.onset_step, cause.severity, Reverse(*at))
        });
        nearest.map(|(at, _)| at)
    }
}

/// Whether a finding of this code would follow from one of these, wherever and whenever.
pub(super) fn explain<'f>(mut findings: impl Iterator<Item = &'f Finding>, code: &str) -> bool {
    let has = |row: &Row| row.effects.iter().copied().flatten().any(|&effect| effect == code);
    findings.any(|finding| ROWS.iter().any(|row| row.cause == name_of(finding) && has(row)))
}

/// The findings, each with those that follow from it; the order is kept.
pub(super) fn under_their_causes(findings: Vec<Finding>, aggregate: &Aggregate) -> Vec<Finding> {
    let run = Course::of(aggregate);
    let causes: Vec<Option<usize>> = findings.iter().map(|effect| run.cause(&findings, effect)).collect();
    let root = |mut at: usize| {
        while let Some(cause) = causes[at] {
            at = cause;
        }
        at
    };
    let roots: Vec<usize> = (0..findings.len()).map(root).collect();
    let mut nested: Vec<Option<Finding>> = findings.into_iter().map(Some).collect();
    for (at, &root) in roots.iter().enumerate().filter(|(at, root)| at != *root) {
        let Some(effect) = nested[at].take() else { continue };
        if let Some(cause) = &mut nested[root] {
            cause.consequences.push(effect);
        }
    }
    let mut nested: Vec<Finding> = nested.into_iter().flatten().collect();
    nested
        .iter_mut()
        .for_each(|root| root.consequences.sort_by(|a, b| a.onset_step.cmp(&b.onset_step).then(a.code.cmp(b.code))));
    nested
}

/// A finding is as grave as the gravest of what follows from it.
pub(super) fn weigh(root: &mut Finding) {
    root.severity = root.with_consequences().map(|f| f.severity).max().unwrap_or(root.severity);
}

#[cfg(test)]
mod tests;
