//! What one step did to one parameter.

use crate::observation::{Observation, Probe, Rounding, Site};
use crate::scan::{Dtype, Stats};

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

/// What one step showed of one parameter.
#[derive(Default)]
pub(super) struct Seen<'a> {
    pub(super) update: Option<(&'a Site, &'a Stats)>,
    pub(super) rounding: Rounding,
    /// By dtype: under FP32 copies the copy and the weight are both there.
    pub(super) params: [Option<&'a Stats>; 4],
    pub(super) gradient: Option<&'a Stats>,
    pub(super) held: Option<(Dtype, u64, &'a Stats)>,
}

impl<'a> Seen<'a> {
    pub(super) fn take(&mut self, site: &'a Site, observation: &'a Observation) {
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

    pub(super) fn change(&self, step: u64, scale: f64, weight_was_finite: bool) -> Option<Change> {
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
