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

/// The gradients of a layer in all comparisons of the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compared {
    /// Comparisons: the most that one of its parameters had.
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
            let compared = &mut layers[at].1;
            compared.likeness.merge(&shadowed.total);
            compared.shadows = compared.shadows.max(shadowed.shadows);
        }
        layers
    }

    /// The latest comparisons of a layer, all its parameters as one; oldest first, at most [`Shadows::WINDOW`].
    pub fn of_layer(&self, layer: &str, sites: &[SiteSummary]) -> Vec<ShadowSample> {
        let mut by_step: BTreeMap<u64, ShadowSample> = BTreeMap::new();
        let here = |id: &SiteId| sites.get(id.0 as usize).is_some_and(|s| s.site.layer == layer);
        for sample in self.gradients.iter().filter(|(id, _)| here(id)).flat_map(|(_, shadowed)| &shadowed.recent) {
            by_step
                .entry(sample.step)
                .and_modify(|sum| sum.likeness.merge(&sample.likeness))
                .or_insert_with(|| sample.clone());
        }
        by_step.into_values().collect()
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

fn sample(shadow: &Shadow, likeness: Likeness) -> ShadowSample {
    ShadowSample { step: shadow.step, loss_scale: shadow.loss_scale, likeness }
}

fn remember(recent: &mut VecDeque<ShadowSample>, sample: ShadowSample) {
    if recent.len() == Shadows::WINDOW {
        recent.pop_front();
    }
    recent.push_back(sample);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::Aggregate;
    use crate::observation::Record;
    use crate::observation::scenario::Scenario;

    fn shadowed(steps: u64) -> Aggregate {
        let mut run = Scenario::new();
        for i in 0..steps {
            run.shadow("fc", "weight", Some(2.0), &[2.0, 0.0], &[1.0, 1.0]);
            run.shadow("fc", "bias", Some(2.0), &[4.0], &[2.0]);
            run.step(|s| {
                s.loss(i as f64);
            });
        }
        Aggregate::of(&run)
    }

    #[test]
    fn memory_does_not_grow_with_the_number_of_comparisons() {
        let shadows = shadowed(50).shadows;
        assert_eq!((shadows.taken, shadows.recent.len()), (50, Shadows::WINDOW));
        assert!(shadows.gradients.values().all(|s| s.recent.len() == Shadows::WINDOW && s.shadows == 50));
        assert_eq!(shadows.steps, Some((0, 49)));
    }

    #[test]
    fn the_parameters_of_a_layer_are_one() {
        let aggregate = shadowed(3);
        let (layer, compared) = aggregate.shadows.layers(&aggregate.sites)[0].clone();
        assert_eq!((layer, compared.shadows, compared.likeness.count), ("fc", 3, 9));
        let samples = aggregate.shadows.of_layer("fc", &aggregate.sites);
        assert_eq!(samples.iter().map(|s| (s.step, s.likeness.lost)).collect::<Vec<_>>(), [(0, 1), (1, 1), (2, 1)]);
        assert!(aggregate.shadows.of_layer("other", &aggregate.sites).is_empty());
    }

    #[test]
    fn a_failure_is_counted_with_its_reason_and_is_no_comparison() {
        let mut aggregate = Aggregate::default();
        let failure = Some("the closure panicked".to_owned());
        aggregate.apply(Record::Shadow(Shadow { step: 7, time_ns: 5, failure, ..Shadow::default() }));
        let shadows = &aggregate.shadows;
        assert_eq!((shadows.taken, shadows.failed, shadows.time_ns, shadows.recent.len()), (0, 1, 5, 0));
        assert_eq!(shadows.last_failure, Some((7, "the closure panicked".into())));
    }
}
