//! How the optimizer moves the weights: the recent past of each parameter, and of all of them taken together.
//!
//! A parameter that is written back from an FP32 copy has one entry: what was stepped is the copy, and what is compared with it the weight.

mod change;
mod step;
mod weight;

use std::collections::{BTreeMap, VecDeque};

use self::change::Seen;
pub use self::change::{Change, Copied};
use self::step::Sum;
pub use self::step::WeightStep;
pub use self::weight::{Still, Weight};
use super::SiteSummary;
use crate::observation::{Probe, RunInfo, Site, Step};
use crate::scan::Fidelity;

/// The weights and how they move. Only scanned steps at which the optimizer stepped are in it.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    /// Each parameter that was observed, in order of first appearance.
    pub all: Vec<Weight>,
    /// The latest steps, oldest first: at most [`Weights::WINDOW`].
    pub steps: VecDeque<WeightStep>,
    /// Steps at which the optimizer stepped, over the whole run.
    pub stepped: u64,
    /// Index into `all` by site.
    by_site: Vec<Option<usize>>,
    by_name: BTreeMap<(String, String), usize>,
    highest: f64,
}

impl Weights {
    /// Steps kept of the recent past.
    pub const WINDOW: usize = 32;
    /// FP16's smallest normal number.
    const SMALLEST_NORMAL: f64 = 6.103515625e-5;
    /// Elements that a parameter of unknown shape must have to pass for a matrix.
    const MATRIX: u64 = 64;
    /// Steps for which a ratio must hold to count as one that the run has borne.
    const KEPT: usize = 3;

    /// The parameter of this name.
    pub fn get(&self, layer: &str, tensor: &str) -> Option<&Weight> {
        self.by_name.get(&(layer.to_string(), tensor.to_string())).and_then(|&i| self.all.get(i))
    }

    /// The parameters that the optimizer changed at the latest step at which it stepped.
    pub fn stepped_now(&self) -> impl Iterator<Item = (&Weight, &Change)> + '_ {
        let now = self.steps.back().map(|s| s.step);
        self.all.iter().filter_map(|w| Some((w, w.latest()?))).filter(move |(_, c)| Some(c.step) == now)
    }

    /// What was left of the recent updates of all parameters, of those that `which` picks.
    pub fn fidelity(&self, which: impl Fn(&WeightStep) -> Fidelity) -> Fidelity {
        let mut sum = Fidelity::default();
        self.steps.iter().for_each(|step| sum.merge(&which(step)));
        sum
    }

    pub(super) fn add_site(&mut self, site: &Site, run: Option<&RunInfo>) {
        let is_of_weight = matches!(site.probe, Probe::Update | Probe::Param | Probe::ParamGrad);
        let index = is_of_weight.then(|| self.index(site, run));
        self.by_site.push(index);
    }

    fn index(&mut self, site: &Site, run: Option<&RunInfo>) -> usize {
        let key = (site.layer.clone(), site.tensor.clone());
        *self.by_name.entry(key).or_insert_with(|| {
            self.all.push(Weight::new(site, run));
            self.all.len() - 1
        })
    }

    pub(super) fn push(&mut self, step: &Step, sites: &[SiteSummary]) {
        let mut seen: BTreeMap<usize, Seen<'_>> = BTreeMap::new();
        for observation in &step.observations {
            let at = observation.site.0 as usize;
            let (Some(&Some(index)), Some(summary)) = (self.by_site.get(at), sites.get(at)) else { continue };
            seen.entry(index).or_default().take(&summary.site, observation);
        }
        let scale = step.loss_scale.filter(|s| *s > 0.0 && s.is_finite()).unwrap_or(1.0);
        let mut sum = Sum::default();
        for (index, seen) in seen {
            let Some(weight) = self.all.get_mut(index) else { continue };
            weight.compare(step.index, &seen);
            weight.count_pause(step, &seen);
            weight.watch_still(step, &seen);
            let change = seen.change(step.index, scale, weight.is_finite);
            weight.is_finite = seen.params.iter().flatten().all(|p| p.non_finite() == 0);
            if let Some(change) = change {
                sum.add(weight.is_matrix && change.elements >= Self::MATRIX, &change);
                weight.remember(change);
            }
        }
        if sum.parameters > 0 {
            self.stepped += 1;
            self.remember(sum.finish(step, self.highest));
        }
    }

    fn remember(&mut self, step: WeightStep) {
        keep(&mut self.steps, step);
        let latest: Option<Vec<f64>> = self.steps.iter().rev().take(Self::KEPT).map(|s| s.energy_ratio).collect();
        if let Some(latest) = latest.filter(|l| l.len() == Self::KEPT) {
            self.highest = self.highest.max(latest.into_iter().fold(f64::INFINITY, f64::min));
        }
    }
}

fn keep<T>(window: &mut VecDeque<T>, latest: T) {
    if window.len() == Weights::WINDOW {
        window.pop_front();
    }
    window.push_back(latest);
}

#[cfg(test)]
mod tests;
