//! A run in bounded memory, whatever its length.

mod averages;
mod coverage;
mod descent;
mod gradient_norms;
mod judged;
mod largest;
mod losses;
mod magnitude;
mod masks;
mod maxima;
mod metrics;
mod non_finite;
mod read_in_fp16;
mod recipe;
mod scale_dynamics;
mod scales_tried;
mod shadows;
mod site;
mod starvation;
mod timeline;
mod unscaled;
mod weights;

pub use averages::{Average, AverageStep, Averages};
pub use coverage::{Coverage, SeenLayer, SeenParameter};
pub use gradient_norms::GradientNorms;
pub use judged::Judged;
pub use largest::Largest;
pub(crate) use losses::median;
pub use losses::{Loss, Losses};
pub use magnitude::MagnitudeHistogram;
pub use masks::is_mask_operator;
pub use maxima::{Maxima, Stretch};
pub use metrics::{Metric, Metrics};
pub use non_finite::{BackwardOrigins, NonFinite, NonFiniteStep, Origin, Streak};
pub use recipe::{Clip, Misplaced, Mistake, Recipe, Sighting};
pub use scale_dynamics::{Burst, Jump, ScaleDynamics, Skip};
pub use scales_tried::{ScalesTried, Taken};
pub use shadows::{Compared, ShadowSample, Shadowed, Shadows};
use site::Verdict;
pub use site::{Sample, SiteSummary};
pub use starvation::FEWEST_ELEMENTS;
pub use timeline::{Timeline, TimelinePoint};
pub use unscaled::{Hardest, Unscaled};
pub use weights::{Change, Copied, Still, Weight, WeightStep, Weights};

use std::collections::BTreeMap;
use std::sync::OnceLock;

use judged::Judgement;
use read_in_fp16::ReadInFp16;

use crate::observation::{
    End, Note, Observation, Probe, Record, RunInfo, ScalerConfig, ScalerEvent, Site, SiteId, Step, Thinned, Tier,
};
use crate::scan::Dtype;

/// Everything that rules, reports and the dashboard know of a run.
#[derive(Clone, Debug, Default)]
pub struct Aggregate {
    /// How the run began; `None` until its first record was read.
    pub run: Option<RunInfo>,
    /// The scaler's settings, where there is a scaler.
    pub scaler_config: Option<ScalerConfig>,
    /// A summary per site; the index is the [`crate::observation::SiteId`].
    pub sites: Vec<SiteSummary>,
    /// Loss, loss scale and skips over the whole run, thinned as it grows.
    pub timeline: Timeline,
    /// Counts of what the scaler did.
    pub scaler: ScalerSummary,
    /// How the loss scale moves.
    pub scale_dynamics: ScaleDynamics,
    /// Whether the loop keeps to the recipe of loss scaling.
    pub recipe: Recipe,
    /// Where non-finite values begin, and how long they last.
    pub non_finite: NonFinite,
    /// What the loss was at first, and lately.
    pub losses: Losses,
    /// Metrics that the run told.
    pub metrics: Metrics,
    /// How the optimizer moves the weights.
    pub weights: Weights,
    /// Moving averages of the weights that are held in 16 bits.
    pub averages: Averages,
    /// How large the whole gradient is, over the run.
    pub gradient_norms: GradientNorms,
    /// What comparisons with FP32 showed.
    pub shadows: Shadows,
    /// What was sampled and what was lost.
    pub instrument: Instrument,
    /// The latest step, whole.
    pub latest: Option<Step>,
    /// How the run ended; `None` while it runs, and for ever if it was killed.
    pub end: Option<End>,
    /// Layers of which an operator's output or its gradient was seen, and whether any was held in FP16.
    computes_in_fp16: BTreeMap<String, bool>,
    read_in_fp16: ReadInFp16,
    /// Made when it is asked for, once a record.
    judgement: OnceLock<Judgement>,
}

/// What the scaler did in the whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScalerSummary {
    /// Optimizer steps that were applied.
    pub applied: u64,
    /// Optimizer steps that were withheld.
    pub skipped: u64,
    /// Times the scale rose.
    pub growths: u64,
    /// Times the scale fell.
    pub backoffs: u64,
    /// Skips before the first applied step while forward was finite: calibration. None, once there were more than the initial scale has octaves.
    pub calibration_skips: u64,
}

/// What was sampled and what was lost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Instrument {
    /// Steps seen in the recording.
    pub steps: u64,
    /// Steps of which every tensor was scanned.
    pub full_steps: u64,
    /// Steps of which nothing was scanned.
    pub light_steps: u64,
    /// Full steps in which backward delivered a gradient.
    pub backward_steps: u64,
    /// The latest full step.
    pub last_full_step: Option<u64>,
    /// Steps missing from the recording.
    pub dropped_steps: u64,
    /// Time of all steps, in nanoseconds.
    pub step_ns: u64,
    /// Part of it spent in the probe, in nanoseconds.
    pub probe_ns: u64,
    /// Tensors that could not be scanned.
    pub unscanned: u64,
    /// Notes, oldest first; at most [`Instrument::MAX_NOTES`] are kept, the rest counted.
    pub notes: Vec<Note>,
    /// Notes that were not kept.
    pub notes_dropped: u64,
    /// What the recording lost so that it stays below its size; `None` where it has all that was recorded.
    pub thinned: Option<Thinned>,
}

impl Instrument {
    /// Notes that are kept.
    pub const MAX_NOTES: usize = 100;
}

impl Aggregate {
    /// The loss scale in force: what the scaler made of it at the latest step, for the next. `None` where the run has none;
    /// one that has fallen to nothing is 0.
    pub fn scale_in_force(&self) -> Option<f64> {
        let updated = |step: &Step| {
            step.scaler.iter().rev().find_map(|event| match *event {
                ScalerEvent::Updated { to, .. } => Some(to),
                _ => None,
            })
        };
        let latest = self.latest.as_ref().and_then(|step| updated(step).or(step.loss_scale));
        // Not every step tells.
        latest.or_else(|| self.timeline.points.iter().rev().find_map(|point| point.loss_scale))
    }

    /// The summary of a site; `None` for a number that no site record gave.
    pub fn site(&self, id: SiteId) -> Option<&SiteSummary> {
        self.sites.get(id.0 as usize)
    }

    /// The observations of the latest step with their sites, in order.
    pub fn latest_observations(&self) -> impl DoubleEndedIterator<Item = (&Observation, &SiteSummary)> + '_ {
        let observations = self.latest.iter().flat_map(|step| &step.observations);
        observations.filter_map(|o| self.site(o.site).map(|s| (o, s)))
    }

    /// Whether gradients are held in FP16, so that a loss scale matters.
    pub fn has_fp16_gradients(&self) -> bool {
        self.sites.iter().any(|s| s.site.probe.is_gradient() && s.site.dtype == Dtype::F16)
    }

    /// Whether this tensor's values went through FP16, so that a loss scale can overflow them: FP16 gradients, and where there are such, parameter
    /// gradients of any dtype, which autocast computes in FP16 and then converts. Not those of a layer that is kept in FP32, all of whose operators
    /// compute in another format.
    pub fn went_through_fp16(&self, site: &Site) -> bool {
        let may_compute_in_fp16 = || self.computes_in_fp16.get(&site.layer).copied().unwrap_or(true);
        site.dtype == Dtype::F16 || site.probe == Probe::ParamGrad && self.has_fp16_gradients() && may_compute_in_fp16()
    }

    /// Whether an infinity in this tensor may be an overflow of FP16: where it [went through FP16](Self::went_through_fp16), and where it is the gradient of an
    /// activation that an operator read in FP16, and that collects what each operator which took it hands back.
    pub fn may_overflow_in_fp16(&self, site: &Site) -> bool {
        self.went_through_fp16(site) || site.probe == Probe::ActivationGrad && self.read_in_fp16.has(site)
    }

    /// Adds one record.
    pub fn apply(&mut self, record: Record) {
        self.judgement.take();
        match record {
            Record::Run(run) => self.run = Some(run),
            Record::Site(id, site) => self.apply_site(id, site),
            Record::Scaler(config) => self.apply_scaler(config),
            Record::Step(step) => self.apply_step(step),
            Record::Shadow(shadow) => self.shadows.push(&shadow, &self.sites),
            Record::Note(note) => self.apply_note(note),
            Record::Thinned(thinned) => self.apply_thinned(thinned),
            Record::End(end) => self.end = Some(end),
        }
    }

    /// Sites are numbered in the order in which they are written. One that is told again, or after a gap that damage left, is passed over:
    /// its observations are then unknown, never somebody else's.
    fn apply_site(&mut self, id: SiteId, site: Site) {
        if id.0 as usize == self.sites.len() {
            self.weights.add_site(&site, self.run.as_ref());
            if matches!(site.probe, Probe::Activation | Probe::ActivationGrad) {
                *self.computes_in_fp16.entry(site.layer.clone()).or_default() |= site.dtype == Dtype::F16;
            }
            self.sites.push(SiteSummary::new(site));
        }
    }

    fn apply_scaler(&mut self, config: ScalerConfig) {
        if self.scaler_config.as_ref().is_some_and(|known| *known != config) {
            self.scale_dynamics.restart();
        }
        self.scaler_config = Some(config);
    }

    /// Steps of which nothing is left were taken all the same.
    fn apply_thinned(&mut self, thinned: Thinned) {
        let instrument = &mut self.instrument;
        let before = instrument.thinned.take().unwrap_or_default();
        // A thinned recording tells it once; one that tells it again tells all of it.
        let renew = |sum: &mut u64, before: u64, now: u64| *sum = sum.saturating_sub(before).saturating_add(now);
        renew(&mut instrument.steps, before.removed, thinned.removed);
        renew(&mut instrument.step_ns, before.removed_step_ns, thinned.removed_step_ns);
        renew(&mut instrument.probe_ns, before.removed_probe_ns, thinned.removed_probe_ns);
        instrument.thinned = Some(thinned);
    }

    fn apply_note(&mut self, note: Note) {
        if self.instrument.notes.len() < Instrument::MAX_NOTES {
            self.instrument.notes.push(note);
        } else {
            self.instrument.notes_dropped += 1;
        }
    }

    fn apply_step(&mut self, step: Step) {
        self.count_step(&step);
        self.instrument.backward_steps += u64::from(self.has_gradient(&step));
        self.scale_dynamics.push(&step, self.scaler_config.as_ref());
        let previous_full_step = self.instrument.last_full_step;
        self.non_finite.push(&step, &self.sites, previous_full_step);
        self.read_in_fp16.push(&step, &self.sites);
        for event in &step.scaler {
            self.count_event(event, &step);
        }
        let underflows = starvation::judge(&step, &self.sites, self.non_finite.latest.forward_is_clean());
        for (order, (observation, underflow)) in step.observations.iter().zip(underflows).enumerate() {
            if let Some(summary) = self.sites.get_mut(observation.site.0 as usize) {
                let by_mask = self.non_finite.latest.by_mask.binary_search(&order).is_ok();
                summary.push(&step, observation, Verdict { order: order as u32, underflow, by_mask });
            }
        }
        if step.tier == Tier::Full {
            self.instrument.last_full_step = Some(step.index);
        }
        self.losses.push(&step);
        self.recipe.push(&step, self.scaler_config.as_ref(), &self.sites);
        self.metrics.push(&step);
        self.weights.push(&step, &self.sites);
        self.averages.push(&step, &self.sites);
        self.gradient_norms.push(&step, &self.sites);
        self.timeline.push(&step);
        self.latest = Some(step);
    }

    /// Skips after which a scale that began at its initial value would stand below 1; 16 where that value is not known.
    fn most_calibration_skips(&self) -> u64 {
        let init = self.scaler_config.as_ref().map_or(65536.0, |c| c.init_scale);
        if init > 1.0 && init.is_finite() { init.log2().ceil() as u64 } else { 0 }
    }

    fn has_gradient(&self, step: &Step) -> bool {
        step.observations.iter().any(|o| self.site(o.site).is_some_and(|s| s.site.probe.is_gradient()))
    }

    fn count_step(&mut self, step: &Step) {
        let instrument = &mut self.instrument;
        instrument.steps += 1;
        match step.tier {
            Tier::Full => instrument.full_steps += 1,
            Tier::Light | Tier::Off => instrument.light_steps += 1,
        }
        instrument.dropped_steps = step.cost.dropped_steps;
        instrument.step_ns += step.cost.step_ns;
        instrument.probe_ns += step.cost.probe_ns;
        instrument.unscanned += u64::from(step.cost.unscanned);
    }

    fn count_event(&mut self, event: &ScalerEvent, step: &Step) {
        let forward_is_finite =
            self.non_finite.latest.forward_is_clean() && step.loss.is_none_or(|loss| loss.is_finite());
        let most = self.most_calibration_skips();
        let scaler = &mut self.scaler;
        match *event {
            ScalerEvent::Stepped { applied: true, .. } => scaler.applied += 1,
            ScalerEvent::Stepped { applied: false, .. } => {
                scaler.skipped += 1;
                if scaler.applied == 0 && forward_is_finite {
                    scaler.calibration_skips += 1;
                }
                // More than the scale has octaves is no search for a scale that fits.
                if scaler.applied == 0 && scaler.skipped > most {
                    scaler.calibration_skips = 0;
                }
            }
            ScalerEvent::Updated { from, to, .. } => {
                scaler.growths += u64::from(to > from);
                scaler.backoffs += u64::from(to < from);
            }
            ScalerEvent::Scaled { .. } | ScalerEvent::Unscaled { .. } => {}
        }
    }
}

#[cfg(test)]
impl Aggregate {
    /// What is known at the end of a made-up run.
    pub(crate) fn of(run: &crate::observation::scenario::Scenario) -> Self {
        let mut aggregate = Self::default();
        run.records().iter().cloned().for_each(|record| aggregate.apply(record));
        aggregate
    }
}
