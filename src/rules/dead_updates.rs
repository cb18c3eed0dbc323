//! ## What it finds
//!
//! Parameters held in FP16 or BF16 that the optimizer steps itself, and whose rounding swallows the updates: w + u is w again when u is smaller than
//! half a unit in the last place of w. In FP16 that is 2.4e-4 to 4.9e-4 of w, in BF16 eight times as much.
//!
//! It is measured by phi, summed over all such parameters and the latest 32 scanned steps. Large updates weigh most: a gain of a hundred elements
//! that stands still harms nobody.
//!
//! ## Why it matters
//!
//! Training slows down and stops although gradients are well and nothing is NaN. It grows worse as the learning rate falls, so a run that looks good
//! early ends badly: in one, phi fell from 0.95 to 0.2, and the loss ended 2.2 times as high as in FP32.
//!
//! ## How it decides
//!
//! From the fifth scanned step on, over the latest 32 at most:
//!
//! * **Error**: phi below 0.90. All harmed runs that were measured had 0.87 or less, and ended at 1.6 to 3.5 times the loss of FP32.
//! * **Warning**: phi below 0.95. Unharmed runs had 0.916 and more: the gap is thin.
//! * **Warning**: phi above 1.1, **error** above 1.5: rounding up makes the steps larger than the optimizer meant them. With w = 1 and updates of
//!   -2.5e-4 phi is 1.95: nearly twice the learning rate that was set.
//!
//! Where the loss has come down to a quarter of its first value all the same, it is a **warning** and no error: the run learns, and loses in its late
//! phase.
//!
//! The share of elements that stand still decides nothing: with 40 % of them one run ended 2 % worse and another 80 %, since elements that round up
//! make up for those that do not move.
//!
//! ## What to do
//!
//! Let the optimizer step FP32 copies. The rest of the loop stays as it is:
//!
//! ```rust,ignore
//! let mut opt = MasterWeights::new(&vs)?.build(nn::Adam::default(), lr)?;  // in place of nn::Adam::default().build(&vs, lr)?
//! ```
//!
//! Or keep the parameters in FP32 and run forward under `autocast`. A larger learning rate also raises phi, and is seldom what you want.
//!
//! ## When it stays silent
//!
//! Where the optimizer steps FP32 parameters, or FP32 copies of the model's weights: then an FP16 weight that does not change is no fault, for its copy
//! remembers. What *would* be lost without the copies stands in the report. Where the copies exist and the optimizer was built on the wrong
//! ones, rule `broken-masters` says so. Where the update that was intended is not known, as with optimizers whose operators are not.

use super::text::{count, counted, measured, number, said, share};
use super::update_advice::{format_name, is_low, may_step, some_of, step_masters, stepped_in_low_precision};
use super::{Evidence, Firing, Limits, Needs, Rule, RuleInfo, Severity, Threshold, Verdict, broken_masters};
use crate::aggregate::{Aggregate, Weight};
use crate::observation::Probe;
use crate::scan::Fidelity;

const NAME: &str = "dead-updates";
/// Scanned steps before anything is said.
const FEWEST_STEPS: Threshold = Threshold::new(
    NAME,
    "fewest",
    5.0,
    "scanned steps",
    "Phi is summed over the latest 32; below five one large step decides it.",
);
/// Phi at which updates begin to be lost; unharmed runs had 0.916 and more.
const LOSING: Threshold = Threshold::new(
    NAME,
    "losing",
    0.95,
    "phi",
    "Unharmed runs had 0.916 and more, most of them above 0.98; the gap to those that were harmed is thin.",
);
/// Phi of a harmed run: they had 0.87 or less.
const HARMED: Threshold = Threshold::new(
    NAME,
    "harmed",
    0.90,
    "phi",
    "Harmed runs had 0.87 or less, at 1.6 to 3.5 times the loss of FP32; unharmed ones 0.916 or more.",
);
/// Phi at which rounding amplifies.
const AMPLIFIED: Threshold = Threshold::new(
    NAME,
    "amplified",
    1.1,
    "phi",
    "Rounding up makes the steps larger than they were meant; unharmed runs had 0.92 to 1.02.",
);
/// Phi at which the learning rate is in truth half as high again as the one that was set.
const OVERDRIVEN: Threshold = Threshold::new(
    NAME,
    "overdriven",
    1.5,
    "phi",
    "The learning rate is then half as high again as the one that was set; with w = 1 and updates of -2.5e-4 phi is 1.95.",
);
/// Part of the first loss at which a run is known to learn all the same.
const LEARNT: Threshold = Threshold::new(
    NAME,
    "learnt",
    0.25,
    "share of the first loss",
    "Nets in BF16 with phi at 0.44 came down as FP32 does: where the loss is below a quarter of the first one, it is a warning and no error.",
);
/// Phi of the weight decay at which it is told along with the rest.
const DECAY_LOST: f64 = 0.5;
/// Parameters that are named as losing most.
const SHOWN: usize = 3;

/// See the page of the rule.
pub struct DeadUpdates;

static INFO: RuleInfo = RuleInfo {
    code: "AMP401",
    name: NAME,
    severity: Severity::Error,
    summary: "Updates of FP16 or BF16 parameters are rounded away: the optimizer steps, and the weights stay.",
    source: include_str!("dead_updates.rs"),
};

impl Rule for DeadUpdates {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Scans { steps: FEWEST_STEPS.default as u64, applies: |a| may_step(a, is_low) }
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[FEWEST_STEPS, LOSING, HARMED, AMPLIFIED, OVERDRIVEN, LEARNT]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        match lost(aggregate, limits) {
            Some(Lost::Waiting(n)) => vec![Verdict::Unsure(format!(
                "{n} of {} scanned steps of the FP16 or BF16 parameters were seen; let it run on",
                limits.count(&FEWEST_STEPS)
            ))],
            Some(Lost::Known(phi, severity)) => {
                vec![Verdict::Firing(Box::new(firing(aggregate, phi, severity, limits)))]
            }
            None => Vec::new(),
        }
    }
}

enum Lost {
    Waiting(usize),
    Known(f64, Severity),
}

/// Whether this rule fires now: what other rules then are consequences of.
pub(super) fn fires(aggregate: &Aggregate, limits: &Limits) -> bool {
    matches!(lost(aggregate, limits), Some(Lost::Known(..)))
}

fn lost(aggregate: &Aggregate, limits: &Limits) -> Option<Lost> {
    let steps = aggregate.weights.steps.iter().filter(|s| s.stepped.energy > 0.0).count();
    let stepped = stepped_in_low_precision(aggregate);
    let known = stepped.iter().any(|(_, change)| change.rounding.stepped.is_some());
    if !known || broken_masters::optimizer_steps_the_model(aggregate, limits) {
        return None;
    }
    let phi = aggregate.weights.fidelity(|s| s.stepped).phi()?;
    if (steps as u64) < limits.count(&FEWEST_STEPS) {
        return Some(Lost::Waiting(steps));
    }
    let severity = match phi {
        phi if phi < limits.of(&HARMED) || phi > limits.of(&OVERDRIVEN) => Severity::Error,
        phi if phi < limits.of(&LOSING) || phi > limits.of(&AMPLIFIED) => Severity::Warning,
        _ => return None,
    };
    // A run that learns all the same has lost little yet.
    let learns = aggregate.losses.has_fallen_to(limits.of(&LEARNT)) == Some(true);
    let severity = if learns { severity.min(Severity::Warning) } else { severity };
    Some(Lost::Known(phi, severity))
}

fn firing(aggregate: &Aggregate, phi: f64, severity: Severity, limits: &Limits) -> Firing {
    let sum = aggregate.weights.fidelity(|s| s.stepped);
    let worst = worst(aggregate, phi);
    Firing {
        severity,
        layer: String::new(),
        operator: String::new(),
        probe: Some(Probe::Update),
        since: since(aggregate, phi, limits),
        strength: if phi < 1.0 { 1.0 - phi } else { phi - 1.0 },
        evidence: evidence(aggregate, phi, &sum, &worst),
        explanation: explanation(aggregate, phi, &sum, &worst),
        remedy: step_masters(aggregate, "."),
    }
}

/// The first of the latest steps that are all on the same side as the whole; where the latest is not, the window's first.
fn since(aggregate: &Aggregate, phi: f64, limits: &Limits) -> u64 {
    let mut known: Vec<(u64, f64)> =
        aggregate.weights.steps.iter().filter_map(|s| Some((s.step, s.stepped.phi()?))).collect();
    known.reverse();
    let is_lost = |&&(_, p): &&(u64, f64)| if phi < 1.0 { p < limits.of(&LOSING) } else { p > limits.of(&AMPLIFIED) };
    let first = known.iter().take_while(is_lost).last().or(known.last());
    first.map_or(0, |&(step, _)| step)
}

/// The parameters that lose, or gain, most energy, worst first.
fn worst(aggregate: &Aggregate, phi: f64) -> Vec<(&Weight, Fidelity)> {
    let known = stepped_in_low_precision(aggregate).into_iter();
    let mut all: Vec<_> = known.filter_map(|(w, _)| Some((w, w.fidelity(|r| r.stepped)?))).collect();
    let off = |f: &Fidelity| if phi < 1.0 { f.energy - f.dot } else { f.dot - f.energy };
    all.retain(|(_, f)| off(f) > 0.0);
    all.sort_by(|(_, a), (_, b)| off(b).total_cmp(&off(a)));
    all
}

fn evidence(aggregate: &Aggregate, phi: f64, sum: &Fidelity, worst: &[(&Weight, Fidelity)]) -> Vec<Evidence> {
    let mut evidence = vec![measured("phi", phi)];
    evidence.extend(sum.dead_share().map(|dead| measured("dead_share", dead)));
    let known = aggregate.weights.steps.iter().filter(|s| s.stepped.energy > 0.0);
    evidence.push(counted("scanned_steps", known.count() as u64));
    evidence.extend(
        worst
            .iter()
            .take(SHOWN)
            .map(|(w, f)| said("loses_most", format!("{} (phi {})", w.label(), number(f.phi().unwrap_or(f64::NAN))))),
    );
    evidence.extend(decay_phi(aggregate).map(|phi| measured("decay_phi", phi)));
    evidence.extend(aggregate.latest.as_ref().and_then(|s| s.lr).map(|lr| measured("lr", lr)));
    evidence
}

fn decay_phi(aggregate: &Aggregate) -> Option<f64> {
    aggregate.weights.fidelity(|s| s.decay).phi()
}

fn explanation(aggregate: &Aggregate, phi: f64, sum: &Fidelity, worst: &[(&Weight, Fidelity)]) -> String {
    let stepped = stepped_in_low_precision(aggregate);
    let format = stepped.first().map_or("FP16", |(_, change)| format_name(change.dtype));
    let dead = share(sum.dead_share().unwrap_or(0.0));
    let what = if phi < 1.0 {
        format!(
            "The optimizer steps {} held in {format}, and {} of what it intended arrives (phi {}): {dead} of the elements did not move at all, because their \
             update is smaller than half of what {format} can tell apart at that weight.",
            count(stepped.len(), "parameter"),
            share(phi.max(0.0)),
            number(phi)
        )
    } else {
        format!(
            "The optimizer steps {} held in {format}, and rounding makes the steps {} times as large as it intended (phi): most updates are a little above half \
             of what {format} can tell apart at that weight, and are rounded up. {dead} of the elements did not move at all.",
            count(stepped.len(), "parameter"),
            number(phi)
        )
    };
    let names: Vec<String> = worst.iter().map(|(w, _)| w.label()).collect();
    let most = if names.is_empty() { String::new() } else { format!(" It costs most at {}.", some_of(&names)) };
    let decay = match decay_phi(aggregate) {
        Some(kept) if kept < DECAY_LOST => format!(" Of the weight decay {} arrives.", share(kept.max(0.0))),
        _ => String::new(),
    };
    let grows = if phi < 1.0 { " It grows worse as the learning rate falls." } else { "" };
    format!("{what}{most}{decay}{grows}")
}

#[cfg(test)]
mod tests;
