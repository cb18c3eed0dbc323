//! Moving averages of the weights that are held in 16 bits: what is left of their steps.

use std::collections::{BTreeMap, VecDeque};

use super::SiteSummary;
use crate::observation::{Observation, Probe, Rounding, Site, SiteId, Step};
use crate::scan::{Dtype, Fidelity};

/// One step of one average: `average += (1 - decay) * (weight - average)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AverageStep {
    /// The step.
    pub step: u64,
    /// The share of itself that the average keeps at each step, between 0 and 1.
    pub decay: f64,
    /// What the format left of the step that was intended.
    pub stepped: Fidelity,
    /// The part of its energy that was meant for elements that did not change.
    pub unmoved: f64,
    /// Sum of the squares of the average's finite elements, after the step.
    pub energy: f64,
}

/// A moving average of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Average {
    /// The parameter, the operator that moves the average (`lerp_`) and the format it is held in.
    pub site: Site,
    /// The latest observed steps, oldest first: at most [`Averages::WINDOW`].
    pub recent: VecDeque<AverageStep>,
}

/// The moving averages of the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Averages {
    /// By site, that is in the order in which they were first seen.
    by_site: BTreeMap<SiteId, Average>,
}

impl AverageStep {
    /// Sum of the squares of `weight - average` before the step; 0 where the decay leaves no room for a step.
    fn gap(&self) -> f64 {
        let towards = 1.0 - self.decay;
        if towards > 0.0 { self.stepped.energy / (towards * towards) } else { 0.0 }
    }

    fn of(step: &Step, observation: &Observation) -> Option<Self> {
        let Rounding { stepped, unmoved, .. } = **observation.rounding.as_ref()?;
        let (stepped, unmoved) = (stepped?, unmoved.unwrap_or(0.0));
        let decay = observation.provenance.as_ref()?.argument?;
        let stats = &observation.stats;
        let finite = stats.count.saturating_sub(stats.non_finite()) as f64;
        let energy = stats.rms().map_or(0.0, |rms| rms * rms * finite);
        Some(Self { step: step.index, decay, stepped, unmoved, energy })
    }
}

impl Average {
    /// The latest step.
    pub fn latest(&self) -> Option<&AverageStep> {
        self.recent.back()
    }

    fn remember(&mut self, seen: AverageStep) {
        if self.recent.len() == Averages::WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(seen);
    }

    /// What was left of the recent steps, summed.
    pub fn stepped(&self) -> Fidelity {
        let mut sum = Fidelity::default();
        self.recent.iter().for_each(|step| sum.merge(&step.stepped));
        sum
    }

    /// The share of the energy of the recent steps that arrived, at most 1: of phi and of what was meant for elements that did move the smaller.
    /// Elements that moved too far make up for nothing in others. `None` where no step was intended.
    pub fn arrived(&self) -> Option<f64> {
        let stepped = self.stepped();
        let unmoved = self.recent.iter().map(|step| step.unmoved).sum::<f64>();
        stepped.phi().map(|phi| phi.min(1.0 - unmoved / stepped.energy))
    }

    /// How far it is from the weights over the recent steps: root mean square of `weight - average` over that of the average. `None` where the
    /// average is all zero.
    pub fn distance(&self) -> Option<f64> {
        let sum = |of: fn(&AverageStep) -> f64| self.recent.iter().map(of).sum::<f64>();
        let energy = sum(|step| step.energy);
        (energy > 0.0).then(|| (sum(AverageStep::gap) / energy).sqrt())
    }

    /// The largest relative error of one rounding in its format, 2^-11 in FP16 and 2^-8 in BF16.
    pub fn unit_roundoff(&self) -> f64 {
        match self.site.dtype {
            Dtype::F16 => 2f64.powi(-11),
            Dtype::Bf16 => 2f64.powi(-8),
            Dtype::F32 => 2f64.powi(-24),
            Dtype::F64 => 2f64.powi(-53),
        }
    }
}

impl Averages {
    /// Steps kept of each.
    pub const WINDOW: usize = 32;

    /// All of them, in the order in which they were first seen.
    pub fn iter(&self) -> impl Iterator<Item = &Average> {
        self.by_site.values()
    }

    /// Whether none was seen.
    pub fn is_empty(&self) -> bool {
        self.by_site.is_empty()
    }

    pub(super) fn push(&mut self, step: &Step, sites: &[SiteSummary]) {
        for observation in &step.observations {
            let site = sites.get(observation.site.0 as usize).map(|summary| &summary.site);
            let Some(site) = site.filter(|site| site.probe == Probe::Average) else { continue };
            if let Some(seen) = AverageStep::of(step, observation) {
                let average = || Average { site: site.clone(), recent: VecDeque::new() };
                self.by_site.entry(observation.site).or_insert_with(average).remember(seen);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::Aggregate;
    use crate::observation::scenario::Scenario;

    fn averages(run: &Scenario) -> Averages {
        Aggregate::of(run).averages
    }

    #[test]
    fn the_distance_from_the_weights_is_what_the_intended_steps_say() {
        // Four elements of 2, whose weights are at 3: a step of 0.001 each, of which one arrives, five times too large.
        let stepped = Fidelity { intended: 4, dead: 3, non_finite: 0, dot: 5e-6, energy: 4e-6 };
        let mut run = Scenario::new();
        run.steps(40, |s, _| {
            let rounding = Rounding { stepped: Some(stepped), unmoved: Some(3e-6), ..Rounding::default() };
            s.average("fc", "weight", Dtype::F16, &[2.0; 4], 0.999, rounding);
        });
        let averages = averages(&run);
        let all: Vec<_> = averages.iter().collect();
        let [average] = all[..] else { panic!("{all:?}") };
        assert_eq!((average.recent.len(), average.latest().map(|s| s.step)), (Averages::WINDOW, Some(39)));
        let distance = average.distance().unwrap();
        assert!((distance - 0.5).abs() < 1e-9, "{distance}");
        assert!((average.arrived().unwrap() - 0.25).abs() < 1e-9, "{:?}", average.arrived());
    }

    #[test]
    fn an_average_of_zeros_has_no_distance_in_its_own_terms() {
        let mut run = Scenario::new();
        run.step(|s| {
            s.average(
                "fc",
                "bias",
                Dtype::F16,
                &[0.0; 4],
                0.999,
                Rounding { stepped: Some(Fidelity::default()), ..Rounding::default() },
            );
        });
        assert_eq!(averages(&run).iter().next().map(Average::distance), Some(None));
    }
}
