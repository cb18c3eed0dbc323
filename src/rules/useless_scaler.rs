//! ## What it finds
//!
//! A loss scale in a run that needs none: nothing that was seen is held in FP16.
//!
//! ## Why it matters
//!
//! BF16 and FP32 have the same range, 2^-126 to 2^127: no gradient is lost there that a scale could save. A scale costs two passes over the
//! gradients, and a dynamic one grows until it meets the end of that range, where it skips steps for nothing.
//!
//! ## How it decides
//!
//! At three scanned steps or more a gradient and a scale other than 1 were seen, and no activation, gradient or weight in FP16.
//!
//! * **Information**: that alone.
//! * **Warning**: besides, more than 2 % of the steps, ten at the least, were skipped.
//!
//! ## What to do
//!
//! Take the scaler out, or switch it off and leave the loop as it is: `GradScaler::builder().enabled(false).build()?`.
//!
//! ## When it stays silent
//!
//! Where anything is held in FP16, and where no step was scanned since the loss is scaled. On a scale of 1. Where weights or the loss are not finite.

use super::non_finite_origin::has_ruined_parameter;
use super::text::{counted, measured, number, scale, share};
use super::{Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, SiteSummary};
use crate::observation::Probe;
use crate::scan::Dtype;

const SKIP_SHARE: Threshold = Threshold {
    rule: "useless-scaler",
    name: "skip-share",
    default: 0.02,
    unit: "of the steps",
    reason: "Where there is nothing to gain every skip is a loss; 2 % is what rule scale-thrash allows to a scaler that is needed.",
};
/// Scanned steps with a gradient before anything is said.
const SCANS: u64 = 3;
/// Skips below which they are calibration.
const FEWEST_SKIPS: u64 = 10;

/// See the page of the rule.
pub struct UselessScaler;

static INFO: RuleInfo = RuleInfo {
    code: "AMP309",
    name: "useless-scaler",
    severity: Severity::Warning,
    summary: "The loss is scaled in a run that holds nothing in FP16.",
    source: include_str!("useless_scaler.rs"),
};

impl Rule for UselessScaler {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Scans {
            steps: SCANS,
            applies: |a| a.instrument.full_steps == 0 || is_scaled(a).is_some() && !holds_fp16(a),
        }
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[SKIP_SHARE]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        firing(aggregate, limits).map(|f| Verdict::Firing(Box::new(f))).into_iter().collect()
    }
}

/// The loss scale now, where it is one.
fn is_scaled(aggregate: &Aggregate) -> Option<f64> {
    aggregate.latest.as_ref().and_then(|s| s.loss_scale).filter(|&s| s != 1.0)
}

/// Whether any tensor that was seen is held in FP16.
fn holds_fp16(aggregate: &Aggregate) -> bool {
    aggregate.sites.iter().any(|s| s.site.dtype == Dtype::F16)
}

/// The widest format among what was seen; `None` where something is held in FP16, or nothing that tells.
fn format(aggregate: &Aggregate) -> Option<&'static str> {
    let has_bf16 = aggregate.sites.iter().any(|s| s.site.dtype == Dtype::Bf16);
    let has_activations = aggregate.sites.iter().any(|s| s.site.probe == Probe::Activation);
    match (holds_fp16(aggregate), has_bf16) {
        (true, _) => None,
        (false, true) => Some("BF16"),
        (false, false) => has_activations.then_some("FP32"),
    }
}

/// Scanned steps with a gradient that carried a scale, as far as the recent past tells: what was scanned before there was a scaler says nothing of it.
fn scaled_scans(aggregate: &Aggregate) -> u64 {
    let gradients = aggregate.sites.iter().filter(|s| s.site.probe.is_gradient());
    let scaled = |s: &SiteSummary| s.recent.iter().filter(|x| x.loss_scale.is_some_and(|scale| scale != 1.0)).count();
    gradients.map(scaled).max().unwrap_or(0) as u64
}

fn firing(aggregate: &Aggregate, limits: &Limits) -> Option<Firing> {
    // A run that is ruined is skipped whatever its format.
    let is_ruined = aggregate.non_finite.loss_bad.is_some() || has_ruined_parameter(aggregate);
    let now = is_scaled(aggregate).filter(|_| !is_ruined)?;
    let format = format(aggregate).filter(|_| scaled_scans(aggregate) >= SCANS)?;
    let scaler = &aggregate.scaler;
    let steps = scaler.applied + scaler.skipped;
    let skipped = scaler.skipped as f64 / steps.max(1) as f64;
    let costs = scaler.skipped >= FEWEST_SKIPS && skipped > limits.of(&SKIP_SHARE);
    let cost = if costs {
        format!("It skipped {} of the steps ({}), and each of them was good.", share(skipped), scaler.skipped)
    } else {
        "It does no harm but the time that it takes.".into()
    };
    Some(Firing {
        severity: if costs { Severity::Warning } else { Severity::Info },
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since: 0,
        strength: skipped,
        evidence: vec![
            measured("loss_scale", now),
            counted("skipped_steps", scaler.skipped),
            counted("applied_steps", scaler.applied),
            counted("fp16_tensors", 0),
        ],
        explanation: format!(
            "The loss is scaled, by {} now, and of {} kinds of tensors that were seen none is held in FP16: {format} has the range of FP32, and needs no scale. {cost}",
            scale(now),
            number(aggregate.sites.len() as f64)
        ),
        remedy: Remedy::from(
            "Take the scaler out of the loop, or switch it off: `GradScaler::builder().enabled(false).build()?`. If FP16 was meant, look at why autocast is not in force.",
        ),
    })
}

#[cfg(test)]
mod tests {
    use crate::observation::Tier;
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::silence::diagnose;
    use crate::rules::{Finding, Severity};
    use crate::scan::Dtype::{self, Bf16, F16, F32};

    fn run(dtype: Dtype, scale: f64, skip_every: u64) -> Option<Finding> {
        let mut run = Scenario::new();
        run.dynamic_scaler(scale).steps(120, |s, i| {
            s.loss(1.0).activation("fc", "linear", dtype, &normal(64, 1.0, i));
            s.gradient("fc", "linear", dtype, &normal(64, 1.0, i));
            if i % skip_every == skip_every - 1 {
                s.skipped(scale, scale)
            } else {
                s.applied(scale)
            };
        });
        let d = diagnose(&run);
        d.findings().iter().flat_map(Finding::with_consequences).find(|f| f.code == "AMP309").cloned()
    }

    #[test]
    fn a_scale_over_bf16_or_fp32_is_worth_a_word() {
        for dtype in [Bf16, F32] {
            let f = run(dtype, 65536.0, 1000).expect("found");
            assert_eq!((f.severity, f.remedy.set.len()), (Severity::Info, 0));
        }
    }

    #[test]
    fn where_it_skips_good_steps_it_is_a_warning() {
        let f = run(Bf16, 65536.0, 10).expect("found");
        assert_eq!(f.severity, Severity::Warning);
        assert!(f.explanation.contains("10 % of the steps"), "{}", f.explanation);
    }

    #[test]
    fn over_fp16_and_at_a_scale_of_1_it_is_silent() {
        assert!(run(F16, 65536.0, 10).is_none());
        assert!(run(F32, 1.0, 1000).is_none());
    }

    #[test]
    fn what_was_scanned_before_there_was_a_scaler_says_nothing_of_it() {
        let mut run = Scenario::new();
        run.steps(8, |s, i| {
            s.loss(1.0).activation("fc", "linear", F32, &normal(64, 1.0, i));
            s.gradient("fc", "linear", F32, &normal(64, 1.0, i));
        });
        run.dynamic_scaler(65536.0).steps(8, |s, i| {
            s.loss(1.0).applied(65536.0).tier(Tier::Off);
            if i >= 14 {
                s.tier(Tier::Full).gradient("fc", "linear", F32, &normal(64, 1.0, i));
            }
        });
        assert!(diagnose(&run).findings().iter().all(|f| f.code != "AMP309"));
    }
}
