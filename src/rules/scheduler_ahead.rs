//! ## What it finds
//!
//! A schedule that goes on while the loss scaler skips steps, so that much of the learning rate is spent on steps that were never taken.
//!
//! ## Why it matters
//!
//! A scaler that starts too high skips its first steps. A schedule that falls at each of them, because the loop counts and not the optimizer, begins
//! training at a fraction of the rate that was meant: with three skipped steps and a rate that halves each time, at an eighth. PyTorch warns of a
//! "call of lr_scheduler.step() before optimizer.step()".
//!
//! ## How it decides
//!
//! **Warning**: the learning rate fell right after skipped steps, at two of them at least, and lost there, all together, more than half of the
//! highest it was.
//!
//! It needs to be told the learning rate: `doctor.lr(lr)`.
//!
//! ## What to do
//!
//! Step the schedule only where the optimizer was stepped: `if scaler.step(&mut opt)?.applied() { schedule.step(); }`. Or start the loss scale lower,
//! so that no step is skipped: `GradScaler::builder().init_scale(1024.0).build()?`.
//!
//! ## When it stays silent
//!
//! On a slow schedule, of which a few skipped steps cost next to nothing. On a rate that rises, as in a warm-up. Where the rate was never told, nor seen to
//! fall: most runs skip a step or two at the start. Where it was seen to fall, and was not told at the skipped steps, it says so.

use super::recipe_mistake::{Telling, judge};
use super::text::{counted, measured, number, share};
use super::{Limits, Needs, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Mistake};

/// See the page of the rule.
pub struct SchedulerAhead;

static INFO: RuleInfo = RuleInfo {
    code: "AMP612",
    name: "scheduler-ahead",
    severity: Severity::Warning,
    summary: "The learning rate was lowered over steps that the scaler skipped.",
    source: include_str!("scheduler_ahead.rs"),
};

/// Withheld steps after which the rate fell.
static MOVES: Threshold = Threshold {
    rule: "scheduler-ahead",
    name: "fewest-scheduler-steps",
    default: 2.0,
    unit: "steps",
    reason: "One drop of a step-wise schedule may fall on a skipped step by chance, and then nothing is lost.",
};

/// What the rate lost at them.
static LOST: Threshold = Threshold {
    rule: "scheduler-ahead",
    name: "lost-share",
    default: 0.5,
    unit: "share of the highest learning rate",
    reason: "A cosine or linear schedule of 100 steps loses 1 % to 3 % over three skips; one that halves at each step loses 87 %.",
};

static THRESHOLDS: [Threshold; 2] = [MOVES, LOST];

impl Rule for SchedulerAhead {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::ScalerEvents
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &THRESHOLDS
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        if aggregate.recipe.lr_unknown_at_skips() {
            return vec![Verdict::Unsure(
                "the learning rate falls, and at skipped steps it was not told: tell it with `doctor.lr(lr)` at each step"
                    .into(),
            )];
        }
        judge(aggregate, |mistake, sighting| {
            let Mistake::SchedulerAhead { moves, from, to, lost_share } = *mistake else { return None };
            if (moves as f64) < limits.of(&MOVES) || lost_share <= limits.of(&LOST) {
                return None;
            }
            Some(Telling {
                severity: Severity::Warning,
                evidence: vec![
                    counted("scheduler_steps_without_a_step", moves),
                    measured("lr_before", from),
                    measured("lr_after", to),
                    measured("lost_share_of_highest_lr", lost_share),
                ],
                explanation: format!(
                    "From step {} on {moves} steps of the scheduler had no step of the optimizer: the scaler skipped it, and the learning rate fell all the same, from {} to {}. {} of the highest rate \
                     was lost that way.",
                    sighting.first.saturating_sub(1),
                    number(from),
                    number(to),
                    share(lost_share)
                ),
                remedy: "Step the scheduler only when the step was applied: `if scaler.step(&mut opt)?.applied() { schedule.step() }`. A lower `init_scale` skips fewer steps at the start.".into(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::recipe_mistake::testing::*;
    use crate::rules::Severity;
    use crate::rules::silence::found;

    fn run_with(lr: impl Fn(u64) -> Option<f64>) -> crate::rules::Diagnosis {
        run(12, |s, i| {
            if let Some(lr) = lr(i) {
                s.lr(lr);
            }
            s.loss(1.0);
            // Three bad batches at the start, which leave this scale where it is.
            if i < 3 {
                s.skipped(SCALE, SCALE)
            } else {
                s.applied(SCALE)
            };
        })
    }

    #[test]
    fn case_9_a_rate_that_halves_over_three_skipped_steps_is_a_warning() {
        let d = run_with(|i| Some(0.1 * 0.5f64.powi(i as i32)));
        let f = only(&d, "AMP612");
        assert_eq!((f.severity, f.onset_step), (Severity::Warning, 1));
        assert!(f.explanation.contains("3 steps of the scheduler"), "{}", f.explanation);
    }

    #[test]
    fn slow_schedules_warm_ups_and_constant_rates_are_silent() {
        for lr in [|i: u64| 0.1 * (1.0 - i as f64 / 1000.0), |i| 0.01 * (i + 1) as f64, |_| 0.1] {
            let d = run_with(|i| Some(lr(i)));
            assert!(found(&d).is_empty(), "{:#?}", d.findings());
            assert!(d.doubts().iter().all(|doubt| doubt.code != "AMP612"));
        }
    }

    #[test]
    fn a_rate_that_falls_and_is_unknown_at_skipped_steps_is_a_doubt() {
        let d = run_with(|i| (i >= 3).then(|| 0.1 * 0.5f64.powi(i as i32)));
        assert!(d.doubts().iter().any(|doubt| doubt.code == "AMP612"));
    }

    #[test]
    fn a_rate_that_was_never_told_or_never_fell_is_no_doubt() {
        for lr in [(|_| None) as fn(u64) -> Option<f64>, |i| (i >= 3).then_some(0.1), |i| (i >= 3).then_some(i as f64)]
        {
            assert!(run_with(lr).doubts().iter().all(|doubt| doubt.code != "AMP612"));
        }
    }
}
