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

    /// How many ranks the launcher told it that there are; `None` where it said nothing.
    pub(super) fn world_size(&self) -> Option<u32> {
        self.aggregate.run.as_ref()?.world_size
    }

    /// Whether it has taken no step and is not known to have ended: it may wait for the others.
    fn may_wait(&self) -> bool {
        self.step().is_none() && self.aggregate.end.is_none() && !self.process_ended
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
    /// Whether one command is known to have made all of them, so that none is older than the run.
    pub of_one_command: bool,
}

/// To which run the recording of a rank belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// To this one, though it may have stopped early.
    Member,
    /// To an earlier one: nobody moved it aside when the run was started anew.
    LeftOver,
    /// To this one or to one shortly before: the recordings do not tell.
    Unclear,
}

/// Ranks of one run that do not begin within this time of each other are not all there.
pub(super) const START_MS: u64 = 30_000;

impl<'a> Company<'a> {
    /// The ranks that ran together, as far as is known.
    pub(super) fn present(&self) -> impl Iterator<Item = &Peer<'a>> + Clone + '_ {
        self.peers.iter().filter(|peer| self.membership(peer) == Membership::Member)
    }

    /// To which run a rank belongs. Only of one that was over before another began that is a question:
    ///
    /// ```text
    /// the launcher told the two another number of ranks, or this one's number is not in the other's       an earlier run
    /// one command made both recordings, or it began to wait and nobody knows that it has ended            this run
    /// it began long before: the ranks of one launch begin together                                        an earlier run
    /// it began shortly before, and the launcher told both the same number of ranks                        this run: it died early
    /// it began shortly before, and no launcher said anything                                              unclear
    /// ```
    pub(super) fn membership(&self, peer: &Peer<'_>) -> Membership {
        let began = |of: &Peer<'_>| of.time().map(|(began, _)| began);
        let last = self.peers.iter().max_by_key(|other| began(other));
        let (Some((own, ended)), Some((last, latest))) =
            (peer.time(), last.and_then(|last| Some((last, began(last)?))))
        else {
            return Membership::Member;
        };
        let worlds = (peer.world_size(), last.world_size());
        match worlds {
            _ if ended >= latest => Membership::Member,
            (Some(own), Some(other)) if own != other => Membership::LeftOver,
            (_, Some(ranks)) if peer.number >= ranks => Membership::LeftOver,
            _ if self.of_one_command || peer.may_wait() => Membership::Member,
            _ if latest - own > START_MS => Membership::LeftOver,
            (Some(_), Some(_)) => Membership::Member,
            _ => Membership::Unclear,
        }
    }

    /// How long after the end of this rank's recording the last of the others began, in milliseconds; `None` where it had begun by then, and for a recording of a
    /// start alone, which tells no end.
    pub(super) fn over_before_ms(&self, peer: &Peer<'_>) -> Option<u64> {
        if peer.step().is_none() && peer.aggregate.end.is_none() {
            return None;
        }
        let latest = self.peers.iter().filter_map(Peer::time).map(|(began, _)| began).max()?;
        let (_, ended) = peer.time()?;
        latest.checked_sub(ended).filter(|ms| *ms > 0)
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
    /// Ranks that are not of this run, or may not be, and were not compared.
    pub apart: Vec<OfRank<Membership>>,
}

impl Across {
    /// To which run a rank belongs.
    pub fn membership(&self, rank: u32) -> Membership {
        self.apart.iter().find(|of| of.rank == rank).map_or(Membership::Member, |of| of.item)
    }

    /// Holds the ranks against one another, under what somebody decided about the rules.
    pub fn of(company: &Company<'_>, policy: &Policy) -> Self {
        let peers = company.peers.iter().map(|peer| OfRank { rank: peer.number, item: company.membership(peer) });
        let apart = peers.filter(|of| of.item != Membership::Member).collect();
        let mut across = Self { apart, ..Self::default() };
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
