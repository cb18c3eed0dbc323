//! ## What it finds
//!
//! Gradients of one optimizer that were divided by the loss scale twice: `unscale` called for each micro-batch of an accumulation, called twice in a row, or a division by
//! hand and the scaler's own.
//!
//! ## Why it matters
//!
//! Gradients divided by the scale twice are 65536 times too small: SGD stands still. Unscaled after each micro-batch, the earlier micro-batches count
//! for nothing. This library's scaler refuses and ends the run; others do not notice.
//!
//! ## How it decides
//!
//! **Error**, the first time:
//!
//! * the scaler refused a second `unscale`;
//! * or one optimizer was unscaled twice with no step between, and the second time followed an `update` and a backward pass that added to gradients
//!   that were there;
//! * or gradients were multiplied by exactly the inverse of the scale, and then unscaled.
//!
//! ## What to do
//!
//! Call `scaler.unscale(&mut opt)?` once per optimizer and step, after the last micro-batch (or not at all: `scaler.step` does it). Leave the
//! division to the scaler.
//!
//! ## When it stays silent
//!
//! On `unscale` before each of two optimizers. On a batch that was unscaled, looked at and dropped: its gradients were cleared. On a mean over micro-batches taken by hand.

use super::recipe_mistake::{Telling, judge};
use super::text::{counted, measured, scale as write_scale};
use super::{Limits, Needs, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, Mistake};

/// See the page of the rule.
pub struct UnscaleTwice;

static INFO: RuleInfo = RuleInfo {
    code: "AMP601",
    name: "unscale-twice",
    severity: Severity::Error,
    summary: "Gradients were divided by the loss scale twice.",
    source: include_str!("unscale_twice.rs"),
};

impl Rule for UnscaleTwice {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::ScalerEvents
    }

    fn check(&self, aggregate: &Aggregate, _: &Limits) -> Vec<Verdict> {
        judge(aggregate, |mistake, sighting| {
            let Mistake::UnscaledTwice { optimizer, scale, backward_between, by_hand, refused } = *mistake else {
                return None;
            };
            let mut evidence = vec![counted("optimizer", u64::from(optimizer))];
            evidence.extend(scale.map(|scale| measured("loss_scale", scale)));
            Some(Telling {
                severity: Severity::Error,
                evidence,
                explanation: explanation(sighting.first, optimizer, scale, (backward_between, by_hand, refused)),
                remedy: remedy(backward_between, by_hand).into(),
            })
        })
    }
}

fn explanation(
    step: u64,
    optimizer: u32,
    scale: Option<f64>,
    (backward_between, by_hand, refused): (bool, bool, bool),
) -> String {
    let scale = scale.map_or("the loss scale".into(), |scale| format!("the loss scale, {}", write_scale(scale)));
    let what = match (by_hand, backward_between) {
        (true, _) => "gradients were divided by the scale by hand, and then unscaled by the scaler",
        (false, true) => {
            "gradients were unscaled, those of another micro-batch were added to them, and all were unscaled again"
        }
        (false, false) => "`unscale` was called twice for the same gradients",
    };
    let then = if refused {
        "The scaler refused, which ends a loop that passes its errors on."
    } else {
        "What the optimizer gets is too small by the scale."
    };
    format!("At step {step}, optimizer {optimizer}, under {scale}: {what}. {then}")
}

fn remedy(backward_between: bool, by_hand: bool) -> &'static str {
    match (by_hand, backward_between) {
        (true, _) => {
            "Remove the division by hand: `scaler.unscale(&mut opt)?`, or `scaler.step` by itself, divides once."
        }
        (false, true) => {
            "Call `scaler.unscale(&mut opt)?` once per optimizer step, after the last micro-batch and not after each; then clip, `scaler.step`, and \
             `scaler.update()?` once."
        }
        (false, false) => {
            "Remove one of the two `scaler.unscale` calls; `scaler.step` unscales by itself where nobody has, and never twice."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::recipe_mistake::testing::*;
    use crate::observation::{Act, Refusal};
    use crate::rules::Severity;
    use crate::rules::silence::found;

    #[test]
    fn case_11_a_second_unscale_that_the_scaler_refused_is_an_error_at_its_step() {
        let d = run(4, |s, i| {
            if i < 3 {
                return sound(s);
            }
            backward(s, 0);
            unscale(s, 0);
            backward(s, 2);
            refused(s, Refusal::UnscaledTwice, &[]);
        });
        let f = only(&d, "AMP601");
        assert_eq!((f.severity, f.onset_step), (Severity::Error, 3));
        assert!(f.explanation.contains("refused") && f.remedy.text.contains("last micro-batch"), "{f:#?}");
    }

    #[test]
    fn a_division_by_hand_before_the_scalers_own_is_one() {
        let d = run(2, |s, _| {
            backward(s, 0);
            s.act(Act::Multiplied { factor: 1.0 / SCALE, gradients: 2 });
            unscale(s, 0);
            step(s, 0);
            update(s);
        });
        assert!(only(&d, "AMP601").explanation.contains("by hand"));
    }

    #[test]
    fn two_optimizers_that_are_each_unscaled_once_are_silent() {
        let d = run(4, |s, _| {
            backward(s, 0);
            for optimizer in [0, 1] {
                unscale(s, optimizer);
                step(s, optimizer);
            }
            update(s);
        });
        assert!(found(&d).is_empty(), "{:#?}", d.findings());
    }
}
