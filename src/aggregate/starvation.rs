//! What FP16 did to each gradient of one step, read in the order of backward.
//!
//! A gradient that is all zero has no histogram to judge. Healthy ones become zero exactly: a satisfied margin, dead or saturated units, a branch
//! that is not taken, a gate that starts at zero. FP16 is the reason only where something is seen to fade: the gradient itself, when last
//! non-zero, lay below FP16's normal numbers (at the loss scale in force now); or the gradient it was computed from was itself starved, or so
//! small already that the next operation had to round it away. Behind a forward that overflowed a zero says nothing: x / inf is zero.
//!
//! Where the gradient was FP32 before backward cast it, what the cast loses is known exactly and taken from there.

use std::collections::BTreeMap;

use super::SiteSummary;
use crate::numerics::{Format, Underflow};
use crate::observation::{Observation, Probe, Site, SiteId, Step};
use crate::scan::{Dtype, Stats};

/// Elements a tensor needs before its histogram says something about a layer.
pub const FEWEST_ELEMENTS: u64 = 64;
/// A gradient whose largest element lies below FP16's smallest normal number is about to vanish.
const ABOUT_TO_VANISH: f64 = 6.103515625e-5;

/// Operators that pass no gradient where they give zero.
const SHUT_BY_SIGN: [&str; 8] =
    ["relu", "relu_", "relu6", "threshold", "hardtanh", "clamp", "clamp_min", "hardsigmoid"];
/// Operators that pass no gradient where their other factor, or their mask, is zero.
const SHUT_BY_FACTOR: [&str; 5] = ["mul", "mul_", "dropout", "native_dropout", "masked_fill"];
/// Operators that pass no gradient where their output stands at its end.
const SHUT_AT_END: [&str; 9] =
    ["relu6", "clamp", "clamp_", "clamp_max", "clamp_min", "hardtanh", "hardsigmoid", "sigmoid", "tanh"];
/// An operator that passes no gradient to what it did not choose; what it chose is not seen.
const CHOOSES: &str = "where";
/// From here on nothing that is worth passing on is left of a gradient; the estimate for one that is not all zero ends near 0.04.
const ALL_BUT_LOST: f64 = 0.9;

/// What is known of the gradient that the next one is computed from.
#[derive(Clone, Copy)]
struct Incoming<'a> {
    /// The exponents before a cast that made the next gradient of them.
    before_cast: Option<&'a Stats>,
    max_abs: f64,
    finite: bool,
    starved: bool,
    /// Zero by design: dead units, or a loss of exactly zero.
    by_design: bool,
}

/// For each observation of `step`, what FP16 did to it: `None` for what is no FP16 gradient, is too small to judge, is not finite, or is
/// zero without a sign that FP16 is the reason.
pub(super) fn judge(step: &Step, sites: &[SiteSummary], forward_is_clean: bool) -> Vec<Option<Underflow>> {
    let site = |id: SiteId| sites.get(id.0 as usize);
    let (dead, saturated) = (dead_outputs(step, sites), saturated_outputs(step, sites));
    let mut by_place: BTreeMap<(&str, &str), Incoming<'_>> = BTreeMap::new();
    let mut previous: Option<Incoming<'_>> = None;
    let mut judged = Vec::with_capacity(step.observations.len());
    for observation in &step.observations {
        let Some(summary) = site(observation.site).filter(|s| s.site.probe.is_gradient()) else {
            judged.push(None);
            continue;
        };
        let via = observation.via.and_then(site).map(|s| &s.site);
        let incoming = match summary.site.probe {
            Probe::ParamGrad => gradient_of_layer(&by_place, &summary.site.layer),
            // A cast stands right before what it gives.
            _ if previous.is_some_and(|p| p.before_cast.is_some_and(|s| s.count == observation.stats.count)) => {
                previous
            }
            _ => via.and_then(|v| by_place.get(&place(v)).copied()).or(previous),
        };
        let is_dead = via.is_some_and(|v| {
            is_shut(v, &summary.site, &dead)
                || is_saturated(v, &saturated)
                || operator(v) == CHOOSES && incoming.is_some_and(|g| !g.starved)
        });
        let nothing_to_deliver = !forward_is_clean || step.loss == Some(0.0) || incoming.is_some_and(|g| g.by_design);
        let underflow = judge_one(summary, observation, via, incoming, is_dead || nothing_to_deliver, step.loss_scale);
        if summary.site.probe != Probe::ParamGrad {
            let is_cast = summary.site.probe == Probe::CastGrad;
            let here = Incoming {
                before_cast: is_cast.then_some(&observation.stats),
                max_abs: observation.stats.max_abs,
                finite: observation.stats.non_finite() == 0,
                starved: underflow.is_some_and(|u| u.ehat >= ALL_BUT_LOST)
                    || passes_on(&observation.stats, incoming, is_dead),
                by_design: observation.stats.max_abs == 0.0 && (is_dead || nothing_to_deliver),
            };
            if !is_cast {
                by_place.insert(place(&summary.site), here);
            }
            previous = Some(here);
        }
        judged.push(underflow);
    }
    judged
}

fn judge_one(
    summary: &SiteSummary,
    observation: &Observation,
    via: Option<&Site>,
    incoming: Option<Incoming<'_>>,
    by_design: bool,
    loss_scale: Option<f64>,
) -> Option<Underflow> {
    let stats = &observation.stats;
    if summary.site.dtype != Dtype::F16 || stats.count < FEWEST_ELEMENTS || stats.non_finite() > 0 {
        return None;
    }
    if let Some(measured) = incoming.and_then(|g| g.before_cast).and_then(|s| Underflow::of_cast(&s.exponents)) {
        return Some(measured);
    }
    if let Some(underflow) = Underflow::of(&stats.exponents) {
        return Some(underflow);
    }
    let starved = !by_design
        && incoming.is_none_or(|g| g.finite)
        && (was_fading(summary, loss_scale) || incoming.is_some_and(|g| rounds_away(stats, via, g)));
    starved.then_some(Underflow::ALL_LOST)
}

/// Whether the gradient, when it was last non-zero, lay below FP16's normal numbers, or would have at the loss scale in force now.
fn was_fading(summary: &SiteSummary, loss_scale: Option<f64>) -> bool {
    let last = summary.recent.iter().rev().find(|s| s.stats.max_abs > 0.0 && s.stats.non_finite() == 0);
    last.is_some_and(|s| {
        let then = s.loss_scale.filter(|&scale| scale > 0.0).unwrap_or(1.0);
        s.stats.max_abs / then * loss_scale.unwrap_or(1.0) < ABOUT_TO_VANISH
    })
}

fn rounds_away(stats: &Stats, via: Option<&Site>, incoming: Incoming<'_>) -> bool {
    let spread_over = if via.is_some_and(|v| v.operator.starts_with("mean")) { stats.count as f64 } else { 1.0 };
    let share = incoming.max_abs / spread_over;
    incoming.starved
        || (incoming.max_abs > 0.0 && (incoming.max_abs < ABOUT_TO_VANISH || share <= Format::F16.largest_lost()))
}

/// Zero because what it was computed from was starved: also where the tensor itself is too small, or too wide, to be judged.
fn passes_on(stats: &Stats, incoming: Option<Incoming<'_>>, is_dead: bool) -> bool {
    stats.max_abs == 0.0 && stats.non_finite() == 0 && !is_dead && incoming.is_some_and(|g| g.starved)
}

fn place(site: &Site) -> (&str, &str) {
    (&site.layer, &site.operator)
}

fn gradient_of_layer<'a>(seen: &BTreeMap<(&str, &str), Incoming<'a>>, layer: &str) -> Option<Incoming<'a>> {
    seen.iter().find(|((l, _), _)| *l == layer).map(|(_, incoming)| *incoming)
}

/// Whether no gradient passes `via` because it lets nothing through at this step: a ReLU whose units are all dead, a product with zero. Where
/// what went into a product is zero itself, that says nothing of its other factor.
fn is_shut(via: &Site, here: &Site, zero_outputs: &[(&str, &str)]) -> bool {
    let name = operator(via);
    let shuts = SHUT_BY_SIGN.contains(&name) || SHUT_BY_FACTOR.contains(&name) && !zero_outputs.contains(&place(here));
    shuts && zero_outputs.contains(&place(via))
}

/// Whether `via` stands at its end everywhere: a `relu6` that gives 6, a `tanh` of one or minus one.
fn is_saturated(via: &Site, saturated: &[(&str, &str)]) -> bool {
    SHUT_AT_END.contains(&operator(via)) && saturated.contains(&place(via))
}

/// What a site's operator is called, whichever use of it in the layer this is.
fn operator(site: &Site) -> &str {
    site.operator.split('#').next().unwrap_or("")
}

/// Operators whose whole output is zero at this step.
fn dead_outputs<'a>(step: &Step, sites: &'a [SiteSummary]) -> Vec<(&'a str, &'a str)> {
    outputs(step, sites, |stats| stats.zeros == stats.count)
}

/// Operators whose whole output has one magnitude at this step, and is not zero.
fn saturated_outputs<'a>(step: &Step, sites: &'a [SiteSummary]) -> Vec<(&'a str, &'a str)> {
    outputs(step, sites, |stats| stats.zeros == 0 && stats.non_finite() == 0 && stats.min_abs == stats.max_abs)
}

fn outputs<'a>(step: &Step, sites: &'a [SiteSummary], are: impl Fn(&Stats) -> bool) -> Vec<(&'a str, &'a str)> {
    step.observations
        .iter()
        .filter(|o| o.stats.count > 0 && are(&o.stats))
        .filter_map(|o| sites.get(o.site.0 as usize))
        .filter(|s| s.site.probe == Probe::Activation)
        .map(|s| place(&s.site))
        .collect()
}
