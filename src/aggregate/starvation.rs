//! What FP16 did to each gradient of one step, read in the order of backward.
//!
//! A gradient that is all zero has no histogram to judge. Three things tell a starved one from one that is zero by design (a gate that starts
//! at zero, dead units, a frozen branch): it was non-zero before; the gradient it was computed from was itself starved; or that gradient was so
//! small already that the next operation had to round it away.
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
const SHUT_BY_FACTOR: [&str; 6] = ["mul", "mul_", "dropout", "native_dropout", "where", "masked_fill"];
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
pub(super) fn judge(step: &Step, sites: &[SiteSummary]) -> Vec<Option<Underflow>> {
    let site = |id: SiteId| sites.get(id.0 as usize);
    let dead = dead_outputs(step, sites);
    let mut by_place: BTreeMap<(&str, &str), Incoming<'_>> = BTreeMap::new();
    let mut previous: Option<Incoming<'_>> = None;
    let mut delivered = false;
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
        let is_dead = via.is_some_and(|v| is_shut(v, &summary.site, &dead));
        let nothing_to_deliver = step.loss == Some(0.0) || incoming.is_some_and(|g| g.by_design);
        let underflow = judge_one(
            summary,
            observation,
            via,
            incoming,
            is_dead || nothing_to_deliver,
            delivered || previous.is_none(),
        );
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
        delivered |= observation.stats.max_abs > 0.0;
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
    delivered: bool,
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
        && (became_zero(summary, delivered) || incoming.is_some_and(|g| rounds_away(stats, via, g)));
    starved.then_some(Underflow::ALL_LOST)
}

/// Non-zero before, zero now, although backward brought something up to here. Not only the gradient right before counts: a factor may have been put
/// between the two just now, and has no history of its own.
fn became_zero(summary: &SiteSummary, delivered: bool) -> bool {
    summary.nonzero_samples > 0 && delivered
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
    let name = via.operator.split('#').next().unwrap_or("");
    let shuts = SHUT_BY_SIGN.contains(&name) || SHUT_BY_FACTOR.contains(&name) && !zero_outputs.contains(&place(here));
    shuts && zero_outputs.contains(&place(via))
}

/// Operators whose whole output is zero at this step.
fn dead_outputs<'a>(step: &Step, sites: &'a [SiteSummary]) -> Vec<(&'a str, &'a str)> {
    step.observations
        .iter()
        .filter(|o| o.stats.count > 0 && o.stats.zeros == o.stats.count)
        .filter_map(|o| sites.get(o.site.0 as usize))
        .filter(|s| s.site.probe == Probe::Activation)
        .map(|s| place(&s.site))
        .collect()
}
