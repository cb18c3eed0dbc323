//! ## What it finds
//!
//! The operator whose FP16 output held an infinity although its inputs were finite: the result was larger than 65504, FP16's largest number.
//!
//! ## Why it matters
//!
//! The infinity becomes NaN in the next difference, product with zero, norm or softmax, and the step is lost: a scaler skips it, without one the
//! weights are ruined. No loss scale can help, for it is forward that overflows. A dynamic scaler does not know that, and halves its scale at each
//! such step, down to nothing.
//!
//! ## How it decides
//!
//! **Error** at the first step at which it is seen: one infinity is enough. Only the operator that made it is named, not those that were handed it.
//!
//! ## What to do
//!
//! Run that operator in FP32, `no_autocast(|| layer.forward(&x.to_kind(Kind::Float)))`, or under BF16 autocast, or make its input smaller: normalise
//! before it. For a reduction over FP16 ask for an FP32 result: `x.sum(Kind::Float)`, `x.mean(Kind::Float)`.
//!
//! ## When it stays silent
//!
//! * On infinities that a mask put there by design: -inf written by `masked_fill`, `where`, `full` and the like, -inf as the sum of two masks of
//!   -65504, a mask of 0 and -1e9 that was cast to FP16 or made there by a product, a constant or a buffer of 0 and -inf, and -inf
//!   passed on from those. NaN made of them is a fault: rule `masked-row` or `non-finite-origin`.
//! * On a logarithm of zero or a division by zero: no format has room for those, and rule `non-finite-origin` says which epsilon is missing.
//! * On FP32 and BF16, where an infinity is no matter of range: `non-finite-origin` again.
//! * On operators that autocast keeps in FP32 (sums, norms, exponentials, powers): rule `unsafe-operator` names those.

use super::graph::Graph;
use super::poisoned_buffer::reset;
use super::range::keep_in_range;
use super::text::{INPUT, counted, is_pole, measured, number, share};
use super::{Firing, Limits, Rule, RuleInfo, Severity, Verdict, unsafe_operator};
use crate::aggregate::{Aggregate, Origin, SiteSummary};
use crate::observation::Probe;
use crate::scan::Dtype;

/// See the page of the rule.
pub struct ActivationOverflow;

static INFO: RuleInfo = RuleInfo {
    code: "AMP102",
    name: "activation-overflow",
    severity: Severity::Error,
    summary: "An FP16 operator made an infinity out of finite inputs: its result exceeds 65504.",
    source: include_str!("activation_overflow.rs"),
};

impl Rule for ActivationOverflow {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn check(&self, aggregate: &Aggregate, _: &Limits) -> Vec<Verdict> {
        if !aggregate.non_finite.is_of_latest_step(aggregate.latest.as_ref()) {
            return Vec::new();
        }
        let origins = &aggregate.non_finite.latest.overflows;
        let with_site = origins.iter().filter_map(|o| Some((o, aggregate.site(o.site)?)));
        with_site
            .filter(|(o, s)| s.site.dtype == Dtype::F16 && o.inf > 0 && !is_pole(&s.site.operator))
            .filter(|(_, s)| !unsafe_operator::is_listed(&s.site.operator))
            .map(|(o, s)| Verdict::Firing(Box::new(firing(aggregate, o, s))))
            .collect()
    }
}

fn firing(aggregate: &Aggregate, origin: &Origin, summary: &SiteSummary) -> Firing {
    let site = &summary.site;
    let before = summary.recent.iter().rev().find(|s| s.stats.non_finite() == 0).map(|s| s.stats.max_abs);
    let finite = summary.latest().map_or(0.0, |s| s.stats.max_abs);
    let mut evidence = vec![
        counted("infinite_elements", origin.inf),
        counted("elements", origin.count),
        measured("infinite_share", origin.inf as f64 / origin.count.max(1) as f64),
        measured("largest_finite", finite),
    ];
    evidence.extend(before.map(|b| measured("max_abs_before", b)));
    let keep = keep_in_range(aggregate, &Graph::of(aggregate), site);
    Firing {
        severity: Severity::Error,
        layer: site.layer.clone(),
        operator: site.operator.clone(),
        probe: Some(Probe::Activation),
        since: aggregate.non_finite.onset(origin),
        strength: origin.inf as f64 / origin.count.max(1) as f64,
        evidence,
        explanation: format!(
            "{}`{}` made {} of {} elements infinite ({}) out of finite inputs: the result exceeds 65504, the end of FP16{}. It is forward that overflows, so \
             no loss scale can help.",
            if site.layer == INPUT { "It is the input data, which no parameter has touched yet: " } else { "" },
            site.label(),
            origin.inf,
            origin.count,
            share(origin.inf as f64 / origin.count.max(1) as f64),
            before.map_or(String::new(), |b| format!("; when last finite its largest value was {}", number(b))),
        ),
        remedy: match reset(aggregate) {
            Some(reset) => keep.reworded(|keep| format!("{keep} {reset}")),
            None => keep,
        },
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::Finding;
    use crate::rules::silence::{diagnose, found};
    use crate::scan::Dtype::{self, F16};

    const INF: f64 = f64::INFINITY;

    #[test]
    fn case_1_a_linear_layer_that_overflows_every_step_is_named_before_the_scale_is_gone() {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).steps(4, |s, i| {
            let scale = 2f64.powi(16 - i as i32);
            s.loss(INF).skipped(scale, scale / 2.0).activation("fc", "linear", F16, &[81920.0; 8]);
            s.activation("out", "mul", F16, &[INF; 8]).inherited();
            s.gradient("out", "mul", F16, &[f64::NAN; 8]);
        });
        let d = diagnose(&run);
        assert_eq!(found(&d), ["AMP102"]);
        assert_eq!(d.findings()[0].consequences.iter().map(|f| f.code).collect::<Vec<_>>(), ["AMP501", "AMP703"]);
        assert!(
            d.findings()[0]
                .with_consequences()
                .filter(|f| f.code != "AMP703")
                .all(|f| f.layer == "fc" && f.operator == "linear" && f.onset_step == 0),
            "{:#?}",
            d.findings()
        );
        assert!(d.findings()[0].explanation.contains("no loss scale can help"), "{}", d.findings()[0].explanation);
    }

    #[test]
    fn case_14_growth_is_told_before_the_first_infinity() {
        let mut run = Scenario::new();
        for value in [6.0e4, 6.1e4, 6.2e4, 66.2e3] {
            run.step(|s| {
                s.loss(1.0).activation("attn", "matmul", F16, &[value]).gradient(
                    "attn",
                    "matmul",
                    F16,
                    &normal(64, 1.0, 0),
                );
            });
        }
        let d = diagnose(&run);
        let told = || d.findings().iter().flat_map(Finding::with_consequences);
        let seen: Vec<_> = told().map(|f| (f.code, f.layer.as_str(), f.onset_step, f.last_step)).collect();
        assert_eq!(seen, [("AMP101", "attn", 0, 2), ("AMP102", "attn", 3, 3), ("AMP501", "attn", 3, 3)]);
        assert_eq!(found(&d), ["AMP101"]);
        let overflow = told().nth(1).map_or("", |f| &f.explanation);
        let largest = ["when last finite its largest value was 6.20e4", "62016"];
        assert!(largest.iter().any(|text| overflow.contains(text)), "{overflow}");
    }

    #[test]
    fn an_infinity_that_a_mask_wrote_is_by_design() {
        let mut run = Scenario::new();
        run.step(|s| {
            s.loss(1.0)
                .activation("input", "full", F16, &[-INF; 16])
                .activation("input", "triu", F16, &[0.0, -INF])
                .inherited();
            s.activation("attn", "add", F16, &[1.0, -INF]).inherited().activation("attn", "softmax", F16, &[1.0, 0.0]);
            s.gradient("attn", "softmax", F16, &normal(64, 1.0, 0));
        });
        run.step(|s| {
            s.loss(1.0).activation("attn", "masked_fill", F16, &[1.0, -1e9]).activation(
                "attn",
                "softmax",
                F16,
                &[1.0, 0.0],
            );
            s.activation("b", "mul", F16, &[-65504.0, 0.0]).activation("b", "add", F16, &[-INF, 0.0]);
        });
        assert!(found(&diagnose(&run)).is_empty(), "{:#?}", diagnose(&run).findings());
    }

    #[test]
    fn a_mask_that_is_a_constant_is_not_observed_and_still_by_design() {
        let mut run = Scenario::new();
        run.steps(3, |s, i| {
            s.loss(1.0).activation("attn", "matmul", F16, &normal(64, 3.0, i)).activation(
                "attn",
                "add",
                F16,
                &[1.0, -INF],
            );
            s.activation("attn", "softmax", F16, &[1.0, 0.0]).gradient("attn", "softmax", F16, &normal(64, 1.0, i));
        });
        assert!(found(&diagnose(&run)).is_empty(), "{:#?}", diagnose(&run).findings());
    }

    #[test]
    fn a_mask_that_is_handed_to_the_model_is_by_design_whatever_the_scores_and_the_operator_are() {
        // Two planes of the lowest number, in a format that is not FP16; and scores above half of FP16's largest.
        for (dtype, mask, operator) in [
            (F16, [0.0, -INF], "add"),
            (F16, [0.0, -INF], "baddbmm"),
            (Dtype::F32, [0.0, -INF], "baddbmm"),
            (Dtype::F32, [0.0, f64::from(f32::MIN)], "add"),
            (Dtype::Bf16, [0.0, -3.3895313892515355e38], "add"),
        ] {
            let mut run = Scenario::new();
            run.steps(3, |s, i| {
                s.loss(1.0).activation("attn", "matmul", dtype, &[40000.0, 1.0]);
                s.activation("input", "data", dtype, &[mask[0], mask[1], -INF]);
                s.activation("attn", operator, dtype, &[40000.0, -INF]).inherited();
                s.activation("attn", "softmax", dtype, &[1.0, 0.0]);
                s.gradient("attn", "softmax", dtype, &normal(64, 1.0, i));
            });
            let d = diagnose(&run);
            let blamed: Vec<_> = found(&d).into_iter().filter(|code| *code != "AMP101").collect();
            assert!(blamed.is_empty(), "{dtype:?} {operator}: {blamed:?}");
        }
    }

    #[test]
    fn an_overflow_beside_a_mask_that_is_handed_to_the_model_is_found() {
        let mut run = Scenario::new();
        run.step(|s| {
            s.loss(1.0).activation("input", "data", F16, &[0.0, -INF]);
            s.activation("a", "linear", F16, &[-40000.0, 1.0]).activation("a", "add", F16, &[-INF, 1.0]);
        });
        assert!(found(&diagnose(&run)).contains(&"AMP102"));
    }

    #[test]
    fn a_residual_sum_that_overflows_downward_is_no_mask() {
        let mut run = Scenario::new();
        run.step(|s| {
            s.loss(1.0).activation("a", "linear", F16, &[-40000.0, 1.0]).activation("a", "add", F16, &[-INF, 1.0]);
        });
        assert!(found(&diagnose(&run)).contains(&"AMP102"));
    }

    #[test]
    fn a_mask_of_large_numbers_that_is_cast_to_fp16_is_by_design_and_a_value_is_not() {
        let of = |operator: &str, values: &[f64]| {
            let mut run = Scenario::new();
            run.step(|s| {
                s.loss(1.0).activation("attn", operator, F16, values);
                s.activation("attn", "add", F16, &[1.0, -INF]).inherited().gradient(
                    "attn",
                    "add",
                    F16,
                    &normal(64, 1.0, 0),
                );
            });
            found(&diagnose(&run)).contains(&"AMP102")
        };
        let mask = [0.0, -INF, 0.0, -INF];
        assert_eq!((of("to", &mask), of("mul", &mask)), (false, false));
        assert!(of("to", &[0.5, -INF, 0.0, -INF]) && of("to", &[-INF; 4]) && of("linear", &mask));
    }

    #[test]
    fn an_overflow_behind_a_mask_is_still_found() {
        let mut run = Scenario::new();
        run.step(|s| {
            s.loss(1.0).activation("attn", "masked_fill", F16, &[1.0, -INF]);
            s.activation("fc", "linear", F16, &[INF, 1.0]).gradient("fc", "linear", F16, &normal(64, 1.0, 0));
        });
        let d = diagnose(&run);
        assert!(found(&d).contains(&"AMP102") && d.findings()[0].layer == "fc");
    }
}
