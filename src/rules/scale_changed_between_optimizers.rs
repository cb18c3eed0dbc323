//! ## What it finds
//!
//! `update` after each of several optimizers that use the gradients of the same backward passes, in place of one `update` after all of them.
//!
//! ## Why it matters
//!
//! When the update moves the scale, the optimizers after it divide gradients that carry the old scale by the new one: their step is double or half of
//! what it should be. And the scaler counts several clean steps where there was one.
//!
//! ## How it decides
//!
//! * **Error**: an optimizer was unscaled by another scale than its backward pass had, with an update in between.
//! * **Warning**: there was an update in between, and so far it left the scale as it was.
//!
//! ## What to do
//!
//! Update once, after all optimizers:
//!
//! ```rust,ignore
//! scaler.step(&mut generator)?;
//! scaler.step(&mut discriminator)?;
//! scaler.update()?;
//! ```
//!
//! ## When it stays silent
//!
//! On loops that run a backward pass for each optimizer, after the update of the one before, as for a GAN.

use super::recipe_mistake::{Telling, judge};
use super::text::{counted, measured, scale as write_scale};
use super::{Limits, Needs, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, Mistake};

/// See the page of the rule.
pub struct ScaleChangedBetweenOptimizers;

static INFO: RuleInfo = RuleInfo {
    code: "AMP608",
    name: "scale-changed-between-optimizers",
    severity: Severity::Error,
    summary: "The scale was updated before all optimizers of a step had been unscaled.",
    source: include_str!("scale_changed_between_optimizers.rs"),
};

impl Rule for ScaleChangedBetweenOptimizers {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::ScalerEvents
    }

    fn check(&self, aggregate: &Aggregate, _: &Limits) -> Vec<Verdict> {
        judge(aggregate, |mistake, sighting| {
            let Mistake::ScaleChangedBetween { optimizer, from, to } = *mistake else { return None };
            let moved = from != to;
            let effect = if moved {
                format!("Its gradients carried {}, and were divided by {}.", write_scale(from), write_scale(to))
            } else {
                "The scale did not move there; when it does, its gradients are divided by a scale that they do not carry.".into()
            };
            Some(Telling {
                severity: if moved { Severity::Error } else { Severity::Warning },
                evidence: vec![
                    counted("optimizer", u64::from(optimizer)),
                    measured("scale_of_backward", from),
                    measured("scale_of_unscale", to),
                ],
                explanation: format!(
                    "First at step {}: the scale was updated after one optimizer and before optimizer {optimizer}, whose gradients are of the same backward pass. {effect}",
                    sighting.first
                ),
                remedy: "Call `scaler.update()?` once per step, after `scaler.step` of the last optimizer.".into(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::recipe_mistake::testing::*;
    use crate::observation::ScalerEvent::{Unscaled, Updated};
    use crate::rules::Severity;
    use crate::rules::silence::found;

    #[test]
    fn an_update_after_each_of_two_optimizers_is_a_warning() {
        let d = run(3, |s, _| {
            backward(s, 0);
            for optimizer in [0, 1] {
                unscale(s, optimizer);
                step(s, optimizer);
                update(s);
            }
        });
        assert_eq!(only(&d, "AMP608").severity, Severity::Warning);
    }

    #[test]
    fn one_that_moves_the_scale_is_an_error() {
        let d = run(1, |s, _| {
            backward(s, 0);
            unscale(s, 0);
            step(s, 0);
            s.event(Updated { from: SCALE, to: 2.0 * SCALE, growth_tracker: 0 });
            s.event(Unscaled { optimizer: 1, scale: 2.0 * SCALE, found_inf: false });
            step(s, 1);
            s.event(Updated { from: 2.0 * SCALE, to: 2.0 * SCALE, growth_tracker: 1 });
        });
        assert_eq!(only(&d, "AMP608").severity, Severity::Error);
    }

    #[test]
    fn a_backward_pass_for_each_optimizer_is_silent() {
        let d = run(3, |s, _| {
            for optimizer in [0, 1] {
                backward(s, 2);
                unscale(s, optimizer);
                step(s, optimizer);
                update(s);
            }
        });
        assert!(found(&d).is_empty(), "{:#?}", d.findings());
    }
}
