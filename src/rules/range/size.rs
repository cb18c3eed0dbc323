//! Whether a value is back in FP16's range, in an operator on its way.

use std::collections::BTreeSet;

use super::super::graph::{Graph, Node};
use super::super::text::base_name;
use super::{LARGE, Out, SMALL, is_finite};
use crate::aggregate::Sample;

/// How much larger than it was when last finite an activation may be that has become infinite.
const GROWN: f64 = 8.0;

/// What is known of how large a value is along the way.
pub(super) struct Size {
    /// The step at which the first operator was last finite and already large: the others stood in proportion then.
    near: Option<u64>,
    is_finite: bool,
}

impl Size {
    pub(super) fn of(node: Node<'_>) -> Self {
        let was_near = |s: &&Sample| s.stats.non_finite() == 0 && s.stats.max_abs >= LARGE;
        Self {
            near: node.summary.recent.iter().rev().find(was_near).map(|s| s.step),
            is_finite: node.stats().non_finite() == 0,
        }
    }

    pub(super) fn is_in_range(&self, node: Node<'_>, out: Out) -> bool {
        match out {
            Out::Small => is_finite(node.stats()) && node.stats().max_abs >= SMALL,
            Out::Large if self.is_finite => is_finite(node.stats()) && node.stats().max_abs < LARGE,
            Out::Large => is_finite(node.stats()) || self.was_small_beside(node),
        }
    }

    /// Whether it was far from FP16's end when what went in was near it.
    fn was_small_beside(&self, node: Node<'_>) -> bool {
        let then = node.summary.recent.iter().find(|s| Some(s.step) == self.near);
        then.is_some_and(|s| is_finite(&s.stats) && s.stats.max_abs * GROWN < LARGE)
    }

    /// Whether a norm makes an ordinary number of it: its epsilon may be what is left of a small one.
    pub(super) fn is_normal(&self, node: Node<'_>, out: Out) -> bool {
        out == Out::Large || node.stats().max_abs >= SMALL
    }

    /// Whether it joins a stream of other values that are small beside it by nobody knows how much: then their gradients are, too.
    pub(super) fn is_lost_in_sum(&self, graph: &Graph<'_>, place: usize) -> bool {
        let adds = ["add", "add_"].contains(&base_name(&graph.node(place).site().operator));
        let made = (0..graph.inputs(place).len()).filter_map(|input| graph.made(place, input)).collect::<BTreeSet<_>>();
        let apart = made.iter().any(|&at| is_finite(graph.node(at).stats()));
        adds && made.len() > 1 && apart && !self.is_finite && self.near.is_none()
    }
}
