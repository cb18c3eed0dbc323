//! ## What it finds
//!
//! A loss that became NaN or infinite and stays so, with what made it: weights that an update ruined, a scale that rose while nothing checked the
//! gradients, a learning rate, or an operator in forward.
//!
//! ## Why it matters
//!
//! The run is lost from that step on. What is known of every step, scanned or not, often tells why: the loss before, the learning rate, the loss
//! scale, and which steps were skipped.
//!
//! ## How it decides
//!
//! **Error**: the loss was not finite at three steps in a row. The cause that is named is the first of these that holds:
//!
//! * the loss scale rose within the two steps before, and the step was applied: nothing checked its gradients;
//! * the learning rate rose threefold or more within the twelve steps before;
//! * forward made it, in the operator that was the first to;
//! * weights are not finite;
//! * else it is not known, and the finding says what to set.
//!
//! ## What to do
//!
//! * Nothing checked the gradients: step through a scaler, `scaler.step(&mut opt)?`, which skips what is not finite.
//! * The learning rate: go back to the one before, `opt.set_lr(lr)`.
//! * An operator in forward: look at its input, as rule `non-finite-origin` says.
//! * Not known: scan every step, `Doctor::builder().every(1).attach(&vs)`, and tell the doctor the rate, `doctor.lr(lr)`.
//!
//! Go on from a checkpoint before the step: weights that hold a NaN do not recover.
//!
//! ## When it stays silent
//!
//! On a single loss that is not finite: one bad batch whose step is skipped does no harm (rules `non-finite-origin` and `scale-ratchet` watch these).
//! On gradients that overflow while a scaler finds its scale: the loss does not carry the scale.

use super::text::{counted, measured, number, said, scale};
use super::{Evidence, Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Loss};
use crate::observation::Probe;
use crate::rules::non_finite_origin::has_ruined_parameter;

const IN_A_ROW: Threshold = Threshold {
    rule: "loss-not-finite",
    name: "losses-in-a-row",
    default: 3.0,
    unit: "losses",
    reason: "Single NaN batches, 0.06 to 5 % of them, are skipped by a scaler and training goes on; three in a row happen by chance once in 8000 steps at 5 %.",
};
const LR_RISE: Threshold = Threshold {
    rule: "loss-not-finite",
    name: "lr-rise",
    default: 3.0,
    unit: "times the learning rate before",
    reason: "As in rule loss-jump: past its 16th step no warm-up rises so fast.",
};
/// Losses before the first that is not finite among which the cause lies: a scale acts at once, a learning rate after some steps.
const SCALE_LEAD: usize = 2;
const LR_LEAD: usize = 12;

/// See the page of the rule.
pub struct LossNotFinite;

static INFO: RuleInfo = RuleInfo {
    code: "AMP703",
    name: "loss-not-finite",
    severity: Severity::Error,
    summary: "The loss became NaN or infinite and stays so; the steps before it tell why.",
    source: include_str!("loss_not_finite.rs"),
};

impl Rule for LossNotFinite {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Losses(1)
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[IN_A_ROW, LR_RISE]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        let bad = aggregate.non_finite.loss_bad.filter(|&(_, n)| n as f64 >= limits.of(&IN_A_ROW));
        bad.map(|(since, n)| Verdict::Firing(Box::new(firing(aggregate, since, n, limits)))).into_iter().collect()
    }
}

enum Cause {
    UncheckedScale { from: f64, to: f64 },
    LearningRate { from: f64, to: f64 },
    Forward { label: String },
    Weights,
    Unknown,
}

fn cause(aggregate: &Aggregate, since: u64, limits: &Limits) -> Cause {
    let recent: Vec<&Loss> = aggregate.losses.recent.iter().filter(|at| at.step <= since).collect();
    unchecked_scale(&recent)
        .or_else(|| learning_rate(&recent, limits))
        .or_else(|| forward(aggregate))
        .unwrap_or(if has_ruined_parameter(aggregate) { Cause::Weights } else { Cause::Unknown })
}

/// A scale that rose and whose step was applied all the same.
fn unchecked_scale(recent: &[&Loss]) -> Option<Cause> {
    let lead = &recent[recent.len().saturating_sub(SCALE_LEAD + 2)..];
    lead.windows(2).find_map(|pair| match (pair[0].loss_scale, pair[1].loss_scale) {
        (Some(from), Some(to)) if to > from && !pair[1].skipped => Some(Cause::UncheckedScale { from, to }),
        _ => None,
    })
}

fn learning_rate(recent: &[&Loss], limits: &Limits) -> Option<Cause> {
    let lead = &recent[recent.len().saturating_sub(LR_LEAD + 1)..];
    let from = lead.first()?.lr.filter(|&lr| lr > 0.0)?;
    let to = lead.iter().filter_map(|at| at.lr).fold(0.0, f64::max);
    (to >= limits.of(&LR_RISE) * from).then_some(Cause::LearningRate { from, to })
}

fn forward(aggregate: &Aggregate) -> Option<Cause> {
    let origin = aggregate.non_finite.first_unguarded?;
    let site = aggregate.site(origin.site).filter(|s| s.site.probe == Probe::Activation)?;
    Some(Cause::Forward { label: site.site.label() })
}

fn firing(aggregate: &Aggregate, since: u64, n: u64, limits: &Limits) -> Firing {
    let cause = cause(aggregate, since, limits);
    let last_finite = aggregate.losses.recent.iter().rfind(|at| at.step < since && at.loss.is_finite());
    let mut evidence = vec![said("cause", cause.name()), counted("losses_in_a_row", n), counted("first_step", since)];
    evidence.extend(last_finite.map(|at| measured("last_finite_loss", at.loss)));
    evidence.extend(cause.evidence());
    let before = match last_finite {
        Some(at) => format!("it was {} at step {}", number(at.loss), at.step),
        None => "it was never finite".into(),
    };
    Firing {
        severity: Severity::Error,
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since,
        // A cause that is known is stronger evidence than any number of losses.
        strength: if matches!(cause, Cause::Unknown) { 0.0 } else { 1.0 },
        evidence,
        explanation: format!("Since step {since} the loss has not been finite; {before}. {}", cause.text()),
        remedy: cause.remedy(since),
    }
}

impl Cause {
    fn name(&self) -> &'static str {
        match self {
            Self::UncheckedScale { .. } => "loss scale, unchecked",
            Self::LearningRate { .. } => "learning rate",
            Self::Forward { .. } => "forward",
            Self::Weights => "weights",
            Self::Unknown => "unknown",
        }
    }

    fn evidence(&self) -> Vec<Evidence> {
        match self {
            Self::UncheckedScale { from, to } => {
                vec![measured("loss_scale_before", *from), measured("loss_scale_after", *to)]
            }
            Self::LearningRate { from, to } => vec![measured("lr_before", *from), measured("lr_after", *to)],
            Self::Forward { label } => vec![said("first_operator", label.clone())],
            Self::Weights | Self::Unknown => Vec::new(),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::UncheckedScale { from, to } => format!(
                "Right before, the loss scale rose from {} to {}, and the step was applied: where nothing checks the gradients, those that overflow go into the weights.",
                scale(*from),
                scale(*to)
            ),
            Self::LearningRate { from, to } => {
                format!(
                    "Before that the learning rate rose from {} to {}: that is the cause.",
                    number(*from),
                    number(*to)
                )
            }
            Self::Forward { label } => format!("`{label}` was the first operator in forward that was not finite."),
            Self::Weights => {
                "Weights are not finite: an update ruined them, and whatever is computed with them follows.".into()
            }
            Self::Unknown => "Nothing that was recorded of the steps before it tells why.".into(),
        }
    }

    fn remedy(&self, since: u64) -> Remedy {
        match self {
            Self::UncheckedScale { from, .. } => Remedy::from(format!(
                "Let a scaler check the gradients before each step (`GradScaler`: `scaler.step(&mut opt)?`, `scaler.update()?`), or keep the scale at {}. Go on from a checkpoint of \
                 before step {since}.",
                scale(*from)
            ))
            .set("scaler", "dynamic"),
            Self::LearningRate { from, to } => Remedy::from(format!(
                "Do not raise the learning rate from {} to {}; go on from a checkpoint of before step {since}.",
                number(*from),
                number(*to)
            ))
            .set("lr", *from),
            Self::Forward { label } => Remedy::from(format!(
                "Look at `{label}` and at what goes into it at step {since}; go on from a checkpoint of before that step."
            )),
            Self::Weights => Remedy::from(format!(
                "Let a scaler check the gradients before each step (`GradScaler` does), and go on from a checkpoint of before step {since}."
            )),
            Self::Unknown => Remedy::from(
                "Scan every step to see where it begins: `Doctor::builder().every(1)`. Tell the doctor the learning rate: `doctor.lr(lr)`.",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::Tier;
    use crate::observation::scenario::{Scenario, StepBuilder, normal};
    use crate::rules::silence::diagnose;
    use crate::rules::{Finding, Severity, Value};
    use crate::scan::Dtype::F16;

    fn finding(run: &Scenario) -> Option<Finding> {
        let d = diagnose(run);
        d.findings().iter().flat_map(Finding::with_consequences).find(|f| f.code == "AMP703").cloned()
    }

    fn cause(f: &Finding) -> &Value {
        &f.evidence.iter().find(|e| e.name == "cause").expect("a cause").value
    }

    /// A loss of 1 that is NaN from step 20 on, unscanned, with what `with` adds.
    fn run(with: impl Fn(&mut StepBuilder<'_>, u64)) -> Scenario {
        let mut run = Scenario::new();
        run.steps(30, |s, i| {
            s.loss(if i < 20 { 1.0 } else { f64::NAN }).tier(Tier::Off);
            with(s, i);
        });
        run
    }

    #[test]
    fn a_scale_that_rose_unchecked_right_before_is_the_cause() {
        let f = finding(&run(|s, i| {
            s.loss_scale(if i < 19 { 1024.0 } else { 2f64.powi(24) });
        }))
        .expect("found");
        assert_eq!((f.severity, f.onset_step, cause(&f)), (Severity::Error, 20, &"loss scale, unchecked".into()));
        assert_eq!((f.remedy.set[0].name, &f.remedy.set[0].value), ("scaler", &"dynamic".into()));
    }

    #[test]
    fn a_scale_whose_step_was_withheld_is_not_and_a_learning_rate_is() {
        let f = finding(&run(|s, i| {
            s.lr(if i < 17 { 1e-3 } else { 1.0 });
            match i {
                18 => s.moved(1024.0, 2048.0),
                19 => s.skipped(2048.0, 1024.0),
                _ => s.applied(1024.0),
            };
        }))
        .expect("found");
        assert_eq!(cause(&f), &"learning rate".into(), "{}", f.explanation);
        assert_eq!(f.remedy.set[0].value, Value::Number(1e-3));
    }

    #[test]
    fn an_operator_in_forward_is_named_where_it_was_scanned() {
        let f = finding(&run(|s, i| {
            let values = if i < 20 { normal(64, 1.0, i) } else { vec![f64::NAN; 64] };
            s.tier(Tier::Full).activation("head", "log", F16, &values);
        }))
        .expect("found");
        assert_eq!(cause(&f), &"forward".into());
        assert!(f.explanation.contains("`head/log`"), "{}", f.explanation);
    }

    #[test]
    fn where_nothing_is_known_that_is_said() {
        let f = finding(&run(|_, _| {})).expect("found");
        assert_eq!(cause(&f), &"unknown".into());
        assert!(f.remedy.text.contains("every(1)"));
    }

    #[test]
    fn single_bad_batches_are_silent() {
        let mut run = Scenario::new();
        run.dynamic_scaler(1024.0).steps(60, |s, i| {
            s.tier(Tier::Off);
            if i % 10 < 2 {
                s.loss(f64::NAN).skipped(1024.0, 1024.0)
            } else {
                s.loss(1.0).applied(1024.0)
            };
        });
        assert!(finding(&run).is_none());
    }
}
