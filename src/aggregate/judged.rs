//! The FP16 gradients of the latest step, each judged over its latest samples.

use super::{Aggregate, Sample, SiteSummary};
use crate::numerics::Format;
use crate::observation::{INPUT, Probe, Site, SiteId};
use crate::scan::{Dtype, Likeness};

/// The part of a layer's parameter gradient below which what comes by a side path does not matter, whatever FP16 makes of it.
const SIDE_PATH: f64 = 0.01;

/// Ehat below which nothing is wrong, so that nobody has to ask whether it matters.
const SOUND: f64 = 1e-6;

/// Part of the direction, `1 - cosine`, that a gradient may differ from FP32's and be whole.
const WHOLE: f64 = 1e-4;

/// One FP16 gradient that has been judged in each of its latest samples.
#[derive(Clone, Copy, Debug)]
pub struct Judged<'a> {
    /// Which.
    pub site: &'a SiteSummary,
    /// Its sample of the latest step.
    pub latest: &'a Sample,
    /// The step of the first of the samples.
    pub since: u64,
    /// Ehat of each sample, oldest first.
    pub ehat: [f64; Judged::SAMPLES],
    /// The largest value in any of them.
    pub max_abs: f64,
}

/// What is kept of a [`Judged`] gradient while its step is the latest.
#[derive(Clone, Copy, Debug)]
struct Kept {
    site: SiteId,
    order: u32,
    since: u64,
    ehat: [f64; Judged::SAMPLES],
    max_abs: f64,
}

/// The judged gradients of the latest step in the order of backward; several rules ask for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Judgement {
    gradients: Vec<Kept>,
    /// Where none can be judged yet, the samples that one has.
    waiting: Option<usize>,
}

impl Judged<'_> {
    /// Samples in a row in which a condition must hold; costs two samples of delay.
    pub const SAMPLES: usize = 3;

    /// The gradient of the layer's parameters beside FP32's, where that was compared since the first of the samples.
    pub fn against_fp32(&self, aggregate: &Aggregate) -> Option<Likeness> {
        against_fp32(aggregate, &self.site.site.layer, self.since)
    }

    /// What held in all samples.
    pub fn lasting(&self) -> f64 {
        lasting(&self.ehat)
    }
}

impl Aggregate {
    /// The FP16 gradients of the latest step that can be judged, in the order of backward; and where one cannot be judged yet, the samples that it has.
    ///
    /// Left out are tensors of less than 64 elements, those that are not finite, those that are zero without a sign that FP16 is the reason, and
    /// side paths whose gradient does not matter beside the one that reaches the layer's parameters.
    pub fn judged_gradients(&self) -> (Vec<Judged<'_>>, Option<usize>) {
        let Judgement { gradients, waiting } = self.judgement.get_or_init(|| Judgement::of(self));
        let whole = |kept: &Kept| {
            let site = self.site(kept.site)?;
            let Kept { since, ehat, max_abs, .. } = *kept;
            Some(Judged { site, latest: site.latest()?, since, ehat, max_abs })
        };
        (gradients.iter().filter_map(whole).collect(), *waiting)
    }
}

impl Judgement {
    fn of(aggregate: &Aggregate) -> Self {
        let mut judgement = Self::default();
        for observation in aggregate.latest.iter().flat_map(|step| &step.observations) {
            let Some(summary) = aggregate.site(observation.site).filter(|s| s.site.probe.is_gradient()) else {
                continue;
            };
            if summary.latest().is_none_or(|sample| sample.underflow.is_none()) {
                continue;
            }
            match Kept::of(observation.site, summary) {
                Some(kept) => judgement.gradients.push(kept.corrected(aggregate, summary)),
                None if summary.recent.len() < Judged::SAMPLES => judgement.waiting = Some(summary.recent.len()),
                None => {}
            }
        }
        let matters = |kept: &Kept| {
            lasting(&kept.ehat) <= SOUND || !aggregate.site(kept.site).is_some_and(|s| kept.is_side_path(aggregate, s))
        };
        judgement.gradients.retain(matters);
        judgement.gradients.sort_by_key(|kept| kept.order);
        // Of the micro-batches of an accumulation the latest sample is judged, once.
        judgement.gradients.dedup_by_key(|kept| kept.site);
        judgement
    }
}

impl Kept {
    fn of(site: SiteId, summary: &SiteSummary) -> Option<Self> {
        let mut samples = summary.last(Judged::SAMPLES)?;
        let mut ehat = [0.0; Judged::SAMPLES];
        let mut max_abs = 0.0f64;
        let (since, order) = (samples.clone().next()?.step, summary.latest()?.order);
        for here in &mut ehat {
            let sample = samples.next()?;
            *here = sample.underflow?.ehat;
            max_abs = max_abs.max(sample.stats.max_abs);
        }
        Some(Self { site, order, since, ehat, max_abs })
    }

    /// What FP32 shows to be whole is whole, whatever its histogram lets fear: what is measured comes before what is estimated.
    fn corrected(mut self, aggregate: &Aggregate, summary: &SiteSummary) -> Self {
        let error =
            against_fp32(aggregate, &summary.site.layer, self.since).and_then(|like| Some(1.0 - like.cosine()?));
        if let Some(error) = error.filter(|&error| error <= WHOLE) {
            self.ehat = self.ehat.map(|ehat| ehat.min(error.max(0.0)));
        }
        self
    }

    /// Whether it is the gradient of a side path: all of it together, each element as large as the largest may have been, could not make one part in a
    /// hundred of the gradient that reaches the layer's parameters, which then comes by another path. Where there is none, this is never so: a
    /// parameter's gradient is a sum of products of such elements and activations.
    fn is_side_path(&self, aggregate: &Aggregate, summary: &SiteSummary) -> bool {
        let Some(sample) = summary.latest() else { return false };
        let here = |s: &&SiteSummary| s.site.layer == summary.site.layer && s.site.probe == Probe::ParamGrad;
        let latest = aggregate.sites.iter().filter(here).filter_map(SiteSummary::latest);
        let of_step = latest.filter(|other| other.step == sample.step && other.stats.non_finite() == 0);
        let reaches = of_step.map(|other| other.stats.max_abs).fold(0.0, f64::max);
        let element = self.max_abs.max(Format::F16.largest_lost());
        sample.stats.count as f64 * element * largest_activation(aggregate) < SIDE_PATH * reaches
    }
}

fn lasting(ehat: &[f64]) -> f64 {
    ehat.iter().copied().fold(f64::INFINITY, f64::min)
}

fn against_fp32(aggregate: &Aggregate, layer: &str, since: u64) -> Option<Likeness> {
    let usable = |l: &Likeness| l.non_finite + l.non_finite_in_fp32 == 0 && l.fp32_energy > 0.0;
    let latest = aggregate.shadows.of_layer(layer, &aggregate.sites).pop();
    latest.filter(|sample| sample.step >= since && usable(&sample.likeness)).map(|sample| sample.likeness)
}

/// The largest activation of the latest step that an FP16 operator can have taken, 1 at least: what the net is given, and what is held in FP16. A scaled
/// loss is neither.
fn largest_activation(aggregate: &Aggregate) -> f64 {
    let taken = |site: &Site| site.dtype == Dtype::F16 || site.layer == INPUT;
    let activations =
        aggregate.latest_observations().filter(|(_, s)| s.site.probe == Probe::Activation && taken(&s.site));
    activations.map(|(o, _)| o.stats.max_abs).fold(1.0, f64::max)
}
