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
//! the memory: between the earlier step and the next backward pass nobody cleared the gradient or wrote to it. The same of steps that the scaler
//! withheld: a first scale that is too high, as most are, then leaves an infinity in the gradients for good.
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
            let Mistake::Stale { stale, parameters, withheld } = *mistake else { return None };
            if (sighting.times as f64) < limits.of(&SIGHTINGS) {
                return None;
            }
            Some(Telling {
                severity: Severity::Error,
                evidence: vec![counted("stale_gradients", u64::from(stale)), counted("stepped_parameters", u64::from(parameters))],
                explanation: explanation(sighting.first, stale, parameters, withheld),
                remedy: "Call `opt.zero_grad()` once per step, before backward (before the first micro-batch of an accumulation).".into(),
            })
        })
    }
}

fn explanation(first: u64, stale: u32, parameters: u32, withheld: bool) -> String {
    let (held, so) = if withheld {
        (
            "what the scaler had found to be not finite",
            "an infinity stays in them for good, so that no scale is low enough and every step is skipped",
        )
    } else {
        ("what an earlier step had used", "the optimizer steps along the sum of all batches so far")
    };
    format!(
        "From step {first} on the gradients of {stale} of {parameters} parameters still held {held} when the next backward pass began, and it added to them: {so}."
    )
}

#[cfg(test)]
mod tests {
    use super::super::recipe_mistake::testing::*;
    use crate::observation::Act;
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::Severity;
    use crate::rules::silence::{diagnose, first, found};
    use crate::scan::Dtype::{F16, F32};

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
    fn an_infinity_that_stays_because_nobody_clears_it_is_why_every_step_is_skipped() {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).steps(20, |s, i| {
            let scale = 2f64.powi(16 - i as i32);
            s.loss(2.0).act(Act::Backward { holding: 2 * u32::from(i > 0), used: 2 * u32::from(i > 0), product: None });
            s.activation("head", "linear", F16, &normal(64, 1.0, i)).gradient(
                "head",
                "linear",
                F16,
                &normal(64, 1.0, i),
            );
            s.act(Act::Withheld { parameters: 2, stale: 2 * u32::from(i > 0) }).skipped(scale, scale / 2.0);
            s.param_grad("head", "weight", F32, &[f64::INFINITY; 64]);
        });
        let d = diagnose(&run);
        let f = first(&d, "AMP606").expect("found");
        assert_eq!((f.severity, f.onset_step), (Severity::Error, 1));
        assert!(f.explanation.contains("every step is skipped"), "{}", f.explanation);
        assert_eq!(d.findings().len(), 1, "all else follows: {:#?}", d.findings());
    }

    #[test]
    fn one_such_step_is_none() {
        let d = run(4, |s, i| if i == 1 { stale(s) } else { sound(s) });
        assert!(found(&d).is_empty(), "{:#?}", d.findings());
    }
}
