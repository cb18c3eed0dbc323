//! ## What it finds
//!
//! A loss that is multiplied by the loss scale while it is in FP16, and becomes infinite by it.
//!
//! ## Why it matters
//!
//! FP16 ends at 65504. A loss of 1 times 65536 is infinite, and so are all gradients: every step is skipped, or poisons the weights. At a scale of
//! 1024 the same loop trains, so it looks like a scale that is too high. It is the format of the loss.
//!
//! ## How it decides
//!
//! **Error**, the first time: the last product before a backward pass was a finite FP16 loss (one element) times a number, and exceeded what FP16
//! holds.
//!
//! ## What to do
//!
//! Convert the loss to FP32 before scaling it: `let loss = loss.to_kind(Kind::Float);`. `scaler.backward(&loss)` does it for you.
//!
//! ## When it stays silent
//!
//! On this library's scaler, which converts the loss itself. On a loss that is infinite before it is scaled. On FP16 losses whose product is finite.

use super::recipe_mistake::{Telling, judge};
use super::text::{measured, number, scale as write_scale};
use super::{Limits, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, Mistake};

/// See the page of the rule.
pub struct HalfLossScaled;

static INFO: RuleInfo = RuleInfo {
    code: "AMP609",
    name: "half-loss-scaled",
    severity: Severity::Error,
    summary: "The loss was still FP16 when it was scaled, and the product was infinite.",
    source: include_str!("half_loss_scaled.rs"),
};

impl Rule for HalfLossScaled {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn check(&self, aggregate: &Aggregate, _: &Limits) -> Vec<Verdict> {
        judge(aggregate, |mistake, sighting| {
            let Mistake::HalfLoss { loss, scale } = *mistake else { return None };
            Some(Telling {
                severity: Severity::Error,
                evidence: vec![measured("loss", loss), measured("scale", scale), measured("largest_fp16", 65504.0)],
                explanation: format!(
                    "At step {} a loss of {} was multiplied by {} in FP16, which ends at 65504: it was finite before and infinite after, and so are the gradients.",
                    sighting.first,
                    number(loss),
                    write_scale(scale)
                ),
                remedy: "Convert the loss before scaling it: `loss.to_kind(Kind::Float) * scale`. `GradScaler` does so by itself; a lower scale only hides it.".into(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::recipe_mistake::testing::*;
    use crate::observation::scenario::Scenario;
    use crate::observation::{Act, Product};
    use crate::rules::Severity;
    use crate::rules::silence::diagnose;
    use crate::rules::silence::found;
    use crate::scan::Dtype::{self, F16, F32};

    fn product(loss: f64, dtype: Dtype) -> crate::rules::Diagnosis {
        let mut run = Scenario::new();
        run.steps(3, |s, _| {
            let product = Some(Product { loss, factor: 65536.0, dtype });
            s.loss(loss).act(Act::Backward { holding: 0, used: 0, product });
        });
        diagnose(&run)
    }

    #[test]
    fn case_7_a_half_loss_that_the_scale_makes_infinite_is_an_error() {
        let f = only(&product(2.3, F16), "AMP609");
        assert_eq!((f.severity, f.onset_step), (Severity::Error, 0));
        assert!(f.explanation.contains("2.30"), "{}", f.explanation);
    }

    #[test]
    fn a_finite_product_and_one_in_fp32_are_silent() {
        assert!(found(&product(0.5, F16)).is_empty());
        assert!(found(&product(2.3, F32)).is_empty());
    }
}
