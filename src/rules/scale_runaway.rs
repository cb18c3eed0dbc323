//! ## What it finds
//!
//! A loss scale above 2^24 that has grown sixteen times or more without a single overflow.
//!
//! ## Why it matters
//!
//! Nothing overflows, so the gradients are tiny or zero, or they are not held in FP16 at all. By itself it does no harm: PyTorch's scale stops at 2^127. But a
//! batch with larger gradients then needs as many skips as the scale is octaves too high, and a loss that is zero from the start is a fault of the model.
//!
//! ## How it decides
//!
//! **Information**: the scale is above 2^24 and has doubled 16 times or more since the last skip. A scaler that knows its ceiling overflows about
//! once per growth, however high the ceiling lies; from 65536 to a ceiling of 2^25 it takes 9.
//!
//! A low scale is no finding: many healthy runs have their ceiling below 2^16, where scalers begin. Whether gradients are well at it is for rule
//! `gradient-underflow`.
//!
//! ## What to do
//!
//! Look at the loss. Where it has converged there is nothing to do. Where it never moved, look for what cuts the gradient off (a `detach`, a
//! `no_grad`, a loss that is zero). In FP32 and BF16 take the scaler out. A ceiling keeps the way back short:
//! `GradScaler::builder().max_scale(16777216.0).build()?`; higher where the gradients that were seen need a higher scale.
//!
//! ## When it stays silent
//!
//! Below 2^24, on a scale that was set there, and on one that overflows now and then.

use super::scale_advice::ScaleAdvice;
use super::text::{counted, measured, scale};
use super::{Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::Aggregate;

const NAME: &str = "scale-runaway";
/// Above this a loss is so small that nothing overflows.
const HIGH: Threshold = Threshold::new(
    NAME,
    "high",
    16777216.0,
    "loss scale",
    "2^24: ceilings of healthy runs lie between 2^14 and 2^21; above this a loss is so small that nothing overflows.",
);
/// Growths without a skip that no way up to a real ceiling takes.
const UNBROKEN_GROWTHS: Threshold = Threshold::new(
    NAME,
    "unbroken",
    16.0,
    "growths",
    "From 65536 to a ceiling of 2^25 it takes 9; no way up to a real ceiling takes 16.",
);

/// See the page of the rule.
pub struct ScaleRunaway;

static INFO: RuleInfo = RuleInfo {
    code: "AMP304",
    name: NAME,
    severity: Severity::Info,
    summary: "The loss scale grows and grows above 2^24: nothing overflows.",
    source: include_str!("scale_runaway.rs"),
};

impl Rule for ScaleRunaway {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::OneScaler
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[HIGH, UNBROKEN_GROWTHS]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        let dynamics = &aggregate.scale_dynamics;
        let now = dynamics.scale.filter(|&s| s > limits.of(&HIGH));
        let runs_away = dynamics.growths_since_skip >= limits.count(&UNBROKEN_GROWTHS);
        now.filter(|_| runs_away).map(|s| Verdict::Firing(Box::new(firing(aggregate, s)))).into_iter().collect()
    }
}

fn firing(aggregate: &Aggregate, now: f64) -> Firing {
    let growths = aggregate.scale_dynamics.growths_since_skip;
    let step = aggregate.latest.as_ref();
    let mut evidence = vec![measured("loss_scale", now), counted("growths_since_last_skip", growths)];
    evidence.extend(step.and_then(|s| s.loss).map(|loss| measured("loss", loss)));
    let scanned = aggregate.instrument.backward_steps > 0;
    let (why, remedy) = if scanned && !aggregate.has_fp16_gradients() {
        (
            "no gradient is held in FP16, so nothing can overflow",
            Remedy::from("Take the scaler out: FP32 and BF16 need none."),
        )
    } else {
        let ceiling = ceiling(aggregate);
        let text = format!(
            "Look at the loss: where it has converged there is nothing to do, where it never moved look for what cuts the gradient off. A ceiling (`max_scale` = {}) \
             keeps the way back short for a batch with larger gradients.",
            scale(ceiling)
        );
        ("the gradients are tiny, or zero", Remedy::from(text).set("max_scale", ceiling))
    };
    Firing {
        severity: Severity::Info,
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since: step.map_or(0, |s| s.index),
        strength: growths as f64,
        evidence,
        explanation: format!("The loss scale has grown {growths} times without an overflow, to {}: {why}.", scale(now)),
        remedy,
    }
}

/// A ceiling under which the gradients that were seen do not fade: that of healthy runs, or the scale that tiny ones need.
fn ceiling(aggregate: &Aggregate) -> f64 {
    let needed = ScaleAdvice::of(aggregate).and_then(|advice| advice.exponent());
    needed.map_or(HIGH.default, |exponent| f64::from(exponent).exp2().max(HIGH.default))
}

#[cfg(test)]
mod tests {
    use super::ScaleRunaway;
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::scale_simulation::{SimulatedScaler, settings, simulate};
    use crate::rules::silence::diagnose;
    use crate::rules::{Setting, Severity, Value};
    use crate::scan::Dtype::F16;

    #[test]
    fn a_scale_that_meets_no_end_is_worth_a_word() {
        let mut run = SimulatedScaler::new(settings(20));
        (0..16 * 20 - 1).for_each(|_| run.step(false));
        assert!(run.check(&ScaleRunaway).is_none());
        run.step(false);
        let firing = run.check(&ScaleRunaway).unwrap();
        assert_eq!((firing.severity, run.scale), (Severity::Info, 2f64.powi(32)));
        assert!(firing.explanation.contains("16 times without an overflow, to"), "{}", firing.explanation);
    }

    #[test]
    fn a_high_ceiling_that_is_met_is_healthy() {
        let (run, found) = simulate(settings(50), 20_000, |exponent| exponent > 25.0);
        assert!(run.scale >= 2f64.powi(24) && found.is_empty(), "{found:#?}");
    }
    /// The ceiling that is advised where gradients have this deviation without the scale, which doubles at every step from 2^26 on.
    fn ceiling(deviation: f64) -> f64 {
        let mut run = Scenario::new();
        run.dynamic_scaler(2f64.powi(26));
        run.steps(18, |s, i| {
            let now = 2f64.powi(26 + i as i32);
            s.loss(1e-9).moved(now, 2.0 * now);
            s.gradient("fc", "linear", F16, &normal(512, deviation * now, i));
        });
        let d = diagnose(&run);
        let finding = d.findings().iter().find(|f| f.code == "AMP304").unwrap();
        match &finding.remedy.set[..] {
            [Setting { name: "max_scale", value: Value::Number(scale) }] => *scale,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_ceiling_is_one_that_the_gradients_live_with() {
        assert_eq!(ceiling(2f64.powi(-32)), 16777216.0);
        let tiny = ceiling(2f64.powi(-50));
        // At it a gradient of the usual size is 2^-20 and more, of which FP16 keeps four bits; and the largest are far from its end.
        assert!((2f64.powi(30)..2f64.powi(50)).contains(&tiny), "{tiny:e}");
    }
}
