//! ## What it finds
//!
//! A loss scale that does not move and is wrong: so high that most steps are skipped, or so low that gradients underflow. Also a dynamic one that its
//! ceiling (`max_scale`) holds below what the gradients need.
//!
//! ## Why it matters
//!
//! A dynamic scaler finds its place by itself. A static one that is too high skips step after step, and the loss is flat; without a scaler's check the infinity goes into the weights. One
//! that is too low loses the small gradients without a sign.
//!
//! ## How it decides
//!
//! * **Error**, too high: gradients overflowed at more than half of the last 32 steps, of 17 or more, while forward was finite. (Fewer steps say
//!   nothing: gradients are largest at the beginning.) Where the loss is multiplied by hand and nothing checks the gradients, at the first such step.
//! * **Error** or **warning**, too low: gradients underflow as rule `gradient-underflow` judges it, and at a higher scale they would not.
//!
//! In both cases there is a scale at which all gradients that were seen are well. Where there is none, a layer is to blame, and `gradient-overflow`
//! or `gradient-underflow` names it.
//!
//! A ceiling below 2^16, or a static scale of any size, is no fault by itself.
//!
//! ## What to do
//!
//! Use a dynamic scaler, `GradScaler::default()`, or set the scale that is named: `GradScaler::builder().static_scale(1024.0).build()?`.
//!
//! The scale named is a power of two at which every gradient that was seen keeps Ehat below 1e-4 and the largest keeps a bit of headroom. How large
//! an infinite gradient was FP16 cannot tell: where gradients overflowed the number is a guess, and says so; where one overflowed whenever it was
//! scanned there is no number, and a static scale is best lowered by 2^8 at a time. Where nothing was left of a gradient, the number leaves 8 bits of
//! headroom: such a run has learnt nothing, and its gradients grow once it does.
//!
//! ## When it stays silent
//!
//! * On a scale that moves: that is for rules `scale-ratchet`, `scale-floor` and `gradient-underflow`.
//! * On a static scale of 1, and on none: rule `no-loss-scale`.
//! * On one that skips its first steps and then trains.
//! * On one at which gradients overflow now and then: rule `gradient-overflow`.

use super::gradient_overflow::scale_too_high;
use super::scaling::Scaling;
use super::underflow::{Cause, SAMPLES, fault_of, may_have_fp16_gradients};
use super::{Limits, Needs, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::Aggregate;

const NAME: &str = "static-scale-wrong";
/// Part of the latest 32 steps, 17 at least, that a scale makes overflow which is wrong.
pub(super) const MOST: Threshold = Threshold::new(
    NAME,
    "overflowing",
    0.5,
    "share of the latest 32 steps",
    "A static scale that skips the first 16 steps and then trains is none of these; one four octaves too high skipped every step, one octave too high now and then.",
);

/// See the page of the rule.
pub struct StaticScaleWrong;

static INFO: RuleInfo = RuleInfo {
    code: "AMP307",
    name: NAME,
    severity: Severity::Error,
    summary: "A loss scale that cannot move is too high, so that steps are skipped, or too low for the gradients.",
    source: include_str!("static_scale_wrong.rs"),
};

impl Rule for StaticScaleWrong {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Scans { steps: SAMPLES as u64, applies: |a| may_have_fp16_gradients(a) && is_fixed(a) }
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[MOST]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        if !is_fixed(aggregate) || !aggregate.has_fp16_gradients() {
            return Vec::new();
        }
        let too_high = scale_too_high(aggregate, limits).map(Box::new);
        too_high.or_else(|| fault_of(aggregate, Cause::FixedScale, limits)).map(Verdict::Firing).into_iter().collect()
    }
}

/// Whether the scale cannot move, or not up.
fn is_fixed(aggregate: &Aggregate) -> bool {
    matches!(Scaling::of(aggregate), Scaling::Static | Scaling::AtCeiling)
}

#[cfg(test)]
mod tests {
    use crate::observation::ScalerConfig;
    use crate::observation::scenario::{Scenario, StepBuilder, normal};
    use crate::rules::scale_simulation::settings;
    use crate::rules::silence::{diagnose, found};
    use crate::rules::{Finding, Severity, Value};
    use crate::scan::Dtype::{F16, F32};

    fn backward(s: &mut StepBuilder<'_>, deviation: f64, seed: u64) {
        s.loss(1.0);
        for layer in (1..=4).rev() {
            s.gradient(&format!("fc{layer}"), "linear", F16, &normal(512, deviation, 10 * seed + layer));
        }
    }

    /// Gradients of this deviation, without the scale, at a static scale that skips what overflows.
    fn static_run(deviation: f64, scale: f64, steps: u64) -> Scenario {
        let mut run = Scenario::new();
        run.static_scaler(scale).steps(steps, |s, i| {
            if 3.0 * deviation * scale > 65504.0 {
                s.skipped(scale, scale);
            } else {
                s.applied(scale);
            }
            backward(s, deviation * scale, i);
        });
        run
    }

    fn only(run: &Scenario) -> Finding {
        let d = diagnose(run);
        assert_eq!(found(&d), ["AMP307"], "{:#?}", d.findings());
        d.findings()[0].clone()
    }

    fn recommended(finding: &Finding) -> Option<f64> {
        finding.evidence.iter().find_map(|e| match (e.name, &e.value) {
            ("recommended_loss_scale", Value::Number(x)) => Some(*x),
            _ => None,
        })
    }

    #[test]
    fn too_low_is_one_finding_and_the_scale_that_is_named_cures_it() {
        let f = only(&static_run(3e-6, 2f64.powi(-4), 6));
        assert_eq!((f.severity, f.layer.as_str(), f.onset_step), (Severity::Error, "", 0));
        assert!(f.explanation.contains("static at 0.062 (2^-4)"), "{}", f.explanation);
        assert!(f.remedy.text.starts_with("Raise the static loss scale from "), "{}", f.remedy.text);
        let scale = recommended(&f).expect("a scale to set");
        assert!(found(&diagnose(&static_run(3e-6, scale, 6))).is_empty());
    }

    #[test]
    fn too_high_is_one_finding_at_the_17th_step_since_the_first() {
        assert!(found(&diagnose(&static_run(1.0, 2f64.powi(20), 16))).is_empty());
        let f = only(&static_run(1.0, 2f64.powi(20), 17));
        assert_eq!((f.severity, f.layer.as_str(), f.onset_step), (Severity::Error, "", 0));
        assert!(f.explanation.contains("17 of the last 17 steps"), "{}", f.explanation);
        // Nothing finite was ever seen at this scale: no number is sure.
        assert!(f.remedy.text.starts_with("Use a dynamic scaler: `GradScaler::default()`"), "{}", f.remedy.text);
        assert!(f.remedy.text.contains("by 2^8 at a time, first to 4096 (2^12)"), "{}", f.remedy.text);
        assert!(found(&diagnose(&static_run(1.0, 4096.0, 17))).is_empty());
    }

    #[test]
    fn a_static_scale_that_skips_the_first_steps_and_then_trains_is_no_fault() {
        for skips in [3, 8, 16] {
            let mut run = Scenario::new();
            run.static_scaler(65536.0);
            for i in 0..60 {
                run.step(|s| {
                    // One more in its life is no trend either.
                    let bad = i < skips || i == 30;
                    if bad {
                        s.skipped(65536.0, 65536.0);
                    } else {
                        s.applied(65536.0);
                    }
                    backward(s, if bad { 1e6 } else { 1e3 }, i);
                });
                let d = diagnose(&run);
                assert!(found(&d).is_empty(), "{skips} skips, step {i}: {:#?}", d.findings());
            }
        }
    }

    #[test]
    fn a_weight_gradient_that_is_infinite_now_and_then_lowers_the_scale_that_is_named() {
        let mut run = Scenario::new();
        run.static_scaler(524288.0).steps(40, |s, i| {
            let bad = i % 4 != 0;
            if bad {
                s.skipped(524288.0, 524288.0);
            } else {
                s.applied(524288.0);
            }
            backward(s, 100.0, i);
            let mut gradient = normal(640, 1000.0, i);
            gradient[..4].fill(if bad { f64::INFINITY } else { 60000.0 });
            s.param_grad("fc4", "weight", F32, &gradient);
        });
        let d = diagnose(&run);
        let f = d.findings().iter().find(|f| f.code == "AMP307").expect("too high");
        // The largest is at least 2^17 here: 2^3 of headroom are left from 65504 * 2 down.
        assert!(
            f.remedy
                .text
                .contains("Or lower the static loss scale from 524288 (2^19) to 32768 (2^15): that is 4 octaves"),
            "{}",
            f.remedy.text
        );
        assert!(f.remedy.text.contains("It is a guess"), "{}", f.remedy.text);
        // What is a guess is no setting.
        assert_eq!((f.remedy.set.len(), f.remedy.set[0].value.clone()), (1, "dynamic".into()));
    }

    #[test]
    fn where_nothing_is_left_of_a_gradient_the_scale_named_leaves_room_to_grow() {
        let mut run = Scenario::new();
        run.static_scaler(1e-6).steps(6, |s, i| {
            s.applied(1e-6);
            s.loss(1.0).cast_gradient("fc3", "to", &normal(640, 3e-9, i));
            s.gradient("fc3", "linear", F16, &[0.0; 640]).param_grad("fc3", "weight", F32, &[0.0; 640]);
        });
        let f = only(&run);
        assert_eq!(recommended(&f), Some(65536.0));
        assert!(f.remedy.text.contains("of which nothing is left are not counted"), "{}", f.remedy.text);
    }

    #[test]
    fn a_loss_multiplied_by_hand_is_told_at_the_first_overflow() {
        let mut run = Scenario::new();
        run.steps(3, |s, i| {
            s.loss_scale(1024.0);
            backward(s, if i == 2 { 1e6 } else { 1.0 }, i);
        });
        let f = only(&run);
        assert_eq!(f.onset_step, 2);
        assert!(f.explanation.contains("no scaler looks at the gradients"), "{}", f.explanation);
    }

    /// A dynamic scaler that stands at its ceiling of 2^4 or below.
    fn at_ceiling(deviation: f64, ceiling: f64) -> Scenario {
        let mut run = Scenario::new();
        let config = ScalerConfig { init_scale: ceiling, max_scale: Some(ceiling), ..settings(2000) };
        run.scaler_config(config).steps(6, |s, i| {
            s.applied(ceiling);
            backward(s, deviation * ceiling, i);
        });
        run
    }

    #[test]
    fn a_ceiling_below_what_the_gradients_need_is_told_with_the_ceiling_to_set() {
        let f = only(&at_ceiling(3e-8, 16.0));
        assert!(f.explanation.contains("`max_scale` = 16 (2^4)"), "{}", f.explanation);
        assert!(
            f.remedy.text.starts_with("Raise the ceiling of the scale, `max_scale`, from 16 (2^4) to "),
            "{}",
            f.remedy.text
        );
    }

    #[test]
    fn a_low_ceiling_and_a_static_scale_at_which_gradients_are_well_are_no_fault() {
        for run in [at_ceiling(1e-2, 16.0), static_run(1e-2, 128.0, 40), static_run(1e-3, 65536.0, 40)] {
            assert!(found(&diagnose(&run)).is_empty());
        }
    }
}
