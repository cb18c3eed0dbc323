//! The operators of the latest step, and what went into each.
//!
//! Only what a recording holds is known: tensors that no gradient flows through (constants, masks, targets) are inputs without statistics.

use std::collections::{HashMap, HashSet};

use super::text::base_name;
use crate::aggregate::{Aggregate, SiteSummary};
use crate::observation::{Observation, Probe, Provenance, Site, SiteId};
use crate::scan::{Dtype, Stats};

/// An operator of forward, by its output.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    pub observation: &'a Observation,
    pub summary: &'a SiteSummary,
}

impl<'a> Node<'a> {
    pub(super) fn site(&self) -> &'a Site {
        &self.summary.site
    }

    pub(super) fn stats(&self) -> &'a Stats {
        &self.observation.stats
    }

    /// The operator's name, whichever use of it this is, and whether or not it works in place.
    pub(super) fn name(&self) -> &'a str {
        base_name(&self.summary.site.operator).trim_end_matches('_')
    }

    pub(super) fn is_fp16(&self) -> bool {
        self.summary.site.dtype == Dtype::F16
    }

    pub(super) fn provenance(&self) -> Option<&'a Provenance> {
        self.observation.provenance.as_deref()
    }

    /// The number that the operator was given beside its one tensor.
    pub(super) fn argument(&self) -> Option<f64> {
        self.provenance().filter(|p| p.inputs.len() == 1)?.argument
    }
}

/// What an operator took.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    /// The output of another operator of this step, by its place in the graph.
    Made(usize),
    /// A parameter, as it was after the step before.
    Param(&'a Stats),
}

/// The operators of the latest step, in the order in which they ran.
pub(super) struct Graph<'a> {
    nodes: Vec<Node<'a>>,
    inputs: Vec<Vec<Option<Input<'a>>>>,
}

impl<'a> Graph<'a> {
    pub(super) fn of(aggregate: &'a Aggregate) -> Self {
        let (mut nodes, mut inputs) = (Vec::new(), Vec::new());
        let mut latest: HashMap<SiteId, usize> = HashMap::new();
        let now = aggregate.latest.as_ref().map_or(0, |step| step.index);
        for (observation, summary) in aggregate.latest_observations() {
            if summary.site.probe != Probe::Activation {
                continue;
            }
            let resolve = |id: &Option<SiteId>| {
                let made = id.and_then(|id| latest.get(&id)).map(|&place| Input::Made(place));
                made.or_else(|| parameter(aggregate, (*id)?, now).map(Input::Param))
            };
            inputs.push(observation.provenance.iter().flat_map(|p| &p.inputs).map(resolve).collect());
            latest.insert(observation.site, nodes.len());
            nodes.push(Node { observation, summary });
        }
        Self { nodes, inputs }
    }

    /// All operators, with their places.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (usize, Node<'a>)> + '_ {
        self.nodes.iter().copied().enumerate()
    }

    pub(super) fn node(&self, place: usize) -> Node<'a> {
        self.nodes[place]
    }

    /// Argument `index` of an operator, where it is known.
    pub(super) fn input(&self, place: usize, index: usize) -> Option<Input<'a>> {
        self.inputs[place].get(index).copied().flatten()
    }

    /// All arguments of an operator; `None` for those that are not known.
    pub(super) fn inputs(&self, place: usize) -> &[Option<Input<'a>>] {
        &self.inputs[place]
    }

    /// The operator that made argument `index`.
    pub(super) fn made(&self, place: usize, index: usize) -> Option<usize> {
        match self.input(place, index) {
            Some(Input::Made(at)) => Some(at),
            _ => None,
        }
    }

    /// The statistics of an input.
    pub(super) fn stats(&self, input: Input<'a>) -> &'a Stats {
        match input {
            Input::Made(place) => self.nodes[place].stats(),
            Input::Param(stats) => stats,
        }
    }

    /// The operators that took the output of this one.
    pub(super) fn consumers(&self, place: usize) -> impl Iterator<Item = usize> + '_ {
        let takes = move |inputs: &Vec<Option<Input<'a>>>| {
            inputs.iter().flatten().any(|input| matches!(input, Input::Made(at) if *at == place))
        };
        self.inputs.iter().enumerate().skip(place + 1).filter(move |(_, inputs)| takes(inputs)).map(|(at, _)| at)
    }

    /// Whether an operator's output goes, through others, into another.
    pub(super) fn leads_to(&self, place: usize, other: usize) -> bool {
        let (mut open, mut seen) = (vec![place], HashSet::new());
        while let Some(at) = open.pop() {
            if at == other {
                return true;
            }
            open.extend(self.consumers(at).filter(|&next| next <= other && seen.insert(next)));
        }
        false
    }

    /// Follows infinities back to the operator in which they were born.
    pub(super) fn birth_of_infinity(&self, place: usize) -> usize {
        let has_inf = |at: usize| self.nodes[at].stats().non_finite() > 0;
        let made = |input: &Option<Input<'_>>| match input {
            Some(Input::Made(at)) if has_inf(*at) => Some(*at),
            _ => None,
        };
        let mut at = place;
        while let Some(before) = self.inputs[at].iter().find_map(made) {
            at = before;
        }
        at
    }
}

/// A parameter as forward read it.
fn parameter(aggregate: &Aggregate, id: SiteId, now: u64) -> Option<&Stats> {
    let summary = aggregate.site(id).filter(|s| s.site.probe == Probe::Param)?;
    summary.recent.iter().rev().find(|sample| sample.step < now).map(|sample| &sample.stats)
}
