//! ## What it finds
//!
//! An operator that autocast on a GPU would have run in FP32, run in FP16, where it did harm: its result overflowed, or it gave an exact 0 or 1 of
//! which a logarithm was taken, or its input was cast to FP16 by hand and that rounding alone changes the result by percents.
//!
//! ## Why it matters
//!
//! Autocast keeps `exp`, `log`, `pow`, `softmax`, norms and sums in FP32 because FP16 has no room for them: a sum of 65,520 ones is infinite, and so
//! is exp(12); sigmoid(9) is exactly 1, and log(1 - 1) is -inf; a score of 300 is rounded to the nearest quarter, and an eighth more or less in the
//! exponent changes a probability by 13 %. A cast by hand undoes that care.
//!
//! ## How it decides
//!
//! The name of the operator alone decides nothing: LibTorch's CPU autocast leaves softmax and layer norms in FP16, adds up in FP32 inside, and does
//! no harm. It takes evidence:
//!
//! * **Error**: the FP16 result of such an operator holds an infinity although its inputs are finite. (Other operators: rule `activation-overflow`.)
//! * **Error**: a logarithm gave -inf, and the exact 0, or the exact 1 that was subtracted from 1, came out of a sigmoid or a softmax in FP16.
//! * **Warning**: an exponential or a softmax takes FP16 that was cast by hand from FP32, and the largest value is so large that rounding it changes
//!   the result by 1 % or more.
//!
//! ## What to do
//!
//! Ask for an FP32 result, `x.softmax(-1, Kind::Float)`, `x.sum(Kind::Float)`, or cast the input first: `x.to_kind(Kind::Float).exp()`. Better still,
//! use the fused forms: `log_softmax`, `cross_entropy_for_logits`, `binary_cross_entropy_with_logits`, `logsumexp`.
//!
//! ## When it stays silent
//!
//! On these operators in FP16 without evidence of harm. On FP32 and BF16. On infinities of masks. On the logarithm of a zero that FP16 did not make:
//! that is rule `non-finite-origin`.

use super::graph::{Graph, Node};
use super::range::{Reach, keep_in_range};
use super::text::{base_name, counted, is_pole, layer_name, measured, number, said, share};
use super::{Firing, Limits, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Origin, SiteSummary};
use crate::observation::{INPUT, Observation, Probe, Site};
use crate::scan::Dtype;

/// See the page of the rule.
pub struct UnsafeOperator;

static INFO: RuleInfo = RuleInfo {
    code: "AMP106",
    name: "unsafe-operator",
    severity: Severity::Error,
    summary: "An operator that belongs in FP32 ran in FP16 and did harm: overflow, saturation into a logarithm, rounding.",
    source: include_str!("unsafe_operator.rs"),
};

static ROUNDING: Threshold = Threshold {
    rule: "unsafe-operator",
    name: "rounding-error",
    default: 0.01,
    unit: "relative error of the largest exponentials",
    reason: "FP16's own rounding is 0.05 %; from 1 % on a probability is plainly wrong. The error is 2^(floor(log2 max) - 11), where max is the largest value.",
};

/// What CUDA's autocast runs in FP32.
const FP32_LIST: [&str; 38] = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow",
    "softplus",
    "layer_norm",
    "group_norm",
    "norm",
    "cosine_similarity",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "mse_loss",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "prod",
    "softmax",
    "log_softmax",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "sum",
    "huber_loss",
];
/// Operators whose relative error is the absolute error of their input.
const EXPONENTIALS: [&str; 8] =
    ["exp", "expm1", "exp2", "softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp"];
/// Operators whose results lie between 0 and 1, and reach them in FP16.
const SATURATES: [&str; 3] = ["sigmoid", "softmax", "_softmax"];
/// Operators through which an exact 0 or 1 goes to a logarithm.
const PASSES: [&str; 16] = [
    "to",
    "_to_copy",
    "neg",
    "add",
    "sub",
    "rsub",
    "clamp",
    "clamp_min",
    "clamp_max",
    "mul",
    "gather",
    "select",
    "index_select",
    "view",
    "reshape",
    "squeeze",
];
const LOGARITHMS: [&str; 4] = ["log", "log2", "log10", "log1p"];
const CASTS: [&str; 3] = ["to", "_to_copy", "type_as"];
/// Operators looked through, one behind the other.
const DEPTH: usize = 6;
/// What FP16 rounds to zero when it is added to a probability.
const VANISHING: f64 = 2.980232238769531e-8;

/// Whether autocast would have run this operator in FP32: where it overflows in FP16 it is this rule's.
pub(super) fn is_listed(operator: &str) -> bool {
    FP32_LIST.contains(&base_name(operator).trim_end_matches('_'))
}

impl Rule for UnsafeOperator {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn thresholds(&self) -> &'static [Threshold] {
        std::slice::from_ref(&ROUNDING)
    }

    fn thresholds_by_layer(&self) -> &'static [&'static str] {
        &["rounding-error"]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        let mut firings: Vec<Firing> = overflows(aggregate).collect();
        if aggregate.latest_observations().any(|(o, s)| is_suspicious(aggregate, o, s)) {
            let graph = Graph::of(aggregate);
            let step = aggregate.latest.as_ref().map_or(0, |s| s.index);
            firings.extend(graph.iter().filter_map(|(place, node)| {
                saturated(aggregate, &graph, place, step).or_else(|| rounded(&graph, place, node, step, limits))
            }));
        }
        firings.into_iter().map(|f| Verdict::Firing(Box::new(f))).collect()
    }
}

/// Whether an operator may be one that the graph is needed for.
fn is_suspicious(aggregate: &Aggregate, observation: &Observation, summary: &SiteSummary) -> bool {
    let name = base_name(&summary.site.operator).trim_end_matches('_');
    let first_input = || observation.provenance.as_ref().and_then(|p| p.inputs.first().copied().flatten());
    let of_a_cast = || {
        let site = first_input().and_then(|id| aggregate.site(id));
        site.is_some_and(|s| CASTS.contains(&base_name(&s.site.operator)))
    };
    summary.site.probe == Probe::Activation
        && observation.provenance.is_some()
        && (LOGARITHMS.contains(&name) && observation.stats.neg_inf > 0
            || summary.site.dtype == Dtype::F16 && EXPONENTIALS.contains(&name) && of_a_cast())
}

fn overflows(aggregate: &Aggregate) -> impl Iterator<Item = Firing> + '_ {
    let origins = aggregate.non_finite.latest.overflows.iter();
    let with_site = origins.filter_map(|o| Some((o, aggregate.site(o.site)?)));
    with_site
        .filter(|(o, s)| {
            s.site.dtype == Dtype::F16 && o.inf > 0 && is_listed(&s.site.operator) && !is_pole(&s.site.operator)
        })
        .map(|(o, s)| overflow(aggregate, o, s))
}

fn overflow(aggregate: &Aggregate, origin: &Origin, summary: &SiteSummary) -> Firing {
    let site = &summary.site;
    let graph = Graph::of(aggregate);
    let place = graph.iter().find(|(_, node)| node.observation.site == origin.site && node.stats().non_finite() > 0);
    let input = place.and_then(|(at, _)| graph.made(at, 0)).map(|at| graph.node(at));
    let mut evidence =
        vec![said("evidence", "overflow"), counted("infinite_elements", origin.inf), counted("elements", origin.count)];
    evidence.extend(input.iter().flat_map(|node| {
        [measured("input_max_abs", node.stats().max_abs), counted("input_elements", node.stats().count)]
    }));
    let of = input.map_or(String::new(), |node| {
        format!(", of {} elements up to {}", node.stats().count, number(node.stats().max_abs))
    });
    let who = if site.layer == INPUT { "before the model" } else { "in forward" };
    firing(
        site,
        Severity::Error,
        aggregate.non_finite.onset(origin),
        origin.inf as f64 / origin.count.max(1) as f64,
        evidence,
        format!(
            "`{}` ran in FP16 and made {} of {} results infinite out of finite inputs{of}, {who}: autocast keeps `{}` in FP32, because its results exceed 65504 so \
             easily. No loss scale can help.",
            site.label(),
            origin.inf,
            origin.count,
            base_name(&site.operator),
        ),
        keep_in_range(aggregate, &graph, site),
    )
}

/// A logarithm of an exact zero that FP16 made.
fn saturated(aggregate: &Aggregate, graph: &Graph<'_>, place: usize, step: u64) -> Option<Firing> {
    let node = graph.node(place);
    if !LOGARITHMS.contains(&node.name()) || node.stats().neg_inf == 0 {
        return None;
    }
    let (mut at, mut complement, mut epsilon) = (graph.made(place, 0)?, false, None);
    for _ in 0..DEPTH {
        let now = graph.node(at);
        if SATURATES.contains(&now.name()) {
            let input = graph.input(at, 0).map(|input| graph.stats(input).max_abs);
            let keep = holds_in_fp32(now.name(), input, epsilon).then(|| Reach::of_path(graph, at, place));
            return saturation(aggregate, now, node, complement, epsilon, keep, step);
        }
        if !PASSES.contains(&now.name()) {
            return None;
        }
        complement |= ["neg", "sub", "rsub"].contains(&now.name());
        epsilon = epsilon.or(now.argument().filter(|a| *a > 0.0 && *a <= VANISHING));
        at = graph.made(at, 0).or_else(|| graph.made(at, 1))?;
    }
    None
}

/// Whether the result is exact in FP32 no more: its sigmoid is 1 from 17 on, its exponential 0 from -103 on, and an epsilon is none of FP16's.
fn holds_in_fp32(operator: &str, largest_input: Option<f64>, epsilon: Option<f64>) -> bool {
    let most = if operator == "sigmoid" { 16.0 } else { 50.0 };
    epsilon.is_some_and(|e| e > f64::from(f32::MIN_POSITIVE)) || largest_input.is_some_and(|most_seen| most_seen < most)
}

fn saturation(
    aggregate: &Aggregate,
    source: Node<'_>,
    log: Node<'_>,
    complement: bool,
    epsilon: Option<f64>,
    keep: Option<Reach>,
    step: u64,
) -> Option<Firing> {
    let (site, stats) = (source.site(), source.stats());
    let (exact, is_there) = if complement { ("1", stats.max_abs == 1.0) } else { ("0", stats.zeros > 0) };
    if !source.is_fp16() || !is_there {
        return None;
    }
    let vanished =
        epsilon.map_or(String::new(), |e| format!(" The {} that is added before it is 0 in FP16.", number(e)));
    let fused = match source.name() {
        "sigmoid" => "`binary_cross_entropy_with_logits` on what goes into the sigmoid",
        _ => "`log_softmax`, or cross-entropy on logits",
    };
    Some(firing(
        site,
        Severity::Error,
        step,
        log.stats().neg_inf as f64,
        vec![
            said("evidence", "saturation"),
            said("exact_value", exact),
            said("logarithm", log.site().label()),
            counted("infinite_elements", log.stats().neg_inf),
            counted("exact_zeros", stats.zeros),
            counted("elements", stats.count),
        ],
        format!(
            "`{}` ran in FP16 and gave an exact {exact}, and `{}` took the logarithm of an exact 0: {} of {} elements are -inf. FP16 rounds what lies within 2^-12 of 1 to 1, and what lies \
             below 2^-25 to 0.{vanished}",
            site.label(),
            log.site().label(),
            log.stats().neg_inf,
            log.stats().count,
        ),
        saturation_remedy(aggregate, site, fused, exact, keep),
    ))
}

fn saturation_remedy(aggregate: &Aggregate, site: &Site, fused: &str, exact: &str, keep: Option<Reach>) -> Remedy {
    let fused = format!("Use {fused}: the fused form never makes the exact {exact}.");
    match keep {
        Some(reach @ Reach::Layers(_)) => {
            let text = format!(
                "{fused} Or {}: in FP32 `{}` does not reach it, and an epsilon of 1e-8 is one; FP16 needs 1e-4.",
                reach.clause(aggregate),
                site.operator
            );
            reach.set(text.into(), aggregate)
        }
        _ => fused.into(),
    }
}

/// An exponential of FP16 that was cast by hand, too large for its rounding to be harmless.
fn rounded(graph: &Graph<'_>, place: usize, node: Node<'_>, step: u64, limits: &Limits) -> Option<Firing> {
    if !EXPONENTIALS.contains(&node.name()) || !node.is_fp16() {
        return None;
    }
    let cast = graph.made(place, 0)?;
    let (half, full) = (graph.node(cast), graph.node(graph.made(cast, 0)?));
    let by_hand = CASTS.contains(&half.name()) && half.is_fp16() && full.site().dtype == Dtype::F32;
    let largest = half.stats().max_abs;
    if !by_hand || largest < 1.0 {
        return None;
    }
    // Half of the spacing in the octave of the largest.
    let error = (largest.log2().floor() - 11.0).exp2();
    let site = node.site();
    (error >= limits.at(&ROUNDING, &site.layer)).then(|| {
        firing(
            site,
            Severity::Warning,
            step,
            error,
            vec![
                said("evidence", "rounding"),
                measured("input_max_abs", largest),
                measured("rounding_error", error),
                said("cast_from", full.site().label()),
            ],
            format!(
                "`{}` runs in FP16 on what was FP32 before it was cast by hand (`{}`). At {} FP16 rounds by up to {}, which is an error of {} in the exponential of it: autocast keeps `{}` in \
                 FP32.",
                site.label(),
                full.site().label(),
                number(largest),
                number(error),
                share(error),
                node.name(),
            ),
            Remedy::from(format!(
                "Leave the cast to FP16 before `{}` of layer `{}` out: compute it in FP32, and cast its result.",
                site.operator,
                layer_name(site)
            ))
            .in_fp32(&site.layer),
        )
    })
}

fn firing(
    site: &Site,
    severity: Severity,
    since: u64,
    strength: f64,
    evidence: Vec<super::Evidence>,
    explanation: String,
    remedy: impl Into<Remedy>,
) -> Firing {
    Firing {
        severity,
        layer: site.layer.clone(),
        operator: site.operator.clone(),
        probe: Some(Probe::Activation),
        since,
        strength,
        evidence,
        explanation,
        remedy: remedy.into(),
    }
}

#[cfg(test)]
mod tests;
