//! ## What it finds
//!
//! A loop without `zero_grad`: each backward pass adds to gradients that an optimizer has already used.
//!
//! ## Why it matters
//!
//! Each step follows the sum of all gradients of the run, not that of its batch. It is like momentum that never fades: the loss swings or diverges,
//! and seems to ask for a smaller learning rate. Under a loss scaler it is worse: the old gradients are unscaled, the new ones carry the scale.
//!
//! ## How it decides
//!
//! **Error**: at two watched steps an optimizer stepped a parameter whose gradient still held what an earlier step had used. The doctor knows it by
//! the memory: between the earlier step and the next backward pass nobody cleared the gradient or wrote to it.
//!
//! ## What to do
//!
//! Call `opt.zero_grad()` before the backward pass of each new step (with accumulation, before that of the first micro-batch).
//!
//! ## When it stays silent
//!
//! * On accumulation: no optimizer has used those gradients yet.
//! * On a GAN, whose discriminator collects gradients while the generator is trained, and is cleared before its own turn.
//! * On gradients cleared at the end of the loop or at its beginning, by dropping them or by writing zeros.
//! * Where only single steps of a run are watched.

use super::recipe_mistake::{Telling, judge};
use super::text::counted;
use super::{Limits, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Mistake};

/// See the page of the rule.
pub struct StaleGradients;

static INFO: RuleInfo = RuleInfo {
    code: "AMP606",
    name: "stale-gradients",
    severity: Severity::Error,
    summary: "Gradients of earlier steps were never cleared, and every step adds to them.",
    source: include_str!("stale_gradients.rs"),
};

/// Steps at which it must have been seen.
static SIGHTINGS: Threshold = Threshold {
    rule: "stale-gradients",
    name: "fewest-steps",
    default: 2.0,
    unit: "steps",
    reason: "A loop that forgets to clear does so at every step; one left-over gradient may be a restart or an experiment at the prompt.",
};

static THRESHOLDS: [Threshold; 1] = [SIGHTINGS];

impl Rule for StaleGradients {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &THRESHOLDS
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        judge(aggregate, |mistake, sighting| {
            let Mistake::Stale { stale, parameters } = *mistake else { return None };
            if (sighting.times as f64) < limits.of(&SIGHTINGS) {
                return None;
            }
            Some(Telling {
                severity: Severity::Error,
                evidence: vec![counted("stale_gradients", u64::from(stale)), counted("stepped_parameters", u64::from(parameters))],
                explanation: format!(
                    "From step {} on the gradients of {stale} of {parameters} parameters still held what an earlier step had used when the next backward pass began, and it added to them: \
                     the optimizer steps along the sum of all batches so far.",
                    sighting.first
                ),
                remedy: "Call `opt.zero_grad()` once per step, before backward (before the first micro-batch of an accumulation).".into(),
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

    fn stale(s: &mut crate::observation::scenario::StepBuilder<'_>) {
        backward(s, 2);
        unscale(s, 0);
        s.act(Act::Stepped { parameters: 2, stale: 2, adaptive: false });
        s.event(crate::observation::ScalerEvent::Stepped { optimizer: 0, applied: true });
        update(s);
    }

    #[test]
    fn gradients_that_are_never_cleared_are_an_error_from_their_first_step() {
        let d = run(4, |s, i| if i == 0 { sound(s) } else { stale(s) });
        let f = only(&d, "AMP606");
        assert_eq!((f.severity, f.onset_step), (Severity::Error, 1));
    }

    #[test]
    fn one_such_step_is_none() {
        let d = run(4, |s, i| if i == 1 { stale(s) } else { sound(s) });
        assert!(found(&d).is_empty(), "{:#?}", d.findings());
    }
}
