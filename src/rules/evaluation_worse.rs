//! ## What it finds
//!
//! An evaluation that is worse in the precision of the run than in FP32, on the same data with the same weights; or one that is NaN or infinite while
//! training goes well.
//!
//! ## Why it matters
//!
//! Training bears rounding that evaluation does not: running statistics and averaged weights are read only there, and so may be a softmax or a norm
//! that was cast by hand. The loss of training shows nothing of it.
//!
//! ## How it decides
//!
//! It compares two metrics that you tell it, at one step:
//!
//! ```rust,ignore
//! doctor.metric("accuracy", accuracy);            // in the precision of the run
//! doctor.metric("accuracy_fp32", accuracy_fp32);  // the same weights and data, in FP32
//! ```
//!
//! Of a metric whose name has `loss`, `error`, `perplexity` or `nll` in it less is better, of any other more.
//!
//! * **Warning**: at two evaluations in a row the metric was worse than its reference, a loss by 5 %, any other by 1.5 %.
//! * **Error**: a metric that was finite before, or that is a loss, was not finite at two evaluations in a row, or at the last of the run, while the
//!   loss of training is.
//!
//! ## What to do
//!
//! Evaluate in FP32: outside `autocast`, or inside `no_autocast` (after `vs.half()`, on a copy of the model in FP32). Or find what makes the
//! difference: an operator that is cast to FP16 by hand, running statistics that are in 16 bits or not finite, averaged weights in 16 bits.
//!
//! ## When it stays silent
//!
//! Without a reference, however bad a metric is: a difference to another run may be chance. On a metric that was never finite and is no loss: it may
//! be undefined, as a precision where nothing was predicted. Where the loss of training is not finite either (rule `loss-not-finite`).

use super::text::{counted, measured, number, said, share};
use super::{Evidence, Firing, Limits, Needs, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Metric};

const LOSS_WORSE: Threshold = Threshold {
    rule: "evaluation-worse",
    name: "loss-worse",
    default: 0.05,
    unit: "of the FP32 loss",
    reason: "On the same weights and data, FP16 and BF16 forward move the loss of the reference models by less than 1 %.",
};
const WORSE: Threshold = Threshold {
    rule: "evaluation-worse",
    name: "worse",
    default: 0.015,
    unit: "of the FP32 metric",
    reason: "Rounding turns single examples, 0.3 % of a held-out set of 360; people notice 2 points.",
};
/// Evaluations in a row.
const IN_A_ROW: usize = 2;
/// What a reference's name ends with.
const REFERENCE: &str = "_fp32";
/// What is in the names of metrics of which less is better.
const LESS_IS_BETTER: [&str; 4] = ["loss", "error", "perplexity", "nll"];

/// See the page of the rule.
pub struct EvaluationWorse;

static INFO: RuleInfo = RuleInfo {
    code: "AMP704",
    name: "evaluation-worse",
    severity: Severity::Error,
    summary: "Evaluation is worse than in FP32 on the same weights, or not a number while training goes well.",
    source: include_str!("evaluation_worse.rs"),
};

impl Rule for EvaluationWorse {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Losses(1)
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[LOSS_WORSE, WORSE]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        let metrics = || aggregate.metrics.by_name.iter().filter(|(name, _)| !name.ends_with(REFERENCE));
        let found = metrics()
            .find_map(|(name, metric)| not_a_number(aggregate, name, metric))
            .or_else(|| metrics().find_map(|(name, metric)| worse(aggregate, name, metric, limits)));
        found.map(|f| Verdict::Firing(Box::new(f))).into_iter().collect()
    }
}

fn is_loss(name: &str) -> bool {
    let name = name.to_lowercase();
    LESS_IS_BETTER.iter().any(|part| name.contains(part))
}

fn not_a_number(aggregate: &Aggregate, name: &str, metric: &Metric) -> Option<Firing> {
    let in_a_row = metric.recent.iter().rev().take_while(|(_, value)| !value.is_finite());
    let n = in_a_row.clone().count();
    let (since, value) = *in_a_row.last()?;
    let lasts = n >= IN_A_ROW || aggregate.end.is_some();
    let trains = aggregate.losses.count > 0 && aggregate.non_finite.loss_bad.is_none();
    if !(lasts && trains && (metric.was_finite || is_loss(name))) {
        return None;
    }
    let mut evidence = vec![said("metric", name), measured("value", value), counted("evaluations_in_a_row", n as u64)];
    let before = metric.recent.iter().rfind(|(_, value)| value.is_finite()).map(|&(_, value)| value);
    evidence.extend(before.map(|value| measured("last_finite_value", value)));
    let loss = aggregate.losses.present().map_or(String::new(), |loss| format!(" ({})", number(loss)));
    Some(firing(
        Severity::Error,
        since,
        n as f64,
        evidence,
        format!(
            "`{name}` has been {} since step {since}, while the loss of training is finite{loss}. What only evaluation reads is ruined: running statistics, averaged weights.",
            number(value)
        ),
        "Look at the buffers of the model (running means and variances) for values that are not finite: a scaler that skips a step does not undo what forward wrote. Keep normalisation in FP32.",
    ))
}

fn worse(aggregate: &Aggregate, name: &str, metric: &Metric, limits: &Limits) -> Option<Firing> {
    let reference = aggregate.metrics.by_name.get(&format!("{name}{REFERENCE}"))?;
    let by = |&(step, value): &(u64, f64)| {
        let (_, fp32) = *reference.recent.iter().find(|(at, _)| *at == step)?;
        let worse = if is_loss(name) { value - fp32 } else { fp32 - value };
        (fp32 != 0.0).then(|| (step, value, fp32, worse / fp32.abs()))
    };
    let least = limits.of(if is_loss(name) { &LOSS_WORSE } else { &WORSE });
    let pairs: Vec<(u64, f64, f64, f64)> =
        metric.recent.iter().rev().map_while(by).take_while(|p| p.3 > least).collect();
    let (first, last) = (pairs.last().filter(|_| pairs.len() >= IN_A_ROW)?, pairs.first()?);
    Some(firing(
        Severity::Warning,
        first.0,
        last.3,
        vec![
            said("metric", name),
            measured("value", last.1),
            measured("value_fp32", last.2),
            measured("worse_share", last.3),
            counted("evaluations_in_a_row", pairs.len() as u64),
        ],
        format!(
            "`{name}` is {} in the precision of the run and {} in FP32, with the same weights on the same data: {} worse, since step {}.",
            number(last.1),
            number(last.2),
            share(last.3),
            first.0
        ),
        "Evaluate in FP32, or look for what differs: an operator that is cast to FP16 by hand (a softmax, a norm, an exponential), running statistics or averaged weights in 16 bits.",
    ))
}

fn firing(
    severity: Severity,
    since: u64,
    strength: f64,
    evidence: Vec<Evidence>,
    explanation: String,
    remedy: &str,
) -> Firing {
    Firing {
        severity,
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since,
        strength,
        evidence,
        explanation,
        remedy: remedy.into(),
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::Tier;
    use crate::observation::scenario::Scenario;
    use crate::rules::silence::{diagnose, first};
    use crate::rules::{Finding, Severity};

    /// Forty steps with an evaluation after every tenth, which tells what `metrics` says.
    fn run(loss: f64, metrics: impl Fn(u64) -> Vec<(&'static str, f64)>) -> Option<Finding> {
        let mut run = Scenario::new();
        run.steps(40, |s, i| {
            s.loss(loss).tier(Tier::Off);
            if i % 10 == 9 {
                metrics(i).into_iter().for_each(|(name, value)| {
                    s.metric(name, value);
                });
            }
        });
        first(&diagnose(&run), "AMP704").cloned()
    }

    #[test]
    fn two_points_worse_than_fp32_on_the_same_weights_is_a_warning() {
        let f =
            run(1.0, |i| vec![("accuracy", if i < 15 { 0.95 } else { 0.93 }), ("accuracy_fp32", 0.95)]).expect("found");
        assert_eq!((f.severity, f.onset_step), (Severity::Warning, 19));
        assert!(f.explanation.contains("0.930 in the precision of the run and 0.950 in FP32"), "{}", f.explanation);
        assert!(run(1.0, |_| vec![("eval_loss", 0.3), ("eval_loss_fp32", 0.25)]).is_some());
    }

    #[test]
    fn better_than_fp32_once_worse_and_by_next_to_nothing_is_silent() {
        assert!(run(1.0, |_| vec![("accuracy", 0.97), ("accuracy_fp32", 0.95)]).is_none());
        assert!(run(1.0, |_| vec![("eval_loss", 0.2), ("eval_loss_fp32", 0.25)]).is_none());
        assert!(run(1.0, |i| vec![("accuracy", if i == 19 { 0.9 } else { 0.95 }), ("accuracy_fp32", 0.95)]).is_none());
        assert!(run(1.0, |_| vec![("accuracy", 0.947), ("accuracy_fp32", 0.95)]).is_none());
    }

    #[test]
    fn without_a_reference_nothing_is_too_bad() {
        assert!(run(1.0, |i| vec![("accuracy", 0.9 - 0.02 * i as f64), ("eval_loss", i as f64)]).is_none());
    }

    #[test]
    fn not_a_number_while_training_goes_well_is_an_error() {
        let f = run(1.0, |i| vec![("eval_loss", if i < 15 { 0.3 } else { f64::NAN })]).expect("found");
        assert_eq!((f.severity, f.onset_step), (Severity::Error, 19));
        assert!(run(1.0, |i| vec![("f1", if i < 15 { 0.3 } else { f64::NAN })]).is_some());
    }

    #[test]
    fn a_metric_that_was_never_defined_and_a_run_that_is_ruined_anyway_are_silent() {
        assert!(run(1.0, |_| vec![("precision", f64::NAN)]).is_none());
        assert!(run(f64::NAN, |_| vec![("eval_loss", f64::NAN)]).is_none());
    }
}
