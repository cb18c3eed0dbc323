//! ## What it finds
//!
//! Gradients that exceed 65504 in FP16 while forward is finite, and that no scaler looking for its scale explains: there is no scaler, or its scale
//! is static, or a dynamic scale falls and falls.
//!
//! ## Why it matters
//!
//! Without a scaler the infinity goes into the weights at this very step. At a static scale the step is skipped, and so are those after it. A dynamic
//! scaler lowers the scale for the sake of one layer until the gradients of all others underflow.
//!
//! ## How it decides
//!
//! * No scaler, **error**: one infinite gradient in FP16 while activations and loss are finite.
//! * Static scale, **error**: gradients overflowed at three of the last 32 steps, counted from the 17th step of the run on. (Where most steps
//!   overflow and a lower scale would do, it is the scale and no layer: rule `static-scale-wrong`. Unless a single operator's backward made the
//!   infinity of a gradient that was 32 times below 65504 or more: then it is that layer.)
//! * Static scale or none, **warning**: a gradient above 2^15, half of the largest number. Not under a dynamic scaler, which probes the end on
//!   purpose.
//! * Dynamic scaler, **warning**: skip after skip the scale fell by 2^8 or more, to 2^8 or less, while the share of infinite elements in the gradient
//!   that overflows first did not fall by a tenth. **Error** when the scale is below 1.
//!
//! The layer named is that of the first non-finite gradient in the order of backward, with the operator whose backward made it. While a scale falls
//! that is one tensor after the other, from the loss towards the input, because the layers behind inherit the gradient. Named is the one that was
//! first over most of the fall: it stands furthest above what came in.
//!
//! ## What to do
//!
//! Use a dynamic scaler, `GradScaler::default()`, or lower the static scale to the value named. Where one layer overflows far above all others no
//! scale is good for all: take the factor out of that layer that blows up what passes backward, or run it in FP32, `no_autocast(||
//! layer.forward(&x.to_kind(Kind::Float)))`.
//!
//! ## When it stays silent
//!
//! * While a dynamic scaler finds its scale: from 65536 up to 16 halvings are expected, as long as the overflow recedes. And on its one skip per
//!   growth interval afterwards.
//! * On the first 16 steps of a static scale.
//! * When forward or the loss is not finite, when the gradient is NaN from its beginning, or when it comes out of a derivative that is infinite in
//!   any format (the root or the norm of an exact zero): rule `non-finite-origin`.
//! * On FP32 and BF16.

mod advice;

use self::advice::{change_layer, forgotten, lower, lower_beyond_overflow};
use super::non_finite_origin::is_pole_of_derivative;
use super::scaling::Scaling;
use super::static_scale_wrong::MOST;
use super::text::{counted, measured, number, power_of_two, scale, sentence, share};
use super::{Evidence, Firing, Limits, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Origin, SiteSummary, Streak};
use crate::numerics::Format;
use crate::observation::Probe;
use crate::scan::Dtype;

const NAME: &str = "gradient-overflow";
/// Octaves that the scale must fall in one streak.
const FALLEN_OCTAVES: Threshold = Threshold::new(
    NAME,
    "fallen",
    8.0,
    "octaves",
    "From 65536 a scaler needs up to 16 halvings to find its place, in more than one streak; one layer that overflows far above the rest took 15 to 36 in one.",
);
/// And the scale at which it must have arrived: from Megatron's 2^32 a descent of more than 8 octaves is calibration.
const FALLEN_TO: Threshold = Threshold::new(
    NAME,
    "fallen-to",
    256.0,
    "loss scale",
    "From 2^32, where Megatron begins, a descent of 8 octaves is calibration: it must also have led to 2^8.",
);
/// Below this no gradient that starts at 1 at the loss can still be too large because of the scale.
const NO_SCALE_LEFT: f64 = 1.0;
/// An overflow recedes when its share of elements falls by a tenth: one that no scale cures keeps its elements.
const RECEDING: Threshold = Threshold::new(
    NAME,
    "receding",
    0.9,
    "share of the elements that overflowed first",
    "The overflow of a scale that is too high recedes with each halving; that of a layer which no scale cures keeps its elements.",
);
/// Steps looked back at under a static scale.
const LOOK_BACK: u32 = 32;
/// Of those, steps that must have overflowed.
const REPEATED: Threshold = Threshold::new(
    NAME,
    "repeated",
    3.0,
    "steps of the latest 32",
    "One batch may overflow at any static scale; where three of 32 do, more will.",
);
/// Steps at the beginning that say nothing: as many as a dynamic scaler may take to find its place. Gradients are largest there, and fall.
const CALIBRATION: Threshold = Threshold::new(
    NAME,
    "calibration",
    16.0,
    "steps",
    "A dynamic scaler takes up to 16 to find its place, and gradients are largest at the beginning.",
);
/// A gradient that one operator's backward multiplies by more than this.
const BLOWN_UP: Threshold = Threshold::new(
    NAME,
    "blown-up",
    32.0,
    "times the gradient that came in",
    "5 octaves in one operator: a product with healthy weights makes one or two; where a scale is too high for all, the gradient that came in stands as near to the end.",
);
/// One bit below FP16's end.
const NEAR: Threshold = Threshold::new(
    NAME,
    "near",
    32768.0,
    "magnitude",
    "2^15, one bit below the end of FP16, where no dynamic scaler gives way.",
);

/// See the page of the rule.
pub struct GradientOverflow;

static INFO: RuleInfo = RuleInfo {
    code: "AMP202",
    name: NAME,
    severity: Severity::Error,
    summary: "Gradients exceed 65504 in FP16 while forward is finite, and not because a scaler is still finding its scale.",
    source: include_str!("gradient_overflow.rs"),
};

impl Rule for GradientOverflow {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[FALLEN_OCTAVES, FALLEN_TO, RECEDING, REPEATED, CALIBRATION, BLOWN_UP, NEAR]
    }

    fn thresholds_by_layer(&self) -> &'static [&'static str] {
        &["near", "blown-up"]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        if !aggregate.has_fp16_gradients() {
            return Vec::new();
        }
        let found = overflow(aggregate, limits).or_else(|| near(aggregate, limits));
        found.map(|f| Verdict::Firing(Box::new(f))).into_iter().collect()
    }
}

fn overflow(aggregate: &Aggregate, limits: &Limits) -> Option<Firing> {
    let streak = aggregate.non_finite.streak.filter(|s| !s.from_forward)?;
    let scaling = Scaling::of(aggregate);
    let origin = match scaling {
        Scaling::AtCeiling | Scaling::Dynamic => aggregate.non_finite.culprit(),
        Scaling::None | Scaling::Static => streak.last_origin.or(streak.first_origin),
    };
    if origin.is_some_and(|o| !is_overflow(aggregate, &o)) {
        return None;
    }
    match scaling {
        Scaling::None => origin.map(|o| without_scaler(aggregate, &o)),
        Scaling::Static if scale_too_high(aggregate, limits).is_some() => None,
        Scaling::Static => {
            repeated(aggregate, limits).map(|(since, n)| static_scale(aggregate, origin.as_ref(), since, n, limits))
        }
        Scaling::AtCeiling | Scaling::Dynamic => {
            falling(&streak, limits).map(|severity| dynamic(aggregate, &streak, origin.as_ref(), severity))
        }
    }
}

/// A static scale at which most of the latest steps overflow, or one overflows that nothing withholds, while a lower one would do: what rule
/// `static-scale-wrong` then says, in place of this one.
pub(super) fn scale_too_high(aggregate: &Aggregate, limits: &Limits) -> Option<Firing> {
    let streak = aggregate.non_finite.streak.filter(|s| !s.from_forward)?;
    let origin = streak.last_origin.or(streak.first_origin);
    // Unseen, it may as well be a NaN that no scale makes.
    if Scaling::of(aggregate) != Scaling::Static || origin.is_none_or(|o| !is_overflow(aggregate, &o)) {
        return None;
    }
    let now = aggregate.latest.as_ref()?.loss_scale?;
    if origin.is_some_and(|o| blows_up(aggregate, &o, limits)) {
        return None;
    }
    let remedy = lower_beyond_overflow(aggregate, origin.as_ref(), now).ok()?;
    let seen = (aggregate.non_finite.latest_step + 1).min(u64::from(LOOK_BACK));
    let most = repeated(aggregate, limits).filter(|(_, times)| f64::from(*times) > limits.of(&MOST) * seen as f64);
    let is_checked = aggregate.scaler_config.is_some();
    let (since, what) = match (most, is_checked) {
        (Some((since, times)), true) => (
            since,
            format!(
                "At the static scale {} it was so at {times} of the last {seen} steps, and each of them was skipped: nothing lowers the scale, so next to \
                 nothing is learnt.",
                scale(now)
            ),
        ),
        (_, false) => (
            streak.first_step,
            format!(
                "The loss is multiplied by {} and no scaler looks at the gradients: nothing skips the step, so the infinity goes into the weights.",
                scale(now)
            ),
        ),
        (None, true) => return None,
    };
    let times = aggregate.non_finite.bad_among_last(LOOK_BACK);
    let evidence = vec![measured("loss_scale", now), counted("overflowing_steps_of_last_32", times.into())];
    let mut firing =
        firing(aggregate, origin.as_ref(), Severity::Error, since, f64::from(times), evidence, what, remedy);
    (firing.layer, firing.operator) = (String::new(), String::new());
    Some(firing)
}

/// Whether a single operator's backward made an infinity of a gradient that was far from it: then that layer is to blame, and not the scale.
pub(super) fn blows_up(aggregate: &Aggregate, origin: &Origin, limits: &Limits) -> bool {
    let Some(via) = origin.via.and_then(|id| aggregate.site(id)).map(|s| &s.site) else { return false };
    let is_incoming = |s: &SiteSummary| {
        s.site.probe == Probe::ActivationGrad && s.site.layer == via.layer && s.site.operator == via.operator
    };
    let samples = aggregate.sites.iter().filter(|s| is_incoming(s)).flat_map(|s| &s.recent);
    let mut incoming = samples.filter(|sample| sample.step == origin.step);
    incoming.next().is_some_and(|sample| {
        sample.stats.non_finite() == 0
            && sample.stats.max_abs > 0.0
            && sample.stats.max_abs * limits.at(&BLOWN_UP, &via.layer) < Format::F16.max
    })
}

/// Infinite, not only NaN, in a tensor that went through FP16, and not the pole of a derivative, which no range would be enough for.
fn is_overflow(aggregate: &Aggregate, origin: &Origin) -> bool {
    origin.inf > 0
        && !is_pole_of_derivative(aggregate, origin)
        && aggregate.site(origin.site).is_some_and(|s| aggregate.may_overflow_in_fp16(&s.site))
}

/// How often the last steps overflowed and since when, if often enough. Skips from the first step on that have ended by themselves do not count.
fn repeated(aggregate: &Aggregate, limits: &Limits) -> Option<(u64, u32)> {
    let nf = &aggregate.non_finite;
    let bad = without_beginning(nf.recent_bad, nf.latest_step) & ((1 << LOOK_BACK) - 1);
    let times = bad.count_ones();
    let since = nf.latest_step.saturating_sub(u64::from(bad.checked_ilog2()?));
    (nf.latest_step >= limits.count(&CALIBRATION) && u64::from(times) >= limits.count(&REPEATED))
        .then_some((since, times))
}

/// Bit 0 is step `latest`, bit `latest` the first of the run: without the bits from there on, unless all steps until now are set.
fn without_beginning(bad: u64, latest: u64) -> u64 {
    let Some(above) = 63u64.checked_sub(latest) else { return bad };
    let beginning = (bad << above).leading_ones();
    if u64::from(beginning) > latest { bad } else { bad & (u64::MAX >> above >> beginning) }
}

fn falling(streak: &Streak, limits: &Limits) -> Option<Severity> {
    let scale = streak.last_scale?;
    if streak.octaves_fallen() < limits.of(&FALLEN_OCTAVES) || scale > limits.of(&FALLEN_TO) {
        return None;
    }
    if scale < NO_SCALE_LEFT {
        return Some(Severity::Error);
    }
    let recedes = match (streak.first_origin, streak.last_origin) {
        (Some(first), Some(last)) => {
            first.site != last.site || bad_share(&last) <= limits.of(&RECEDING) * bad_share(&first)
        }
        _ => false,
    };
    (!recedes).then_some(Severity::Warning)
}

fn bad_share(origin: &Origin) -> f64 {
    (origin.inf + origin.nan) as f64 / origin.count.max(1) as f64
}

fn without_scaler(aggregate: &Aggregate, origin: &Origin) -> Firing {
    let what = "There is no loss scaler to withhold the step, so the infinity goes into the weights.";
    let text = format!(
        "Use a dynamic `GradScaler`: it skips such a step. If it still happens at a scale of 1, the gradient itself is too large for FP16: {}.",
        change_layer(aggregate, Some(origin)).text
    );
    let remedy = Remedy::from(text).set("scaler", "dynamic");
    firing(aggregate, Some(origin), Severity::Error, origin.step, 1.0, vec![], what.into(), remedy)
}

fn static_scale(aggregate: &Aggregate, origin: Option<&Origin>, since: u64, times: u32, limits: &Limits) -> Firing {
    let now = aggregate.latest.as_ref().and_then(|s| s.loss_scale).unwrap_or(1.0);
    let what = format!(
        "It happened at {times} of the last {LOOK_BACK} steps; the scale is static at {}, so it goes on.",
        scale(now)
    );
    let remedy = match origin.filter(|o| blows_up(aggregate, o, limits)) {
        Some(_) => change_layer(aggregate, origin).reworded(|text| format!("{}.", sentence(text))),
        None => lower_beyond_overflow(aggregate, origin, now).unwrap_or_else(|otherwise| otherwise),
    };
    let remedy = remedy.reworded(|text| forgotten(aggregate) + &text);
    let evidence = vec![counted("overflowing_steps_of_last_32", times.into()), measured("loss_scale", now)];
    firing(aggregate, origin, Severity::Error, since, f64::from(times), evidence, what, remedy)
}

fn dynamic(aggregate: &Aggregate, streak: &Streak, origin: Option<&Origin>, severity: Severity) -> Firing {
    let (first, last) = (streak.first_scale.unwrap_or(1.0), streak.last_scale.unwrap_or(1.0));
    let what = format!(
        "For {} steps in a row the scaler has lowered the loss scale, from {} to {}, and {}: it is not the scale that is too high.",
        streak.steps,
        scale(first),
        scale(last),
        after_it(aggregate, streak, origin)
    );
    let mut evidence = vec![
        counted("steps_in_a_row", streak.steps),
        measured("loss_scale_at_start", first),
        measured("loss_scale", last),
    ];
    // Down to a scale of 0 they cannot be counted.
    let octaves = Some(streak.octaves_fallen()).filter(|octaves| octaves.is_finite());
    evidence.extend(octaves.map(|octaves| measured("octaves_fallen", octaves)));
    let remedy = change_layer(aggregate, origin).reworded(|change| {
        // No floor: measured, it loses every step that overflows at it, while a scale that goes on falling at last applies some.
        format!("{}{}.", forgotten(aggregate), sentence(change))
    });
    firing(aggregate, origin, severity, streak.first_step, streak.octaves_fallen(), evidence, what, remedy)
}

/// What became of the overflow: where the scale is so low that the layer's gradient fits, one behind it, which it is handed on to, overflows.
fn after_it(aggregate: &Aggregate, streak: &Streak, origin: Option<&Origin>) -> String {
    let behind = streak.last_origin.filter(|last| origin.is_some_and(|o| o.site != last.site));
    match behind.and_then(|last| aggregate.site(last.site)) {
        Some(behind) => format!("what it hands back is still too large for `{}` behind it", behind.site.label()),
        None => "the overflow does not recede".into(),
    }
}

#[expect(clippy::too_many_arguments, reason = "one builder for the three ways in which it comes about")]
fn firing(
    aggregate: &Aggregate,
    origin: Option<&Origin>,
    severity: Severity,
    since: u64,
    strength: f64,
    mut evidence: Vec<Evidence>,
    what: String,
    remedy: Remedy,
) -> Firing {
    let summary = origin.and_then(|o| aggregate.site(o.site));
    evidence.extend(origin.iter().flat_map(|o| {
        [counted("infinite_elements", o.inf), counted("nan_elements", o.nan), counted("elements", o.count)]
    }));
    evidence.extend(aggregate.latest.as_ref().and_then(|s| s.loss).map(|loss| measured("loss", loss)));
    Firing {
        severity,
        layer: summary.map_or(String::new(), |s| s.site.layer.clone()),
        operator: summary.map_or(String::new(), |s| s.site.operator.clone()),
        probe: summary.map(|s| s.site.probe),
        since,
        strength,
        evidence,
        explanation: format!("{} {what}", beginning(aggregate, origin, summary)),
        remedy,
    }
}

fn beginning(aggregate: &Aggregate, origin: Option<&Origin>, summary: Option<&SiteSummary>) -> String {
    let (Some(origin), Some(summary)) = (origin, summary) else {
        return "Gradients overflow although the loss is finite; none of these steps was scanned, so the layer is unknown (set `every(1)` to see it)."
            .into();
    };
    let via = origin.via.and_then(|id| aggregate.site(id));
    // Another was the first since.
    let is_past = aggregate.non_finite.latest.backward.is_some_and(|now| now.site != origin.site);
    format!(
        "The gradient of `{}` {} infinite in {} of its elements{}, the first in the order of backward, while forward is finite.",
        summary.site.label(),
        if is_past { format!("was, at step {},", origin.step) } else { "is".into() },
        share(bad_share(origin)),
        via.map_or(String::new(), |v| format!(" (made by the backward of `{}`)", v.site.label())),
    )
}

/// A gradient one bit from the end where no dynamic scaler probes it on purpose.
fn near(aggregate: &Aggregate, limits: &Limits) -> Option<Firing> {
    // While another gradient is infinite this one is no news, and how high a scale may be is not known.
    let probed = matches!(Scaling::of(aggregate), Scaling::Dynamic | Scaling::AtCeiling);
    if probed || aggregate.non_finite.streak.is_some() {
        return None;
    }
    let is_near = |s: &SiteSummary, max: f64| {
        s.site.dtype == Dtype::F16 && s.site.probe.is_gradient() && max > limits.at(&NEAR, &s.site.layer)
    };
    let (observation, summary) =
        aggregate.latest_observations().find(|(o, s)| o.stats.non_finite() == 0 && is_near(s, o.stats.max_abs))?;
    let step = aggregate.latest.as_ref()?;
    let max_abs = observation.stats.max_abs;
    let now = step.loss_scale.unwrap_or(1.0);
    let remedy = if Scaling::of(aggregate) == Scaling::Static {
        lower(aggregate, now)
    } else {
        Remedy::from("Use a dynamic `GradScaler`: it skips a step that overflows.").set("scaler", "dynamic")
    };
    Some(Firing {
        severity: Severity::Warning,
        layer: summary.site.layer.clone(),
        operator: summary.site.operator.clone(),
        probe: Some(if summary.site.probe == Probe::ParamGrad { Probe::ParamGrad } else { Probe::ActivationGrad }),
        since: step.index,
        strength: max_abs / 65504.0 / 2.0,
        evidence: vec![measured("max_abs", max_abs), measured("loss_scale", now)],
        explanation: format!(
            "The gradient of `{}` reached {} ({}) in FP16, less than one bit from its end at 65504, and {} gives way when it overflows.",
            summary.site.label(),
            number(max_abs),
            power_of_two(max_abs),
            if step.loss_scale.is_some() { "a static scale never" } else { "without a scaler nothing" }
        ),
        remedy,
    })
}

#[cfg(test)]
mod tests;
