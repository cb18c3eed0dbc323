//! The few steps whose gradients stand so far above those of all others that they say nothing of the run.

use std::collections::BTreeSet;

use crate::aggregate::SiteSummary;

/// Steps that stand apart: of a batch with an enormous loss, for one. A scaler skips them; no scale is chosen for them.
///
/// One step is an outlier of the whole run where it is one of any gradient: what is wrong with its batch is in all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::rules) struct Outliers {
    pub steps: BTreeSet<u64>,
}

impl Outliers {
    /// Of one step in this many it is still said that it is rare.
    const RARE: u64 = 32;

    /// The outliers of these gradients; none where they are so many together that they belong to the run.
    pub fn among<'a>(gradients: impl Iterator<Item = &'a SiteSummary>) -> Self {
        let (mut steps, mut scans) = (BTreeSet::new(), 0);
        for site in gradients {
            scans = scans.max(site.samples);
            steps.extend(site.unscaled.iter().flat_map(|unscaled| unscaled.largest.outliers()));
        }
        let is_rare = steps.len() as u64 * Self::RARE <= scans;
        if is_rare { Self { steps } } else { Self::default() }
    }

    /// The largest value of a gradient, without the loss scale, at all other steps.
    pub fn largest_but(&self, site: &SiteSummary) -> f64 {
        let largest = site.unscaled.as_ref().map(|unscaled| &unscaled.largest);
        let others = largest.and_then(|largest| largest.without(|step| self.steps.contains(&step)));
        others.filter(|_| !self.steps.is_empty()).unwrap_or(site.max_unscaled)
    }
}
