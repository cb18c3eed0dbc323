//! ## What it finds
//!
//! An optimizer of the Adam kind that steps FP16 or BF16 parameters and divides by zero, or nearly: its `eps` is zero in that format, and so is its
//! second moment.
//!
//! ## Why it matters
//!
//! The weights are NaN after the first step; every later step is skipped, and the scaler drives its scale to nothing looking for a cause that is not
//! there. FP16 rounds 1e-8, the default `eps`, to 0. It also rounds Adam's second moment, (1 - beta2) g^2, to 0 for a gradient g below 5.5e-3. So the
//! update is 0 / 0 where the gradient is zero, and infinite where it is not. With an `eps` that FP16 can hold, such as 1e-6, nothing is NaN, and
//! steps are up to a thousand times too large.
//!
//! ## How it decides
//!
//! * **Error**, at once: the update that the optimizer intended is not finite, while the gradient is and so was the weight, and the operator is one
//!   that divides by a root of squared gradients.
//! * **Error**, at once: the largest update of an FP16 parameter is more than 300 times the learning rate, where that is known. Adam's is at most
//!   about 3 times, that of RMSprop with momentum 100 times.
//!
//! ## What to do
//!
//! Let the optimizer step FP32 copies, in which `eps` and the second moment are what they should be: `let mut opt =
//! MasterWeights::new(&vs)?.build(nn::Adam::default(), lr)?`. A larger `eps` alone (above 2^-24 = 6e-8) prevents the NaN and not the large steps.
//!
//! ## When it stays silent
//!
//! On FP32 parameters and under FP32 masters. On a gradient that is not finite, or was not seen: `non-finite-origin` finds where that began. On weights that
//! were not finite before. Without squared gradients, as in SGD.

use super::text::{count, counted, measured, number, said, share};
use super::update_advice::{format_name, some_of, step_masters, stepped_in_low_precision, uses_second_moment};
use super::{Evidence, Firing, Limits, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Change, Weight};
use crate::observation::Probe;
use crate::scan::Dtype;

const NAME: &str = "vanishing-eps";
/// Updates larger than this many learning rates come from no sound second moment.
const TOO_LARGE: Threshold = Threshold::new(
    NAME,
    "too-large",
    300.0,
    "learning rates",
    "A sound step of Adam is at most 3 times the learning rate, one of RMSprop with momentum 100 times; with the second moment at 0 in FP16 it is up to a thousand.",
);

/// See the page of the rule.
pub struct VanishingEps;

static INFO: RuleInfo = RuleInfo {
    code: "AMP407",
    name: NAME,
    severity: Severity::Error,
    summary: "The optimizer's eps, or its second moment, is zero in FP16: its updates are NaN, infinite, or far too large.",
    source: include_str!("vanishing_eps.rs"),
};

impl Rule for VanishingEps {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[TOO_LARGE]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        let found = divided_by_zero(aggregate).or_else(|| divided_by_almost_zero(aggregate, limits));
        found.map(|f| Verdict::Firing(Box::new(f))).into_iter().collect()
    }
}

/// Whether this rule says now why weights are not finite.
pub(super) fn fires(aggregate: &Aggregate) -> bool {
    !ruined(aggregate).is_empty()
}

fn stepped(aggregate: &Aggregate) -> Vec<(&Weight, &Change)> {
    let now = aggregate.latest.as_ref().map(|s| s.index);
    let mut stepped = stepped_in_low_precision(aggregate);
    stepped.retain(|(_, c)| Some(c.step) == now && c.gradient_rms.is_some() && c.weight_was_finite);
    if uses_second_moment(aggregate) { stepped } else { Vec::new() }
}

/// Parameters whose update divided by zero at the latest step.
fn ruined(aggregate: &Aggregate) -> Vec<(&Weight, &Change)> {
    let mut stepped = stepped(aggregate);
    stepped.retain(|(_, change)| non_finite(change) > 0);
    stepped
}

/// Elements whose intended update is not finite; where that is not known, those whose change is not.
fn non_finite(change: &Change) -> u64 {
    change.rounding.stepped.map_or(change.update_non_finite, |f| f.non_finite)
}

fn divided_by_zero(aggregate: &Aggregate) -> Option<Firing> {
    let ruined = ruined(aggregate);
    let dtype = ruined.first()?.1.dtype;
    let (bad, all) = ruined.iter().fold((0, 0), |(bad, all), (_, c)| (bad + non_finite(c), all + c.elements));
    let why = match dtype {
        Dtype::F16 => {
            "The default `eps` of 1e-8 is 0 in FP16, as every `eps` below 2^-25 is, and so is the second moment of a gradient below 5.5e-3: the step divides by \
             zero."
        }
        _ => {
            "BF16 holds an `eps` of 1e-8, so the one that is set is 0 or next to it, and where the gradient is zero the step is 0 / 0."
        }
    };
    let eps = match dtype {
        Dtype::F16 => "An `eps` above 2^-24 = 6e-8 alone prevents the NaN, and leaves steps that are far too large",
        _ => "Or set `eps` to 1e-8",
    };
    let explanation = format!(
        "The update of {} is not finite in {} of the elements, in {}, while gradients and weights were finite. {why} The weights hold NaN from here on.",
        count(ruined.len(), &format!("{} parameter", format_name(dtype))),
        share(bad as f64 / all.max(1) as f64),
        some_of(&names(&ruined)),
    );
    let evidence = vec![
        counted("parameters", ruined.len() as u64),
        counted("non_finite_elements", bad),
        counted("elements", all),
        said("dtype", dtype.name()),
        measured("largest_gradient_rms", ruined.iter().filter_map(|(_, c)| c.gradient_rms).fold(0.0, f64::max)),
    ];
    let remedy = step_masters(aggregate, &format!(": there `eps` is what you set. {eps}."));
    Some(firing(aggregate, &ruined, bad as f64, evidence, explanation, remedy))
}

fn divided_by_almost_zero(aggregate: &Aggregate, limits: &Limits) -> Option<Firing> {
    let lr = aggregate.latest.as_ref()?.lr.filter(|&lr| lr > 0.0)?;
    let mut large = stepped(aggregate);
    large.retain(|(_, c)| c.dtype == Dtype::F16 && c.update_max > limits.of(&TOO_LARGE) * lr);
    let most = large.iter().map(|(_, c)| c.update_max).fold(0.0, f64::max);
    if large.is_empty() {
        return None;
    }
    let explanation = format!(
        "The largest update of {} ({}) is {}, {} times the learning rate; Adam's steps are about as large as the learning rate. The second moment of its gradient \
         is 0 in FP16, which leaves `eps` alone to divide by.",
        count(large.len(), "FP16 parameter"),
        some_of(&names(&large)),
        number(most),
        number((most / lr).round()),
    );
    let evidence = vec![measured("max_abs", most), measured("lr", lr), measured("update_per_lr", most / lr)];
    let remedy = step_masters(aggregate, ": there the second moment does not underflow.");
    Some(firing(aggregate, &large, most / lr, evidence, explanation, remedy))
}

fn names(weights: &[(&Weight, &Change)]) -> Vec<String> {
    weights.iter().map(|(w, _)| w.label()).collect()
}

fn firing(
    aggregate: &Aggregate,
    weights: &[(&Weight, &Change)],
    strength: f64,
    evidence: Vec<Evidence>,
    explanation: String,
    remedy: Remedy,
) -> Firing {
    let updates = aggregate.latest_observations().filter(|(_, s)| s.site.probe == Probe::Update);
    let is_first =
        |layer: &str, tensor: &str| weights.first().is_some_and(|(w, _)| w.layer == layer && w.tensor == tensor);
    let mut operators = updates.filter(|(_, s)| is_first(&s.site.layer, &s.site.tensor)).map(|(_, s)| &s.site.operator);
    Firing {
        severity: Severity::Error,
        layer: String::new(),
        operator: operators.next().cloned().unwrap_or_default(),
        probe: Some(Probe::Update),
        since: aggregate.latest.as_ref().map_or(0, |s| s.index),
        strength,
        evidence,
        explanation,
        remedy,
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::Rounding;
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::silence::{diagnose, found};
    use crate::rules::{Finding, Severity};
    use crate::scan::Dtype::{self, Bf16, F16, F32};
    use crate::scan::Fidelity;

    const NAN: [f64; 64] = [f64::NAN; 64];

    /// One step on FP16 weights whose intended update is NaN, then what follows of it: NaN everywhere, and a scale that halves for ever.
    fn case_21(dtype: Dtype, operator: &str, gradient: &[f64]) -> Scenario {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).step(|s| {
            s.loss(2.3).applied(65536.0).activation("fc", "linear", dtype, &normal(64, 1.0, 1));
            s.gradient("fc", "linear", dtype, &normal(64, 1.0, 2)).param_grad("fc", "weight", dtype, gradient);
            s.update_in("fc", operator, "weight", dtype, &NAN).inherited();
            s.rounding(Rounding {
                stepped: Some(Fidelity { non_finite: 64, ..Fidelity::default() }),
                ..Rounding::default()
            });
            s.param("fc", "weight", dtype, &NAN);
        });
        run.steps(40, |s, i| {
            let scale = 65536.0 * (-((i - 1) as f64)).exp2();
            s.loss(f64::NAN).skipped(scale, scale / 2.0).activation("fc", "linear", dtype, &NAN).inherited();
            s.gradient("fc", "linear", dtype, &NAN).inherited().param_grad("fc", "weight", dtype, &NAN).inherited();
        });
        run
    }

    fn only(run: &Scenario) -> Finding {
        let d = diagnose(run);
        assert_eq!(found(&d), ["AMP407"], "{:#?}", d.findings());
        d.findings()[0].clone()
    }

    #[test]
    fn case_21_the_eps_that_is_zero_is_the_cause_and_all_that_follows_is_not_told_again() {
        let f = only(&case_21(F16, "addcdiv_", &normal(64, 1e-3 * 65536.0, 3)));
        assert_eq!((f.severity, f.onset_step, f.operator.as_str()), (Severity::Error, 0, "addcdiv_"));
        assert!(f.explanation.contains("`eps` of 1e-8 is 0 in FP16"), "{}", f.explanation);
        assert!(f.remedy.text.contains("MasterWeights"), "{}", f.remedy.text);
    }

    #[test]
    fn bf16_holds_the_default_eps_and_the_text_says_so() {
        let f = only(&case_21(Bf16, "addcdiv_", &normal(64, 1e-3, 3)));
        assert!(f.explanation.contains("BF16 holds an `eps` of 1e-8"), "{}", f.explanation);
    }

    #[test]
    fn a_gradient_that_is_not_finite_or_an_optimizer_without_eps_is_another_matter() {
        assert!(!found(&diagnose(&case_21(F16, "addcdiv_", &NAN))).contains(&"AMP407"));
        assert!(!found(&diagnose(&case_21(F16, "add_", &normal(64, 1.0, 3)))).contains(&"AMP407"));
        assert!(!found(&diagnose(&case_21(F32, "addcdiv_", &normal(64, 1.0, 3)))).contains(&"AMP407"));
    }

    #[test]
    fn steps_a_thousand_times_too_large_are_found_where_the_learning_rate_is_known() {
        let run = |size: f64, dtype: Dtype| {
            let mut run = Scenario::new();
            run.steps(3, |s, i| {
                s.loss(1.0).lr(1e-3).param_grad("fc", "weight", dtype, &normal(64, 1e-3, i));
                s.update_in("fc", "addcdiv_", "weight", dtype, &[size; 64]).param("fc", "weight", dtype, &[1.0; 64]);
            });
            diagnose(&run)
        };
        let d = run(0.987, F16);
        let f = d.findings().iter().find(|f| f.code == "AMP407").expect("found");
        assert!(f.explanation.contains("987 times the learning rate"), "{}", f.explanation);
        assert!(!found(&run(0.1, F16)).contains(&"AMP407"), "RMSprop with momentum goes as far");
        assert!(!found(&run(0.987, F32)).contains(&"AMP407"));
    }
}
