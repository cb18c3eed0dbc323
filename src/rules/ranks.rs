//! The ranks of a run beside one another: what no rank can tell of itself.

use std::cmp::Reverse;

use super::diagnosis::finding;
use super::{Accepted, Finding, Firing, Policy, all};
use crate::aggregate::Aggregate;

/// One rank of a run, beside the others.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    /// Its number.
    pub number: u32,
    /// What is known of it.
    pub aggregate: &'a Aggregate,
    /// Whether its process is known to have ended: nothing more will be written.
    pub process_ended: bool,
}

impl Peer<'_> {
    /// When it began and when its latest step was, in milliseconds since the Unix epoch; `None` before its first record.
    pub(super) fn time(&self) -> Option<(u64, u64)> {
        let began = self.aggregate.run.as_ref()?.started_unix_ms;
        let lasted = self.aggregate.latest.as_ref().map_or(0, |step| step.time_ns / 1_000_000);
        Some((began, began.saturating_add(lasted)))
    }

    /// Its latest step.
    pub(super) fn step(&self) -> Option<u64> {
        self.aggregate.latest.as_ref().map(|step| step.index)
    }
}

/// The ranks of a run.
#[derive(Clone, Debug, Default)]
pub struct Company<'a> {
    /// Those of which something was read, by number.
    pub peers: Vec<Peer<'a>>,
    /// The numbers of those of which nothing could be read.
    pub unreadable: Vec<u32>,
    /// Whether these are all that have recorded: false for one recording that was read by its own path.
    pub whole: bool,
}

impl<'a> Company<'a> {
    /// The ranks that ran together. One whose recording was over before another one began is left from an earlier run: nobody moved it aside when the run was
    /// started anew.
    pub(super) fn present(&self) -> impl Iterator<Item = &Peer<'a>> + Clone + '_ {
        self.peers.iter().filter(|peer| !self.is_left_over(peer))
    }

    /// Whether a rank is left from an earlier run.
    pub(super) fn is_left_over(&self, peer: &Peer<'_>) -> bool {
        let began = self.peers.iter().filter_map(Peer::time).map(|(began, _)| began).max();
        peer.time().is_some_and(|(_, ended)| began.is_some_and(|began| ended < began))
    }
}

/// Something found of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct OfRank<T> {
    /// The rank's number; it may be one that recorded nothing.
    pub rank: u32,
    /// What was found.
    pub item: T,
}

/// What the ranks of a run show only beside one another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Across {
    /// What was found: gravest first, then by onset, code and rank.
    pub findings: Vec<OfRank<Finding>>,
    /// What was found and is accepted.
    pub accepted: Vec<OfRank<Accepted>>,
}

impl Across {
    /// Holds the ranks against one another, under what somebody decided about the rules.
    pub fn of(company: &Company<'_>, policy: &Policy) -> Self {
        let mut across = Self::default();
        for (rank, found) in without_echoes(by_rank(company, policy)) {
            let parted = policy.part(under_their_causes(found));
            across.findings.extend(parted.standing.into_iter().map(|item| OfRank { rank, item }));
            across.accepted.extend(parted.accepted.into_iter().map(|item| OfRank { rank, item }));
        }
        across.findings.sort_by_key(|of| (Reverse(of.item.severity), of.item.onset_step, of.item.code, of.rank));
        across
    }
}

fn by_rank(company: &Company<'_>, policy: &Policy) -> Vec<(u32, Vec<Finding>)> {
    let mut found: Vec<(u32, Vec<Finding>)> = Vec::new();
    for rule in all() {
        let info = rule.info();
        if policy.is_off(info.code) {
            continue;
        }
        for OfRank { rank, item: mut firing } in rule.compare(company, &policy.limits) {
            let Some(severity) = policy.severity(info.code, &firing.layer, firing.severity) else { continue };
            firing.severity = severity;
            let (since, last) = (firing.since, last_step(company, rank, &firing));
            let finding = finding(info, firing, since, last);
            match found.iter_mut().find(|(number, _)| *number == rank) {
                Some((_, of_rank)) => of_rank.push(finding),
                None => found.push((rank, vec![finding])),
            }
        }
    }
    found
}

fn last_step(company: &Company<'_>, rank: u32, firing: &Firing) -> u64 {
    let peer = company.peers.iter().find(|peer| peer.number == rank);
    peer.and_then(Peer::step).unwrap_or(0).max(firing.since)
}

/// The code of a rank that alone holds values that are not finite, and of one that is alone with its scale or its skips: it skips because of them.
const CAUSE: &str = "AMP803";
const EFFECT: &str = "AMP801";

/// Of two ranks that differ each is named. Where one of them skips because of values of its own that are not finite, the other does nothing wrong.
fn without_echoes(mut found: Vec<(u32, Vec<Finding>)>) -> Vec<(u32, Vec<Finding>)> {
    let since = |found: &[Finding], code: &str| found.iter().find(|f| f.code == code).map(|f| f.onset_step);
    let cause = found.iter().find_map(|(rank, found)| {
        let (cause, effect) = (since(found, CAUSE)?, since(found, EFFECT)?);
        (cause <= effect).then_some((*rank, effect))
    });
    if let Some((cause, step)) = cause {
        for (_, found) in found.iter_mut().filter(|(rank, _)| *rank != cause) {
            found.retain(|f| f.code != EFFECT || f.onset_step != step);
        }
    }
    found
}

/// Of one rank: what follows from another finding stands under it.
fn under_their_causes(mut found: Vec<Finding>) -> Vec<Finding> {
    let Some(cause) = found.iter().position(|f| f.code == CAUSE) else { return found };
    let since = found[cause].onset_step;
    let Some(effect) = found.iter().position(|f| f.code == EFFECT && f.onset_step >= since) else { return found };
    let effect = found.remove(effect);
    if let Some(cause) = found.iter_mut().find(|f| f.code == CAUSE) {
        cause.severity = cause.severity.max(effect.severity);
        cause.consequences.push(effect);
    }
    found
}

#[cfg(test)]
mod tests;
