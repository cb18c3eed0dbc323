//! What backward made of finite numbers, and whether the loss scale can have been the reason.

use super::super::text::{base_name, counted, measured, scale, share};
use super::super::update_advice::format_name;
use super::super::{Firing, Limits, Threshold};
use super::advice::{Pass, advice_for};
use super::{NAME, firing, kind};
use crate::aggregate::{Aggregate, BackwardOrigins, Origin};
use crate::observation::{Probe, Provenance, ScalerEvent, Site, SiteId};

/// Ratio of the scales between which a NaN must persist: 2^8.
pub(super) const INDEPENDENT_RATIO: Threshold = Threshold::new(
    NAME,
    "independent",
    256.0,
    "ratio of scales",
    "2^8: a NaN that is there at two scales so far apart is not made by the scale.",
);
/// Below this no scale can be the cause.
const NO_SCALE_LEFT: f64 = 1.0;
/// Times that a gradient with 8 octaves of headroom must turn NaN: one could be a freak batch.
pub(super) const REPEATED: Threshold = Threshold::new(
    NAME,
    "repeated",
    2.0,
    "times",
    "A gradient with 8 octaves of headroom that turns NaN once may be a freak batch.",
);
/// Times in 32 steps under a static scale.
pub(super) const REPEATED_STATIC: Threshold = Threshold::new(
    NAME,
    "repeated-static",
    3.0,
    "times in 32 steps",
    "At a static scale the scale cannot be told from the batch by moving.",
);
/// Operators whose derivative is infinite where they give zero.
const ROOTS: [&str; 5] = ["sqrt", "norm", "linalg_vector_norm", "std", "cdist"];

/// The first gradient that was so, where no scale is to blame.
pub(super) fn backward(aggregate: &Aggregate, limits: &Limits) -> Option<Firing> {
    let nf = &aggregate.non_finite;
    if reached_no_parameter(aggregate) {
        return None;
    }
    let origin = nf.latest.backward.filter(|_| nf.latest.forward_is_clean() && nf.loss_bad.is_none())?;
    let site = &aggregate.site(origin.site)?.site;
    let history = nf.backward.get(&origin.site)?;
    let why = why_not_the_scale(aggregate, site, &origin, history, limits)?;
    let via = origin.via.and_then(|id| aggregate.site(id)).map(|s| &s.site);
    let explanation = format!(
        "The gradient of `{}` is the first in the order of backward to hold {}, in {} of its elements{}, while forward and loss are finite. {why}",
        site.label(),
        kind(&origin),
        share((origin.nan + origin.inf) as f64 / origin.count.max(1) as f64),
        via.map_or(String::new(), |v| format!(
            "; the backward of `{}`{} made it",
            v.label(),
            or_another(aggregate, site)
        )),
    );
    let mut firing = firing(
        aggregate,
        site,
        &origin,
        "independent of the loss scale",
        explanation,
        advice_for(aggregate, via.unwrap_or(site), &origin, Pass::Backward),
    );
    firing.since = history.first.step;
    // With each time more the evidence is newer.
    firing.strength = history.events as f64;
    firing.evidence.extend([
        counted("times", history.events),
        measured("highest_loss_scale", history.highest_scale),
        measured("lowest_loss_scale", history.lowest_scale),
    ]);
    Some(firing)
}

/// Of an activation that several operators took, which of them it was is not known.
fn or_another(aggregate: &Aggregate, gradient: &Site) -> String {
    let is_activation = |id: &SiteId| {
        aggregate.site(*id).map(|s| &s.site).is_some_and(|s| {
            s.probe == Probe::Activation && s.layer == gradient.layer && s.operator == gradient.operator
        })
    };
    let takes = |made: &Provenance| made.inputs.iter().flatten().any(is_activation);
    let readers = aggregate.latest_observations().filter(|(o, _)| o.provenance.as_deref().is_some_and(takes)).count();
    if readers > 1 { format!(", or of another of the {readers} operators that take it,") } else { String::new() }
}

/// Why the loss scale cannot have made this gradient non-finite; `None` where it may have.
fn why_not_the_scale(
    aggregate: &Aggregate,
    site: &Site,
    origin: &Origin,
    history: &BackwardOrigins,
    limits: &Limits,
) -> Option<String> {
    if !aggregate.may_overflow_in_fp16(site) {
        return Some(format!(
            "It is held in {}, whose range no loss scale exhausts: it is independent of the scale.",
            format_name(site.dtype)
        ));
    }
    let is_pole = is_pole_of_derivative(aggregate, origin);
    // An infinity in FP16 is a matter of range, and of rule AMP202; NaN from the beginning and the pole of a derivative are not.
    if origin.inf > 0 && !is_pole {
        return None;
    }
    if let Some(via) = origin.via.and_then(|id| aggregate.site(id)).filter(|_| is_pole) {
        return Some(format!(
            "`{}` gave an exact zero, where its derivative is infinite: independent of the scale.",
            via.site.label()
        ));
    }
    let Some(now) = origin.loss_scale else {
        return Some("There is no loss scale that could have caused it.".into());
    };
    let (high, low) = (history.highest_scale, history.lowest_scale);
    if high / low >= limits.of(&INDEPENDENT_RATIO) {
        return Some(format!(
            "It was so at scale {} and still is at {}: independent of the scale.",
            scale(high),
            scale(low)
        ));
    }
    if low < NO_SCALE_LEFT {
        return Some(format!("It is so at a scale of {}, below 1: independent of the scale.", scale(low)));
    }
    if history.with_headroom >= limits.count(&REPEATED) {
        return Some(format!(
            "When last finite, at this scale, it stood 2^{:.0} below FP16's end: the scale ({}) did not cause it.",
            history.headroom_octaves,
            scale(now)
        ));
    }
    let is_static = aggregate.scaler_config.as_ref().is_none_or(|c| c.is_static());
    (is_static && u64::from(aggregate.non_finite.bad_among_last(32)) >= limits.count(&REPEATED_STATIC)).then(|| {
        format!("It is NaN, not infinite, at its beginning, again and again at the static scale {}.", scale(now))
    })
}

/// Whether what backward made non-finite was shut out before it reached a parameter, as by a ReLU behind it: the scaler found every gradient finite.
fn reached_no_parameter(aggregate: &Aggregate) -> bool {
    let finds = |wanted: bool| {
        let events = aggregate.latest.iter().flat_map(|step| &step.scaler);
        events.filter(|e| matches!(e, ScalerEvent::Unscaled { found_inf, .. } if *found_inf == wanted)).count()
    };
    finds(false) > 0 && finds(true) == 0
}

/// Whether a gradient comes out of an operator whose derivative is infinite where it gives zero, and which gave zero at that step.
pub(in crate::rules) fn is_pole_of_derivative(aggregate: &Aggregate, origin: &Origin) -> bool {
    let Some(via) = origin.via.and_then(|id| aggregate.site(id)) else { return false };
    let zeros = via.recent.iter().rev().find(|s| s.step <= origin.step).map_or(0, |s| s.stats.zeros);
    match base_name(&via.site.operator).trim_end_matches('_') {
        // A square of zero has a derivative of zero: only where each zero, and nothing else, became non-finite is it a pole.
        "pow" => zeros > 0 && origin.inf + origin.nan == zeros,
        name => zeros > 0 && ROOTS.contains(&name),
    }
}
