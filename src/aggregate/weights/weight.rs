//! One parameter over the recent past: its changes, its copy, and how long it has stood still.

use std::collections::VecDeque;

use super::change::Seen;
use super::{Change, Copied, Weights, keep};
use crate::observation::{Rounding, RunInfo, Site, Step};
use crate::scan::{Dtype, Fidelity, Stats};

/// One parameter over the recent past.
#[derive(Clone, Debug)]
pub struct Weight {
    /// The layer.
    pub layer: String,
    /// The name of the parameter within the layer.
    pub tensor: String,
    /// Whether it has two dimensions or more; where the shape is not known, whether it is no bias and has 64 elements or more.
    pub is_matrix: bool,
    /// The latest steps at which the optimizer changed it, oldest first: at most [`Weights::WINDOW`].
    pub recent: VecDeque<Change>,
    /// The dtype of the model's weight, where that is written back from an FP32 copy.
    pub written_back_to: Option<Dtype>,
    /// How the model's weight compared with the copy, oldest first: at most [`Weights::WINDOW`].
    pub copied: VecDeque<Copied>,
    /// Steps in a row, up to the latest, at which the largest element of its update lay below 2^-14, and the first of them.
    pub below_normal: Option<(u64, u64)>,
    /// Of a weight with an FP32 copy: scanned steps in a row, up to the latest, at which it had a gradient and neither was stepped although no
    /// scaler withheld the step, and the first of them.
    pub unstepped: Option<(u64, u64)>,
    /// The most such steps that lay between two at which it was stepped, as under gradient accumulation.
    pub longest_pause: u64,
    /// Of a weight without a copy: since when it stands still.
    pub still: Option<Still>,
    /// Whether its value was ever observed.
    was_seen: bool,
    held: Option<Stats>,
    pub(super) is_finite: bool,
}

impl Weight {
    /// A parameter of which nothing was seen yet.
    pub(super) fn new(site: &Site, run: Option<&RunInfo>) -> Self {
        Self {
            layer: site.layer.clone(),
            tensor: site.tensor.clone(),
            is_matrix: has_two_dimensions(site, run),
            recent: VecDeque::new(),
            written_back_to: None,
            copied: VecDeque::new(),
            below_normal: None,
            unstepped: None,
            longest_pause: 0,
            still: None,
            was_seen: false,
            held: None,
            is_finite: true,
        }
    }

    /// The parameter as people write it: `block.3.fc.weight`.
    pub fn label(&self) -> String {
        if self.layer.is_empty() { self.tensor.clone() } else { format!("{}.{}", self.layer, self.tensor) }
    }

    /// The latest change.
    pub fn latest(&self) -> Option<&Change> {
        self.recent.back()
    }

    /// What was left of its recent updates, of those that `which` picks; `None` where that is not known of any.
    pub fn fidelity(&self, which: impl Fn(&Rounding) -> Option<Fidelity>) -> Option<Fidelity> {
        let known = self.recent.iter().filter_map(|c| which(&c.rounding));
        known.reduce(|mut sum, f| {
            sum.merge(&f);
            sum
        })
    }
}

/// A weight that has a finite gradient and does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Still {
    /// The first step at which it was so.
    pub since: u64,
    /// The latest one.
    pub latest: u64,
    /// Scanned steps at which it had a gradient other than zero, nothing changed it, and no scaler withheld the step.
    pub scans: u64,
}

impl Weight {
    pub(super) fn remember(&mut self, change: Change) {
        let is_below = change.update_max < Weights::SMALLEST_NORMAL && change.update_non_finite == 0;
        let (n, since) = self.below_normal.unwrap_or((0, change.step));
        self.below_normal = is_below.then_some((n + 1, since));
        keep(&mut self.recent, change);
    }

    /// Holds the model's weight against its FP32 copy.
    pub(super) fn compare(&mut self, step: u64, seen: &Seen<'_>) {
        let Some((dtype, unlike, stats)) = seen.held else { return };
        let changed = self.held.as_ref().is_some_and(|before| before != stats);
        self.written_back_to = Some(dtype);
        self.held = Some(stats.clone());
        keep(&mut self.copied, Copied { step, unlike, elements: stats.count, changed });
    }

    pub(super) fn count_pause(&mut self, step: &Step, seen: &Seen<'_>) {
        if seen.update.is_some() {
            self.longest_pause = self.longest_pause.max(self.unstepped.take().map_or(0, |(n, _)| n));
        } else if seen.held.is_some() && !step.skipped() && seen.gradient.is_some_and(|g| g.max_abs > 0.0) {
            let (n, since) = self.unstepped.unwrap_or((0, step.index));
            self.unstepped = Some((n + 1, since));
        }
    }

    /// A parameter's value is recorded when it is first seen, and again only after something changed it.
    pub(super) fn watch_still(&mut self, step: &Step, seen: &Seen<'_>) {
        let value_is_new = seen.params.iter().any(Option::is_some);
        let moved = seen.update.is_some() || value_is_new && self.was_seen;
        self.was_seen |= value_is_new;
        if moved || self.written_back_to.is_some() {
            self.still = None;
        } else if self.was_seen
            && !step.skipped()
            && seen.gradient.is_some_and(|g| g.max_abs > 0.0 && g.non_finite() == 0)
        {
            let Still { since, scans, .. } =
                self.still.unwrap_or(Still { since: step.index, latest: step.index, scans: 0 });
            self.still = Some(Still { since, latest: step.index, scans: scans + 1 });
        }
    }
}

/// Where the run does not list the parameter, a bias is known by its name, and everything else passes.
fn has_two_dimensions(site: &Site, run: Option<&RunInfo>) -> bool {
    let name = site.label();
    let listed = run.and_then(|run| run.parameters.iter().find(|p| p.name == name));
    listed.map_or(!site.tensor.contains("bias"), |p| p.shape.len() >= 2)
}
