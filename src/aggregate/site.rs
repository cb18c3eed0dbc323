//! One site over the whole run.

use std::collections::VecDeque;

use super::magnitude::MagnitudeHistogram;
use super::maxima::Maxima;
use super::unscaled::Unscaled;
use crate::numerics::Underflow;
use crate::observation::{Observation, Probe, Rounding, Site, SiteId, Step};
use crate::scan::{ExponentHistogram, Stats};

/// One site at one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The step.
    pub step: u64,
    /// The loss scale in force, where there was one.
    pub loss_scale: Option<f64>,
    /// Whether an input already held a non-finite value.
    pub inherited: bool,
    /// What the scan found.
    pub stats: Stats,
    /// Its place among the observations of the step.
    pub order: u32,
    /// For a gradient: the operator whose backward computed it, where known.
    pub via: Option<SiteId>,
    /// For a gradient held in FP16: what that did to it. `None` for all others, for tensors of less than 64 elements, for non-finite ones, and
    /// for zeros without a sign that FP16 is the reason.
    pub underflow: Option<Underflow>,
    /// Whether its only non-finite elements are -inf that a mask put there: they are no trouble.
    pub by_mask: bool,
}

impl Sample {
    /// How much a sample matters beside another of its step: finite ones least, then those of masks.
    fn gravity(&self) -> u8 {
        if self.stats.non_finite() == 0 { 0 } else { 2 - u8::from(self.by_mask) }
    }
}

/// What only the whole step tells of an observation.
pub(super) struct Verdict {
    /// See [`Sample::order`].
    pub order: u32,
    /// See [`Sample::underflow`].
    pub underflow: Option<Underflow>,
    /// See [`Sample::by_mask`].
    pub by_mask: bool,
}

/// One site over the whole run: totals, and a window of the recent past.
#[derive(Clone, Debug)]
pub struct SiteSummary {
    /// Where.
    pub site: Site,
    /// Scans.
    pub samples: u64,
    /// The step of the first scan; that of the last is `latest().step`.
    pub first_step: Option<u64>,
    /// Scans with a non-finite element.
    pub non_finite_samples: u64,
    /// Those of them whose only non-finite elements are -inf that a mask put there.
    pub masked_samples: u64,
    /// Scans with a non-zero element.
    pub nonzero_samples: u64,
    /// Elements scanned, over all samples.
    pub count: u64,
    /// Zeros among them.
    pub zeros: u64,
    /// NaN among them.
    pub nan: u64,
    /// Infinities among them, of either sign.
    pub inf: u64,
    /// Those of them that a mask put there, in scans without any other.
    pub masked: u64,
    /// Smallest non-zero magnitude of the run; 0 when there was none.
    pub min_abs: f64,
    /// Largest finite magnitude of the run.
    pub max_abs: f64,
    /// Largest finite magnitude of the run, each divided by the loss scale at its step where the tensor is a gradient.
    pub max_unscaled: f64,
    /// Exponents of all samples, merged; for a gradient, of those without a non-finite element, which say nothing of its range.
    pub exponents: ExponentHistogram,
    /// Of a gradient: the same without the loss scale, for what-if. Boxed, since most tensors are none.
    pub unscaled: Option<Box<Unscaled>>,
    /// Largest magnitude of each step: of gradients, activations and updates.
    pub step_max: MagnitudeHistogram,
    /// Smallest non-zero magnitude of each step: of activations.
    pub step_min: MagnitudeHistogram,
    /// Largest magnitude over time, as it was held: of all but buffers.
    pub maxima: Maxima,
    /// What low precision did to the steps of the whole run, summed; `None` where there was nothing to say.
    pub rounding: Option<Box<Rounding>>,
    /// The recent past, oldest first: at most [`SiteSummary::WINDOW`] samples, one a step.
    pub recent: VecDeque<Sample>,
}

impl SiteSummary {
    /// Samples kept of the recent past.
    pub const WINDOW: usize = 32;

    /// A site that was never scanned.
    pub fn new(site: Site) -> Self {
        Self {
            site,
            samples: 0,
            first_step: None,
            non_finite_samples: 0,
            masked_samples: 0,
            nonzero_samples: 0,
            count: 0,
            zeros: 0,
            nan: 0,
            inf: 0,
            masked: 0,
            min_abs: 0.0,
            max_abs: 0.0,
            max_unscaled: 0.0,
            step_max: MagnitudeHistogram::default(),
            step_min: MagnitudeHistogram::default(),
            maxima: Maxima::default(),
            exponents: ExponentHistogram::default(),
            unscaled: None,
            rounding: None,
            recent: VecDeque::new(),
        }
    }

    /// The latest sample.
    pub fn latest(&self) -> Option<&Sample> {
        self.recent.back()
    }

    /// The `n` latest samples, oldest first; `None` when there are not as many.
    pub fn last(&self, n: usize) -> Option<impl DoubleEndedIterator<Item = &Sample> + Clone + '_> {
        (self.recent.len() >= n).then(|| self.recent.range(self.recent.len() - n..))
    }

    pub(super) fn push(&mut self, step: &Step, observation: &Observation, verdict: Verdict) {
        let (stats, Verdict { order, underflow, by_mask }) = (&observation.stats, verdict);
        let is_bad = stats.non_finite() > 0 && !by_mask;
        self.samples += 1;
        self.first_step.get_or_insert(step.index);
        self.non_finite_samples += u64::from(stats.non_finite() > 0);
        self.masked_samples += u64::from(by_mask);
        self.masked += if by_mask { stats.neg_inf } else { 0 };
        self.nonzero_samples += u64::from(stats.max_abs > 0.0);
        self.count += stats.count;
        self.zeros += stats.zeros;
        self.nan += stats.nan;
        self.inf += stats.pos_inf + stats.neg_inf;
        if stats.min_abs > 0.0 && (self.min_abs == 0.0 || stats.min_abs < self.min_abs) {
            self.min_abs = stats.min_abs;
        }
        self.max_abs = self.max_abs.max(stats.max_abs);
        self.max_unscaled = self.max_unscaled.max(stats.max_abs / self.carried_scale(step));
        if stats.non_finite() == 0 || !self.site.probe.is_gradient() {
            self.exponents.merge(&stats.exponents);
        }
        self.count_unscaled(step, stats);
        self.count_extremes(stats, is_bad);
        if !matches!(self.site.probe, Probe::Buffer | Probe::OptimizerState | Probe::Average) {
            self.maxima.push(step.index, stats.max_abs, is_bad);
        }
        if let Some(rounding) = &observation.rounding {
            self.rounding.get_or_insert_default().merge(rounding);
        }
        let stats = self.hold(step.index, stats);
        self.remember(Sample {
            step: step.index,
            loss_scale: step.loss_scale,
            inherited: observation.inherited,
            stats,
            order,
            via: observation.via,
            underflow,
            by_mask,
        });
    }

    /// The statistics of a sample. In a full window the oldest one makes room for that of a new step, and leaves it its memory.
    fn hold(&mut self, step: u64, stats: &Stats) -> Stats {
        let is_new = self.recent.back().is_some_and(|last| last.step != step);
        let oldest = if is_new && self.recent.len() == Self::WINDOW { self.recent.pop_front() } else { None };
        let mut held = oldest.map(|sample| sample.stats).unwrap_or_default();
        held.clone_from(stats);
        held
    }

    /// The window holds one sample a step, so that a trend is one over steps: of the micro-batches of an accumulation the latest, but a non-finite one
    /// is not forgotten for a finite one, nor for one of a mask.
    fn remember(&mut self, sample: Sample) {
        match self.recent.back_mut().filter(|last| last.step == sample.step) {
            Some(last) if last.gravity() > sample.gravity() => {}
            Some(last) => *last = sample,
            None => self.recent.push_back(sample),
        }
    }

    /// The loss scale that the tensor carries: 1 for what is no gradient, and where there is no usable scale.
    fn carried_scale(&self, step: &Step) -> f64 {
        step.loss_scale.filter(|s| self.site.probe.is_gradient() && *s > 0.0 && s.is_finite()).unwrap_or(1.0)
    }

    fn count_unscaled(&mut self, step: &Step, stats: &Stats) {
        if self.site.probe.is_gradient() {
            // The gradient of a parameter is a sum of what passes by the layers, and never the first to underflow.
            let (scale, needs_scale) = (self.carried_scale(step), self.site.probe != Probe::ParamGrad);
            let unscaled = self.unscaled.get_or_insert_default();
            unscaled.push(step.index, stats, self.site.dtype, scale, needs_scale);
        }
    }

    fn count_extremes(&mut self, stats: &Stats, is_bad: bool) {
        match self.site.probe {
            Probe::Activation => {
                self.step_max.record(stats.max_abs, is_bad);
                self.step_min.record(stats.min_abs, is_bad);
            }
            Probe::ActivationGrad | Probe::CastGrad | Probe::ParamGrad | Probe::Update => {
                self.step_max.record(stats.max_abs, is_bad);
            }
            Probe::Param | Probe::Buffer | Probe::OptimizerState | Probe::Average => {}
        }
    }
}
