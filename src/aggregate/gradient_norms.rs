//! The norm of the whole gradient over the run, to hold one rank against another.

use std::collections::BTreeMap;

use super::SiteSummary;
use crate::observation::{Probe, Step, Tier};
use crate::scan::Scaled;

/// The norm of all parameters' gradients together, without the loss scale, over the run, thinned as it grows: at most [`GradientNorms::CAPACITY`] stretches
/// of equal length, each with the mean of the base-2 logarithms of its norms. Steps with a gradient that is not finite, or all zero, are left out.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientNorms {
    /// Steps in each stretch: a power of two.
    stride: u64,
    /// By the number of the stretch: the sum of the logarithms, and of how many.
    stretches: BTreeMap<u64, (f64, u64)>,
}

impl Default for GradientNorms {
    fn default() -> Self {
        Self { stride: 1, stretches: BTreeMap::new() }
    }
}

impl GradientNorms {
    /// Stretches kept.
    pub const CAPACITY: usize = 256;

    pub(super) fn push(&mut self, step: &Step, sites: &[SiteSummary]) {
        if let Some(log2) = log2_norm(step, sites) {
            self.add(step.index, log2);
        }
    }

    fn add(&mut self, step: u64, log2: f64) {
        let stretch = self.stretches.entry(step / self.stride).or_default();
        *stretch = (stretch.0 + log2, stretch.1 + 1);
        while self.stretches.len() > Self::CAPACITY {
            (self.stride, self.stretches) = (2 * self.stride, self.by(2 * self.stride));
        }
    }

    /// Steps in each stretch.
    pub fn stride(&self) -> u64 {
        self.stride
    }

    /// The last step of the last stretch; `None` where there is no norm.
    pub fn last_step(&self) -> Option<u64> {
        let (last, _) = self.stretches.last_key_value()?;
        Some(last.saturating_add(1).saturating_mul(self.stride) - 1)
    }

    /// The mean base-2 logarithm of the norms in stretches of `stride` steps, by the first step; a stride below its own counts as its own.
    pub fn means(&self, stride: u64) -> BTreeMap<u64, f64> {
        let stride = stride.max(self.stride);
        self.by(stride).into_iter().map(|(at, (sum, n))| (at * stride, sum / n as f64)).collect()
    }

    fn by(&self, stride: u64) -> BTreeMap<u64, (f64, u64)> {
        let mut joined: BTreeMap<u64, (f64, u64)> = BTreeMap::new();
        for (at, (sum, n)) in &self.stretches {
            let stretch = joined.entry(at.saturating_mul(self.stride) / stride).or_default();
            *stretch = (stretch.0 + sum, stretch.1 + n);
        }
        joined
    }
}

/// `None` where no gradient of a parameter was scanned, one was not finite, or all were zero.
fn log2_norm(step: &Step, sites: &[SiteSummary]) -> Option<f64> {
    if step.tier != Tier::Full {
        return None;
    }
    let is_param_grad = |site: u32| sites.get(site as usize).is_some_and(|s| s.site.probe == Probe::ParamGrad);
    let mut squares = Scaled::default();
    for observation in step.observations.iter().filter(|o| is_param_grad(o.site.0)) {
        if observation.stats.non_finite() > 0 {
            return None;
        }
        squares = squares + observation.stats.sum_squares;
    }
    let scale = step.loss_scale.filter(|scale| *scale > 0.0 && scale.is_finite()).unwrap_or(1.0);
    squares.log2().map(|log2| log2 / 2.0 - scale.log2()).filter(|log2| log2.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::Aggregate;
    use crate::observation::scenario::Scenario;
    use crate::scan::Dtype::F32;

    #[test]
    fn it_is_the_norm_of_all_parameters_without_the_loss_scale() {
        let mut run = Scenario::new();
        run.step(|s| {
            s.applied(8.0).param_grad("a", "weight", F32, &[8.0 * 3.0]).param_grad("b", "weight", F32, &[8.0 * -4.0]);
        });
        run.step(|s| {
            s.applied(8.0).param_grad("a", "weight", F32, &[f64::INFINITY]).param_grad("b", "weight", F32, &[1.0]);
        });
        run.step(|s| {
            s.applied(8.0).param_grad("a", "weight", F32, &[0.0]);
        });
        let mut aggregate = Aggregate::default();
        run.records().iter().cloned().for_each(|record| aggregate.apply(record));
        let means = aggregate.gradient_norms.means(1);
        assert_eq!(means.keys().copied().collect::<Vec<_>>(), [0], "not finite, and all zero, are no norm");
        assert!((means[&0] - 5f64.log2()).abs() < 1e-12, "{means:?}");
    }

    #[test]
    fn a_long_run_is_kept_in_few_stretches_with_the_same_means() {
        let mut norms = GradientNorms::default();
        (0..100_000u64).for_each(|step| norms.add(step, (step / 50_000) as f64));
        assert!(norms.stretches.len() <= GradientNorms::CAPACITY && norms.stride() == 512, "{}", norms.stride());
        let means = norms.means(1 << 14);
        assert_eq!((means[&0], means[&(5 << 14)]), (0.0, 1.0));
        assert_eq!(norms.last_step(), Some(100_351));
        assert_eq!(GradientNorms::default().last_step(), None);
    }
}
