//! ## What it finds
//!
//! A dynamic loss scale that has fallen below 1, or that its floor (`min_scale`) holds while steps go on being skipped.
//!
//! ## Why it matters
//!
//! Below 1 the scale shrinks gradients instead of lifting them: what FP16 still holds of them fades. PyTorch's scaler has no floor and goes on to 0. At a
//! floor the scaler has nothing left to give: every step that overflows there is lost, and so is the next.
//!
//! ## How it decides
//!
//! * **Error**: ten skips in a row left the scale at its floor. Halving is no answer to what overflows there.
//! * **Warning**: the scale has been below 1 for three steps of the scaler, fell there step by step, and falls on.
//! * **Information**: three or more of the last 20 bursts of skips met the scale at its floor. That is what a floor is for; whether gradients are
//!   well there is for rule `gradient-underflow`.
//!
//! ## What to do
//!
//! Where the floor is above 1, lower it: `GradScaler::builder().min_scale(1.0).build()?`. Not where one operator's backward makes the infinity out of
//! an ordinary gradient: at a lower floor the scale only falls on. Nor does a floor help there: the steps that overflow at it are lost, all of them.
//! Such gradients, and those that do not fit into FP16 at a scale of 1, are themselves too large: run the layers that are named in FP32,
//! `no_autocast(|| layer.forward(&x.to_kind(Kind::Float)))`, or the run in BF16. Where none is named, scan every step to see which it is:
//! `Doctor::builder().every(1).attach(&vs)`.
//!
//! ## When it stays silent
//!
//! On a scale that was set below 1, and on a static one. On a scaler that finds its scale at the floor or above. Where another rule names the cause
//! (`activation-overflow`, `non-finite-origin`, `gradient-overflow`, `scale-ratchet`) this finding is listed under it.

use super::gradient_overflow::blows_up;
use super::range::{Naming, without_factor};
use super::scale_advice::ScaleAdvice;
use super::text::{counted, measured, scale, sentence};
use super::{Evidence, Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, SiteSummary};

const NAME: &str = "scale-floor";
/// Skips in a row at the floor that are no calibration.
const HELD_IN_A_ROW: Threshold = Threshold::new(
    NAME,
    "held",
    10.0,
    "skips in a row",
    "A descent to the floor ends there with one or two; calibration ends above it.",
);
/// Scaler steps below 1 before it is told: a cause may need a step or two to show.
const STEPS_BELOW: Threshold =
    Threshold::new(NAME, "below-one", 3.0, "scaler steps", "A cause may need a step or two to show.");
/// Bursts looked back at.
const LOOK_BACK: Threshold =
    Threshold::new(NAME, "look-back", 20.0, "bursts of skips", "Enough for a rate, few enough to forget calibration.");
/// Bursts of those, at the floor, that are worth a word.
const AT_FLOOR: Threshold = Threshold::new(
    NAME,
    "at-floor",
    3.0,
    "bursts of skips",
    "One or two may be bad luck; a floor that is met more often holds the scale.",
);

/// See the page of the rule.
pub struct ScaleFloor;

static INFO: RuleInfo = RuleInfo {
    code: "AMP303",
    name: NAME,
    severity: Severity::Error,
    summary: "The loss scale fell below 1, or its floor holds it while steps go on being skipped.",
    source: include_str!("scale_floor.rs"),
};

impl Rule for ScaleFloor {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::OneScaler
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[HELD_IN_A_ROW, STEPS_BELOW, LOOK_BACK, AT_FLOOR]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        let dynamics = &aggregate.scale_dynamics;
        let is_dynamic = aggregate.scaler_config.as_ref().is_some_and(|c| !c.is_static());
        // Only while it happens.
        if !is_dynamic || !dynamics.refused {
            return Vec::new();
        }
        let found =
            held(aggregate, limits).or_else(|| below_one(aggregate, limits)).or_else(|| met_floor(aggregate, limits));
        found.map(|f| Verdict::Firing(Box::new(f))).into_iter().collect()
    }
}

fn held(aggregate: &Aggregate, limits: &Limits) -> Option<Firing> {
    let (since, n) = aggregate.scale_dynamics.held_at_floor.filter(|&(_, n)| n >= limits.count(&HELD_IN_A_ROW))?;
    let floor = scale(aggregate.scale_dynamics.scale?);
    let explanation = format!(
        "{n} steps in a row were skipped with the scale at its floor, {floor}: it cannot fall further, so nothing is learnt until the overflow ends by \
         itself. {}",
        origin(aggregate)
    );
    let evidence = vec![counted("skips_in_a_row_at_floor", n)];
    Some(firing(aggregate, Severity::Error, since, n as f64, evidence, explanation, remedy(aggregate, limits)))
}

fn below_one(aggregate: &Aggregate, limits: &Limits) -> Option<Firing> {
    let (since, _) = aggregate.scale_dynamics.below_one.filter(|&(_, n)| n >= limits.count(&STEPS_BELOW))?;
    let now = aggregate.scale_dynamics.scale?;
    let explanation = format!(
        "The loss scale has fallen below 1, to {}: it shrinks gradients instead of lifting them, and goes on falling. {}",
        scale(now),
        origin(aggregate)
    );
    Some(firing(
        aggregate,
        Severity::Warning,
        since,
        -now.max(f64::MIN_POSITIVE).log2(),
        vec![],
        explanation,
        remedy(aggregate, limits),
    ))
}

fn met_floor(aggregate: &Aggregate, limits: &Limits) -> Option<Firing> {
    let dynamics = &aggregate.scale_dynamics;
    let look_back = limits.count(&LOOK_BACK) as usize;
    let floor = aggregate.scaler_config.as_ref()?.min_scale.filter(|f| dynamics.scale.is_some_and(|s| s <= *f))?;
    let at_floor = dynamics.bursts.iter().rev().take(look_back).filter(|b| b.first_scale <= floor);
    let since = at_floor.clone().next_back()?.first_step;
    let n = at_floor.count();
    let explanation = format!(
        "{n} of the last {} bursts of skips met the scale at its floor, {}: the floor holds it.",
        dynamics.bursts.len().min(look_back),
        scale(floor)
    );
    let remedy = "Nothing, as long as `gradient-underflow` is silent. Look at the batches of the skipped steps, for there the gradient is not finite.";
    let evidence = vec![counted("bursts_at_floor", n as u64)];
    (n as u64 >= limits.count(&AT_FLOOR))
        .then(|| firing(aggregate, Severity::Info, since, n as f64, evidence, explanation, remedy.into()))
}

fn firing(
    aggregate: &Aggregate,
    severity: Severity,
    since: u64,
    strength: f64,
    mut evidence: Vec<Evidence>,
    explanation: String,
    remedy: Remedy,
) -> Firing {
    let dynamics = &aggregate.scale_dynamics;
    evidence.extend(dynamics.scale.map(|s| measured("loss_scale", s)));
    evidence.extend(aggregate.scaler_config.as_ref().and_then(|c| c.min_scale).map(|f| measured("min_scale", f)));
    evidence.push(counted("skips", dynamics.skips_total));
    let site = culprit(aggregate).map(|s| &s.site);
    Firing {
        severity,
        // The scale is the run's. Which layer overflows at it changes as it falls, and is told in words: else one fall would be several findings.
        layer: String::new(),
        operator: site.map_or(String::new(), |s| s.operator.clone()),
        probe: site.map(|s| s.probe),
        since,
        strength,
        evidence,
        explanation,
        remedy,
    }
}

/// Where the gradient of the present streak became non-finite, over most of the octaves that the scale fell.
fn culprit(aggregate: &Aggregate) -> Option<&SiteSummary> {
    aggregate.site(aggregate.non_finite.culprit()?.site)
}

/// Where it does now.
fn latest(aggregate: &Aggregate) -> Option<&SiteSummary> {
    aggregate.site(aggregate.non_finite.streak?.last_origin?.site)
}

fn origin(aggregate: &Aggregate) -> String {
    match (culprit(aggregate), latest(aggregate)) {
        (Some(s), Some(now)) if s.site != now.site => format!(
            "The first gradient that is not finite, in the order of backward, was that of `{}` while the scale fell; at this scale it is that of `{}`, behind it.",
            s.site.label(),
            now.site.label()
        ),
        (Some(s), _) => {
            format!("The first gradient that is not finite, in the order of backward, is that of `{}`.", s.site.label())
        }
        (None, _) => "None of the skipped steps was scanned, so the layer is unknown.".into(),
    }
}

fn remedy(aggregate: &Aggregate, limits: &Limits) -> Remedy {
    let floor = aggregate.scaler_config.as_ref().and_then(|c| c.min_scale).filter(|&floor| floor > 1.0);
    let Some(culprit) = aggregate.non_finite.culprit() else {
        let scan = "scan every step to see which layer it is (`Doctor::builder().every(1)`), and keep that layer in FP32 or BF16.";
        return floor.map_or(Remedy::from(scan).reworded(sentence), |floor| lower(floor, scan));
    };
    let layer = without_factor(aggregate, &culprit, Naming::Layer).reworded(|layer| {
        format!("{layer}: its gradient does not fit into FP16 at any scale that the others can bear.")
    });
    match floor {
        // Where a gradient is too large for a scale of 1, and where one operator's backward makes the infinity out of an ordinary gradient, a lower floor
        // only lets the scale fall on.
        Some(floor) if fits_at_one(aggregate) && !blows_up(aggregate, &culprit, limits) => lower(floor, &layer.text),
        _ => layer.reworded(sentence),
    }
}

/// Whether no gradient is known that overflows at a scale of 1.
fn fits_at_one(aggregate: &Aggregate) -> bool {
    ScaleAdvice::of(aggregate).is_none_or(|advice| advice.window.high >= 0)
}

/// A floor above 1 gives way: below it the gradients may fit.
fn lower(floor: f64, otherwise: &str) -> Remedy {
    Remedy::from(format!(
        "Lower the floor, `min_scale`, from {} to 1: the scaler then goes on halving until the gradients fit. If they do not at 1 either, {otherwise}",
        scale(floor),
    ))
    .set("min_scale", 1.0)
}

#[cfg(test)]
mod tests {
    use crate::observation::scenario::{Scenario, normal};
    use crate::observation::{ScalerConfig, Tier};
    use crate::rules::Severity;
    use crate::rules::scale_simulation::{SimulatedScaler, settings};
    use crate::rules::silence::{diagnose, found};
    use crate::scan::Dtype::F16;

    use super::ScaleFloor;

    /// A run whose gradient is infinite while the scale is above `fits`, from `init` down to the floor.
    fn overflowing(init: f64, floor: Option<f64>, fits: f64, steps: u64) -> Scenario {
        let mut run = Scenario::new();
        run.scaler_config(ScalerConfig { init_scale: init, min_scale: floor, ..settings(2000) });
        let mut scale = init;
        run.steps(steps, |s, i| {
            let next = if scale > fits { (scale / 2.0).max(floor.unwrap_or(0.0)) } else { scale };
            let mut gradient = normal(256, 1e-2, i);
            if scale > fits {
                s.skipped(scale, next);
                gradient[..64].fill(f64::INFINITY);
            } else {
                s.applied(scale);
            }
            s.loss(1.0).activation("fc", "linear", F16, &normal(64, 1.0, i)).gradient("fc", "linear", F16, &gradient);
            scale = next;
        });
        run
    }

    #[test]
    fn skips_in_a_row_at_the_floor_are_an_error_with_the_layer() {
        let d = diagnose(&overflowing(65536.0, Some(1024.0), 1.0, 30));
        assert_eq!(found(&d), ["AMP303"], "{:#?}", d.findings());
        let f = &d.findings()[0];
        assert_eq!((f.severity, f.layer.as_str(), f.onset_step), (Severity::Error, "", 6));
        assert!(f.explanation.contains("that of `fc/linear`"), "{}", f.explanation);
        assert!(f.explanation.contains("with the scale at its floor, 1024 (2^10)"), "{}", f.explanation);
        assert!(f.remedy.text.starts_with("Lower the floor, `min_scale`, from 1024 (2^10) to 1"), "{}", f.remedy.text);
        assert_eq!(f.remedy.set[0].name, "min_scale");
    }

    #[test]
    fn a_gradient_that_is_too_large_for_a_scale_of_1_is_no_matter_of_the_floor() {
        let mut run = Scenario::new();
        run.scaler_config(ScalerConfig { min_scale: Some(1024.0), ..settings(2000) }).steps(30, |s, i| {
            let scale = 2f64.powi(16 - i as i32).max(1024.0);
            s.skipped(scale, (scale / 2.0).max(1024.0)).loss(1.0);
            s.activation("fc", "linear", F16, &normal(64, 1.0, i)).cast_gradient(
                "fc",
                "to",
                &normal(256, 1e6 * scale, i),
            );
            s.gradient("fc", "linear", F16, &[f64::INFINITY; 256]).via("fc", "to", F16);
        });
        let d = diagnose(&run);
        let f = d.findings().iter().find(|f| f.code == "AMP303").expect("held at the floor");
        assert!(f.remedy.text.starts_with("Take the factor out of layer `fc`"), "{}", f.remedy.text);
        assert!(!f.remedy.text.contains("min_scale"), "{}", f.remedy.text);
        assert_eq!(f.remedy.settings().as_deref(), Some("precision = bf16"));
    }

    #[test]
    fn calibration_that_ends_at_the_floor_is_none() {
        assert!(found(&diagnose(&overflowing(65536.0, Some(1024.0), 1024.0, 30))).is_empty());
    }

    #[test]
    fn a_short_way_down_below_1_is_a_warning() {
        let d = diagnose(&overflowing(4.0, None, 2f64.powi(-6), 30));
        assert_eq!(found(&d), ["AMP303"], "{:#?}", d.findings());
        assert_eq!((d.findings()[0].severity, d.findings()[0].onset_step), (Severity::Warning, 3));
    }

    #[test]
    fn where_the_cause_is_named_the_floor_is_its_consequence() {
        let d = diagnose(&overflowing(65536.0, None, 0.0, 40));
        assert_eq!(found(&d), ["AMP202"], "{:#?}", d.findings());

        let mut run = Scenario::new();
        run.scaler_config(ScalerConfig { min_scale: Some(1.0), ..settings(2000) }).steps(40, |s, i| {
            let scale = 2f64.powi(16 - i as i32).max(1.0);
            s.loss(f64::NAN).skipped(scale, (scale / 2.0).max(1.0)).activation(
                "head",
                "log",
                F16,
                &[f64::NEG_INFINITY, f64::NAN],
            );
            s.gradient("head", "log", F16, &[f64::NAN; 64]);
        });
        let d = diagnose(&run);
        assert!(!found(&d).is_empty() && !found(&d).contains(&"AMP303"), "{:#?}", d.findings());
    }

    #[test]
    fn a_fall_in_which_one_layer_after_the_other_overflows_is_one_finding() {
        let mut run = Scenario::new();
        run.scaler_config(settings(2000)).steps(40, |s, i| {
            let scale = 2f64.powi(16 - i as i32);
            s.loss(1.0).skipped(scale, scale / 2.0);
            // fc2 is nearer the loss, and fits once the scale has come down far enough.
            for (layer, fits) in [("fc2", i > 22), ("fc1", false)] {
                let mut gradient = normal(256, 1e-2, i);
                if !fits {
                    gradient[..64].fill(f64::INFINITY);
                }
                s.activation(layer, "linear", F16, &normal(64, 1.0, i)).gradient(layer, "linear", F16, &gradient);
            }
        });
        let all: Vec<_> =
            diagnose(&run).findings().iter().flat_map(|f| f.with_consequences()).map(|f| f.code).collect();
        assert_eq!(all.iter().filter(|code| **code == "AMP303").count(), 1, "{all:?}");
    }

    #[test]
    fn a_ratchet_that_passes_1_is_told_once() {
        let mut run = Scenario::new();
        let mut scale = 65536.0;
        run.scaler_config(settings(2000)).steps(1500, |s, i| {
            s.loss(1.0).tier(Tier::Light);
            if i % 50 == 20 {
                s.skipped(scale, scale / 2.0);
                scale /= 2.0;
            } else {
                s.applied(scale);
            }
        });
        let d = diagnose(&run);
        assert_eq!(found(&d), ["AMP302"]);
        assert_eq!(d.findings()[0].consequences.iter().map(|f| f.code).collect::<Vec<_>>(), ["AMP303"]);
    }

    #[test]
    fn bad_batches_at_the_floor_are_worth_a_word_and_no_more() {
        let mut run =
            SimulatedScaler::new(ScalerConfig { init_scale: 1024.0, min_scale: Some(1024.0), ..settings(2000) });
        (0..1000).for_each(|i| run.step(i % 100 == 20));
        (0..3).for_each(|_| run.step(false));
        run.step(true);
        let firing = run.check(&ScaleFloor).unwrap();
        assert_eq!(firing.severity, Severity::Info);
        assert!(firing.explanation.starts_with("11 of the last 11 bursts"), "{}", firing.explanation);
    }
}
