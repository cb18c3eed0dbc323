//! What is reported: a run of one or more ranks, each with its diagnosis.

use std::cmp::Reverse;

use crate::aggregate::Aggregate;
use crate::observation::EndReason;
use crate::recording::{Integrity, ReadError, rank_of};
use crate::rules::{
    Accepted, Across, Allow, Company, Diagnosis, Doubt, Finding, Health, Membership, OfRank, Omitted, Peer, Policy,
    Severity,
};

/// One rank of a run: what its recording held and what the rules said of it.
#[derive(Clone, Copy, Debug)]
pub struct Rank<'a> {
    /// File name of the recording: `rank-0.amprec`; empty for a diagnosis that comes from no file.
    pub file: &'a str,
    /// How much of the recording was there to be read; `None` for a diagnosis that comes from no file.
    pub integrity: Option<&'a Integrity>,
    /// Why reading stopped before the end of the file.
    pub stopped: Option<&'a ReadError>,
    /// Whether the process that recorded it is known to have ended: nothing more will be written.
    pub process_ended: bool,
    /// What is known of the rank.
    pub aggregate: &'a Aggregate,
    /// What was found, gravest first.
    pub findings: &'a [Finding],
    /// Rules that could not tell.
    pub doubts: &'a [Doubt],
    /// Rules that fired in more layers than are kept.
    pub omitted: &'a [Omitted],
    /// What was found and is accepted.
    pub accepted: &'a [Accepted],
    /// What was decided about the rules.
    pub policy: &'a Policy,
    /// What the rules say of what could be read; [`Rank::verdict`] also asks how much that was.
    pub health: Health,
}

impl<'a> Rank<'a> {
    /// A rank as its diagnosis has it, without a file.
    pub fn of(diagnosis: &'a Diagnosis) -> Self {
        Self {
            file: "",
            integrity: None,
            stopped: None,
            process_ended: false,
            aggregate: diagnosis.aggregate(),
            findings: diagnosis.findings(),
            doubts: diagnosis.doubts(),
            omitted: diagnosis.omitted(),
            accepted: diagnosis.accepted(),
            policy: diagnosis.policy(),
            health: diagnosis.health(),
        }
    }

    /// Steps it took, as far as the recording says: those that were dropped included.
    pub fn steps(&self) -> u64 {
        let instrument = &self.aggregate.instrument;
        self.aggregate.end.as_ref().map_or(instrument.steps + instrument.dropped_steps, |end| end.steps)
    }

    /// Whether the recording ends with the end of the run, and neither the run nor the probe had failed.
    pub fn ended_in_order(&self) -> bool {
        let reason = self.aggregate.end.as_ref().map(|end| end.reason);
        matches!(reason, Some(EndReason::Finished | EndReason::Dropped))
    }

    /// The rank's number. Where the recording broke off before saying it, that of its file's name, or 0.
    pub fn number(&self) -> u32 {
        let named = || self.file.strip_prefix("rank-")?.strip_suffix(".amprec")?.parse().ok();
        self.aggregate.run.as_ref().map(|run| run.rank).or_else(named).unwrap_or(0)
    }

    /// The verdict on this rank: findings stay findings, but where a part of the recording is lost nobody knows what stood there,
    /// and nothing found is then no health. Nor is it in a run that panicked, was killed, or goes on: what comes after its last step is not known.
    pub fn verdict(&self) -> Health {
        match self.health {
            Health::Healthy if self.is_damaged() || !self.ended_in_order() => Health::Unknown,
            health => health,
        }
    }

    /// Whether the run ended in a panic.
    pub fn panicked(&self) -> bool {
        self.aggregate.end.as_ref().is_some_and(|end| end.reason == EndReason::Panicked)
    }

    /// Whether a part of the recording could not be read, other than a last record that is not whole.
    pub fn is_damaged(&self) -> bool {
        self.stopped.is_some() || self.integrity.is_some_and(|integrity| integrity.damage_count > 0)
    }

    /// Whether the recording has no end though its process has ended: what came after its last step is not known.
    pub fn ended_early(&self) -> bool {
        self.process_ended && self.aggregate.end.is_none()
    }

    /// Whether the recording is there and holds no record.
    pub fn is_empty(&self) -> bool {
        self.integrity.is_some_and(|integrity| integrity.records == 0)
    }
}

/// Something said of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Attributed<'a, T> {
    /// The rank's number.
    pub rank: u32,
    /// What is said.
    pub item: &'a T,
}

/// Findings by severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Findings that damage the run.
    pub errors: usize,
    /// Findings that fail a check, but no errors.
    pub warnings: usize,
    /// Findings worth knowing.
    pub infos: usize,
    /// Findings that follow from one of those, and are not counted among them.
    pub consequences: usize,
}

/// A run: its ranks, by number.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// The ranks; never empty where a run was read. One that is left from an earlier run of the directory is none of them.
    pub ranks: Vec<Rank<'a>>,
    /// Recordings that are left from an earlier run: they count in nothing, and a finding names each.
    left_over: Vec<Rank<'a>>,
    /// Recordings of which nothing could be read, and why.
    pub unreadable: &'a [ReadError],
    /// Whether these are all recordings of the run: false for one that was read by its own path.
    whole: bool,
    /// Whether one command is known to have made all of them.
    of_one_command: bool,
    /// What the ranks show only beside one another.
    across: Across,
}

impl<'a> Run<'a> {
    /// A run of which nothing was recorded.
    pub fn empty() -> Self {
        Self::of(Vec::new(), &[])
    }

    /// A run of one rank, whatever others there may be.
    pub fn single(rank: Rank<'a>) -> Self {
        Self {
            ranks: vec![rank],
            left_over: Vec::new(),
            unreadable: &[],
            whole: false,
            of_one_command: false,
            across: Across::default(),
        }
    }

    /// A run of all these ranks.
    pub fn of(ranks: Vec<Rank<'a>>, unreadable: &'a [ReadError]) -> Self {
        let (left_over, across) = (Vec::new(), Across::default());
        Self { ranks, left_over, unreadable, whole: true, of_one_command: false, across }.compared()
    }

    /// The same run, of which is known that one command made it and that its processes have ended.
    pub fn after_its_processes(mut self) -> Self {
        self.ranks.iter_mut().for_each(|rank| rank.process_ended = true);
        self.of_one_command = true;
        self.compared()
    }

    /// Holds the ranks against one another, and lays those of an earlier run aside.
    fn compared(mut self) -> Self {
        self.ranks.append(&mut self.left_over);
        self.ranks.sort_by_key(Rank::number);
        let peer = |rank: &Rank<'a>| Peer {
            number: rank.number(),
            aggregate: rank.aggregate,
            process_ended: rank.process_ended,
        };
        let company = Company {
            peers: self.ranks.iter().map(peer).collect(),
            unreadable: self.unreadable.iter().filter_map(|error| rank_of(error.path())).collect(),
            whole: self.whole,
            of_one_command: self.of_one_command,
        };
        let across = self.policy().map(|policy| Across::of(&company, policy)).unwrap_or_default();
        let is_left_over = |rank: &Rank<'_>| across.membership(rank.number()) == Membership::LeftOver;
        (self.left_over, self.ranks) = self.ranks.into_iter().partition(is_left_over);
        self.across = across;
        self
    }

    /// The numbers of the ranks whose recordings are left from an earlier run.
    pub fn left_over(&self) -> Vec<u32> {
        self.left_over.iter().map(Rank::number).collect()
    }

    /// What was found of the ranks only beside one another, by rank.
    pub fn across(&self) -> &[OfRank<Finding>] {
        &self.across.findings
    }

    /// The rank that is worst off, of several: the one with the gravest finding, of equals the one with most of them, then the lowest. `None` where nothing was
    /// found, and for a run of one rank.
    pub fn worst_rank(&self) -> Option<u32> {
        let found = self.findings();
        let grave = |rank: u32| {
            let of_rank = found.iter().filter(|of| of.rank == rank).map(|of| of.item.severity);
            let gravest = of_rank.clone().max();
            (gravest, of_rank.filter(|severity| Some(*severity) == gravest).count())
        };
        let numbers = self.ranks.iter().map(Rank::number).filter(|_| self.ranks.len() > 1);
        numbers
            .map(|rank| (grave(rank), Reverse(rank)))
            .max()
            .filter(|((gravest, _), _)| gravest.is_some())
            .map(|(_, rank)| rank.0)
    }

    /// How many ranks the launcher said there are; `None` where it said nothing.
    pub fn world_size(&self) -> Option<u32> {
        self.ranks.iter().filter_map(|rank| rank.aggregate.run.as_ref()?.world_size).max()
    }

    /// The gravest [verdict](Rank::verdict) of all ranks: findings, else unknown, else healthy. A run without ranks is unknown, and
    /// so is a rank that could not be read.
    pub fn health(&self) -> Health {
        let any = |health| self.ranks.iter().any(|rank| rank.verdict() == health);
        let apart = self.across.findings.iter().any(|of| of.item.severity >= Severity::Warning);
        match (
            apart || any(Health::Findings),
            any(Health::Unknown) || self.ranks.is_empty() || !self.unreadable.is_empty(),
        ) {
            (true, _) => Health::Findings,
            (false, true) => Health::Unknown,
            (false, false) => Health::Healthy,
        }
    }

    /// The findings of all ranks, and those of the ranks beside one another: gravest first, then by onset, code, layer and rank.
    pub fn findings(&self) -> Vec<Attributed<'_, Finding>> {
        let mut all = self.attributed(|rank| rank.findings);
        all.extend(self.across.findings.iter().map(attributed));
        all.sort_by_key(|of| (Reverse(of.item.severity), of.item.onset_step, of.item.code, &of.item.layer, of.rank));
        all
    }

    /// The doubts of all ranks, by code and rank.
    pub fn doubts(&self) -> Vec<Attributed<'a, Doubt>> {
        let mut all = self.attributed(|rank| rank.doubts);
        all.sort_by_key(|of| (of.item.code, of.rank));
        all
    }

    /// What was found in more layers than are listed, by code and rank.
    pub fn omitted(&self) -> Vec<Attributed<'a, Omitted>> {
        let mut all = self.attributed(|rank| rank.omitted);
        all.sort_by_key(|of| (of.item.code, of.rank));
        all
    }

    /// What was accepted on all ranks, by code, layer and rank.
    pub fn accepted(&self) -> Vec<Attributed<'_, Accepted>> {
        let mut all = self.attributed(|rank| rank.accepted);
        all.extend(self.across.accepted.iter().map(attributed));
        all.sort_by_key(|of| (of.item.finding.code, &of.item.finding.layer, of.rank));
        all
    }

    /// What was decided about the rules: the same on every rank. `None` for a run of which nothing was recorded.
    pub fn policy(&self) -> Option<&'a Policy> {
        self.ranks.first().map(|rank| rank.policy)
    }

    /// What would be accepted, in the order of the file, and whether there was any.
    pub fn allowances(&self) -> Vec<(&'a Allow, bool)> {
        let used = |at| self.accepted().iter().any(|of| of.item.by == at);
        let allowed = self.policy().map_or(&[][..], |policy| &policy.allow);
        allowed.iter().enumerate().map(|(at, allow)| (allow, used(at))).collect()
    }

    /// How many findings there are of each severity.
    pub fn counts(&self) -> Counts {
        let found = self.findings();
        let of = |severity| found.iter().filter(|of| of.item.severity == severity).count();
        Counts {
            errors: of(Severity::Error),
            warnings: of(Severity::Warning),
            infos: of(Severity::Info),
            consequences: found.iter().map(|of| of.item.consequences.len()).sum(),
        }
    }

    /// Whether every rank ended in order.
    pub fn ended_in_order(&self) -> bool {
        !self.ranks.is_empty() && self.unreadable.is_empty() && self.ranks.iter().all(Rank::ended_in_order)
    }

    /// Whether a finding must name its rank.
    pub fn is_distributed(&self) -> bool {
        self.ranks.len() + self.unreadable.len() + self.left_over.len() > 1
    }

    fn attributed<T: 'a>(&self, of: impl Fn(&Rank<'a>) -> &'a [T]) -> Vec<Attributed<'a, T>> {
        self.ranks
            .iter()
            .flat_map(|rank| of(rank).iter().map(|item| Attributed { rank: rank.number(), item }))
            .collect()
    }
}

fn attributed<T>(OfRank { rank, item }: &OfRank<T>) -> Attributed<'_, T> {
    Attributed { rank: *rank, item }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::observation::scenario::Scenario;
    use crate::observation::{End, Record, RunInfo, Sampling, Step};
    use crate::report::fixture::{Fixture, run_info};

    static NOBODYS: LazyLock<Policy> = LazyLock::new(Policy::default);

    fn rank(aggregate: &Aggregate, health: Health) -> Rank<'_> {
        Rank {
            file: "",
            integrity: None,
            stopped: None,
            process_ended: false,
            aggregate,
            findings: &[],
            doubts: &[],
            omitted: &[],
            accepted: &[],
            policy: &NOBODYS,
            health,
        }
    }

    /// What is known of a run that ended so.
    fn ended(reason: EndReason) -> Aggregate {
        let mut aggregate = Aggregate::default();
        aggregate.apply(Record::End(End { steps: 20, dropped_steps: 0, reason }));
        aggregate
    }

    /// A rank of a launch of so many, that began at this time and took two steps in a second.
    fn launched(number: u32, ranks: u32, began_ms: u64) -> Aggregate {
        let mut aggregate = Aggregate::default();
        let info = run_info(Sampling::Every(1));
        let (rank, world_size, started_unix_ms) = (number, Some(ranks), began_ms);
        aggregate.apply(Record::Run(RunInfo { rank, world_size, started_unix_ms, ..info }));
        let mut steps = Scenario::new();
        steps.steps(2, |s, _| {
            s.loss(1.0);
        });
        for record in steps.records().iter().cloned() {
            if let Record::Step(step) = record {
                aggregate.apply(Record::Step(Step { time_ns: step.index * 1_000_000_000, ..step }));
            }
        }
        aggregate.apply(Record::End(End { steps: 2, dropped_steps: 0, reason: EndReason::Finished }));
        aggregate
    }

    #[test]
    fn what_is_left_from_an_earlier_run_counts_in_nothing_and_is_named_once() {
        let (new, old) = (launched(0, 1, 10_000), launched(2, 3, 0));
        let sick = Fixture::sick();
        let left = Rank { findings: &sick.findings, ..rank(&old, Health::Findings) };
        let of = |left| Run::of(vec![rank(&new, Health::Healthy), left], &[]);
        let run = of(left);
        assert_eq!((run.health(), run.worst_rank(), run.left_over()), (Health::Healthy, None, vec![2]));
        assert_eq!(run.ranks.iter().map(Rank::number).collect::<Vec<_>>(), [0]);
        let said: Vec<_> = run.findings().iter().map(|of| (of.rank, of.item.code, of.item.severity)).collect();
        assert_eq!(said, [(2, "AMP802", Severity::Info)]);
        assert_eq!(of(left).after_its_processes().left_over(), [2], "known by its number of ranks");
        let beside = launched(2, 3, 9_500);
        let (new, left) = (launched(0, 3, 10_000), Rank { aggregate: &beside, ..left });
        let run = Run::of(vec![rank(&new, Health::Healthy), left], &[]);
        assert_eq!((run.health(), run.worst_rank()), (Health::Findings, Some(2)), "a rank of this run counts");
    }

    #[test]
    fn a_run_that_was_killed_or_panicked_passes_no_gate_and_one_that_ended_in_order_does() {
        let verdict = |aggregate: &Aggregate, health| Run::single(rank(aggregate, health)).health();
        for (reason, expected) in [
            (EndReason::Finished, Health::Healthy),
            (EndReason::Dropped, Health::Healthy),
            (EndReason::Panicked, Health::Unknown),
        ] {
            assert_eq!(verdict(&ended(reason), Health::Healthy), expected, "{reason:?}");
            assert_eq!(verdict(&ended(reason), Health::Findings), Health::Findings);
        }
        assert_eq!(verdict(&Aggregate::default(), Health::Healthy), Health::Unknown, "killed, or still going on");
    }

    #[test]
    fn what_is_lost_makes_health_unknown_and_leaves_findings_findings() {
        let (aggregate, endless) = (ended(EndReason::Finished), Aggregate::default());
        let (mut damaged, mut cut) = (Integrity::default(), Integrity::default());
        damaged.damage_count = 1;
        cut.tail_bytes = 7;
        let stopped = ReadError::Missing { path: "rank-0.amprec".into() };
        for (health, expected) in [(Health::Healthy, Health::Unknown), (Health::Findings, Health::Findings)] {
            let rank = rank(&aggregate, health);
            assert_eq!(Run::single(Rank { integrity: Some(&damaged), ..rank }).health(), expected);
            assert_eq!(Run::single(Rank { stopped: Some(&stopped), ..rank }).health(), expected);
            assert_eq!(Run::single(Rank { integrity: Some(&cut), ..rank }).health(), health);
            let endless = Rank { aggregate: &endless, ..rank };
            assert_eq!(Run::single(endless).after_its_processes().health(), expected, "it has no end");
        }
    }

    #[test]
    fn a_rank_that_never_said_its_number_has_that_of_its_file() {
        let aggregate = Aggregate::default();
        assert_eq!(Rank { file: "rank-12.amprec", ..rank(&aggregate, Health::Unknown) }.number(), 12);
        assert_eq!(Rank { file: "copy.amprec", ..rank(&aggregate, Health::Unknown) }.number(), 0);
    }

    #[test]
    fn the_verdict_on_a_run_is_that_of_its_gravest_rank() {
        let aggregate = ended(EndReason::Finished);
        let verdict =
            |all: &[Health]| Run::of(all.iter().map(|&health| rank(&aggregate, health)).collect(), &[]).health();
        assert_eq!(verdict(&[Health::Healthy, Health::Healthy]), Health::Healthy);
        assert_eq!(verdict(&[Health::Healthy, Health::Unknown]), Health::Unknown);
        assert_eq!(verdict(&[Health::Unknown, Health::Findings, Health::Healthy]), Health::Findings);
    }

    #[test]
    fn a_rank_that_could_not_be_read_is_not_called_healthy() {
        let aggregate = ended(EndReason::Finished);
        let unreadable = [ReadError::Missing { path: "rank-1.amprec".into() }];
        let run = Run::of(vec![rank(&aggregate, Health::Healthy)], &unreadable);
        assert_eq!(run.health(), Health::Unknown);
    }

    #[test]
    fn a_run_without_ranks_is_not_called_healthy() {
        assert_eq!(Run::empty().health(), Health::Unknown);
    }
}
