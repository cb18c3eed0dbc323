//! ## What it finds
//!
//! `update`, `step` or `unscale` in the wrong place: `update` twice or before anything was checked, `update` between `unscale` and `step`, `step` twice with the same
//! gradients, the optimizer's own `step` in place of the scaler's, a scaler that was given no loss.
//!
//! ## Why it matters
//!
//! * `update` between `unscale` and `step`: the scaler has forgotten that the gradients are unscaled, and `step` divides them by the scale once more.
//! * `update` twice: clean steps count double, so the scale grows twice as fast; a bad step halves it twice.
//! * `opt.step()` in place of `scaler.step`: nothing withholds it when gradients are not finite, and NaN goes into the weights.
//! * `loss.backward()` in place of `scaler.backward(&loss)`: gradients that carry no scale are not to be divided by one.
//!
//! ## How it decides
//!
//! **Error**, at the first call that this library's scaler refused, or that the order of the calls shows. **Warning** for `update` twice under a
//! scaler other than this library's, which does not refuse it.
//!
//! ## What to do
//!
//! Keep this order, once per optimizer step:
//!
//! ```rust,ignore
//! scaler.backward(&loss);        // for each micro-batch
//! scaler.unscale(&mut opt)?;     // only where gradients are clipped or looked at
//! scaler.step(&mut opt)?;        // for each optimizer
//! scaler.update()?;              // once
//! ```
//!
//! ## When it stays silent
//!
//! On several optimizers with one `update` at the end. On another library's scaler that updates first and steps the optimizer itself if nothing was
//! infinite.

use super::recipe_mistake::{Telling, judge};
use super::text::said;
use super::{Limits, Needs, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, Misplaced, Mistake};

/// See the page of the rule.
pub struct UpdateMisplaced;

static INFO: RuleInfo = RuleInfo {
    code: "AMP604",
    name: "update-misplaced",
    severity: Severity::Error,
    summary: "A call of the scaler came twice, too early, or was replaced by the optimizer's own.",
    source: include_str!("update_misplaced.rs"),
};

impl Rule for UpdateMisplaced {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::ScalerEvents
    }

    fn check(&self, aggregate: &Aggregate, _: &Limits) -> Vec<Verdict> {
        judge(aggregate, |mistake, sighting| {
            let Mistake::Misplaced(misplaced) = *mistake else { return None };
            let (kind, what, remedy) = words(misplaced);
            let severity = if misplaced == Misplaced::UpdatedAgain { Severity::Warning } else { Severity::Error };
            Some(Telling {
                severity,
                evidence: vec![said("mistake", kind)],
                explanation: format!("First at step {}: {what}.", sighting.first),
                remedy: remedy.into(),
            })
        })
    }
}

/// A word for programs, what happened, and what to do.
fn words(misplaced: Misplaced) -> (&'static str, &'static str, &'static str) {
    match misplaced {
        Misplaced::UpdatedAgain => (
            "updated-again",
            "`update` was called a second time with nothing unscaled in between: clean steps count double, and a bad step lowers the scale twice",
            "Call `scaler.update()?` once per optimizer step, after the last `scaler.step`.",
        ),
        Misplaced::UpdatedFirst => (
            "updated-first",
            "`update` was called before any optimizer was unscaled or stepped, and the scaler refused",
            "Call `scaler.update()?` only where an optimizer was stepped through the scaler: within an accumulation, after the last micro-batch.",
        ),
        Misplaced::UpdatedBeforeStep => (
            "updated-before-step",
            "`update` came between `unscale` and `step`: the scaler no longer knew that the gradients were unscaled, and `step` divided them by the scale again",
            "Move `scaler.update()?` after `scaler.step`: backward, unscale, clip, step, update.",
        ),
        Misplaced::SteppedAgain => (
            "stepped-again",
            "`step` was called twice for one optimizer with the same gradients, and the scaler refused the second",
            "Call `scaler.step(&mut opt)?` once for each optimizer. Two optimizers over one VarStore are one optimizer to the scaler: their gradients are the same tensors.",
        ),
        Misplaced::SteppedPastScaler => (
            "stepped-past-scaler",
            "the gradients were unscaled by the scaler, and the optimizer's own step took them: it is not skipped when one of them is infinite or NaN, and \
             then they go into the weights",
            "Replace `opt.step()` by `scaler.step(&mut opt)?`.",
        ),
        Misplaced::NothingScaled => (
            "nothing-scaled",
            "the scaler was asked to unscale, step or update, and no loss was ever scaled by it; it refused",
            "Replace `loss.backward()` by `scaler.backward(&loss)`.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::recipe_mistake::testing::*;
    use crate::observation::{Act, Refusal};
    use crate::rules::Severity;
    use crate::rules::silence::found;

    #[test]
    fn an_update_between_unscale_and_step_is_an_error() {
        let d = run(3, |s, _| {
            backward(s, 0);
            unscale(s, 0);
            update(s);
            unscale(s, 0);
            step(s, 0);
            update(s);
        });
        let f = only(&d, "AMP604");
        assert_eq!((f.severity, f.onset_step), (Severity::Error, 0));
        assert!(f.remedy.text.contains("after `scaler.step`"), "{}", f.remedy.text);
    }

    #[test]
    fn the_optimizers_own_step_is_named() {
        let d = run(3, |s, _| {
            backward(s, 0);
            unscale(s, 0);
            apply(s, false);
            update(s);
        });
        assert!(only(&d, "AMP604").explanation.contains("own step"));
    }

    #[test]
    fn a_foreign_scaler_that_is_updated_twice_is_a_warning() {
        let d = run(2, |s, _| {
            sound(s);
            s.act(Act::UpdatedAgain);
        });
        assert_eq!(only(&d, "AMP604").severity, Severity::Warning);
    }

    #[test]
    fn a_step_that_was_refused_without_a_backward_between_is_a_second_one() {
        let d = run(1, |s, _| {
            backward(s, 0);
            unscale(s, 0);
            step(s, 0);
            refused(s, Refusal::SteppedTwice, &[]);
        });
        assert!(only(&d, "AMP604").explanation.contains("`step` was called twice"));
    }

    #[test]
    fn several_optimizers_with_one_update_are_silent() {
        let d = run(3, |s, _| {
            backward(s, 0);
            (0..3).for_each(|optimizer| unscale(s, optimizer));
            (0..3).for_each(|optimizer| step(s, optimizer));
            update(s);
        });
        assert!(found(&d).is_empty(), "{:#?}", d.findings());
    }
}
