//! One site over the whole run.

use std::collections::VecDeque;

use crate::observation::{Observation, Site, Step};
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
}

/// One site over the whole run: totals, and a window of the recent past.
#[derive(Clone, Debug)]
pub struct SiteSummary {
    /// Where.
    pub site: Site,
    /// Scans.
    pub samples: u64,
    /// Scans with a non-finite element.
    pub non_finite_samples: u64,
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
    /// Smallest non-zero magnitude of the run; 0 when there was none.
    pub min_abs: f64,
    /// Largest finite magnitude of the run.
    pub max_abs: f64,
    /// Exponents of all samples, merged.
    pub exponents: ExponentHistogram,
    /// The recent past, oldest first, at most [`SiteSummary::WINDOW`] samples.
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
            non_finite_samples: 0,
            nonzero_samples: 0,
            count: 0,
            zeros: 0,
            nan: 0,
            inf: 0,
            min_abs: 0.0,
            max_abs: 0.0,
            exponents: ExponentHistogram::default(),
            recent: VecDeque::new(),
        }
    }

    /// The latest sample.
    pub fn latest(&self) -> Option<&Sample> {
        self.recent.back()
    }

    pub(super) fn push(&mut self, step: &Step, observation: &Observation) {
        let stats = &observation.stats;
        self.samples += 1;
        self.non_finite_samples += u64::from(stats.non_finite() > 0);
        self.nonzero_samples += u64::from(stats.max_abs > 0.0);
        self.count += stats.count;
        self.zeros += stats.zeros;
        self.nan += stats.nan;
        self.inf += stats.pos_inf + stats.neg_inf;
        if stats.min_abs > 0.0 && (self.min_abs == 0.0 || stats.min_abs < self.min_abs) {
            self.min_abs = stats.min_abs;
        }
        self.max_abs = self.max_abs.max(stats.max_abs);
        self.exponents.merge(&stats.exponents);
        if self.recent.len() == Self::WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(Sample {
            step: step.index,
            loss_scale: step.loss_scale,
            inherited: observation.inherited,
            stats: stats.clone(),
        });
    }
}
