//! ## What it finds
//!
//! Operators that give zeros because of FP16, although what went in is not zero: a division by something that overflowed to infinity, or results too
//! small for FP16.
//!
//! ## Why it matters
//!
//! Nothing turns NaN. The loss is finite, the scaler sees nothing, the step is applied, and the layers behind get zeros. A layer norm written by hand
//! in FP16 does it as soon as one value stands 256 from the mean: its square is infinite, so is the variance, and x / inf is 0.
//!
//! ## How it decides
//!
//! By what went into the operator; zeros alone prove nothing:
//!
//! * **Error**, at once: the divisor (or what a root or a reciprocal was taken of) holds infinities, and half or more of the output is zero while it
//!   is finite. **Warning** where it is less than half.
//! * **Warning**, in 3 scanned steps in a row: an FP16 output of 64 elements or more that is zero throughout, while no input is, and the largest
//!   product, power, quotient or cast that these inputs can give lies below 2^-25, which FP16 rounds to zero. Or an exponential or a sigmoid, never
//!   zero in exact arithmetic, that is zero throughout.
//!
//! The layer named is the one in which the infinity was born, or the number became too small.
//!
//! ## What to do
//!
//! Compute that operator in FP32: cast its input first, `x.to_kind(Kind::Float)`, inside `no_autocast`. In place of a layer norm by hand take the
//! library's, `nn::layer_norm` or `x.layer_norm(..)`: it adds up in FP32 whatever its input is.
//!
//! ## When it stays silent
//!
//! On zeros by design: ReLU and its kin, dropout, masks, products with a gate or a gain that is zero, weights that begin at zero. On zeros whose inputs were not recorded.

use super::graph::{Graph, Input, Node};
use super::range::{Out, Reach};
use super::text::{base_name, counted, layer_name, measured, number, power_of_two, said, share};
use super::{Firing, Limits, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, FEWEST_ELEMENTS, Sample, SiteSummary};
use crate::observation::{Observation, Probe};
use crate::scan::{Dtype, Stats};

/// See the page of the rule.
pub struct SilentZeros;

static INFO: RuleInfo = RuleInfo {
    code: "AMP105",
    name: "silent-zeros",
    severity: Severity::Error,
    summary: "An operator gives zeros although its input is not zero: divided by an infinity, or too small for FP16.",
    source: include_str!("silent_zeros.rs"),
};

static MOST: Threshold = Threshold {
    rule: "silent-zeros",
    name: "zero-share",
    default: 0.5,
    unit: "share of the elements",
    reason: "Where a divisor is infinite the zeros are certain whatever their number; from half of the layer on little is left of it.",
};

static SAMPLES: Threshold = Threshold {
    rule: "silent-zeros",
    name: "samples",
    default: 3.0,
    unit: "scanned steps in a row",
    reason: "A batch may be small by chance; 3 in a row is what the rules on underflow take, which never alarmed on 28 healthy runs.",
};

/// Half of FP16's smallest number: this and all below it is rounded to zero.
const ROUNDS_TO_ZERO: f64 = 2.980232238769531e-8;
/// Operators that divide.
const DIVIDES: [&str; 3] = ["div", "true_divide", "divide"];
/// Operators that give zero of an infinity.
const INVERTS: [&str; 2] = ["rsqrt", "reciprocal"];
/// Operators that are zero for no finite number.
const POSITIVE: [&str; 3] = ["exp", "exp2", "sigmoid"];
/// Operators that keep the numbers and change their format.
const CASTS: [&str; 3] = ["to", "_to_copy", "type_as"];

impl Rule for SilentZeros {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn thresholds(&self) -> &'static [Threshold] {
        static ALL: [Threshold; 2] = [MOST, SAMPLES];
        &ALL
    }

    fn thresholds_by_layer(&self) -> &'static [&'static str] {
        &["zero-share", "samples"]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        if !aggregate.latest_observations().any(|(o, s)| is_candidate(o, s)) {
            return Vec::new();
        }
        let graph = Graph::of(aggregate);
        let step = aggregate.latest.as_ref().map_or(0, |s| s.index);
        let mut firings: Vec<Firing> = Vec::new();
        for (place, node) in graph.iter() {
            let Some(why) = why(&graph, place, node, limits) else { continue };
            let firing = firing(aggregate, &graph, place, &why, step, limits);
            // Of one layer the first, where it begins.
            if firings.iter().all(|f| f.layer != firing.layer) {
                firings.push(firing);
            }
        }
        firings.into_iter().map(|f| Verdict::Firing(Box::new(f))).collect()
    }
}

/// Whether an output is one that the graph is needed for: ReLU leaves zeros in nearly every step.
fn is_candidate(observation: &Observation, summary: &SiteSummary) -> bool {
    let (site, stats) = (&summary.site, &observation.stats);
    let name = || base_name(&site.operator).trim_end_matches('_');
    let all_zero = || stats.zeros == stats.count && stats.count >= FEWEST_ELEMENTS && site.dtype == Dtype::F16;
    let divides = || DIVIDES.contains(&name()) || INVERTS.contains(&name()) || name() == "pow";
    site.probe == Probe::Activation
        && stats.zeros > 0
        && stats.non_finite() == 0
        && observation.provenance.is_some()
        && (all_zero() || divides())
}

/// Why an output is zero.
enum Why {
    /// The place of what it was divided by, or of what it was made the inverse of.
    Infinite(usize),
    /// The largest magnitude that the inputs can give.
    TooSmall(f64),
    /// Zero is none of its values.
    Impossible,
}

fn why(graph: &Graph<'_>, place: usize, node: Node<'_>, limits: &Limits) -> Option<Why> {
    let stats = node.stats();
    if stats.zeros == 0 || stats.non_finite() > 0 {
        return None;
    }
    if let Some(infinite) = infinite_divisor(graph, place, node) {
        return Some(Why::Infinite(infinite));
    }
    let samples = limits.at(&SAMPLES, &node.site().layer) as usize;
    let zero = |s: &Sample| s.stats.zeros == s.stats.count;
    let lasts = stats.count >= FEWEST_ELEMENTS && node.summary.last(samples)?.all(zero);
    if !lasts || !node.is_fp16() {
        return None;
    }
    if POSITIVE.contains(&node.name()) {
        return graph.input(place, 0).filter(|i| graph.stats(*i).non_finite() == 0).map(|_| Why::Impossible);
    }
    largest_result(graph, place, node).filter(|&most| most > 0.0 && most <= ROUNDS_TO_ZERO).map(Why::TooSmall)
}

fn infinite_divisor(graph: &Graph<'_>, place: usize, node: Node<'_>) -> Option<usize> {
    let index = match node.name() {
        name if DIVIDES.contains(&name) => 1,
        name if INVERTS.contains(&name) => 0,
        "pow" if node.argument().is_some_and(|exponent| exponent < 0.0) => 0,
        _ => return None,
    };
    let is_infinite = |at: &usize| {
        let stats = graph.node(*at).stats();
        stats.pos_inf + stats.neg_inf > 0 && stats.nan == 0
    };
    let divisor = graph.made(place, index).filter(is_infinite)?;
    let divides_something = index == 0 || graph.input(place, 0).is_none_or(|i| graph.stats(i).max_abs > 0.0);
    divides_something.then_some(divisor)
}

/// The largest magnitude that an operator can make of its inputs; `None` where they are not all known, or one of them is zero by itself.
fn largest_result(graph: &Graph<'_>, place: usize, node: Node<'_>) -> Option<f64> {
    let known: Option<Vec<&Stats>> =
        graph.inputs(place).iter().map(|input: &Option<Input<'_>>| input.map(|i| graph.stats(i))).collect();
    let known = known?;
    if known.is_empty() || known.iter().any(|s| s.non_finite() > 0 || s.max_abs == 0.0) {
        return None;
    }
    let (first, argument) = (known[0].max_abs, node.argument().map(f64::abs));
    match (node.name(), known.len()) {
        ("mul" | "multiply", 2) => Some(first * known[1].max_abs),
        ("mul" | "multiply", 1) => Some(first * argument?),
        (name, 1) if DIVIDES.contains(&name) => Some(first / argument.filter(|&a| a > 0.0)?),
        (name, 2) if DIVIDES.contains(&name) => Some(first / known[1].min_abs),
        ("square", 1) => Some(first * first),
        ("pow", 1) => Some(first.powf(node.argument().filter(|&e| e > 1.0)?)),
        ("matmul" | "bmm" | "mm", 2) => {
            // A sum of as many products as the smaller factor has elements, at most.
            Some(first * known[1].max_abs * known[0].count.min(known[1].count) as f64)
        }
        (name, 1) if CASTS.contains(&name) => Some(first),
        _ => None,
    }
}

fn firing(aggregate: &Aggregate, graph: &Graph<'_>, place: usize, why: &Why, step: u64, limits: &Limits) -> Firing {
    let node = graph.node(place);
    let (site, stats) = (node.site(), node.stats());
    let zero_share = stats.zeros as f64 / stats.count.max(1) as f64;
    let all = if stats.zeros == stats.count { "only zeros".to_owned() } else { format!("{} zeros", share(zero_share)) };
    let mut evidence = vec![counted("zeros", stats.zeros), counted("elements", stats.count)];
    let mut layer = &site.layer;
    let (reason, remedy) = match *why {
        Why::Infinite(divisor) => {
            let birth = graph.birth_of_infinity(divisor);
            let born = graph.node(birth);
            layer = &born.site().layer;
            evidence.extend([
                said("divided_by", graph.node(divisor).site().label()),
                said("overflowed_in", born.site().label()),
                counted("infinite_elements_there", born.stats().pos_inf + born.stats().neg_inf),
            ]);
            (
                format!(
                    "what it divides by, `{}`, is infinite, for `{}` exceeds 65504, the end of FP16. A number divided by infinity is 0, and no NaN tells of it",
                    graph.node(divisor).site().label(),
                    born.site().label()
                ),
                Reach::of_path(graph, birth, place).set(
                    Remedy::from(format!(
                        "Compute `{}` of layer `{}` and what follows from it up to `{}` in FP32: convert its input first. Where it is a norm written by hand, the \
                         library's own adds up in FP32 whatever its input is held in.",
                        born.site().operator,
                        layer_name(born.site()),
                        site.operator
                    )),
                    aggregate,
                ),
            )
        }
        Why::TooSmall(most) => {
            evidence.push(measured("largest_possible", most));
            (
                format!(
                    "none of its inputs is zero, but the largest that they can give is {} ({}), and FP16 rounds what is no larger than 2^-25 to zero",
                    number(most),
                    power_of_two(most)
                ),
                in_fp32(aggregate, graph, place),
            )
        }
        Why::Impossible => (
            "its inputs are finite, for which it is never zero: the true result lies below 2^-25, which FP16 rounds to zero".to_owned(),
            in_fp32(aggregate, graph, place),
        ),
    };
    let grave = matches!(why, Why::Infinite(_)) && zero_share >= limits.at(&MOST, &site.layer);
    Firing {
        severity: if grave { Severity::Error } else { Severity::Warning },
        layer: layer.clone(),
        operator: site.operator.clone(),
        probe: Some(Probe::Activation),
        since: since(node, step, why),
        strength: zero_share,
        evidence,
        explanation: format!(
            "`{}` gives {all} in {} elements although what goes in is not zero: {reason}. What lies behind it learns nothing from this layer.",
            site.label(),
            stats.count
        ),
        remedy,
    }
}

/// The step at which it began: an underflow is told at its third sample.
fn since(node: Node<'_>, step: u64, why: &Why) -> u64 {
    if matches!(why, Why::Infinite(_)) {
        return step;
    }
    let zero = |s: &&Sample| s.stats.zeros == s.stats.count;
    node.summary.recent.iter().rev().take_while(zero).last().map_or(step, |s| s.step)
}

fn in_fp32(aggregate: &Aggregate, graph: &Graph<'_>, place: usize) -> Remedy {
    let (site, reach) = (graph.node(place).site(), Reach::of_output(graph, place, Out::Small));
    let text = format!(
        "Scale what goes into `{}` of layer `{}` so that its result is a normal number of FP16 (above 6e-5), or {}.",
        site.operator,
        layer_name(site),
        reach.clause(aggregate)
    );
    reach.set(text.into(), aggregate)
}

#[cfg(test)]
mod tests;
