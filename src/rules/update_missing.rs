//! ## What it finds
//!
//! A loop that steps through the loss scaler and does not call `update` before the next step.
//!
//! ## Why it matters
//!
//! `update` moves the scale and makes the scaler ready for the next step. Without it the scale never falls when gradients overflow, and never grows.
//! This library's scaler and PyTorch's refuse the second step.
//!
//! ## How it decides
//!
//! **Error**, the first time: the scaler refused to unscale or step an optimizer that had been stepped before, or whose parameters had been changed,
//! although a new backward pass had begun. Where both lie within one `doctor.step`, two optimizers over one VarStore look the same to the scaler and to this
//! rule, and both are named: they hold the same parameters, so that they are one optimizer that steps twice.
//!
//! ## What to do
//!
//! Call `scaler.update()?` once at the end of each optimizer step, after all optimizers. Two optimizers, as those of generator and discriminator, need a
//! VarStore each: with one for both, either of them steps the other's parameters too.
//!
//! ## When it stays silent
//!
//! On accumulation, where neither `step` nor `update` is called between micro-batches. On a static scale by a scaler other than this library's, which
//! needs no update.

use super::recipe_mistake::{Telling, judge};
use super::text::counted;
use super::{Limits, Needs, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, Mistake};

/// See the page of the rule.
pub struct UpdateMissing;

static INFO: RuleInfo = RuleInfo {
    code: "AMP603",
    name: "update-missing",
    severity: Severity::Error,
    summary: "The next step began before the scaler was updated.",
    source: include_str!("update_missing.rs"),
};

impl Rule for UpdateMissing {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::ScalerEvents
    }

    fn check(&self, aggregate: &Aggregate, _: &Limits) -> Vec<Verdict> {
        judge(aggregate, |mistake, sighting| {
            let Mistake::UpdateMissing { optimizer, within_one_step } = *mistake else { return None };
            let refused = format!(
                "At step {} the scaler refused optimizer {optimizer}: it had been stepped, a new backward pass had begun, and `update` was not called in between.",
                sighting.first
            );
            let (why, remedy) = if within_one_step {
                (
                    "All of it within one step of the loop: so these may be two optimizers over one VarStore. They hold the same parameters, and to the scaler they are one.",
                    "Give each optimizer a VarStore of its own, with the network that it trains, and call `scaler.update()?` once after both. Where it is one optimizer that \
                     steps twice, call `scaler.update()?` after each `scaler.step`.",
                )
            } else {
                (
                    "A loop that passes the error on ends here; one that drops it trains no more.",
                    "Call `scaler.update()?` once at the end of each optimizer step, after the last `scaler.step`.",
                )
            };
            Some(Telling {
                severity: Severity::Error,
                evidence: vec![counted("optimizer", u64::from(optimizer))],
                explanation: format!("{refused} {why}"),
                remedy: remedy.into(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::recipe_mistake::testing::*;
    use crate::observation::Refusal;
    use crate::rules::Severity;
    use crate::rules::silence::found;

    #[test]
    fn a_second_step_without_an_update_is_an_error_there() {
        let d = run(2, |s, i| {
            backward(s, 0);
            if i == 0 {
                unscale(s, 0);
                step(s, 0);
            } else {
                refused(s, Refusal::SteppedTwice, &[]);
            }
        });
        let f = only(&d, "AMP603");
        assert_eq!((f.severity, f.onset_step), (Severity::Error, 1));
    }

    #[test]
    fn two_optimizers_over_one_store_are_told_of_their_stores() {
        let d = run(1, |s, _| {
            backward(s, 0);
            unscale(s, 0);
            step(s, 0);
            backward(s, 0);
            refused(s, Refusal::SteppedTwice, &[]);
        });
        let f = only(&d, "AMP603");
        assert!(f.explanation.contains("two optimizers over one VarStore"), "{}", f.explanation);
        assert!(f.remedy.text.contains("a VarStore of its own"), "{}", f.remedy.text);
    }

    #[test]
    fn accumulation_is_silent() {
        let d = run(3, |s, _| {
            (0..4).for_each(|micro_batch| backward(s, micro_batch));
            unscale(s, 0);
            step(s, 0);
            update(s);
        });
        assert!(found(&d).is_empty(), "{:#?}", d.findings());
    }
}
