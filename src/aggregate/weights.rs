//! How the optimizer moves the weights: the recent past of each parameter, and of all of them taken together.
//!
//! A parameter that is written back from an FP32 copy has one entry: what was stepped is the copy, and what is compared with it the weight.

use std::collections::{BTreeMap, VecDeque};

use super::SiteSummary;
use super::losses::median;
use crate::observation::{Observation, Probe, Rounding, RunInfo, Site, Step};
use crate::scan::{Dtype, Fidelity, Stats};

/// What the optimizer did to one parameter at one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The step.
    pub step: u64,
    /// The dtype of the tensor that was stepped.
    pub dtype: Dtype,
    /// Elements.
    pub elements: u64,
    /// Root mean square of the update's finite elements; 0 where there is none.
    pub update_rms: f64,
    /// Largest finite magnitude of the update.
    pub update_max: f64,
    /// Elements of the update that are not finite.
    pub update_non_finite: u64,
    /// Root mean square of the parameter after the step; `None` where it was not scanned.
    pub weight_rms: Option<f64>,
    /// Whether every element was finite at the sample before; true of the first.
    pub weight_was_finite: bool,
    /// Root mean square of the gradient, divided by the loss scale; `None` where it was not seen, or is not finite.
    pub gradient_rms: Option<f64>,
    /// What low precision did to the step.
    pub rounding: Rounding,
}

impl Change {
    /// Root mean square of the update over that of the weight. 0 where the gradient was zero: what moves then is weight decay or momentum.
    /// `None` where the weight is zero or was not scanned.
    pub fn ratio(&self) -> Option<f64> {
        let weight = self.weight_rms.filter(|&w| w > 0.0)?;
        Some(if self.gradient_rms == Some(0.0) { 0.0 } else { self.update_rms / weight })
    }
}

/// A weight of the model beside the FP32 copy it is written back from, at one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Copied {
    /// The step.
    pub step: u64,
    /// Elements of the weight that were not what the copy rounds to when forward read them.
    pub unlike: u64,
    /// All elements.
    pub elements: u64,
    /// Whether the weight holds something else than at the sample before.
    pub changed: bool,
}

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
    is_finite: bool,
}

impl Weight {
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

/// What one step did to the weights as a whole. Ratios and norms are over the weight matrices: biases, gains and gates begin at values that
/// say nothing of their scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WeightStep {
    /// The step.
    pub step: u64,
    /// The learning rate, where it is known.
    pub lr: Option<f64>,
    /// Whether a scaler withheld the step: then what changed the weights was not the optimizer.
    pub withheld: bool,
    /// Root mean square of all updates; 0 where there is none.
    pub update_rms: f64,
    /// Root mean square of the gradient, divided by the loss scale, over what was updated.
    pub gradient_rms: Option<f64>,
    /// Median over the matrices of rms(update) / rms(weight), as [`Change::ratio`] has it.
    pub median_ratio: Option<f64>,
    /// Norm of all updates over the norm of all weights; `None` where the weights are all zero.
    pub energy_ratio: Option<f64>,
    /// Norm of the gradient, divided by the loss scale.
    pub gradient_norm: Option<f64>,
    /// The highest `energy_ratio` that the run had kept for three steps before this one; 0 at first.
    pub highest_before: f64,
    /// What FP16 and BF16 parameters kept of the updates that the optimizer gave to them; of all parameters.
    pub stepped: Fidelity,
    /// What they kept of the weight decay.
    pub decay: Fidelity,
    /// What the model's weights would have kept of the updates that their FP32 copies got.
    pub without_masters: Fidelity,
}

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

/// What one step showed of one parameter.
#[derive(Default)]
struct Seen<'a> {
    update: Option<(&'a Site, &'a Stats)>,
    rounding: Rounding,
    /// By dtype: under FP32 copies the copy and the weight are both there.
    params: [Option<&'a Stats>; 4],
    gradient: Option<&'a Stats>,
    held: Option<(Dtype, u64, &'a Stats)>,
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
            self.all.push(Weight {
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
            });
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

/// Where the run does not list the parameter, a bias is known by its name, and everything else passes.
fn has_two_dimensions(site: &Site, run: Option<&RunInfo>) -> bool {
    let name = site.label();
    let listed = run.and_then(|run| run.parameters.iter().find(|p| p.name == name));
    listed.map_or(!site.tensor.contains("bias"), |p| p.shape.len() >= 2)
}

impl Weight {
    fn remember(&mut self, change: Change) {
        let is_below = change.update_max < Weights::SMALLEST_NORMAL && change.update_non_finite == 0;
        let (n, since) = self.below_normal.unwrap_or((0, change.step));
        self.below_normal = is_below.then_some((n + 1, since));
        keep(&mut self.recent, change);
    }

    /// Holds the model's weight against its FP32 copy.
    fn compare(&mut self, step: u64, seen: &Seen<'_>) {
        let Some((dtype, unlike, stats)) = seen.held else { return };
        let changed = self.held.as_ref().is_some_and(|before| before != stats);
        self.written_back_to = Some(dtype);
        self.held = Some(stats.clone());
        keep(&mut self.copied, Copied { step, unlike, elements: stats.count, changed });
    }
}

impl Weight {
    fn count_pause(&mut self, step: &Step, seen: &Seen<'_>) {
        if seen.update.is_some() {
            self.longest_pause = self.longest_pause.max(self.unstepped.take().map_or(0, |(n, _)| n));
        } else if seen.held.is_some() && !step.skipped() && seen.gradient.is_some_and(|g| g.max_abs > 0.0) {
            let (n, since) = self.unstepped.unwrap_or((0, step.index));
            self.unstepped = Some((n + 1, since));
        }
    }
}

impl Weight {
    /// A parameter's value is recorded when it is first seen, and again only after something changed it.
    fn watch_still(&mut self, step: &Step, seen: &Seen<'_>) {
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

impl<'a> Seen<'a> {
    fn take(&mut self, site: &'a Site, observation: &'a Observation) {
        let stats = &observation.stats;
        match site.probe {
            Probe::Update => {
                // Where the copy and the weight are both changed, the copy is what the optimizer stepped.
                if self.update.is_none_or(|(stepped, _)| stepped.dtype != Dtype::F32 || site.dtype == Dtype::F32) {
                    self.update = Some((site, stats));
                }
                if let Some(rounding) = &observation.rounding {
                    self.rounding.merge(rounding);
                }
            }
            Probe::Param => {
                self.params[place(site.dtype)] = Some(stats);
                let unlike = observation.rounding.as_ref().and_then(|r| r.unlike_master);
                self.held = unlike.map(|unlike| (site.dtype, unlike, stats)).or(self.held);
            }
            _ => self.gradient = Some(stats),
        }
    }

    fn change(&self, step: u64, scale: f64, weight_was_finite: bool) -> Option<Change> {
        let (site, update) = self.update?;
        let weight = self.params[place(site.dtype)];
        Some(Change {
            step,
            dtype: site.dtype,
            elements: update.count,
            update_rms: update.rms().unwrap_or(0.0),
            update_max: update.max_abs,
            update_non_finite: update.non_finite(),
            weight_rms: weight.and_then(Stats::rms),
            weight_was_finite,
            gradient_rms: self.gradient.filter(|g| g.non_finite() == 0).and_then(Stats::rms).map(|g| g / scale),
            rounding: self.rounding,
        })
    }
}

fn place(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F16 => 0,
        Dtype::Bf16 => 1,
        Dtype::F32 => 2,
        Dtype::F64 => 3,
    }
}

/// All parameters of one step, while it is being added up.
#[derive(Default)]
struct Sum {
    parameters: u64,
    ratios: Vec<f64>,
    elements: u64,
    updates: f64,
    weights: f64,
    gradients: f64,
    gradients_seen: bool,
    fidelity: WeightStep,
}

impl Sum {
    fn add(&mut self, is_matrix: bool, change: &Change) {
        self.parameters += 1;
        if change.dtype == Dtype::F16 || change.dtype == Dtype::Bf16 {
            change.rounding.stepped.iter().for_each(|f| self.fidelity.stepped.merge(f));
            change.rounding.decay.iter().for_each(|f| self.fidelity.decay.merge(f));
        }
        change.rounding.without_masters.iter().for_each(|f| self.fidelity.without_masters.merge(f));
        if is_matrix {
            let energy = |rms: f64| rms * rms * change.elements as f64;
            self.ratios.extend(change.ratio());
            self.elements += change.elements;
            self.updates += energy(change.update_rms);
            self.weights += change.weight_rms.map_or(0.0, energy);
            self.gradients += change.gradient_rms.map_or(0.0, energy);
            self.gradients_seen |= change.gradient_rms.is_some();
        }
    }

    fn finish(self, step: &Step, highest_before: f64) -> WeightStep {
        let rms = |energy: f64| (energy / self.elements.max(1) as f64).sqrt();
        WeightStep {
            step: step.index,
            lr: step.lr,
            withheld: step.skipped(),
            update_rms: rms(self.updates),
            gradient_rms: self.gradients_seen.then(|| rms(self.gradients)),
            median_ratio: median(self.ratios.into_iter()),
            energy_ratio: (self.weights > 0.0).then(|| (self.updates / self.weights).sqrt()),
            gradient_norm: self.gradients_seen.then(|| self.gradients.sqrt()),
            highest_before,
            ..self.fidelity
        }
    }
}

#[cfg(test)]
mod tests;
