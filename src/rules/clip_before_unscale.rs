//! ## What it finds
//!
//! Gradients that were clipped, by norm or by value, between backward and `unscale`, when they were still multiplied by the loss scale.
//!
//! ## Why it matters
//!
//! The norm that is compared with the limit is the true one times the scale. Clipped to 1 at a scale of 65536, the true gradient is left with a norm
//! of 1.5e-5: 65536 times less than was meant. The loss falls thousands of times slower, and nothing is NaN. When the scale moves, so does the size
//! of the step.
//!
//! ## How it decides
//!
//! At a watched step gradients that carried a scale other than 1 were multiplied in place by a factor below 1, or clamped, and then unscaled. A
//! factor that is exactly one over a whole number is a mean over micro-batches, and no clipping.
//!
//! * **Error** under an optimizer whose step grows with its gradient, such as SGD.
//! * **Warning** under one that divides by the size of the gradient, such as Adam, where what is left is near its eps: root mean square below 1e-7.
//! * **Information** under such a one otherwise: the direction is that of clipped gradients, and their size does not matter.
//!
//! ## What to do
//!
//! Unscale before clipping:
//!
//! ```rust,ignore
//! scaler.backward(&loss);
//! scaler.unscale(&mut opt)?;
//! opt.clip_grad_norm(1.0);
//! scaler.step(&mut opt)?;
//! scaler.update()?;
//! ```
//!
//! ## When it stays silent
//!
//! On clipping after `unscale`, and where there is no scaler. Where the limit was not reached, since nothing was clipped.

use super::recipe_mistake::{Telling, WATCHED_WITH_SCALER, judge};
use super::text::{measured, number, scale as write_scale};
use super::{Limits, Needs, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Clip, Mistake};

/// See the page of the rule.
pub struct ClipBeforeUnscale;

static INFO: RuleInfo = RuleInfo {
    code: "AMP602",
    name: "clip-before-unscale",
    severity: Severity::Error,
    summary: "Gradients were clipped while they still carried the loss scale.",
    source: include_str!("clip_before_unscale.rs"),
};

/// What clipped gradients may be under an optimizer that adds an eps to their size.
static EPS_MARGIN: Threshold = Threshold {
    rule: "clip-before-unscale",
    name: "smallest-rms",
    default: 1e-7,
    unit: "root mean square of a gradient",
    reason: "Ten times Adam's default eps of 1e-8: below, eps shortens the step by more than a tenth.",
};

static THRESHOLDS: [Threshold; 1] = [EPS_MARGIN];

impl Rule for ClipBeforeUnscale {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        WATCHED_WITH_SCALER
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &THRESHOLDS
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        judge(aggregate, |mistake, _| {
            let Mistake::ClippedBeforeUnscale(clip) = mistake else { return None };
            let severity = match clip.adaptive {
                false => Severity::Error,
                true if rms_left(clip).is_some_and(|rms| rms < limits.of(&EPS_MARGIN)) => Severity::Warning,
                true => Severity::Info,
            };
            Some(Telling {
                severity,
                evidence: evidence(clip),
                explanation: explanation(clip),
                remedy: "Call `scaler.unscale(&mut opt)?` before the clipping: backward, unscale, clip, step, update. The limit then means what it says.".into(),
            })
        })
    }
}

/// The true norm of the gradients, and what was left of it once they were unscaled.
fn norms(clip: &Clip) -> Option<(f64, f64)> {
    let (norm, factor) = (clip.norm?, clip.factor?);
    Some((norm / clip.scale, norm * factor / clip.scale))
}

/// By how much the gradients are smaller than clipping after `unscale` to the same limit would have left them.
fn lost_factor(clip: &Clip) -> Option<f64> {
    let (norm, factor) = (clip.norm?, clip.factor?);
    let limit = norm * factor;
    Some((norm / clip.scale).min(limit) / (limit / clip.scale))
}

fn rms_left(clip: &Clip) -> Option<f64> {
    norms(clip).filter(|_| clip.elements > 0).map(|(_, left)| left / (clip.elements as f64).sqrt())
}

fn evidence(clip: &Clip) -> Vec<super::Evidence> {
    let mut evidence = vec![measured("loss_scale", clip.scale)];
    evidence.extend(clip.factor.map(|factor| measured("clip_factor", factor)));
    evidence.extend(clip.limit.map(|limit| measured("clip_limit", limit)));
    evidence.extend(clip.norm.map(|norm| measured("reported_norm", norm)));
    evidence.extend(norms(clip).map(|(true_norm, _)| measured("true_norm", true_norm)));
    evidence.extend(norms(clip).map(|(_, left)| measured("norm_left", left)));
    evidence.extend(lost_factor(clip).map(|lost| measured("lost_factor", lost)));
    evidence
}

fn explanation(clip: &Clip) -> String {
    let what = match (norms(clip), clip.norm, clip.factor, clip.limit) {
        (Some((true_norm, left)), Some(norm), ..) => format!(
            "Gradients were clipped before they were unscaled: the norm that was compared was {}, the true one {} times the loss scale of {}. What reached the \
             optimizer had a norm of {}, {} times less than clipping after unscale would have left",
            number(norm),
            number(true_norm),
            write_scale(clip.scale),
            number(left),
            number(lost_factor(clip).unwrap_or(clip.scale)),
        ),
        (_, _, _, Some(limit)) => format!(
            "Gradients were clamped to {} while they carried the loss scale of {}: of the true gradient at most {} was left",
            number(limit),
            write_scale(clip.scale),
            number(limit / clip.scale),
        ),
        (_, _, factor, _) => format!(
            "Gradients were multiplied by {} between backward and unscale, while they carried the loss scale of {}: clipped by a norm that was as many times too large",
            number(factor.unwrap_or(1.0)),
            write_scale(clip.scale),
        ),
    };
    let then = if clip.adaptive {
        "This optimizer divides by the size of its gradients, so that their size as such is of no consequence: the limit clips every step, whatever its norm."
    } else {
        "This optimizer's step is as much too small, and moves with the loss scale."
    };
    format!("{what}. {then}")
}

#[cfg(test)]
mod tests {
    use super::super::recipe_mistake::testing::*;
    use crate::observation::Act;
    use crate::rules::Severity;
    use crate::rules::silence::found;
    use crate::scan::Dtype::F32;

    /// Clipped to a norm of 1 before unscale; the true gradient has this norm.
    fn clipped(norm: f64, adaptive: bool) -> crate::rules::Diagnosis {
        run(3, |s, _| {
            backward(s, 0);
            s.param_grad("fc", "weight", F32, &[norm * SCALE, 0.0]);
            s.act(Act::Multiplied { factor: 1.0 / (norm * SCALE + 1e-6), gradients: 1 });
            unscale(s, 0);
            apply(s, adaptive);
            s.event(crate::observation::ScalerEvent::Stepped { optimizer: 0, applied: true });
            update(s);
        })
    }

    #[test]
    fn case_8_under_sgd_it_is_an_error_that_tells_norm_and_factor() {
        let f = only(&clipped(0.5, false), "AMP602");
        assert_eq!((f.severity, f.onset_step), (Severity::Error, 0));
        let number = |name| match f.evidence.iter().find(|e| e.name == name).map(|e| &e.value) {
            Some(crate::rules::Value::Number(x)) => *x,
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(number("reported_norm"), 512.0);
        // A norm of 0.5 lies below the limit of 1: nothing was to be clipped.
        assert!((number("lost_factor") - 512.0).abs() < 1e-3, "{f:#?}");
    }

    #[test]
    fn under_adam_it_is_information_unless_what_is_left_is_near_eps() {
        assert_eq!(only(&clipped(2.0, true), "AMP602").severity, Severity::Info);
    }

    #[test]
    fn clipping_after_unscale_and_a_mean_over_micro_batches_are_silent() {
        let d = run(3, |s, _| {
            backward(s, 0);
            s.act(Act::Multiplied { factor: 0.25, gradients: 2 });
            unscale(s, 0);
            s.act(Act::Multiplied { factor: 0.37, gradients: 2 });
            step(s, 0);
            update(s);
        });
        assert!(found(&d).is_empty(), "{:#?}", d.findings());
    }
}
