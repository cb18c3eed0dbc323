//! ## What it finds
//!
//! An optimizer that was stepped after a scaled backward pass, with gradients that nobody divided by the loss scale.
//!
//! ## Why it matters
//!
//! Each step is too large by the scale. SGD throws the weights away at once. Under Adam the size cancels, and what is lost is the check: infinite
//! gradients go into the weights, and clipping and weight decay are wrong by the factor of the scale.
//!
//! ## How it decides
//!
//! **Error**, at the first watched step at which a loss was scaled by something other than 1 and an optimizer changed parameters, while neither the
//! scaler unscaled anything nor the gradients were multiplied by the inverse of the scale before the next backward pass or the end of the step.
//!
//! ## What to do
//!
//! Step through the scaler, which unscales, checks, and steps: `scaler.step(&mut opt)?` in place of `opt.step()`.
//!
//! ## When it stays silent
//!
//! On a second optimizer, trained on a loss without a scale, that steps before the first is unscaled. On gradients divided by the scale by hand, in
//! place. Where another library's scaler cannot be seen to have scaled this loss.

use super::recipe_mistake::{Telling, WATCHED_WITH_SCALER, judge};
use super::text::{measured, scale as write_scale};
use super::{Limits, Needs, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, Mistake};

/// See the page of the rule.
pub struct StepOnScaledGradients;

static INFO: RuleInfo = RuleInfo {
    code: "AMP605",
    name: "step-on-scaled-gradients",
    severity: Severity::Error,
    summary: "The optimizer stepped with gradients that were not divided by the loss scale.",
    source: include_str!("step_on_scaled_gradients.rs"),
};

impl Rule for StepOnScaledGradients {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        WATCHED_WITH_SCALER
    }

    fn check(&self, aggregate: &Aggregate, _: &Limits) -> Vec<Verdict> {
        judge(aggregate, |mistake, sighting| {
            let Mistake::SteppedScaled { scale, adaptive } = *mistake else { return None };
            let effect = if adaptive {
                "This optimizer divides by the size of its gradients, so the steps look right; but nothing skips a step with infinite gradients, and a limit of clipping is \
                 out by the scale."
            } else {
                "Each step is as many times too large."
            };
            Some(Telling {
                severity: Severity::Error,
                evidence: vec![measured("loss_scale", scale)],
                explanation: format!(
                    "From step {} on the loss was scaled by {}, and the optimizer stepped without the gradients having been divided by it. {effect}",
                    sighting.first,
                    write_scale(scale)
                ),
                remedy: "Replace `opt.step()` by `scaler.step(&mut opt)?`, followed by `scaler.update()?`: it divides by the scale, and skips the step when a gradient is not finite.".into(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::recipe_mistake::testing::*;
    use crate::observation::Act;
    use crate::rules::Severity;
    use crate::rules::silence::found;

    #[test]
    fn a_step_without_unscale_is_an_error() {
        let d = run(3, |s, _| {
            backward(s, 0);
            apply(s, false);
        });
        let f = only(&d, "AMP605");
        assert_eq!((f.severity, f.onset_step), (Severity::Error, 0));
        assert!(f.explanation.contains("1024 (2^10)"), "{}", f.explanation);
    }

    #[test]
    fn gradients_that_are_divided_by_hand_and_sound_steps_are_silent() {
        let d = run(4, |s, i| {
            if i % 2 == 0 {
                return sound(s);
            }
            backward(s, 0);
            s.act(Act::Multiplied { factor: 1.0 / SCALE, gradients: 2 });
            apply(s, false);
        });
        assert!(found(&d).is_empty(), "{:#?}", d.findings());
    }
}
