//! ## What it finds
//!
//! A loss scale that changes between two micro-batches whose gradients are added up.
//!
//! ## Why it matters
//!
//! The sum is divided by one scale. Micro-batches that were scaled by another count double, or half: the step follows some of the batch more than the
//! rest, and the norm that clipping sees is wrong.
//!
//! ## How it decides
//!
//! **Error**, the first time: the scale was updated between two scaled losses, the second loss was scaled by another scale than the first, its
//! backward pass added to gradients that were there, and no optimizer was stepped in between.
//!
//! ## What to do
//!
//! Call `scaler.update()?` after the optimizer's step, not after each micro-batch; the same for whatever else sets the scale.
//!
//! ## When it stays silent
//!
//! Where gradients were cleared in between, as for a batch that is dropped. Where the update left the scale as it was. On gradients that were unscaled in between, which is `unscale-twice`.

use super::recipe_mistake::{Telling, WATCHED_WITH_SCALER, judge};
use super::text::{measured, number, scale as write_scale};
use super::{Limits, Needs, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, Mistake};

/// See the page of the rule.
pub struct ScaleChangedInAccumulation;

static INFO: RuleInfo = RuleInfo {
    code: "AMP607",
    name: "scale-changed-in-accumulation",
    severity: Severity::Error,
    summary: "Micro-batches of one step were scaled by different loss scales.",
    source: include_str!("scale_changed_in_accumulation.rs"),
};

impl Rule for ScaleChangedInAccumulation {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        WATCHED_WITH_SCALER
    }

    fn check(&self, aggregate: &Aggregate, _: &Limits) -> Vec<Verdict> {
        judge(aggregate, |mistake, sighting| {
            let Mistake::ScaleChangedWithin { from, to } = *mistake else { return None };
            Some(Telling {
                severity: Severity::Error,
                evidence: vec![measured("scale_before", from), measured("scale_after", to)],
                explanation: format!(
                    "First at step {}: one micro-batch was scaled by {}, a later one of the same step by {}, and their gradients were added up. Divided by one scale, one \
                     counts {} times as much as the other.",
                    sighting.first,
                    write_scale(from),
                    write_scale(to),
                    number((to / from).max(from / to)),
                ),
                remedy: "Let the scale change only between optimizer steps: `scaler.update()?` (and `update_to`) after `scaler.step`, once per step and not per micro-batch.".into(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::recipe_mistake::testing::*;
    use crate::observation::Act;
    use crate::observation::ScalerEvent::{Scaled, Updated};
    use crate::rules::Severity;
    use crate::rules::silence::found;

    fn moved(holding: u32) -> crate::rules::Diagnosis {
        run(2, |s, i| {
            let (from, to) = if i == 0 { (SCALE, SCALE / 2.0) } else { (SCALE / 2.0, SCALE / 4.0) };
            for (scale, holding) in [(from, 0), (to, holding)] {
                if scale == to {
                    s.event(Updated { from, to, growth_tracker: 0 });
                }
                s.event(Scaled { scale }).act(Act::Backward { holding, used: 0, product: None });
            }
            s.event(crate::observation::ScalerEvent::Unscaled { optimizer: 0, scale: to, found_inf: false });
            step(s, 0);
            s.event(Updated { from: to, to, growth_tracker: 1 });
        })
    }

    #[test]
    fn micro_batches_under_two_scales_are_an_error() {
        let f = only(&moved(2), "AMP607");
        assert_eq!((f.severity, f.onset_step), (Severity::Error, 0));
        assert!(f.explanation.contains("2 times as much"), "{}", f.explanation);
    }

    #[test]
    fn a_batch_that_was_dropped_in_between_is_silent() {
        assert!(found(&moved(0)).is_empty());
    }
}
