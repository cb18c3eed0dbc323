//! ## What it finds
//!
//! An optimizer that is stepped through the scaler while none of its parameters has a gradient.
//!
//! ## Why it matters
//!
//! That part of the model does not learn. PyTorch says "no inf checks were recorded for this optimizer", which names neither the cause nor the
//! parameters.
//!
//! ## How it decides
//!
//! **Error**, the first time: this library's scaler refused `step` because there was no gradient. The parameters are named as in the `VarStore`s that
//! the doctor was attached to.
//!
//! ## What to do
//!
//! See that the loss depends on these parameters, or do not step this optimizer at this step. Usual causes: a `detach` or `no_grad` on the way, an
//! optimizer built on another `VarStore` than the model's, `opt.zero_grad()` between backward and step.
//!
//! ## When it stays silent
//!
//! On parameters without a gradient beside others that have one: embeddings, unused heads, frozen layers.

use super::recipe_mistake::{Telling, judge, named};
use super::text::{counted, said};
use super::{Limits, Needs, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, Mistake};

/// See the page of the rule.
pub struct NoGradientForOptimizer;

static INFO: RuleInfo = RuleInfo {
    code: "AMP611",
    name: "no-gradient-for-optimizer",
    severity: Severity::Error,
    summary: "No parameter of an optimizer has a gradient: the loss does not reach it.",
    source: include_str!("no_gradient_for_optimizer.rs"),
};

impl Rule for NoGradientForOptimizer {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::ScalerEvents
    }

    fn check(&self, aggregate: &Aggregate, _: &Limits) -> Vec<Verdict> {
        judge(aggregate, |mistake, sighting| {
            let Mistake::NoGradients { optimizer, parameters } = mistake else { return None };
            Some(Telling {
                severity: Severity::Error,
                evidence: vec![counted("optimizer", u64::from(*optimizer)), said("parameters", parameters.join(", "))],
                explanation: format!(
                    "At step {} optimizer {optimizer} was to be stepped, and none of its parameters had a gradient: {}. The scaler refused: there was nothing to check.",
                    sighting.first,
                    named(parameters)
                ),
                remedy: "Look between the loss and these parameters for a `detach`, a `no_grad`, or an optimizer built on another VarStore. Where the loss is not meant to reach them at this step, do \
                         not step this optimizer.".into(),
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
    fn case_10_the_parameters_that_the_loss_does_not_reach_are_named() {
        let d = run(2, |s, i| {
            if i == 0 {
                return sound(s);
            }
            backward(s, 0);
            refused(s, Refusal::NoGradients, &["head.weight", "head.bias"]);
        });
        let f = only(&d, "AMP611");
        assert_eq!((f.severity, f.onset_step), (Severity::Error, 1));
        assert!(f.explanation.contains("`head.weight` and `head.bias`"), "{}", f.explanation);
    }

    #[test]
    fn a_sound_loop_is_silent() {
        assert!(found(&run(3, |s, _| sound(s))).is_empty());
    }
}
