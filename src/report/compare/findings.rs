//! Findings of two runs, told apart by rule and layer.

use super::super::Run;
use crate::rules::Finding;

/// The findings that only one run has, and those that both have. What follows from another finding counts as one of its own, so that a cause that is gone
/// and left its consequence behind is not taken for a cure; accepted findings do not count.
#[derive(Clone, Debug)]
pub struct FindingChanges<'a> {
    /// In the base alone, gravest first.
    pub gone: Vec<&'a Finding>,
    /// In the run alone, gravest first.
    pub new: Vec<&'a Finding>,
    /// In both, as the run has them, gravest first.
    pub remaining: Vec<&'a Finding>,
}

impl<'a> FindingChanges<'a> {
    pub(super) fn of(base: &'a Run<'a>, run: &'a Run<'a>) -> Self {
        let (before, after) = (all(base), all(run));
        let is_in = |others: &[&'a Finding]| {
            let keys: Vec<_> = others.iter().map(|other| key(other)).collect();
            move |finding: &&'a Finding| keys.contains(&key(finding))
        };
        let (in_before, in_after) = (is_in(&before), is_in(&after));
        let gone = before.iter().copied().filter(|finding| !in_after(finding)).collect();
        let (remaining, new) = after.into_iter().partition(in_before);
        Self { gone, new, remaining }
    }
}

fn key(finding: &Finding) -> (&'static str, &str) {
    (finding.code, &finding.layer)
}

/// The findings of all ranks with what follows from them, each rule and layer once: as the gravest rank has it.
fn all<'a>(run: &'a Run<'a>) -> Vec<&'a Finding> {
    let mut all: Vec<&'a Finding> = Vec::new();
    for finding in run.findings().into_iter().flat_map(|of| of.item.with_consequences()) {
        if all.iter().all(|known| key(known) != key(finding)) {
            all.push(finding);
        }
    }
    all.sort_by_key(|finding| (std::cmp::Reverse(finding.severity), finding.onset_step));
    all
}
