//! The FP16 gradients of the latest step, each judged over its latest samples.

use super::super::text::INPUT;
use super::decision::MEDIAN_NEAR;
use crate::aggregate::{Aggregate, Sample, SiteSummary};
use crate::numerics::Format;
use crate::observation::{Probe, Site};
use crate::scan::{Dtype, Likeness};

/// The part of a layer's parameter gradient below which what comes by a side path does not matter, whatever FP16 makes of it.
const SIDE_PATH: f64 = 0.01;

/// Ehat below which nothing is wrong, so that nobody has to ask whether it matters.
const SOUND: f64 = 1e-6;

/// Samples in a row in which a condition must hold; costs two samples of delay.
pub(in crate::rules) const SAMPLES: usize = 3;

/// One FP16 gradient that has been judged in each of its latest samples.
pub(in crate::rules) struct Judged<'a> {
    pub site: &'a SiteSummary,
    pub latest: &'a Sample,
    pub since: u64,
    /// Ehat of each sample, oldest first.
    pub ehat: [f64; SAMPLES],
    /// The largest value in any of them.
    pub max_abs: f64,
}

impl Judged<'_> {
    /// The gradient of the layer's parameters beside FP32's, where that was compared since the first of the samples.
    pub fn against_fp32(&self, aggregate: &Aggregate) -> Option<Likeness> {
        let usable = |l: &Likeness| l.non_finite + l.non_finite_in_fp32 == 0 && l.fp32_energy > 0.0;
        let latest = aggregate.shadows.of_layer(&self.site.site.layer, &aggregate.sites).pop();
        latest.filter(|sample| sample.step >= self.since && usable(&sample.likeness)).map(|sample| sample.likeness)
    }

    /// What FP32 shows to be whole is whole, whatever its histogram lets fear: what is measured comes before what is estimated.
    fn corrected(mut self, aggregate: &Aggregate) -> Self {
        let error = self.against_fp32(aggregate).and_then(|like| Some(1.0 - like.cosine()?));
        if let Some(error) = error.filter(|&error| error <= MEDIAN_NEAR.default) {
            self.ehat = self.ehat.map(|ehat| ehat.min(error.max(0.0)));
        }
        self
    }

    /// Whether it is the gradient of a side path: all of it together, each element as large as the largest may have been, could not make one part in a
    /// hundred of the gradient that reaches the layer's parameters, which then comes by another path. Where there is none, this is never so: a
    /// parameter's gradient is a sum of products of such elements and activations.
    fn is_side_path(&self, aggregate: &Aggregate) -> bool {
        let here = |s: &&SiteSummary| s.site.layer == self.site.site.layer && s.site.probe == Probe::ParamGrad;
        let latest = aggregate.sites.iter().filter(here).filter_map(SiteSummary::latest);
        let of_step = latest.filter(|sample| sample.step == self.latest.step && sample.stats.non_finite() == 0);
        let reaches = of_step.map(|sample| sample.stats.max_abs).fold(0.0, f64::max);
        let element = self.max_abs.max(Format::F16.largest_lost());
        self.latest.stats.count as f64 * element * largest_activation(aggregate) < SIDE_PATH * reaches
    }

    /// What held in all samples.
    pub fn lasting(&self) -> f64 {
        self.ehat.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// The judged gradients of the latest step in the order of backward; and where none can be judged yet, the samples that one has.
pub(in crate::rules) fn judged(aggregate: &Aggregate) -> (Vec<Judged<'_>>, Option<usize>) {
    let mut waiting = None;
    let mut judged = Vec::new();
    for (_, site) in aggregate.latest_observations().filter(|(_, s)| s.site.probe.is_gradient()) {
        let Some(latest) = site.latest().filter(|s| s.underflow.is_some()) else { continue };
        match site.last(SAMPLES).and_then(|samples| judge(site, latest, samples)) {
            Some(one) => judged.push(one.corrected(aggregate)),
            None if site.recent.len() < SAMPLES => {
                waiting = Some(site.recent.len());
            }
            None => {}
        }
    }
    judged.retain(|j| j.lasting() <= SOUND || !j.is_side_path(aggregate));
    judged.sort_by_key(|j| j.latest.order);
    (judged, waiting)
}

/// The largest activation of the latest step that an FP16 operator can have taken, 1 at least: what the net is given, and what is held in FP16. A scaled
/// loss is neither.
fn largest_activation(aggregate: &Aggregate) -> f64 {
    let taken = |site: &Site| site.dtype == Dtype::F16 || site.layer == INPUT;
    let activations =
        aggregate.latest_observations().filter(|(_, s)| s.site.probe == Probe::Activation && taken(&s.site));
    activations.map(|(o, _)| o.stats.max_abs).fold(1.0, f64::max)
}

fn judge<'a>(
    site: &'a SiteSummary,
    latest: &'a Sample,
    samples: impl Iterator<Item = &'a Sample>,
) -> Option<Judged<'a>> {
    let samples: Vec<&Sample> = samples.collect();
    let ehat: Option<Vec<f64>> = samples.iter().map(|s| s.underflow.map(|u| u.ehat)).collect();
    Some(Judged {
        site,
        latest,
        since: samples.first()?.step,
        ehat: ehat?.try_into().ok()?,
        max_abs: samples.iter().map(|s| s.stats.max_abs).fold(0.0, f64::max),
    })
}
