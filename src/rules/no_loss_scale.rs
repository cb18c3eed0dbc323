//! ## What it finds
//!
//! FP16 gradients that underflow because the loss is not scaled: there is no loss scaler, or its scale is 1.
//!
//! ## Why it matters
//!
//! FP16 is exact to 11 bits down to 2^-14 = 6.1e-5 and holds nothing below 2^-25 = 3.0e-8. The gradients of a mean loss are often smaller: they are
//! rounded to zero, the layers stop learning, and nothing is NaN. A loss scale lifts them into range, and costs next to nothing.
//!
//! ## How it decides
//!
//! By Ehat of the gradients, over three scanned steps in a row, as rule `gradient-underflow` does it.
//!
//! * **Error**: half of the gradients or more have an Ehat above 1e-3 (their median).
//! * **Warning**: the median is above 1e-4, or one layer is above 1e-2, or more than half of the gradients lie wholly below 2^-14.
//! * **Information**: only the last of these holds, and Ehat is below 5e-7 everywhere: nothing to speak of is lost yet.
//!
//! And there is a scale at which all gradients that were seen are well. Where there is none a layer is to blame, and `gradient-underflow` names it.
//!
//! ## What to do
//!
//! Scale the loss with a dynamic scaler that begins at the scale named:
//!
//! ```rust,ignore
//! let mut scaler = GradScaler::builder().init_scale(8192.0).build()?;  // before the loop
//! scaler.backward(&loss);       // in place of loss.backward()
//! scaler.step(&mut opt)?;       // in place of opt.step()
//! scaler.update()?;
//! ```
//!
//! The scale named is a power of two at which every gradient that was seen keeps Ehat below 1e-4 and the largest keeps a bit of headroom.
//!
//! ## When it stays silent
//!
//! On FP16 gradients that are large enough without a scale: that is no fault. On FP32 and BF16, which need none. Where a scaler is there, static or
//! dynamic, at a scale other than 1.

use super::scaling::Scaling;
use super::underflow::{Cause, SAMPLES, fault_of, may_have_fp16_gradients};
use super::{Limits, Needs, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::Aggregate;

const NAME: &str = "no-loss-scale";
/// What gradients below 2^-14 have lost where that is no matter.
const NEGLIGIBLE: Threshold = Threshold::new(
    NAME,
    "negligible",
    5e-7,
    "Ehat, predicted 1 - cosine",
    "Gradients that lie below 2^-14 by an octave or two have lost less than 1e-6 of their direction, and runs with that ended as FP32 did: worth a word only.",
);

/// See the page of the rule.
pub struct NoLossScale;

static INFO: RuleInfo = RuleInfo {
    code: "AMP308",
    name: NAME,
    severity: Severity::Error,
    summary: "FP16 gradients underflow because the loss is not scaled.",
    source: include_str!("no_loss_scale.rs"),
};

impl Rule for NoLossScale {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Scans { steps: SAMPLES as u64, applies: |a| may_have_fp16_gradients(a) && is_unscaled(a) }
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[NEGLIGIBLE]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        if !is_unscaled(aggregate) {
            return Vec::new();
        }
        let mut fault = fault_of(aggregate, Cause::NoScale, limits);
        if let Some(firing) = &mut fault
            && firing.strength < limits.of(&NEGLIGIBLE)
        {
            firing.severity = Severity::Info;
        }
        fault.map(Verdict::Firing).into_iter().collect()
    }
}

/// Whether the loss is multiplied by nothing but 1.
fn is_unscaled(aggregate: &Aggregate) -> bool {
    let now = aggregate.latest.as_ref().and_then(|s| s.loss_scale);
    let config = aggregate.scaler_config.as_ref().map(|c| c.init_scale);
    match Scaling::of(aggregate) {
        Scaling::None => true,
        Scaling::Static => now.or(config) == Some(1.0),
        Scaling::AtCeiling | Scaling::Dynamic => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::silence::{diagnose, found};
    use crate::rules::{Severity, Value};
    use crate::scan::Dtype::{Bf16, F16, F32};

    /// Four steps of four layers, their gradients of this deviation, without a scaler or with a static one.
    fn run(deviation: f64, static_scale: Option<f64>, dtype: crate::scan::Dtype) -> Scenario {
        let mut run = Scenario::new();
        if let Some(scale) = static_scale {
            run.static_scaler(scale);
        }
        run.steps(5, |s, i| {
            s.loss(1.0);
            if let Some(scale) = static_scale {
                s.applied(scale);
            }
            for layer in (1..=4).rev() {
                let values = normal(512, deviation * static_scale.unwrap_or(1.0), 10 * i + layer);
                s.gradient(&format!("fc{layer}"), "linear", dtype, &values);
            }
        });
        run
    }

    #[test]
    fn gradients_that_underflow_without_a_scaler_are_one_finding_with_the_scale_that_cures_it() {
        for none in [None, Some(1.0)] {
            let d = diagnose(&run(3e-7, none, F16));
            assert_eq!(found(&d), ["AMP308"], "{:#?}", d.findings());
            let f = &d.findings()[0];
            assert_eq!((f.severity, f.layer.as_str(), f.onset_step), (Severity::Error, "", 0));
            let scale = f.evidence.iter().find_map(|e| match (e.name, &e.value) {
                ("recommended_loss_scale", Value::Number(x)) => Some(*x),
                _ => None,
            });
            assert!(found(&diagnose(&run(3e-7, scale, F16))).is_empty(), "{scale:?}");
        }
    }

    #[test]
    fn most_gradients_below_the_smallest_normal_number_are_a_warning() {
        let d = diagnose(&run(1.2e-5, None, F16));
        assert_eq!((found(&d), d.findings()[0].severity), (vec!["AMP308"], Severity::Warning));
        assert!(d.findings()[0].explanation.contains("below 2^-14"), "{}", d.findings()[0].explanation);
    }

    #[test]
    fn fp16_without_a_scaler_whose_gradients_are_large_enough_is_no_fault() {
        assert!(found(&diagnose(&run(1e-2, None, F16))).is_empty());
        assert!(found(&diagnose(&run(1e-2, Some(1.0), F16))).is_empty());
    }

    #[test]
    fn formats_with_the_range_of_fp32_need_no_scale() {
        for dtype in [F32, Bf16] {
            assert!(found(&diagnose(&run(3e-7, None, dtype))).is_empty());
        }
    }
}
