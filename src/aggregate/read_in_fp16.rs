//! Which activations are read in FP16, whatever they are held in.

use std::collections::{BTreeMap, BTreeSet};

use super::SiteSummary;
use crate::observation::{Probe, Site, Step};
use crate::scan::Dtype;

/// The activations that an operator with an FP16 output took. Autocast gives such an operator a copy in FP16, so that its part of their gradient is computed
/// in FP16 and cast back: an infinity in an FP32 gradient may be an overflow of FP16.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadInFp16 {
    /// By the number of the site: whether it was noted.
    noted: Vec<bool>,
    /// Operators by layer.
    activations: BTreeMap<String, BTreeSet<String>>,
}

impl ReadInFp16 {
    pub(super) fn push(&mut self, step: &Step, sites: &[SiteSummary]) {
        let is_fp16 = |site: u32| sites.get(site as usize).is_some_and(|s| s.site.dtype == Dtype::F16);
        for observation in step.observations.iter().filter(|o| is_fp16(o.site.0)) {
            for input in observation.provenance.iter().flat_map(|made| &made.inputs).flatten() {
                self.note(input.0 as usize, sites);
            }
        }
    }

    fn note(&mut self, input: usize, sites: &[SiteSummary]) {
        let Some(summary) = sites.get(input).filter(|_| !self.noted.get(input).is_some_and(|&noted| noted)) else {
            return;
        };
        if self.noted.len() <= input {
            self.noted.resize(input + 1, false);
        }
        self.noted[input] = true;
        if summary.site.probe == Probe::Activation {
            self.activations.entry(summary.site.layer.clone()).or_default().insert(summary.site.operator.clone());
        }
    }

    /// Whether the activation of this name is one.
    pub(super) fn has(&self, site: &Site) -> bool {
        self.activations.get(&site.layer).is_some_and(|operators| operators.contains(&site.operator))
    }
}
