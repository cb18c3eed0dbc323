//! ## What it finds
//!
//! FP32 copies (master weights) that do not do their work, in one of four ways:
//!
//! 1. the optimizer was built on the model's FP16 or BF16 parameters, although copies of them exist;
//! 2. nothing is stepped, neither the copies nor the model, though there are gradients;
//! 3. the copies are stepped, and never written back: the model stays what it was;
//! 4. something else writes into the model's weights, which then are not what the copies round to.
//!
//! ## Why it matters
//!
//! In the first case small updates are lost as if there were no copies, or all of them where the copies are written back over the model. In the
//! second and the third nothing is learnt: the loss stays flat, and gradients look well. In the fourth each write-back undoes what was written, or
//! the gradients belong to other weights than those that are stepped.
//!
//! ## How it decides
//!
//! Whenever forward reads a weight that has an FP32 copy, the weight is compared with the rounded copy, bit by bit.
//!
//! * **Error**: at two scanned steps in a row an element was not what its copy rounds to. Whether the weight itself changed meanwhile tells the third
//!   case from the fourth.
//! * **Error**: at two scanned steps in a row the optimizer changed a weight that has a copy, and left the copy alone.
//! * **Error**: at ten scanned steps in a row, and four times as many as ever lay between two steps of the optimizer, a weight with a copy had a
//!   gradient, and neither it nor the copy was stepped, though no scaler skipped the step.
//!
//! ## What to do
//!
//! The finding says which case it is.
//!
//! * Built on the model, or nothing stepped: build the optimizer on the copies, `let mut opt = MasterWeights::new(&vs)?.build(nn::Adam::default(),
//!   lr)?`. It moves gradients over, steps the copies and writes them back.
//! * Never written back: `masters.write_back()?` after each step, or `scaler.step(&mut masters.optimizer(&mut opt))?`, which does it.
//! * Something else writes into the model (a weight decay by hand, an exchange of weights, a loaded checkpoint): write into the copies, or call
//!   `masters.refresh_from_model()?` afterwards.
//!
//! ## When it stays silent
//!
//! On weights that are what their copies round to, however many of them did not change: that is what the copies are for. On a run without FP32
//! copies. On a difference at one step alone, as when weights are exchanged for an evaluation. On steps that a scaler skips, and on the micro-batches
//! of an accumulation.

use super::text::{counted, measured, share};
use super::update_advice::{is_low, some_of};
use super::{Evidence, Firing, Limits, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Copied, Weight};
use crate::observation::Probe;

const NAME: &str = "broken-masters";
/// Scanned steps in a row at which it must be so.
const SAMPLES: Threshold = Threshold::new(
    NAME,
    "samples",
    2.0,
    "scanned steps in a row",
    "Weights are exchanged for one step where they are evaluated; two in a row are no exchange.",
);

/// Steps in a row without an update, although there are gradients.
const PAUSE: Threshold = Threshold::new(
    NAME,
    "pause",
    10.0,
    "scanned steps in a row",
    "Steps with gradients and without an update: an accumulation has fewer.",
);
/// How many times as long a pause must be as any before it.
const LONGER: Threshold =
    Threshold::new(NAME, "longer", 4.0, "times the longest pause before", "An accumulation pauses as long each time.");

/// See the page of the rule.
pub struct BrokenMasters;

static INFO: RuleInfo = RuleInfo {
    code: "AMP405",
    name: NAME,
    severity: Severity::Error,
    summary: "FP32 copies of the weights are not stepped, not written back, or not what the model's weights are rounded from.",
    source: include_str!("broken_masters.rs"),
};

impl Rule for BrokenMasters {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[SAMPLES, PAUSE, LONGER]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        let found = [Kind::WrongOptimizer, Kind::NotStepped, Kind::NotWrittenBack, Kind::WrittenByOthers].into_iter();
        let mut found =
            found.map(|kind| (kind, broken(aggregate, kind, limits))).filter(|(_, weights)| !weights.is_empty());
        found
            .next()
            .map(|(kind, weights)| Verdict::Firing(Box::new(firing(aggregate, kind, &weights))))
            .into_iter()
            .collect()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    WrongOptimizer,
    NotStepped,
    NotWrittenBack,
    WrittenByOthers,
}

/// Whether the optimizer steps weights that have copies: then what they lose is this rule's matter.
pub(super) fn optimizer_steps_the_model(aggregate: &Aggregate, limits: &Limits) -> bool {
    aggregate.weights.all.iter().any(|w| kind(w, limits) == Some(Kind::WrongOptimizer))
}

fn broken<'a>(aggregate: &'a Aggregate, wanted: Kind, limits: &Limits) -> Vec<&'a Weight> {
    aggregate.weights.all.iter().filter(|w| kind(w, limits) == Some(wanted)).collect()
}

/// In what way the copy of this weight is broken now.
fn kind(weight: &Weight, limits: &Limits) -> Option<Kind> {
    weight.written_back_to?;
    let samples = limits.count(&SAMPLES) as usize;
    let latest = |n: usize| weight.recent.iter().rev().take(n);
    let steps_itself = weight.recent.len() >= samples && latest(samples).all(|c| is_low(c.dtype));
    if weight
        .unstepped
        .is_some_and(|(n, _)| n >= limits.count(&PAUSE) && n > limits.count(&LONGER) * weight.longest_pause)
    {
        return Some(Kind::NotStepped);
    }
    if steps_itself {
        return Some(Kind::WrongOptimizer);
    }
    let unlike = unlike_now(weight);
    if unlike.len() < samples {
        return None;
    }
    // Whether it changed is told of the time since the sample before: at the first of them the copy was the one that moved on.
    Some(if unlike.iter().skip(1).any(|c| c.changed) { Kind::WrittenByOthers } else { Kind::NotWrittenBack })
}

/// The latest samples in a row in which the weight was not what its copy rounds to, oldest first.
fn unlike_now(weight: &Weight) -> Vec<&Copied> {
    let mut unlike: Vec<_> = weight.copied.iter().rev().take_while(|c| c.unlike > 0).collect();
    unlike.reverse();
    unlike
}

fn firing(aggregate: &Aggregate, kind: Kind, weights: &[&Weight]) -> Firing {
    let with_copies = aggregate.weights.all.iter().filter(|w| w.written_back_to.is_some()).count();
    let names: Vec<String> = weights.iter().map(|w| w.label()).collect();
    Firing {
        severity: Severity::Error,
        layer: String::new(),
        operator: String::new(),
        probe: Some(match kind {
            Kind::WrongOptimizer | Kind::NotStepped => Probe::Update,
            Kind::NotWrittenBack | Kind::WrittenByOthers => Probe::Param,
        }),
        since: weights.iter().filter_map(|w| since(w, kind)).min().unwrap_or(0),
        strength: weights.len() as f64 + unlike_share(weights),
        evidence: evidence(weights, with_copies),
        explanation: explanation(kind, &names, with_copies, unlike_share(weights)),
        remedy: remedy(kind).into(),
    }
}

fn since(weight: &Weight, kind: Kind) -> Option<u64> {
    match kind {
        Kind::WrongOptimizer => weight.recent.iter().rev().take_while(|c| is_low(c.dtype)).last().map(|c| c.step),
        Kind::NotStepped => weight.unstepped.map(|(_, since)| since),
        Kind::NotWrittenBack | Kind::WrittenByOthers => unlike_now(weight).first().map(|c| c.step),
    }
}

fn latest_counts(weights: &[&Weight]) -> (u64, u64) {
    let latest = weights.iter().filter_map(|w| w.copied.back());
    latest.fold((0, 0), |(unlike, all), c| (unlike + c.unlike, all + c.elements))
}

fn unlike_share(weights: &[&Weight]) -> f64 {
    let (unlike, all) = latest_counts(weights);
    unlike as f64 / all.max(1) as f64
}

fn evidence(weights: &[&Weight], with_copies: usize) -> Vec<Evidence> {
    let (unlike, all) = latest_counts(weights);
    vec![
        counted("parameters", weights.len() as u64),
        counted("parameters_with_copies", with_copies as u64),
        measured("unlike_share", unlike_share(weights)),
        counted("unlike_elements", unlike),
        counted("elements", all),
    ]
}

fn explanation(kind: Kind, names: &[String], with_copies: usize, unlike: f64) -> String {
    let all = if with_copies == 1 { "the 1 weight" } else { &format!("{with_copies} weights") };
    let who = format!("{} of {all} with an FP32 copy ({})", names.len(), some_of(names));
    match kind {
        Kind::WrongOptimizer => format!(
            "The optimizer steps the model's own weights and leaves their FP32 copies alone, in {who}. The copies take no part: small updates are rounded away \
             as if there were none, and a write-back would undo every step."
        ),
        Kind::NotStepped => format!(
            "There are gradients, and nothing is stepped, neither the model's weights nor their FP32 copies, in {who}: the optimizer holds neither, or holds weights \
             whose gradients were moved elsewhere. Nothing is learnt."
        ),
        Kind::NotWrittenBack => format!(
            "The FP32 copies are stepped and the model does not get them: {} of the elements of {who} are not what the copies round to, and the weights have not \
             changed. Forward reads the old weights, so nothing is learnt.",
            share(unlike)
        ),
        Kind::WrittenByOthers => format!(
            "{} of the elements of {who} are not what the FP32 copies round to when forward reads them, although the weights change: something else writes into the \
             model, or writes the copies back wrongly. The optimizer steps other weights than those that the gradients are of.",
            share(unlike)
        ),
    }
}

fn remedy(kind: Kind) -> &'static str {
    match kind {
        Kind::WrongOptimizer | Kind::NotStepped => {
            "Build the optimizer on the copies: `let mut opt = masters.build(nn::Adam::default(), lr)?`, or for another type of optimizer on `masters.vars()` in \
             place of `&vs`."
        }
        Kind::NotWrittenBack => {
            "Call `masters.write_back()?` after each step of the optimizer; with a scaler `scaler.step(&mut masters.optimizer(&mut opt))?` in place of \
             `scaler.step(&mut opt)?` does it. With copies of your own, copy them into the model's parameters after each step."
        }
        Kind::WrittenByOthers => {
            "After whatever changes the model's weights (a checkpoint that is loaded, averaged or clipped weights) call `masters.refresh_from_model()?`, or do the \
             change on the copies, `masters.vars()`. If you write back yourself, round to nearest, after every step, every parameter."
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::Rounding;
    use crate::observation::scenario::{Scenario, StepBuilder, normal};
    use crate::rules::silence::{diagnose, found};
    use crate::rules::{Finding, Severity};
    use crate::scan::Dtype::{F16, F32};

    /// A step of a weight with an FP32 copy: the copy is stepped, the weight, seeded by `weight`, differs from it in `unlike` elements.
    fn step(s: &mut StepBuilder<'_>, i: u64, weight: u64, unlike: u64) {
        s.loss(1.0).applied(1024.0);
        for layer in ["fc1", "fc2"] {
            s.update(layer, "addcdiv_", "weight", &normal(256, 1e-3, i));
            s.param(layer, "weight", F32, &normal(256, 0.1, i)).param(layer, "weight", F16, &normal(256, 0.1, weight));
            s.rounding(Rounding { unlike_master: Some(unlike), ..Rounding::default() });
        }
    }

    fn only(run: &Scenario) -> Finding {
        let d = diagnose(run);
        assert_eq!(found(&d), ["AMP405"], "{:#?}", d.findings());
        d.findings()[0].clone()
    }

    #[test]
    fn masters_that_work_are_silent_however_many_weights_stand_still() {
        let mut run = Scenario::new();
        run.dynamic_scaler(1024.0).steps(30, |s, i| step(s, i, i / 10, 0));
        assert!(found(&diagnose(&run)).is_empty());
    }

    #[test]
    fn a_write_back_that_is_forgotten_is_found() {
        let mut run = Scenario::new();
        run.dynamic_scaler(1024.0).steps(10, |s, i| step(s, i, 0, i * 20));
        let f = only(&run);
        assert_eq!((f.severity, f.onset_step), (Severity::Error, 1));
        assert!(f.remedy.text.contains("write_back") && f.explanation.contains("nothing is learnt"), "{f:#?}");
        assert!(
            f.explanation.contains("2 of 2 weights with an FP32 copy (`fc1.weight`, `fc2.weight`)"),
            "{}",
            f.explanation
        );
    }

    #[test]
    fn weights_that_somebody_else_writes_are_found() {
        let mut run = Scenario::new();
        run.dynamic_scaler(1024.0).steps(10, |s, i| step(s, i, i, if i < 4 { 0 } else { 256 }));
        let f = only(&run);
        assert_eq!(f.onset_step, 4);
        assert!(f.remedy.text.contains("refresh_from_model"), "{}", f.remedy.text);
    }

    #[test]
    fn weights_exchanged_at_one_step_are_no_fault() {
        let mut run = Scenario::new();
        run.dynamic_scaler(1024.0).steps(20, |s, i| step(s, i, i, if i % 5 == 3 { 256 } else { 0 }));
        assert!(found(&diagnose(&run)).is_empty());
    }

    #[test]
    fn an_optimizer_built_on_the_model_is_found_and_its_lost_updates_are_not_told_twice() {
        let mut run = Scenario::new();
        run.dynamic_scaler(1024.0).steps(10, |s, i| {
            s.loss(1.0).applied(1024.0).update_in("fc", "add_", "weight", F16, &normal(256, 1e-6, i));
            let lost = crate::scan::Fidelity { intended: 256, dead: 200, non_finite: 0, dot: 0.2, energy: 1.0 };
            s.rounding(Rounding { stepped: Some(lost), ..Rounding::default() });
            s.param("fc", "weight", F16, &normal(256, 0.02, i));
            s.rounding(Rounding { unlike_master: Some(i * 9), ..Rounding::default() });
        });
        let f = only(&run);
        assert_eq!(f.onset_step, 0);
        assert!(f.remedy.text.contains("masters.vars()"), "{}", f.remedy.text);
    }

    #[test]
    fn copies_that_get_gradients_and_are_never_stepped_are_found() {
        let without_update = |s: &mut StepBuilder<'_>, i: u64| {
            s.loss(1.0).param_grad("fc", "weight", F16, &normal(256, 1e-3, i));
            s.param("fc", "weight", F16, &normal(256, 0.02, 1));
            s.rounding(Rounding { unlike_master: Some(0), ..Rounding::default() });
        };
        let mut run = Scenario::new();
        run.steps(5, |s, i| step(s, i, i, 0)).steps(12, without_update);
        let f = only(&run);
        assert_eq!(f.onset_step, 5);
        assert!(f.explanation.contains("nothing is stepped") && f.remedy.text.contains("masters.vars()"), "{f:#?}");
        // A step of the doctor for each of eight micro-batches.
        let mut run = Scenario::new();
        run.steps(64, |s, i| {
            without_update(s, i);
            if i % 8 == 7 {
                s.update("fc", "add_", "weight", &normal(256, 1e-3, i)).param(
                    "fc",
                    "weight",
                    F32,
                    &normal(256, 0.02, i),
                );
            }
        });
        assert!(found(&diagnose(&run)).is_empty());
    }

    #[test]
    fn an_optimizer_on_the_model_is_found_though_the_copies_were_stepped_before_and_undo_it_now() {
        let mut run = Scenario::new();
        run.dynamic_scaler(1024.0).steps(6, |s, i| step(s, i, i, 0)).steps(3, |s, i| {
            s.loss(1.0).applied(1024.0).update_in("fc1", "add_", "weight", F16, &normal(256, 1e-3, i));
            s.param("fc1", "weight", F16, &normal(256, 0.1, 5));
            s.rounding(Rounding { unlike_master: Some(0), ..Rounding::default() });
        });
        assert_eq!(only(&run).onset_step, 6);
    }

    #[test]
    fn a_loss_scaler_that_skips_leaves_weights_and_copies_as_they_are() {
        let mut run = Scenario::new();
        run.dynamic_scaler(1024.0).steps(4, |s, i| step(s, i, i, 0)).steps(6, |s, _| {
            s.loss(1.0).skipped(1024.0, 1024.0).param("fc1", "weight", F16, &normal(256, 0.1, 3));
            s.rounding(Rounding { unlike_master: Some(0), ..Rounding::default() });
        });
        assert!(!found(&diagnose(&run)).contains(&"AMP405"));
    }
}
