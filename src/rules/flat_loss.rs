//! ## What it finds
//!
//! A loss that stays where it began, with the reason: every step is skipped, the learning rate is zero, no gradient arrives, or no update is made.
//!
//! ## Why it matters
//!
//! Nothing is NaN and nothing is reported; the time is lost. Under mixed precision this is what a scale that is too high, or gradients that
//! underflow, look like from outside.
//!
//! ## How it decides
//!
//! The loss is flat when, after 96 losses, the median of the latest eight is between 97 % and 150 % of what it began with. A flat loss by itself
//! proves nothing: hard problems begin so, and so does fine-tuning. **Error**, where one of these holds as well:
//!
//! * nine tenths of these 96 steps were skipped by the scaler;
//! * the learning rate was told, and was zero at each of them;
//! * at the five latest scanned steps the gradient of every weight matrix was exactly zero;
//! * at the five latest scanned steps every update was exactly zero.
//!
//! Where none does and the loss is still flat after 192 losses, the rule says that it cannot tell, unless another finding explains it.
//!
//! ## What to do
//!
//! * Steps skipped: a dynamic scaler, `GradScaler::default()`, or a lower static scale; then look for another finding, which names an operator.
//! * Learning rate zero: `opt.set_lr(lr)`, and look at the schedule.
//! * No gradient: a loss scale that keeps gradients from underflow, or what cuts the gradient off (`detach`, `no_grad`, a frozen `VarStore`).
//! * No update: see that the optimizer was built on the `VarStore` that forward reads, and that its weights are not FP16 that swallow the update.
//!
//! Where another rule explains the reason itself, this finding is listed under it.
//!
//! ## When it stays silent
//!
//! On a loss that falls by 3 %. On one that jumped back to where it began: rule `loss-jump` tells of it. On a loss that begins at zero or below, where shares mean nothing. In the first 96 steps.

use std::collections::VecDeque;

use super::text::{counted, measured, number, said, scale};
use super::{Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Loss, Losses, WeightStep};

const FALLEN: Threshold = Threshold {
    rule: "flat-loss",
    name: "unlearnt",
    default: 0.97,
    unit: "of the first loss",
    reason: "Healthy runs have learnt more than 10 % after 96 steps; one whose steps were all skipped stays within 1 % of its first loss.",
};
const SKIPPED: Threshold = Threshold {
    rule: "flat-loss",
    name: "skipped",
    default: 0.9,
    unit: "of the steps",
    reason: "A scale 2^4 too high skips 92 to 100 % of the steps; thrash, which still learns, skips 10 % at most.",
};
/// Above this part of the first loss it has risen, and is not flat.
const RISEN: f64 = 1.5;
/// Scanned steps in a row at which nothing moved.
const SCANS: usize = 5;

pub(super) const CODE: &str = "AMP702";

/// See the page of the rule.
pub struct FlatLoss;

static INFO: RuleInfo = RuleInfo {
    code: CODE,
    name: "flat-loss",
    severity: Severity::Error,
    summary: "The loss stays where it began, because every step is skipped, or no gradient or update arrives.",
    source: include_str!("flat_loss.rs"),
};

impl Rule for FlatLoss {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Losses(Losses::WINDOW as u64)
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[FALLEN, SKIPPED]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        let Some((initial, now)) = flat(aggregate, limits) else { return Vec::new() };
        match reason(aggregate, limits) {
            Some(reason) => vec![Verdict::Firing(Box::new(firing(aggregate, initial, now, &reason)))],
            None if aggregate.losses.count >= 2 * Losses::WINDOW as u64 => vec![Verdict::Unsure(format!(
                "the loss is {} after {} steps, of {} at first{}, and nothing that was seen explains it",
                number(now),
                aggregate.losses.count,
                number(initial),
                had_fallen(aggregate, limits.of(&FALLEN) * initial)
            ))],
            None => Vec::new(),
        }
    }
}

/// The first loss and the present one, where they are the same.
fn flat(aggregate: &Aggregate, limits: &Limits) -> Option<(f64, f64)> {
    let losses = &aggregate.losses;
    let (initial, now) = (losses.initial().filter(|&x| x > 0.0)?, losses.present()?);
    let is_flat = now >= limits.of(&FALLEN) * initial && now <= RISEN * initial;
    (losses.count >= Losses::WINDOW as u64 && is_flat).then_some((initial, now))
}

/// That it was lower on the way, where it was.
fn had_fallen(aggregate: &Aggregate, least: f64) -> String {
    let lowest = aggregate.losses.lowest.filter(|&lowest| lowest < least);
    lowest.map_or(String::new(), |lowest| format!(" and {} on the way", number(lowest)))
}

enum Reason {
    Skipped { share: f64, scale: Option<f64>, since: u64 },
    NoLearningRate,
    NoGradient { since: u64 },
    NoUpdate { since: u64 },
}

fn reason(aggregate: &Aggregate, limits: &Limits) -> Option<Reason> {
    let recent = &aggregate.losses.recent;
    let share = recent.iter().filter(|at| at.skipped).count() as f64 / recent.len().max(1) as f64;
    if share >= limits.of(&SKIPPED) {
        let since = skipping_since(recent);
        return Some(Reason::Skipped { share, scale: recent.back().and_then(|at| at.loss_scale), since });
    }
    if recent.iter().all(|at| at.lr == Some(0.0)) {
        return Some(Reason::NoLearningRate);
    }
    let lasts = |nothing: fn(&WeightStep) -> bool| {
        let steps = &aggregate.weights.steps;
        let in_a_row = steps.iter().rev().take_while(|s| nothing(s));
        (in_a_row.clone().count() >= SCANS).then(|| in_a_row.last().map(|s| s.step)).flatten()
    };
    lasts(|s| s.gradient_norm == Some(0.0))
        .map(|since| Reason::NoGradient { since })
        .or_else(|| lasts(|s| s.energy_ratio == Some(0.0)).map(|since| Reason::NoUpdate { since }))
}

/// The step from which on steps are skipped: the first of the longest stretch of them.
fn skipping_since(recent: &VecDeque<Loss>) -> u64 {
    let (mut longest, mut stretch) = ((0, 0), (0, 0));
    for at in recent {
        stretch = match (at.skipped, stretch.0) {
            (false, _) => (0, 0),
            (true, 0) => (1, at.step),
            (true, n) => (n + 1, stretch.1),
        };
        if stretch.0 > longest.0 {
            longest = stretch;
        }
    }
    longest.1
}

fn firing(aggregate: &Aggregate, initial: f64, now: f64, reason: &Reason) -> Firing {
    let first = aggregate.losses.recent.front().map_or(0, |at| at.step);
    let since = match reason {
        Reason::NoGradient { since } | Reason::NoUpdate { since } | Reason::Skipped { since, .. } => *since,
        Reason::NoLearningRate => first,
    };
    let mut evidence = vec![
        said("cause", reason.name()),
        measured("loss_at_first", initial),
        measured("loss", now),
        counted("losses", aggregate.losses.count),
    ];
    if let Reason::Skipped { share, .. } = reason {
        evidence.push(measured("skipped_share", *share));
    }
    Firing {
        severity: Severity::Error,
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since,
        strength: aggregate.losses.count as f64,
        evidence,
        explanation: format!(
            "After {} steps the loss is {}, of {} at first. {}",
            aggregate.losses.count,
            number(now),
            number(initial),
            reason.text()
        ),
        remedy: reason.remedy(),
    }
}

impl Reason {
    fn name(&self) -> &'static str {
        match self {
            Self::Skipped { .. } => "steps skipped",
            Self::NoLearningRate => "learning rate of zero",
            Self::NoGradient { .. } => "no gradient",
            Self::NoUpdate { .. } => "no update",
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Skipped { share, scale: at, .. } => format!(
                "The scaler skipped {:.0} % of the latest steps{}: the weights are what they were.",
                100.0 * share,
                at.map_or(String::new(), |at| format!(", and its scale stands at {}", scale(at)))
            ),
            Self::NoLearningRate => "The learning rate is zero: the weights are what they were.".into(),
            Self::NoGradient { since } => {
                format!("Since step {since} the gradient of every weight matrix has been exactly zero.")
            }
            Self::NoUpdate { since } => {
                format!("Since step {since} the optimizer has stepped and every weight matrix stayed as it was.")
            }
        }
    }

    fn remedy(&self) -> Remedy {
        match self {
            Self::Skipped { .. } => Remedy::from(
                "Look at what makes the gradients non-finite: a static scale that is too high (use a dynamic one, `GradScaler::default()`), or an operator, which another finding names.",
            )
            .set("scaler", "dynamic"),
            Self::NoLearningRate => {
                Remedy::from("Give the optimizer a learning rate; look for a schedule that has come to its end, or starts at zero and is not stepped.")
            }
            Self::NoGradient { .. } => Remedy::from(
                "Under FP16 scale the loss, with a dynamic `GradScaler`. Else look for what shuts the gradient off: a `detach`, a `no_grad`, units that are dead.",
            ),
            Self::NoUpdate { .. } => Remedy::from(
                "Step FP32 copies of 16-bit weights (`MasterWeights`), and look at the learning rate: what is added to the weights is rounded away, or is zero.",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::Tier;
    use crate::observation::scenario::{Scenario, StepBuilder, normal};
    use crate::rules::silence::diagnose;
    use crate::rules::{Finding, Severity, Value};
    use crate::scan::Dtype::F32;

    fn run(steps: u64, loss: impl Fn(u64) -> f64, with: impl Fn(&mut StepBuilder<'_>, u64)) -> Scenario {
        let mut run = Scenario::new();
        run.steps(steps, |s, i| {
            s.loss(loss(i) + 0.01 * normal(1, 1.0, i)[0]).tier(Tier::Off);
            with(s, i);
        });
        run
    }

    fn flat(_: u64) -> f64 {
        2.3
    }

    fn finding(run: &Scenario) -> Option<Finding> {
        let d = diagnose(run);
        d.findings().iter().flat_map(Finding::with_consequences).find(|f| f.code == "AMP702").cloned()
    }

    fn cause(run: &Scenario) -> Option<(Severity, Value)> {
        let f = finding(run)?;
        Some((f.severity, f.evidence.iter().find(|e| e.name == "cause")?.value.clone()))
    }

    #[test]
    fn steps_that_are_all_skipped_are_the_cause_though_nothing_was_scanned() {
        let skipping = run(100, flat, |s, _| {
            s.skipped(2f64.powi(30), 2f64.powi(30));
        });
        assert_eq!(cause(&skipping), Some((Severity::Error, "steps skipped".into())));
        assert_eq!(finding(&skipping).map(|f| f.onset_step), Some(0));
    }

    #[test]
    fn it_began_with_the_first_step_of_those_that_are_skipped_and_not_with_the_loss() {
        // Two skips of the calibration, eight steps that were applied, and then none.
        let later = run(110, flat, |s, i| {
            match i {
                2..10 => s.applied(1024.0),
                _ => s.skipped(1024.0, 1024.0),
            };
        });
        assert_eq!(finding(&later).map(|f| f.onset_step), Some(10));
    }

    #[test]
    fn a_learning_rate_of_zero_is_the_cause() {
        let zero = run(100, flat, |s, _| {
            s.lr(0.0);
        });
        assert_eq!(cause(&zero), Some((Severity::Error, "learning rate of zero".into())));
    }

    /// Every tenth step is scanned, with this gradient and this update.
    fn scanned(gradient: f64, update: f64) -> Scenario {
        run(100, flat, move |s, i| {
            if i % 10 == 0 {
                s.tier(Tier::Full).param_grad("fc", "weight", F32, &[gradient; 256]);
                s.update("fc", "add_", "weight", &[update; 256]).param("fc", "weight", F32, &normal(256, 0.1, 1));
            }
        })
    }

    #[test]
    fn gradients_and_updates_of_exactly_zero_are_told_apart() {
        assert_eq!(cause(&scanned(0.0, 0.0)), Some((Severity::Error, "no gradient".into())));
        assert_eq!(cause(&scanned(1e-3, 0.0)), Some((Severity::Error, "no update".into())));
        assert_eq!(cause(&scanned(1e-3, 1e-4)), None);
    }

    #[test]
    fn a_flat_loss_that_nothing_explains_is_a_doubt_and_no_finding() {
        let d = diagnose(&run(200, flat, |_, _| {}));
        assert!(!d.findings().iter().any(|f| f.code == "AMP702"));
        assert!(
            d.doubts().iter().any(|doubt| doubt.code == "AMP702" && doubt.reason.contains("of 2.3")),
            "{:?}",
            d.doubts()
        );
    }

    #[test]
    fn a_loss_that_falls_is_silent_whatever_is_skipped_and_so_is_a_short_run() {
        let skip = |s: &mut StepBuilder<'_>, _: u64| {
            s.skipped(1024.0, 1024.0);
        };
        assert_eq!(cause(&run(200, |i| 2.3 - 0.005 * i as f64, skip)), None);
        assert_eq!(cause(&run(90, flat, skip)), None);
        assert_eq!(cause(&run(200, |_| -1.0, skip)), None);
    }
}
