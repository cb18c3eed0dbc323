//! ## What it finds
//!
//! The doctor itself saw less of the run than it should have: it detached itself after a failure of its own, steps were dropped because the disk was
//! slower than the training, or most tensors could not be scanned.
//!
//! ## Why it matters
//!
//! A fault in what was not seen is not found. The verdict must not sound surer than it is.
//!
//! ## How it decides
//!
//! * The doctor detached itself, or more than half of the steps, or of the tensors, are missing: a doubt. The verdict on the run is then "unknown"
//!   unless something was found, and `ampdoctor check` exits with 3.
//! * More than 5 % of the steps are missing: **information**. A few dropped steps do not hide a fault that lasts.
//!
//! A single tensor that cannot be scanned, for its layout or its device, is a note in the report and no finding.
//!
//! ## What to do
//!
//! Read the note in the report.
//!
//! * Detached: the note says what failed.
//! * Steps dropped: scan fewer, `Doctor::builder().every(20)` or `.budget(0.01)`, or let `AMPDOCTOR_RUN` name a faster disk.
//! * Not scanned: the note names device, layout and dtype of what was left out.
//!
//! ## When it stays silent
//!
//! While every step and nearly every tensor is there. Steps that sampling left out are not missing: the report says what was sampled.

use super::text::{counted, measured, share};
use super::{Firing, Limits, Needs, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::Aggregate;
use crate::observation::{EndReason, NoteKind};

const NAME: &str = "blind-spots";
/// Missing steps that are worth a word.
const WORTH_A_WORD: Threshold = Threshold::new(
    NAME,
    "missing",
    0.05,
    "share of steps",
    "A few dropped steps hide no fault that lasts; above this it is told.",
);
/// Missing steps, or tensors, with which nothing can be said of the run.
const TOO_MANY: Threshold = Threshold::new(
    NAME,
    "too-many",
    0.5,
    "share of steps or tensors",
    "With more than half of them missing, silence says nothing of the run.",
);

/// See the page of the rule.
pub struct BlindSpots;

static INFO: RuleInfo = RuleInfo {
    code: "AMP002",
    name: NAME,
    severity: Severity::Info,
    summary: "The instrument detached itself, or missed a good part of the run.",
    source: include_str!("blind_spots.rs"),
};

impl Rule for BlindSpots {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[WORTH_A_WORD, TOO_MANY]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        let doubts = [detached(aggregate), mostly_dropped(aggregate, limits), mostly_unscanned(aggregate, limits)];
        let mut verdicts: Vec<Verdict> = doubts.into_iter().flatten().map(Verdict::Unsure).collect();
        if verdicts.is_empty() {
            verdicts.extend(some_dropped(aggregate, limits).map(|f| Verdict::Firing(Box::new(f))));
        }
        verdicts
    }
}

fn detached(aggregate: &Aggregate) -> Option<String> {
    let note = aggregate.instrument.notes.iter().find(|n| n.kind == NoteKind::Detached);
    let at_end = aggregate.end.as_ref().filter(|e| e.reason == EndReason::Detached);
    match (note, at_end) {
        (Some(note), _) => Some(format!(
            "the probe detached itself at step {}: {}. What came after was not seen",
            note.step, note.text
        )),
        (None, Some(end)) => {
            Some(format!("the probe detached itself after {} steps. What came after was not seen", end.steps))
        }
        (None, None) => None,
    }
}

fn dropped_share(aggregate: &Aggregate) -> f64 {
    let seen = &aggregate.instrument;
    seen.dropped_steps as f64 / (seen.steps + seen.dropped_steps).max(1) as f64
}

fn mostly_dropped(aggregate: &Aggregate, limits: &Limits) -> Option<String> {
    let dropped = dropped_share(aggregate);
    (dropped > limits.of(&TOO_MANY)).then(|| {
        format!("{} of the steps were dropped because the disk was too slow; scan fewer steps", share(dropped))
    })
}

fn mostly_unscanned(aggregate: &Aggregate, limits: &Limits) -> Option<String> {
    let scanned: u64 = aggregate.sites.iter().map(|s| s.samples).sum();
    let unscanned = aggregate.instrument.unscanned;
    let missing = unscanned as f64 / (scanned + unscanned).max(1) as f64;
    (missing > limits.of(&TOO_MANY))
        .then(|| format!("{} of the tensors could not be scanned; the notes say why", share(missing)))
}

fn some_dropped(aggregate: &Aggregate, limits: &Limits) -> Option<Firing> {
    let dropped = dropped_share(aggregate);
    let steps = aggregate.instrument.dropped_steps;
    (dropped > limits.of(&WORTH_A_WORD)).then(|| Firing {
        severity: Severity::Info,
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since: aggregate.latest.as_ref().map_or(0, |s| s.index),
        strength: dropped,
        evidence: vec![counted("dropped_steps", steps), measured("dropped_share", dropped)],
        explanation: format!(
            "{steps} steps ({}) are missing from the recording: the writer's queue was full.",
            share(dropped)
        ),
        remedy: "Scan fewer steps (`every(n)`, or a smaller budget), or write the run to a faster disk.".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::Health;
    use crate::rules::silence::diagnose;
    use crate::scan::Dtype;

    fn run(dropped: u64) -> Scenario {
        let mut run = Scenario::new();
        run.steps(10, |s, i| {
            s.dropped(dropped).gradient("fc", "linear", Dtype::F32, &normal(64, 1.0, i));
        });
        run
    }

    #[test]
    fn a_detached_probe_is_not_health() {
        let mut detached = run(0);
        detached.note(NoteKind::Detached, "a callback failed");
        let d = diagnose(&detached);
        assert_eq!(d.health(), Health::Unknown);
        assert!(d.doubts().iter().any(|x| x.code == "AMP002" && x.reason.contains("a callback failed")));
    }

    #[test]
    fn a_few_dropped_steps_are_told_and_many_leave_no_verdict() {
        assert_eq!((diagnose(&run(0)).findings().len(), diagnose(&run(0)).health()), (0, Health::Healthy));
        let some = diagnose(&run(2));
        assert_eq!(
            (some.findings().len(), some.findings()[0].severity, some.health()),
            (1, Severity::Info, Health::Healthy)
        );
        assert_eq!(diagnose(&run(30)).health(), Health::Unknown);
    }

    #[test]
    fn a_single_blind_spot_is_a_note_and_no_finding() {
        let mut spotted = run(0);
        spotted.note(NoteKind::BlindSpot, "sparse gradient of emb.weight");
        assert_eq!(diagnose(&spotted).health(), Health::Healthy);
    }
}
