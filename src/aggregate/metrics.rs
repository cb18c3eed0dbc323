//! Metrics that the run told, as those of an evaluation.

use std::collections::{BTreeMap, VecDeque};

use crate::observation::Step;

/// One metric over the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metric {
    /// The latest values with their steps, oldest first, non-finite ones too: at most [`Metrics::WINDOW`].
    pub recent: VecDeque<(u64, f64)>,
    /// Whether one was ever finite.
    pub was_finite: bool,
}

/// The metrics of the run, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// At most [`Metrics::NAMES`], the first that were told.
    pub by_name: BTreeMap<String, Metric>,
}

impl Metrics {
    /// Values kept of each.
    pub const WINDOW: usize = 8;
    /// Names kept.
    pub const NAMES: usize = 64;

    pub(super) fn push(&mut self, step: &Step) {
        for (name, value) in &step.metrics {
            if !self.by_name.contains_key(name) && self.by_name.len() >= Self::NAMES {
                continue;
            }
            let metric = self.by_name.entry(name.clone()).or_default();
            metric.was_finite |= value.is_finite();
            if metric.recent.len() == Self::WINDOW {
                metric.recent.pop_front();
            }
            metric.recent.push_back((step.index, *value));
        }
    }
}
