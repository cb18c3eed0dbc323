//! What comparisons with FP32 showed: of each parameter the sum over the run and a window of the recent past.

use std::collections::{BTreeMap, VecDeque};

use super::SiteSummary;
use crate::observation::{Shadow, SiteId};
use crate::scan::Likeness;

/// One parameter's gradient in one comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct ShadowSample {
    /// The step whose batch was used.
    pub step: u64,
    /// The loss scale that the gradient carried; `None` without one.
    pub loss_scale: Option<f64>,
    /// How like it is.
    pub likeness: Likeness,
}

/// One parameter's gradient in all comparisons of the run.
#[derive(Clone, Debug, Default)]
pub struct Shadowed {
    /// Comparisons.
    pub shadows: u64,
    /// All of them, summed.
    pub total: Likeness,
    /// The latest, oldest first; at most [`Shadows::WINDOW`].
    pub recent: VecDeque<ShadowSample>,
}

/// Several gradients as one, or one in several comparisons.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compared {
    /// The comparisons' steps: first and last.
    pub steps: Option<(u64, u64)>,
    /// How many comparisons.
    pub shadows: u64,
    /// Their sum.
    pub likeness: Likeness,
}

/// What comparisons with FP32 showed; empty where none was asked for.
#[derive(Clone, Debug, Default)]
pub struct Shadows {
    /// Comparisons that were made.
    pub taken: u64,
    /// Those among them for which the mixed-precision gradient was computed anew.
    pub recomputed: u64,
    /// Comparisons that failed.
    pub failed: u64,
    /// The step and reason of the latest failure.
    pub last_failure: Option<(u64, String)>,
    /// Time that all took, failed ones included, in nanoseconds; no part of the time of the steps.
    pub time_ns: u64,
    /// The first and the last step that was compared.
    pub steps: Option<(u64, u64)>,
    /// The parameters, by the site of their gradient.
    pub gradients: BTreeMap<SiteId, Shadowed>,
    /// The latest comparisons, all gradients as one; oldest first, at most [`Shadows::WINDOW`].
    pub recent: VecDeque<ShadowSample>,
}

impl Shadows {
    /// Comparisons kept of the recent past.
    pub const WINDOW: usize = 8;

    /// The layers that were compared, in the order of their parameters' sites, each over all comparisons of the run.
    pub fn layers<'a>(&self, sites: &'a [SiteSummary]) -> Vec<(&'a str, Compared)> {
        let mut layers: Vec<(&str, Compared)> = Vec::new();
        for (id, shadowed) in &self.gradients {
            let Some(site) = sites.get(id.0 as usize) else { continue };
            let at = layers.iter().position(|(name, _)| *name == site.site.layer).unwrap_or_else(|| {
                layers.push((&site.site.layer, Compared::default()));
                layers.len() - 1
            });
            layers[at].1.add(&shadowed.total, shadowed.shadows, shadowed.recent.back().map(|s| s.step));
        }
        layers
    }

    /// The latest comparison of a layer that is no older than `oldest`: all its parameters as one; `None` where there is none.
    pub fn layer_at_latest(&self, layer: &str, sites: &[SiteSummary], oldest: u64) -> Option<ShadowSample> {
        let step = self.recent.back().map(|s| s.step).filter(|&step| step >= oldest)?;
        let here = |id: &SiteId| sites.get(id.0 as usize).is_some_and(|s| s.site.layer == layer);
        let samples = self.gradients.iter().filter(|(id, _)| here(id));
        let samples = samples.filter_map(|(_, shadowed)| shadowed.recent.back().filter(|s| s.step == step));
        samples.cloned().reduce(|mut sum, sample| {
            sum.likeness.merge(&sample.likeness);
            sum
        })
    }

    /// Adds a comparison.
    pub(super) fn push(&mut self, shadow: &Shadow, sites: &[SiteSummary]) {
        self.time_ns += shadow.time_ns;
        if let Some(why) = &shadow.failure {
            self.failed += 1;
            self.last_failure = Some((shadow.step, why.clone()));
            return;
        }
        self.taken += 1;
        self.recomputed += u64::from(shadow.recomputed);
        self.steps = Some((self.steps.map_or(shadow.step, |(first, _)| first), shadow.step));
        let mut all = Likeness::default();
        for gradient in shadow.gradients.iter().filter(|g| (g.site.0 as usize) < sites.len()) {
            all.merge(&gradient.likeness);
            let known = self.gradients.entry(gradient.site).or_default();
            known.shadows += 1;
            known.total.merge(&gradient.likeness);
            remember(&mut known.recent, sample(shadow, gradient.likeness));
        }
        remember(&mut self.recent, sample(shadow, all));
    }
}

impl Compared {
    fn add(&mut self, likeness: &Likeness, shadows: u64, last: Option<u64>) {
        self.likeness.merge(likeness);
        self.shadows = self.shadows.max(shadows);
        self.steps = last.map(|last| self.steps.map_or((last, last), |(a, b)| (a.min(last), b.max(last))));
    }
}

fn sample(shadow: &Shadow, likeness: Likeness) -> ShadowSample {
    ShadowSample { step: shadow.step, loss_scale: shadow.loss_scale, likeness }
}

fn remember(recent: &mut VecDeque<ShadowSample>, sample: ShadowSample) {
    if recent.len() == Shadows::WINDOW {
        recent.pop_front();
    }
    recent.push_back(sample);
}
