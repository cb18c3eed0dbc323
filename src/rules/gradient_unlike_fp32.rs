//! ## What it finds
//!
//! Gradients that point elsewhere than FP32's for the same batch, or are far longer or shorter. It is measured, by `doctor.shadow`, and not
//! estimated.
//!
//! ## Why it matters
//!
//! The optimizer goes where the gradient points. All other rules judge what FP16 kept; only a run in FP32 shows what it did not keep. A gradient
//! rounded to zero and one that ReLU made zero look alike in FP16.
//!
//! ## How it decides
//!
//! On the three latest comparisons, for all gradients together and for each layer. A condition has to hold in all three. `1 - cosine` is 0 where
//! FP16's gradient points where FP32's does, and 1 where they have nothing in common.
//!
//! * **Backward underflows**: nearly all that is left of the gradient lies below 2^-14 as FP16 held it (`fading-share`), and `1 - cosine` exceeds
//!   `direction` (a **warning**) or `direction-lost` (an **error**). In one layer alone: `layer-direction`.
//! * **Forward rounds**: `1 - cosine` exceeds `any-direction`, and the gradient does not lie below 2^-14. No loss scale mends that, and the finding
//!   says so. Healthy runs reach 0.13 in single tensors late in training: when the loss is nearly gone, what is left of it is the rounding of the
//!   activations.
//! * **The length is wrong**: the direction is right, and the norm is more than `length` times FP32's, or less than its inverse: gradients that were
//!   not zeroed, a loss that is multiplied where it should not be.
//!
//! The norm does not tell underflow: subnormal numbers are rounded up as well as down. In runs that a scale far too low had ruined the norm was 0.6
//! to 2.3 times FP32's.
//!
//! ## What to do
//!
//! * Backward underflows: raise the loss scale to the value named, `GradScaler::builder().init_scale(..).build()?`.
//! * Forward rounds: run the layer that is farthest off, or only its softmax, norm or exponential, in FP32: `no_autocast(||
//!   layer.forward(&x.to_kind(Kind::Float)))`.
//! * The length is wrong: look at the loop, for `opt.zero_grad()` and for factors of the loss.
//!
//! ## When it stays silent
//!
//! Without `doctor.shadow`, and before the third comparison. On gradients that are not finite, which other rules judge. On a run in FP32.

use super::scale_advice::{ScaleAdvice, set_scale};
use super::text::{counted, measured, number, said, sentence, share};
use super::{Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, ShadowSample};
use crate::observation::Probe;
use crate::scan::Likeness;

/// Comparisons in a row in which a condition must hold.
const SAMPLES: usize = 3;
/// From this cosine on the direction is right, so that the length can be judged.
const RIGHT_DIRECTION: f64 = 0.99;
/// Elements below which a layer has no direction to speak of.
const FEWEST: u64 = 64;
/// One-sidedness of the signs that FP32 has not.
const ONE_SIDED: f64 = 0.3;

const NAME: &str = "gradient-unlike-fp32";

static FADING_SHARE: Threshold = Threshold {
    rule: NAME,
    name: "fading-share",
    default: 0.95,
    unit: "share of what is left of the gradient",
    reason: "0.99 to 1 in every trainer run that a static scale of 2^-8 to 2^-17 had harmed; at most 0.05 in 12 healthy FP16 runs to convergence (1012 comparisons).",
};
static DIRECTION: Threshold = Threshold {
    rule: NAME,
    name: "direction",
    default: 5e-3,
    unit: "1 - cosine, all gradients together",
    reason: "In 18 healthy runs to convergence, FP16 and BF16, three comparisons in a row never all exceeded 3.4e-3 (FP16: 2.5e-4), a single one 2.8e-2. Static scales at which the loss was within 1 % of a good scale's gave at most 5e-3 (mlp 2^-12 5e-4, conv 2^-10 4e-3); from 5 % on 6e-3 to 0.7 \
             (mlp 2^-14 6e-3, conv 2^-12 5e-2, transformer 2^-10 0.17).",
};
static DIRECTION_LOST: Threshold = Threshold {
    rule: NAME,
    name: "direction-lost",
    default: 0.1,
    unit: "1 - cosine, all gradients together",
    reason: "The loss was 8 % to 9 times that of a good scale in every run beyond it.",
};
static LAYER_DIRECTION: Threshold = Threshold {
    rule: NAME,
    name: "layer-direction",
    default: 0.1,
    unit: "1 - cosine, one layer",
    reason: "Single tensors of healthy runs reached 0.07, once; the layers that are farthest off in harmed runs have 0.1 to 1.7.",
};
static ANY_DIRECTION: Threshold = Threshold {
    rule: NAME,
    name: "any-direction",
    default: 0.3,
    unit: "1 - cosine, all gradients together",
    reason: "Forward rounding alone gives single tensors of healthy, converged runs up to 0.13.",
};
static LENGTH: Threshold = Threshold {
    rule: NAME,
    name: "length",
    default: 2.0,
    unit: "norm over FP32's, or its inverse",
    reason: "Healthy runs stay within 0.93 to 1.10.",
};

/// See the page of the rule.
pub struct GradientUnlikeFp32;

static INFO: RuleInfo = RuleInfo {
    code: "AMP205",
    name: NAME,
    severity: Severity::Error,
    summary: "Gradients point elsewhere than FP32's for the same batch, or are far longer or shorter: measured by a shadow.",
    source: include_str!("gradient_unlike_fp32.rs"),
};

impl Rule for GradientUnlikeFp32 {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    /// Shadows are asked for one by one; without one there is nothing to be unsure of.
    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn thresholds(&self) -> &'static [Threshold] {
        static ALL: [Threshold; 6] = [FADING_SHARE, DIRECTION, DIRECTION_LOST, LAYER_DIRECTION, ANY_DIRECTION, LENGTH];
        &ALL
    }

    fn thresholds_by_layer(&self) -> &'static [&'static str] {
        &["fading-share", "layer-direction"]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        let shadows = &aggregate.shadows;
        let now = aggregate.latest.as_ref().map(|step| step.index);
        // Between two comparisons nothing new is known.
        let Some(latest) = shadows.recent.back().filter(|sample| Some(sample.step) == now) else { return Vec::new() };
        let Some(all) = Judged::of(shadows.recent.iter().cloned().collect()) else {
            return match shadows.recent.len() {
                0 => Vec::new(),
                n if n < SAMPLES => vec![Verdict::Unsure(format!("{n} of {SAMPLES} comparisons with FP32 were made"))],
                _ => Vec::new(),
            };
        };
        let layers = layers(aggregate, latest.step);
        let firing = whole_run(aggregate, limits, &all, &layers).or_else(|| one_layer(aggregate, limits, &layers));
        firing.map(|firing| Verdict::Firing(Box::new(firing))).into_iter().collect()
    }
}

/// A gradient in the three latest comparisons.
struct Judged {
    layer: String,
    latest: ShadowSample,
    since: u64,
    /// 1 - cosine: what held in all three.
    error: f64,
    /// Share below 2^-14 of what is left: what held in all three; 1 where nothing was left.
    fading: f64,
    /// Norm over FP32's, least and largest.
    length: (f64, f64),
}

impl Judged {
    /// `None` where there are fewer, or one of them was not finite or zero in FP32.
    fn of(samples: Vec<ShadowSample>) -> Option<Self> {
        let three = samples.len().checked_sub(SAMPLES).map(|from| &samples[from..])?;
        let usable = |l: &Likeness| l.non_finite == 0 && l.non_finite_in_fp32 == 0 && l.fp32_energy > 0.0;
        if !three.iter().all(|sample| usable(&sample.likeness)) {
            return None;
        }
        let least = |of: fn(&Likeness) -> f64| three.iter().map(|s| of(&s.likeness)).fold(f64::INFINITY, f64::min);
        let most = |of: fn(&Likeness) -> f64| three.iter().map(|s| of(&s.likeness)).fold(0.0, f64::max);
        let length = |l: &Likeness| l.norm_ratio().unwrap_or(1.0);
        Some(Self {
            layer: String::new(),
            latest: three.last()?.clone(),
            since: three.first()?.step,
            error: least(|l| 1.0 - l.cosine().unwrap_or(0.0)),
            fading: least(|l| l.fading_share().unwrap_or(1.0)),
            length: (least(length), most(length)),
        })
    }
}

/// The layers that can be judged, farthest off first.
fn layers(aggregate: &Aggregate, latest: u64) -> Vec<Judged> {
    let mut names: Vec<&str> = Vec::new();
    for id in aggregate.shadows.gradients.keys() {
        if let Some(site) = aggregate.site(*id).filter(|s| !names.contains(&s.site.layer.as_str())) {
            names.push(&site.site.layer);
        }
    }
    let mut judged: Vec<Judged> = names
        .into_iter()
        .filter_map(|layer| {
            Some(Judged { layer: layer.into(), ..Judged::of(aggregate.shadows.of_layer(layer, &aggregate.sites))? })
        })
        .filter(|layer| layer.latest.step == latest && layer.latest.likeness.count >= FEWEST)
        .collect();
    judged.sort_by(|a, b| b.error.total_cmp(&a.error));
    judged
}

/// Whether gradients are held in FP16; where nothing was scanned, whether there is a loss scale, which no other format needs.
fn in_fp16(aggregate: &Aggregate, sample: &ShadowSample) -> bool {
    aggregate.has_fp16_gradients() || aggregate.instrument.full_steps == 0 && sample.loss_scale.is_some()
}

fn whole_run(aggregate: &Aggregate, limits: &Limits, all: &Judged, layers: &[Judged]) -> Option<Firing> {
    let underflows = in_fp16(aggregate, &all.latest) && all.fading >= limits.of(&FADING_SHARE);
    let worst = layers.first();
    if underflows && all.error > limits.of(&DIRECTION) {
        let severity = if all.error > limits.of(&DIRECTION_LOST) { Severity::Error } else { Severity::Warning };
        return Some(underflow(aggregate, all, worst, severity));
    }
    if !underflows && all.error > limits.of(&ANY_DIRECTION) {
        return Some(forward_rounding(all, worst));
    }
    let length = limits.of(&LENGTH);
    let right = all.error < 1.0 - RIGHT_DIRECTION;
    (right && (all.length.0 > length || all.length.1 < 1.0 / length)).then(|| wrong_length(all))
}

fn one_layer(aggregate: &Aggregate, limits: &Limits, layers: &[Judged]) -> Option<Firing> {
    let off = |l: &&Judged| {
        in_fp16(aggregate, &l.latest)
            && l.fading >= limits.at(&FADING_SHARE, &l.layer)
            && l.error > limits.at(&LAYER_DIRECTION, &l.layer)
    };
    let here = layers.iter().find(off)?;
    Some(Firing { layer: here.layer.clone(), ..underflow(aggregate, here, None, Severity::Warning) })
}

fn underflow(aggregate: &Aggregate, judged: &Judged, worst: Option<&Judged>, severity: Severity) -> Firing {
    let likeness = &judged.latest.likeness;
    let explanation = format!(
        "{} {} of what is left lies below 2^-14 as FP16 held it, so it is backward that loses it, and not forward.{}{}",
        what_is_off(judged),
        share(likeness.fading_share().unwrap_or(1.0)),
        farthest(worst),
        one_sided(aggregate, judged.latest.step)
    );
    firing(judged, severity, explanation, raise_the_scale(aggregate, judged))
}

fn forward_rounding(judged: &Judged, worst: Option<&Judged>) -> Firing {
    let likeness = &judged.latest.likeness;
    let explanation = format!(
        "{} Only {} of what is left lies below 2^-14 as it was held: it is not the loss scale that loses it, and no scale gives it back. Forward rounds it away, or an operator in 16 bits \
         computes something else than in FP32.{}",
        what_is_off(judged),
        share(likeness.fading_share().unwrap_or(0.0)),
        farthest(worst)
    );
    let remedy = match worst.filter(|worst| !worst.layer.is_empty()) {
        Some(worst) => Remedy::from(format!(
            "Keep layer `{}` in FP32 and compare again; look there for a softmax, a norm, an exponential or a long sum in 16 bits.",
            worst.layer
        ))
        .set("fp32_layers", worst.layer.clone()),
        None => "Look for a softmax, a norm, an exponential or a long sum in 16 bits, and compute it in FP32.".into(),
    };
    firing(judged, Severity::Warning, explanation, remedy)
}

fn wrong_length(judged: &Judged) -> Firing {
    let ratio = judged.latest.likeness.norm_ratio().unwrap_or(1.0);
    let explanation = format!(
        "The gradient points where FP32's points, and is {} times as long, by the loss scale in force ({}). Rounding does not do that.",
        number(ratio),
        judged.latest.loss_scale.map_or("none".into(), number)
    );
    let remedy = "Look at the loop: gradients of an earlier batch that were not zeroed, a loss that is multiplied or divided once too often, a closure given to `doctor.shadow` that \
                  computes another loss than the one that is trained on.";
    firing(judged, Severity::Warning, explanation, remedy.into())
}

fn firing(judged: &Judged, severity: Severity, explanation: String, remedy: Remedy) -> Firing {
    let likeness = &judged.latest.likeness;
    let mut evidence = vec![
        measured("one_minus_cosine", judged.error),
        measured("norm_ratio", likeness.norm_ratio().unwrap_or(0.0)),
        measured("lost_share", likeness.lost_share().unwrap_or(0.0)),
        measured("lost_energy_share", likeness.lost_energy_share().unwrap_or(0.0)),
        measured("fading_share", likeness.fading_share().unwrap_or(1.0)),
        counted("comparisons", SAMPLES as u64),
        counted("elements", likeness.count),
    ];
    evidence.push(match judged.latest.loss_scale {
        Some(scale) => measured("loss_scale", scale),
        None => said("loss_scale", "none"),
    });
    Firing {
        severity,
        layer: String::new(),
        operator: String::new(),
        probe: Some(Probe::ParamGrad),
        since: judged.since,
        strength: judged.error,
        evidence,
        explanation,
        remedy,
    }
}

fn what_is_off(judged: &Judged) -> String {
    let likeness = &judged.latest.likeness;
    let subject = if judged.layer.is_empty() {
        "the gradient".into()
    } else {
        format!("the gradient of layer `{}`", judged.layer)
    };
    let norm = likeness.norm_ratio().unwrap_or(0.0);
    let lost = share(likeness.lost_share().unwrap_or(0.0));
    match likeness.cosine() {
        None => format!("Nothing is left of {subject}: FP32's for the same batch is not zero."),
        Some(_) => format!(
            "In {SAMPLES} comparisons with FP32, of the same batches and weights, {subject} points elsewhere: 1 - cosine is {} or more. In the latest its norm is {} of FP32's, and {lost} of its \
             elements were rounded to zero, which is measured.",
            number(judged.error),
            number(norm)
        ),
    }
}

fn farthest(worst: Option<&Judged>) -> String {
    let named = worst.filter(|worst| !worst.layer.is_empty());
    named.map_or(String::new(), |w| format!(" Farthest off is layer `{}` (1 - cosine {}).", w.layer, number(w.error)))
}

/// What is left of a parameter has one sign, and FP32's has not: it moves the mean at every step, though a cosine may hide it.
fn one_sided(aggregate: &Aggregate, step: u64) -> String {
    let biases = aggregate.shadows.gradients.iter().filter_map(|(id, shadowed)| {
        let sample = shadowed.recent.back().filter(|s| s.step == step && s.likeness.count > 1)?;
        let (mixed, fp32) = sample.likeness.sign_bias()?;
        Some((aggregate.site(*id)?.site.label(), mixed, fp32))
    });
    let worst = biases.max_by(|a, b| (a.1 - a.2).abs().total_cmp(&(b.1 - b.2).abs()));
    match worst.filter(|(_, mixed, fp32)| mixed.abs() > ONE_SIDED && fp32.abs() < ONE_SIDED / 3.0) {
        Some((label, mixed, fp32)) => format!(
            " What is left of `{label}` has mostly one sign (its sum over its sum of magnitudes is {}, in FP32 {}): such a loss adds up from step to step.",
            number(mixed),
            number(fp32)
        ),
        None => String::new(),
    }
}

fn raise_the_scale(aggregate: &Aggregate, judged: &Judged) -> Remedy {
    let (config, now) = (aggregate.scaler_config.as_ref(), judged.latest.loss_scale);
    let raised = |e: &i32| f64::from(*e).exp2() > now.unwrap_or(0.0);
    let advised = ScaleAdvice::of(aggregate).and_then(|advice| advice.exponent()).filter(raised);
    match advised.and_then(|exponent| set_scale(config, now, exponent)) {
        Some(remedy) => Remedy { text: sentence(remedy.text) + "; then compare again.", ..remedy },
        None => format!(
            "Raise the loss scale above {}, or find what shrinks the gradient at the layer that is farthest off; then compare again.",
            now.map_or("1, its value without a scaler".into(), number)
        )
        .into(),
    }
}

#[cfg(test)]
mod tests;
