//! ## What it finds
//!
//! A loss told to `doctor.step` that still carries the loss scale.
//!
//! ## Why it matters
//!
//! What is logged is 65536 times too large and jumps whenever the scale moves, so neither a curve nor a rule on the loss means anything. Often the
//! same number picks the checkpoint or lowers the learning rate.
//!
//! ## How it decides
//!
//! **Warning**: at three watched steps the reported loss was the loss that was scaled (or the sum or the mean of those of the step's micro-batches) times the scale, within 1e-4.
//!
//! ## What to do
//!
//! Report the loss as forward gave it: `doctor.step(&loss)`, not the result of `scaler.scale(&loss)`. See that what you log is the same.
//!
//! ## When it stays silent
//!
//! At a scale of 1. On losses that cannot be read without waiting for the device.

use super::recipe_mistake::{Telling, WATCHED_WITH_SCALER, judge};
use super::text::{measured, number, scale as write_scale};
use super::{Limits, Needs, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Mistake};

/// See the page of the rule.
pub struct ScaledLossReported;

static INFO: RuleInfo = RuleInfo {
    code: "AMP610",
    name: "scaled-loss-reported",
    severity: Severity::Warning,
    summary: "The loss given to the doctor is the scaled one.",
    source: include_str!("scaled_loss_reported.rs"),
};

/// Steps at which it must have been seen.
static SIGHTINGS: Threshold = Threshold {
    rule: "scaled-loss-reported",
    name: "fewest-steps",
    default: 3.0,
    unit: "steps",
    reason: "Two numbers that agree to 1e-4 by chance do so once in some thousand steps, and not three times.",
};

static THRESHOLDS: [Threshold; 1] = [SIGHTINGS];

impl Rule for ScaledLossReported {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        WATCHED_WITH_SCALER
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &THRESHOLDS
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        judge(aggregate, |mistake, sighting| {
            let Mistake::ScaledLossReported { reported, loss, scale } = *mistake else { return None };
            if (sighting.times as f64) < limits.of(&SIGHTINGS) {
                return None;
            }
            Some(Telling {
                severity: Severity::Warning,
                evidence: vec![measured("reported_loss", reported), measured("loss", loss), measured("loss_scale", scale)],
                explanation: format!(
                    "From step {} on the loss that was reported is the scaled one: {}, where the loss was {} and the scale {}.",
                    sighting.first,
                    number(reported),
                    number(loss),
                    write_scale(scale)
                ),
                remedy: "Give `doctor.step` (and your logs) the loss itself: `doctor.step(&loss)`, not what `scaler.scale(&loss)` returned.".into(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::recipe_mistake::testing::*;
    use crate::rules::Severity;
    use crate::rules::silence::found;

    #[test]
    fn a_scaled_loss_is_a_warning_after_three_steps() {
        let scaled = |steps| {
            run(steps, |s, i| {
                // A loss that rises and falls is no matter of this rule.
                sound(s);
                s.loss(2.0 * SCALE + i as f64 * 1e-3);
            })
        };
        assert!(found(&scaled(2)).is_empty());
        let f = only(&scaled(4), "AMP610");
        assert_eq!((f.severity, f.onset_step), (Severity::Warning, 0));
    }

    #[test]
    fn the_loss_itself_is_silent() {
        let d = run(6, |s, _| {
            sound(s);
            s.loss(2.0);
        });
        assert!(found(&d).is_empty(), "{:#?}", d.findings());
    }
}
