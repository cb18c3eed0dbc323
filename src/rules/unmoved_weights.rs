//! ## What it finds
//!
//! Weights that have gradients and never change: nobody steps them. The optimizer was built on another `VarStore`, its `step` is not called, a step
//! written by hand computes new weights and does not assign them, or FP32 copies made by hand are stepped and not copied back.
//!
//! ## Why it matters
//!
//! Nothing is learnt, and nothing else shows it: gradients look well, and the loss is finite and flat.
//!
//! ## How it decides
//!
//! It counts the scanned steps at which a weight has a finite gradient other than zero, no operator changed it since the last scan, and no scaler
//! skipped the step.
//!
//! * **Error**: five such steps, the last of them 64 steps or more after the first, for every weight that had a gradient in that time.
//! * **Information**: the same for some of the weights, while others are stepped. It may be meant so, as where only a head is trained.
//!
//! Why 64: a loop that calls `doctor.step` for each micro-batch may accumulate over many before its optimizer steps.
//!
//! ## What to do
//!
//! Build the optimizer on the `VarStore` whose weights forward reads, and call its step after each backward. A step by hand has to write into the
//! weight: `tch::no_grad(|| w.g_sub_(&(w.grad() * lr)))`, not `let w = &w - w.grad() * lr`. Freeze what is not to be trained (`vs.freeze()`, or
//! `set_requires_grad(false)` on a tensor): then it has no gradient either, and backward is faster.
//!
//! ## When it stays silent
//!
//! On frozen weights, and on weights whose gradient is zero, as behind a gate. On steps that a scaler skips. On weights with FP32 copies by
//! `MasterWeights`, which rule `broken-masters` judges. Where the learning rate is zero: the optimizer does step.

use super::text::{count, counted, said};
use super::update_advice::some_of;
use super::{Firing, Limits, Needs, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Still, Weight};
use crate::observation::{Probe, ScalerEvent};

const NAME: &str = "unmoved-weights";
/// Scanned steps at which a weight must stand still.
const FEWEST_SCANS: Threshold =
    Threshold::new(NAME, "fewest-scans", 5.0, "scanned steps", "Few enough to be found at a budget, too.");
/// Steps from the first of them to the latest.
const FEWEST_STEPS: Threshold = Threshold::new(
    NAME,
    "fewest-steps",
    64.0,
    "steps",
    "A loop that calls doctor.step for each micro-batch steps more seldom only where it accumulates over more than 64.",
);

/// See the page of the rule.
pub struct UnmovedWeights;

static INFO: RuleInfo = RuleInfo {
    code: "AMP408",
    name: NAME,
    severity: Severity::Error,
    summary: "Weights have gradients and never change: no optimizer steps them.",
    source: include_str!("unmoved_weights.rs"),
};

impl Rule for UnmovedWeights {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Scans { steps: FEWEST_SCANS.default as u64, applies: may_stand_still }
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[FEWEST_SCANS, FEWEST_STEPS]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        let still: Vec<(&Weight, Still)> =
            aggregate.weights.all.iter().filter_map(|w| Some((w, unmoved(w, limits)?))).collect();
        let firing = (!still.is_empty()).then(|| firing(aggregate, &still));
        firing.map(|f| Verdict::Firing(Box::new(f))).into_iter().collect()
    }
}

/// Whether a weight stands still, or nobody has looked yet.
fn may_stand_still(aggregate: &Aggregate) -> bool {
    aggregate.instrument.full_steps == 0 || aggregate.weights.all.iter().any(|w| w.still.is_some())
}

fn unmoved(weight: &Weight, limits: &Limits) -> Option<Still> {
    weight.still.filter(|s| s.scans >= limits.count(&FEWEST_SCANS) && s.latest - s.since >= limits.count(&FEWEST_STEPS))
}

fn firing(aggregate: &Aggregate, still: &[(&Weight, Still)]) -> Firing {
    let since = still.iter().map(|(_, s)| s.since).min().unwrap_or(0);
    let latest = still.iter().map(|(_, s)| s.latest).max().unwrap_or(0);
    // What was stepped while these stood still, or may be yet.
    let moved = aggregate
        .weights
        .all
        .iter()
        .filter(|w| w.written_back_to.is_some() || w.latest().is_some_and(|change| change.step > since));
    let moved = moved.count();
    let names: Vec<String> = still.iter().map(|(w, _)| w.label()).collect();
    Firing {
        severity: if moved == 0 { Severity::Error } else { Severity::Info },
        layer: String::new(),
        operator: String::new(),
        probe: Some(Probe::Param),
        since,
        strength: still.len() as f64,
        evidence: vec![
            counted("unmoved_parameters", still.len() as u64),
            counted("moved_parameters", moved as u64),
            counted("scanned_steps", still.iter().map(|(_, s)| s.scans).max().unwrap_or(0)),
            said("first", names.first().cloned().unwrap_or_default()),
        ],
        explanation: explanation(&names, moved, since, latest),
        remedy: remedy(aggregate, moved).into(),
    }
}

fn explanation(names: &[String], moved: usize, since: u64, latest: u64) -> String {
    let who = format!("{} ({})", count(names.len(), "parameter"), some_of(names));
    let rest = match moved {
        0 => "No other parameter changed either: nothing is learnt.".to_string(),
        _ => format!("{} changed in that time.", count(moved, "other parameter")),
    };
    format!(
        "From step {since} to step {latest} nothing that LibTorch ran changed the values of {who}, although they had finite gradients and no scaler skipped the \
         step. {rest}"
    )
}

fn remedy(aggregate: &Aggregate, moved: usize) -> String {
    if moved > 0 {
        return "If they are to be trained, give them to the optimizer: build it on the VarStore that holds them. If not, freeze them \
                (`set_requires_grad(false)`): backward is then spared their gradients."
            .into();
    }
    let uses_scaler = aggregate.latest.as_ref().is_some_and(|s| !s.scaler.is_empty());
    let asks_for_step =
        aggregate.latest.as_ref().is_some_and(|s| s.scaler.iter().any(|e| matches!(e, ScalerEvent::Stepped { .. })));
    if uses_scaler && !asks_for_step {
        return "Call `scaler.step(&mut opt)?` between `scaler.unscale` and `scaler.update()?`, and `scaler.update()?` after each step; do not drop the errors that they \
                return."
            .into();
    }
    "Build the optimizer on the VarStore whose weights forward reads (`.build(&vs, lr)?`), and call its step after each backward. A step written by hand \
     must assign what it computes (`tch::no_grad(|| p.copy_(&new))`); FP32 copies of your own must be copied back: `MasterWeights` does it."
        .into()
}

#[cfg(test)]
mod tests {
    use super::FEWEST_STEPS;
    use crate::observation::Sampling;
    use crate::observation::scenario::{Scenario, StepBuilder, normal};
    use crate::rules::Severity;
    use crate::rules::silence::{diagnose, found};
    use crate::scan::Dtype::F32;

    /// The values of both weights, recorded once, and their gradients.
    fn gradients(s: &mut StepBuilder<'_>, i: u64) {
        s.loss(1.0);
        for layer in ["fc1", "fc2"] {
            s.param_grad(layer, "weight", F32, &normal(256, 1e-2, i));
            if i == 0 {
                s.param(layer, "weight", F32, &normal(256, 0.1, 1));
            }
        }
    }

    fn update(s: &mut StepBuilder<'_>, layer: &str, i: u64) {
        s.update(layer, "add_", "weight", &normal(256, 1e-4, i)).param(layer, "weight", F32, &normal(256, 0.1, i));
    }

    #[test]
    fn weights_that_nobody_steps_are_an_error_of_the_run() {
        let mut run = Scenario::new();
        run.steps(FEWEST_STEPS.default as u64, gradients);
        assert!(!found(&diagnose(&run)).contains(&"AMP408"), "not before 64 steps");
        run.steps(1, gradients);
        let d = diagnose(&run);
        let f = d.findings().iter().find(|f| f.code == "AMP408").expect("found");
        assert_eq!((f.severity, f.onset_step), (Severity::Error, 0));
        assert!(f.explanation.contains("2 parameters (`fc1.weight`, `fc2.weight`)"), "{}", f.explanation);
        assert!(f.remedy.text.contains("VarStore whose weights forward reads"), "{}", f.remedy.text);
    }

    #[test]
    fn stepping_that_ends_is_found_from_there_on() {
        let mut run = Scenario::new();
        run.steps(200, |s, i| {
            gradients(s, i);
            if i < 100 {
                update(s, "fc1", i);
                update(s, "fc2", i);
            }
        });
        let d = diagnose(&run);
        let f = d.findings().iter().find(|f| f.code == "AMP408").expect("found");
        assert_eq!((f.severity, f.onset_step), (Severity::Error, 100));
    }

    #[test]
    fn a_part_that_is_not_stepped_is_worth_a_word_and_no_more() {
        let mut run = Scenario::new();
        run.steps(100, |s, i| {
            gradients(s, i);
            update(s, "fc1", i);
        });
        let d = diagnose(&run);
        let f = d.findings().iter().find(|f| f.code == "AMP408").expect("found");
        assert_eq!(f.severity, Severity::Info);
        assert!(f.remedy.text.contains("freeze"), "{}", f.remedy.text);
    }

    #[test]
    fn a_scaler_that_is_never_asked_to_step_is_named() {
        let mut run = Scenario::new();
        run.dynamic_scaler(1024.0).steps(100, |s, i| {
            gradients(s, i);
            let unscaled = crate::observation::ScalerEvent::Unscaled { optimizer: 0, scale: 1024.0, found_inf: false };
            s.loss_scale(1024.0).event(unscaled);
        });
        let d = diagnose(&run);
        let f = d.findings().iter().find(|f| f.code == "AMP408").expect("found");
        assert!(f.remedy.text.contains("scaler.step"), "{}", f.remedy.text);
    }

    #[test]
    fn steps_that_are_seldom_seen_or_withheld_are_silent() {
        // Every tenth step is scanned, and a value that changed between two scans is recorded at the second.
        let mut sampled = Scenario::sampled(Sampling::Every(10));
        sampled.steps(300, |s, i| {
            if i % 10 == 0 {
                gradients(s, i);
                s.param("fc1", "weight", F32, &normal(256, 0.1, i)).param("fc2", "weight", F32, &normal(256, 0.1, i));
            } else {
                s.loss(1.0).tier(crate::observation::Tier::Off);
            }
        });
        let mut withheld = Scenario::new();
        withheld.dynamic_scaler(1024.0).steps(100, |s, i| {
            gradients(s, i);
            s.skipped(1024.0, 1024.0);
        });
        let mut accumulated = Scenario::new();
        accumulated.steps(300, |s, i| {
            gradients(s, i);
            if i % 32 == 31 {
                update(s, "fc1", i);
                update(s, "fc2", i);
            }
        });
        for run in [sampled, withheld, accumulated] {
            assert!(!found(&diagnose(&run)).contains(&"AMP408"));
        }
    }
}
