//! ## What it finds
//!
//! Layers near the input that learn nothing, in a deep FP16 network whose gradients shrink from layer to layer: each factor is harmless, and together
//! they end below what FP16 holds.
//!
//! ## Why it matters
//!
//! The layers near the loss learn, so the loss falls, and nothing is NaN. The front of the network stays as it was initialised.
//!
//! ## How it decides
//!
//! By Ehat of the gradients of activations, layer by layer in the order of backward; of each layer the gradient nearest the input.
//!
//! **Warning**, where in three scanned steps in a row
//!
//! * the layers nearest the input, two at the least, have an Ehat above 0.01, or nothing left;
//! * the quarter of the layers nearest the loss is below 1e-4;
//! * the largest element falls by six octaves or more from the one to the other;
//! * and no single step from a layer to the next makes up more than 60 % of that. Where one does, that layer is to blame, and rule
//!   `gradient-underflow` names it alone.
//!
//! The layer named is the one nearest the input. Each starved layer is listed with what fades there and what is lost.
//!
//! ## What to do
//!
//! Raise the loss scale to the value named, where there is one: `GradScaler::builder().init_scale(..).build()?`. Where no scale serves both ends,
//! keep the size of the gradient from layer to layer: residual connections, normalisation, an initialisation that preserves variance (Kaiming,
//! Xavier). Or run the front layers in FP32: `no_autocast(|| front.forward(&x.to_kind(Kind::Float)))`.
//!
//! ## When it stays silent
//!
//! On gradients that differ by less, as healthy layers do (5 to 6 octaves in all). In networks of fewer than four layers. On gradients in FP32 and BF16.

use super::scale_advice::{ScaleAdvice, set_scale};
use super::text::{count, counted, measured, number, power_of_two, said, sentence, share};
use super::underflow::may_have_fp16_gradients;
use super::{Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Judged};
use crate::observation::Probe;

const STARVED: Threshold = Threshold {
    rule: "starved-layers",
    name: "starved",
    default: 1e-2,
    unit: "predicted 1 - cosine",
    reason: "The level at which one layer's gradient is damaged; healthy gradients have 1.7e-8 at the most, harmed runs 2.2e-3 at the median.",
};
const FALL: Threshold = Threshold {
    rule: "starved-layers",
    name: "fall",
    default: 6.0,
    unit: "octaves from the loss to the input",
    reason: "Healthy layers differ by 5 or 6 octaves in all.",
};
/// Ehat of a layer that is well.
const WELL: f64 = 1e-4;
/// Layers that it takes to fade from one to the next.
const FEWEST_LAYERS: usize = 4;
/// Starved ones among them.
const FEWEST_STARVED: usize = 2;
/// Part of the fall that a single layer may make up.
const AT_ONCE: f64 = 0.6;
/// Layers that are spelled out.
const NAMED: usize = 4;

/// See the page of the rule.
pub struct StarvedLayers;

static INFO: RuleInfo = RuleInfo {
    code: "AMP203",
    name: "starved-layers",
    severity: Severity::Warning,
    summary: "Gradients fade from layer to layer until FP16 holds nothing of them: the front layers learn nothing.",
    source: include_str!("starved_layers.rs"),
};

impl Rule for StarvedLayers {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    /// That it takes three is said by `gradient-underflow` already.
    fn needs(&self) -> Needs {
        Needs::Scans { steps: 1, applies: may_have_fp16_gradients }
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[STARVED, FALL]
    }

    fn thresholds_by_layer(&self) -> &'static [&'static str] {
        &["starved"]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        if !aggregate.has_fp16_gradients() {
            return Vec::new();
        }
        let (judged, _) = aggregate.judged_gradients();
        let layers = by_layer(&judged);
        let starved = starved(&layers, limits);
        starved.map(|starved| Verdict::Firing(Box::new(firing(aggregate, &layers, starved)))).into_iter().collect()
    }
}

/// Of each layer the activation gradient that is nearest the input, in the order of backward.
fn by_layer<'a>(judged: &'a [Judged<'a>]) -> Vec<&'a Judged<'a>> {
    let mut layers: Vec<&Judged<'_>> = Vec::new();
    for one in judged.iter().filter(|j| j.site.site.probe == Probe::ActivationGrad) {
        match layers.iter_mut().find(|known| known.site.site.layer == one.site.site.layer) {
            Some(known) => *known = one,
            None => layers.push(one),
        }
    }
    layers
}

/// How many of the layers nearest the input are starved, where gradients fade to it little by little.
fn starved(layers: &[&Judged<'_>], limits: &Limits) -> Option<usize> {
    let is_starved = |j: &&&Judged<'_>| j.lasting() > limits.at(&STARVED, &j.site.site.layer);
    let starved = layers.iter().rev().take_while(is_starved).count();
    let well = layers.len().div_ceil(4);
    let ends_well = layers.iter().take(well).all(|j| j.lasting() <= WELL);
    if layers.len() < FEWEST_LAYERS || starved < FEWEST_STARVED || !ends_well {
        return None;
    }
    // What is lost whole stands half an octave below the smallest that FP16 holds, at the most.
    let sizes: Vec<f64> = layers.iter().map(|j| j.max_abs.max(LOST).log2()).collect();
    let fall = sizes.first()? - sizes.last()?;
    let steepest = sizes.windows(2).map(|pair| pair[0] - pair[1]).fold(0.0, f64::max);
    (fall >= limits.of(&FALL) && steepest <= AT_ONCE * fall).then_some(starved)
}

/// What FP16 rounds to zero: 2^-25.
const LOST: f64 = 2.98e-8;

fn firing(aggregate: &Aggregate, layers: &[&Judged<'_>], starved: usize) -> Firing {
    let front: Vec<&&Judged<'_>> = layers.iter().rev().take(starved).collect();
    let (first, last) = (front[0], layers[0]);
    let now = first.latest.loss_scale;
    let mut evidence = vec![
        counted("starved_layers", starved as u64),
        counted("layers", layers.len() as u64),
        measured("max_abs_at_the_front", first.max_abs),
        measured("max_abs_at_the_loss", last.max_abs),
    ];
    evidence.extend(front.iter().take(NAMED).map(|j| said("starved", words(j))));
    evidence.extend(now.map(|scale| measured("loss_scale", scale)));
    let listed: Vec<String> = front.iter().take(NAMED).map(|j| words(j)).collect();
    let more = starved.saturating_sub(NAMED);
    Firing {
        severity: Severity::Warning,
        layer: first.site.site.layer.clone(),
        operator: String::new(),
        probe: Some(Probe::ActivationGrad),
        since: front.iter().map(|j| j.since).min().unwrap_or(0),
        strength: starved as f64,
        evidence,
        explanation: format!(
            "The gradient fades from layer to layer: its largest element is {} in `{}`, nearest the loss, and {} in `{}`, nearest the input, as FP16 held it. {} of {} get next to nothing of it: {}{}.",
            power_of_two(last.max_abs),
            last.site.site.layer,
            power_of_two(first.max_abs),
            first.site.site.layer,
            starved,
            count(layers.len(), "layer"),
            listed.join("; "),
            if more > 0 { format!("; and {more} more") } else { String::new() },
        ),
        remedy: remedy(aggregate, now, first),
    }
}

/// `fc1`: all of its elements are zero; or what fades and what is lost.
fn words(j: &Judged<'_>) -> String {
    let layer = &j.site.site.layer;
    match j.latest.underflow.filter(|_| j.latest.stats.max_abs > 0.0) {
        None => format!("`{layer}`: nothing is left"),
        Some(u) => {
            let how = if u.measured { "" } else { "an estimated " };
            format!("`{layer}`: {} fades, {how}{} is lost", share(u.fading_share), share(u.lost_share))
        }
    }
}

fn remedy(aggregate: &Aggregate, now: Option<f64>, first: &Judged<'_>) -> Remedy {
    let advised = ScaleAdvice::of(aggregate).and_then(|advice| advice.exponent());
    let raised = advised.filter(|&e| f64::from(e).exp2() > now.unwrap_or(1.0));
    match raised.and_then(|e| set_scale(aggregate.scaler_config.as_ref(), now, e)) {
        Some(set) => {
            let text = format!("{}: at that scale every layer that was seen keeps its gradient.", sentence(set.text));
            Remedy { text, set: set.set }
        }
        None => Remedy::from(format!(
            "No scale that was seen serves both ends ({} at the front is {} times too small). Initialise so that each layer keeps the size of its gradient, normalise, or add \
             residual connections.",
            power_of_two(first.max_abs),
            number((6.1e-5 / first.max_abs.max(LOST)).round())
        )),
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::silence::{diagnose, first};
    use crate::rules::{Finding, Severity, Value};
    use crate::scan::Dtype::{self, Bf16, F16};

    /// Eight layers, the gradient of each `factor(layer)` times that of the next; fc8 is nearest the loss.
    fn run(dtype: Dtype, scale: f64, factor: impl Fn(u64) -> f64) -> Option<Finding> {
        let mut run = Scenario::new();
        run.dynamic_scaler(scale).steps(6, |s, i| {
            s.loss(1.0).applied(scale);
            (1..=8).for_each(|layer| {
                s.activation(&format!("fc{layer}"), "linear", dtype, &normal(512, 1.0, i));
            });
            let mut size = 1e-4 * scale;
            for layer in (1..=8).rev() {
                s.gradient(&format!("fc{layer}"), "linear", dtype, &normal(512, size, 10 * i + layer));
                size *= factor(layer);
            }
        });
        first(&diagnose(&run), "AMP203").cloned()
    }

    #[test]
    fn front_layers_whose_gradient_has_faded_away_are_named_each_with_what_is_lost() {
        let f = run(F16, 256.0, |_| 0.12).expect("found");
        assert_eq!((f.severity, f.layer.as_str()), (Severity::Warning, "fc1"), "{}", f.explanation);
        assert!(f.explanation.contains("`fc1`: ") && f.explanation.contains("`fc2`: "), "{}", f.explanation);
        let listed = f.evidence.iter().filter(|e| e.name == "starved").count();
        assert!(listed >= 2, "{:?}", f.evidence);
        assert!(f.evidence.iter().any(|e| e.name == "layers" && e.value == Value::Count(8)));
    }

    #[test]
    fn a_single_layer_that_shrinks_the_gradient_is_for_another_rule() {
        assert!(run(F16, 256.0, |layer| if layer == 4 { 1e-6 } else { 0.9 }).is_none());
    }

    #[test]
    fn layers_that_differ_as_healthy_ones_do_a_scale_that_serves_all_and_bf16_are_silent() {
        assert!(run(F16, 65536.0, |_| 0.6).is_none());
        assert!(run(F16, 65536.0, |_| 0.25).is_none());
        assert!(run(Bf16, 256.0, |_| 0.05).is_none());
    }
}
