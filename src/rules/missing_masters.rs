//! ## What it finds
//!
//! A model in FP16 (`vs.half()`) whose own gradients are given to a loss scaler, without FP32 copies that the optimizer steps.
//!
//! ## Why it matters
//!
//! A scaler divides gradients by the scale before the optimizer uses them. In FP16 this division throws away again what the scale had saved. Besides,
//! updates below a 4096th of a weight vanish in FP16 weights. This library's scaler and PyTorch's refuse it ("attempting to unscale FP16 gradients");
//! others do it.
//!
//! ## How it decides
//!
//! **Error**, the first time: the scaler refused FP16 gradients, or a scaler other than this library's unscaled some.
//!
//! ## What to do
//!
//! Let the optimizer step FP32 copies; the rest of the loop stays as it is:
//!
//! ```rust,ignore
//! let mut opt = MasterWeights::new(&vs)?.build(nn::Adam::default(), lr)?;  // in place of nn::Adam::default().build(&vs, lr)?
//! ```
//!
//! Or leave out `vs.half()` and run forward under `autocast`.
//!
//! ## When it stays silent
//!
//! On `MasterWeights`: what is unscaled are the FP32 gradients of the copies. On autocast with FP32 parameters.

use super::recipe_mistake::{Telling, judge, named};
use super::text::said;
use super::update_advice::step_masters;
use super::{Limits, Needs, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, Mistake};

/// See the page of the rule.
pub struct MissingMasters;

static INFO: RuleInfo = RuleInfo {
    code: "AMP411",
    name: "missing-masters",
    severity: Severity::Error,
    summary: "FP16 parameters are trained with a loss scaler and without FP32 master weights.",
    source: include_str!("missing_masters.rs"),
};

impl Rule for MissingMasters {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::ScalerEvents
    }

    fn check(&self, aggregate: &Aggregate, _: &Limits) -> Vec<Verdict> {
        judge(aggregate, |mistake, sighting| {
            let Mistake::HalfGradients { parameters } = mistake else { return None };
            Some(Telling {
                severity: Severity::Error,
                evidence: vec![said("parameters", parameters.join(", "))],
                explanation: format!(
                    "At step {} a loss scaler was given FP16 gradients, those of {}: the parameters themselves are FP16, and nothing keeps them in FP32. Divided by the scale in FP16, gradients lose \
                     what the scale has saved, and small updates vanish in FP16 weights.",
                    sighting.first,
                    named(parameters)
                ),
                remedy: step_masters(
                    aggregate,
                    ". Or leave the VarStore in FP32 (no `vs.half()`) and run forward under `autocast`.",
                ),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::recipe_mistake::testing::*;
    use crate::observation::{Act, Refusal};
    use crate::rules::Severity;
    use crate::rules::silence::found;

    #[test]
    fn case_12_fp16_gradients_that_a_scaler_refused_are_an_error() {
        let d = run(1, |s, _| {
            backward(s, 0);
            refused(s, Refusal::HalfGradients, &["fc.weight"]);
        });
        let f = only(&d, "AMP411");
        assert_eq!(f.severity, Severity::Error);
        assert!(f.explanation.contains("`fc.weight`") && f.remedy.text.contains("MasterWeights"), "{f:#?}");
        assert_eq!(f.remedy.set[0].name, "precision");
    }

    #[test]
    fn a_foreign_scaler_that_takes_them_is_found_too() {
        let d = run(2, |s, _| {
            sound(s);
            s.act(Act::HalfUnscaled { parameters: vec!["fc.weight".into()] });
        });
        only(&d, "AMP411");
    }

    #[test]
    fn a_sound_loop_is_silent() {
        assert!(found(&run(3, |s, _| sound(s))).is_empty());
    }
}
