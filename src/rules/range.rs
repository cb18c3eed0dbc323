//! How far a value that FP16 cannot hold reaches, and so what has to leave FP16: some layers, or the run.
//!
//! "Keep the layer in FP32" is right where the value is back in FP16's range when the layer hands it on. Else the next cast to FP16 overflows, or
//! rounds away, in its place:
//!
//! ```text
//! fc1 -> fc2 * 1e6 -> relu -> fc3 -> loss         never back: BF16, which has FP32's range
//! conv2 * 1e6 -> bn2 -> relu -> fc1               back behind the norm: conv2 and bn2
//! fc2 * 5000 / 5000 -> fc3                        back within the layer: fc2
//! ```
//!
//! Backward is the same the other way round, towards the input: nothing but a factor brings a gradient back, for a norm passes it on as it is.

use std::collections::BTreeSet;

mod remedies;
mod size;

pub(super) use self::remedies::{Naming, keep_in_range, without_factor};
use self::size::Size;
use super::graph::{Graph, Node};
use super::text::INPUT;
use crate::aggregate::{Aggregate, Origin};
use crate::observation::{Probe, Site};
use crate::scan::Stats;

/// More than these in FP32 and little of the run is left in FP16: then BF16 is the simpler cure.
const MOST_LAYERS: usize = 3;
/// From here on an activation is out of FP16's range, or nearly: three bits below its end, as rule `activation-near-overflow` has it.
const LARGE: f64 = 8192.0;
/// FP16's smallest normal number.
const SMALL: f64 = 6.103515625e-5;
/// A gradient that is within this factor of what it was before is back.
const BACK: f64 = 32.0;

/// Operators behind which forward and backward no longer know how large their input was.
const NORMALISES: [&str; 9] = [
    "batch_norm",
    "layer_norm",
    "native_layer_norm",
    "native_batch_norm",
    "group_norm",
    "instance_norm",
    "rms_norm",
    "softmax",
    "_softmax",
];
/// The epsilon that a normalisation has unless it is given another.
const USUAL_EPS: f64 = 1e-5;
/// Part of it that the square of what goes in may be for it to be swamped.
const SWAMPED: f64 = 1.0 / 64.0;
/// What a normalisation gives out has a root mean square of about its gain, 1 at first; its bias, of about 0.1, is left where the rest is swamped.
const ORDINARY: f64 = 0.5;

/// The normalisation behind this operator whose epsilon is all that it divides by: in any precision it hands on next to nothing of so small an input.
pub(super) fn swamped_behind(graph: &Graph<'_>, place: usize) -> Option<String> {
    let rms = |at: usize| graph.node(at).stats().rms().filter(|_| is_finite(graph.node(at).stats()));
    let is_tiny = |at: usize| rms(at).is_some_and(|rms| rms * rms < SWAMPED * USUAL_EPS);
    let (mut open, mut seen) = (Vec::from_iter(is_tiny(place).then_some(place)), BTreeSet::new());
    while let Some(at) = open.pop() {
        for next in graph.consumers(at).filter(|&next| seen.insert(next)) {
            let name = graph.node(next).name();
            let normalises = NORMALISES.contains(&name) && !name.contains("softmax");
            if normalises && rms(next).is_some_and(|rms| rms < ORDINARY) {
                return Some(graph.node(next).site().label());
            }
            open.extend(is_tiny(next).then_some(next));
        }
    }
    None
}

/// Products, which autocast runs in 16 bits whatever comes in.
const PRODUCTS: [&str; 12] = [
    "linear",
    "matmul",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "einsum",
    "scaled_dot_product_attention",
    "lstm",
    "gru",
    "rnn",
    "bilinear",
];

/// What has to leave FP16 so that a value is held everywhere that it reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// These layers, in the order of forward.
    Layers(Vec<String>),
    /// The run: where the value is back in range, if it is anywhere, is not known, or far away.
    Run,
}

/// Which way out of FP16's range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Out {
    /// Beyond 65504, or near it.
    Large,
    /// Below 6.1e-5.
    Small,
}

impl Reach {
    /// How far the activation of this site reaches, in the latest step.
    pub(super) fn of_activation(graph: &Graph<'_>, site: &Site, out: Out) -> Self {
        place_of(graph, site).map_or(Self::Run, |place| Self::of_output(graph, place, out))
    }

    /// How far the output of an operator reaches.
    pub(super) fn of_output(graph: &Graph<'_>, place: usize, out: Out) -> Self {
        let mut walk = Walk::new(graph);
        let size = Size::of(graph.node(place));
        if !walk.enter(place) {
            return Self::Run;
        }
        while let Some(at) = walk.open.pop() {
            let consumers: Vec<usize> = graph.consumers(at).collect();
            // As far as is known nobody took it: it went on unseen.
            if consumers.is_empty() {
                return Self::Run;
            }
            for next in consumers {
                let node = graph.node(next);
                let back =
                    NORMALISES.contains(&node.name()) && size.is_normal(node, out) || size.is_in_range(node, out);
                let holds = match back {
                    true => walk.pass(next),
                    false => !size.is_lost_in_sum(graph, next) && walk.enter(next),
                };
                if !holds || back && out == Out::Small && is_product(node) {
                    return Self::Run;
                }
            }
        }
        walk.reach(MOST_LAYERS)
    }

    /// How far the output of a layer's product reaches, whose weights FP16 cannot hold; the layer alone, where the output itself is in range.
    pub(super) fn of_product(graph: &Graph<'_>, layer: &str) -> Self {
        let product = graph.iter().find(|(_, node)| node.site().layer == layer && is_product(*node));
        match product.map(|(at, node)| (at, node.stats())) {
            Some((at, stats)) if !is_finite(stats) || stats.max_abs >= LARGE => Self::of_output(graph, at, Out::Large),
            Some((at, stats)) if stats.max_abs < SMALL => Self::of_output(graph, at, Out::Small),
            _ => Self::Layers(vec![layer.to_owned()]),
        }
    }

    /// The layers of all operators from one to another that takes its output.
    pub(super) fn of_path(graph: &Graph<'_>, from: usize, to: usize) -> Self {
        let mut walk = Walk::new(graph);
        let mut held = walk.enter(from);
        while let Some(at) = walk.open.pop() {
            let next: Vec<usize> = graph.consumers(at).filter(|&next| next <= to && graph.leads_to(next, to)).collect();
            held &= next.into_iter().all(|next| walk.enter(next));
        }
        if held { walk.reach(MOST_LAYERS) } else { Self::Run }
    }

    /// How far the gradient reaches that the backward of this operator hands on, towards the input.
    pub(super) fn of_gradient_from(graph: &Graph<'_>, via: &Site) -> Self {
        let Some(place) = place_of(graph, via) else { return Self::Run };
        let mut walk = Walk::new(graph);
        let factor = backward_factor(graph.node(place)).unwrap_or(f64::INFINITY);
        if walk.pass(place) && before(&mut walk, place, factor) { walk.reach(MOST_LAYERS - 1) } else { Self::Run }
    }

    /// How far a gradient reaches, by its own site: that of a parameter is handed on to nobody.
    pub(super) fn of_gradient(graph: &Graph<'_>, site: &Site) -> Self {
        if site.probe == Probe::ParamGrad {
            return Self::Layers(vec![site.layer.clone()]);
        }
        let Some(place) = place_of(graph, site) else { return Self::Run };
        let mut walk = Walk::new(graph);
        let held = walk.enter(place) && before(&mut walk, place, f64::INFINITY);
        if held { walk.reach(MOST_LAYERS - 1) } else { Self::Run }
    }

    /// How far a gradient reaches that was the first to overflow: from the operator whose backward made it, where that is known.
    pub(super) fn of_origin(aggregate: &Aggregate, origin: &Origin) -> Self {
        let site = |id| aggregate.site(id).map(|s| &s.site);
        let graph = Graph::of(aggregate);
        match (origin.via.and_then(site), site(origin.site)) {
            (Some(via), _) => Self::of_gradient_from(&graph, via),
            (None, Some(own)) => Self::of_gradient(&graph, own),
            (None, None) => Self::Run,
        }
    }
}

/// Goes on from an operator whose inputs are handed a gradient that is `factor` times too large, or too small; false where it cannot be kept in FP32.
fn before(walk: &mut Walk<'_, '_>, place: usize, factor: f64) -> bool {
    let mut open = vec![(place, factor)];
    while let Some((at, factor)) = open.pop() {
        if (BACK.recip()..=BACK).contains(&factor) {
            continue;
        }
        for input in 0..walk.graph.inputs(at).len() {
            let Some(made) = walk.graph.made(at, input).filter(|made| !walk.seen.contains(made)) else { continue };
            if !walk.pass(made) {
                return false;
            }
            open.push((made, factor * backward_factor(walk.graph.node(made)).unwrap_or(1.0)));
        }
    }
    true
}

/// What an operator with a number multiplies a gradient by.
fn backward_factor(node: Node<'_>) -> Option<f64> {
    let number = node.argument().map(f64::abs).filter(|&number| number > 0.0)?;
    match node.name() {
        "mul" | "multiply" => Some(number),
        "div" | "true_divide" | "divide" => Some(1.0 / number),
        _ => None,
    }
}

fn is_finite(stats: &Stats) -> bool {
    stats.non_finite() == 0
}

/// The operators on the way, and the layers to name for them.
struct Walk<'g, 'a> {
    graph: &'g Graph<'a>,
    open: Vec<usize>,
    seen: BTreeSet<usize>,
    layers: BTreeSet<(usize, String)>,
}

impl<'g, 'a> Walk<'g, 'a> {
    fn new(graph: &'g Graph<'a>) -> Self {
        Self { graph, open: Vec::new(), seen: BTreeSet::new(), layers: BTreeSet::new() }
    }

    /// Takes an operator in and goes on from it; false where it has no layer that could be kept in FP32.
    fn enter(&mut self, place: usize) -> bool {
        if !self.seen.contains(&place) {
            self.open.push(place);
        }
        self.pass(place)
    }

    /// Takes an operator in.
    fn pass(&mut self, place: usize) -> bool {
        let node = self.graph.node(place);
        let layer = &node.site().layer;
        let first = self.seen.is_empty();
        self.seen.insert(place);
        let has_parameters =
            self.graph.inputs(place).iter().flatten().any(|i| matches!(i, super::graph::Input::Param(_)));
        // What has no parameters and multiplies no matrices computes in the dtype of what comes in, and needs no name.
        let must_be_named =
            first || node.is_fp16() && (has_parameters || is_product(node) || self.owns_parameters(layer));
        if !must_be_named {
            return true;
        }
        if layer.is_empty() || layer == INPUT {
            return false;
        }
        self.layers.insert((self.order(layer), layer.clone()));
        true
    }

    fn owns_parameters(&self, layer: &str) -> bool {
        self.graph.iter().any(|(at, node)| {
            node.site().layer == layer
                && self.graph.inputs(at).iter().flatten().any(|i| matches!(i, super::graph::Input::Param(_)))
        })
    }

    /// Where a layer comes in forward.
    fn order(&self, layer: &str) -> usize {
        self.graph.iter().find(|(_, node)| node.site().layer == layer).map_or(0, |(at, _)| at)
    }

    /// The layers, without those that a module among them holds.
    fn reach(self, most: usize) -> Reach {
        let within = |path: &str, around: &str| path.strip_prefix(around).is_some_and(|rest| rest.starts_with('.'));
        let all: Vec<&String> = self.layers.iter().map(|(_, layer)| layer).collect();
        let kept = all.iter().filter(|layer| !all.iter().any(|around| within(layer, around)));
        let kept: Vec<String> = kept.map(|layer| (*layer).clone()).collect();
        if kept.is_empty() || kept.len() > most { Reach::Run } else { Reach::Layers(kept) }
    }
}

fn is_product(node: Node<'_>) -> bool {
    PRODUCTS.contains(&node.name()) || node.name().contains("conv")
}

/// The operator of a site, in the latest step.
fn place_of(graph: &Graph<'_>, site: &Site) -> Option<usize> {
    graph
        .iter()
        .find(|(_, node)| node.site().layer == site.layer && node.site().operator == site.operator)
        .map(|(at, _)| at)
}

#[cfg(test)]
mod tests;
