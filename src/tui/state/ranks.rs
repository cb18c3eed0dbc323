//! The ranks of a run, each as it is read.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use super::remark::Remark;
use super::{LayerDetail, Run, RunState, Snapshot};
use crate::rules::agreement::{apart, first_alone, first_non_finite};
use crate::rules::whatif::WhatIf;
use crate::rules::{Across, Company, Finding, Membership, OfRank, Peer, Severity};
use crate::tui::world::Batch;

/// One rank in a line.
#[derive(Clone, Debug, PartialEq)]
pub struct RankStatus {
    /// Its number.
    pub number: u32,
    /// What it is doing.
    pub state: RunState,
    /// The gravest of its findings.
    pub severity: Option<Severity>,
    /// How many there are.
    pub findings: usize,
    /// Its latest step.
    pub step: Option<u64>,
    /// Its latest loss; may be non-finite.
    pub loss: Option<f64>,
    /// Its loss scale.
    pub loss_scale: Option<f64>,
    /// Optimizer steps withheld.
    pub skipped: u64,
    /// Whether its recording is left from an earlier run: it counts in nothing.
    pub is_left_over: bool,
    /// What it does and the others do not.
    pub remarks: Vec<Remark>,
}

/// The ranks of a run, by number. Before the first record of the first one there is none, but still a run to show.
#[derive(Clone)]
pub struct Ranks {
    blank: Run,
    runs: BTreeMap<u32, Run>,
    /// What they show beside one another: made when it is asked for and something has changed.
    across: OnceCell<Across>,
}

impl Ranks {
    /// A run of which nothing was read yet; every rank begins as `blank`.
    pub fn new(blank: Run) -> Self {
        Self { blank, runs: BTreeMap::new(), across: OnceCell::new() }
    }

    /// Takes in what was read of one rank at `now`; whether that changed anything.
    pub fn take(&mut self, batch: Batch, now: Duration) -> bool {
        let blank = &self.blank;
        let run = self.runs.entry(batch.rank).or_insert_with(|| blank.clone());
        if batch.restarted {
            run.restart();
        }
        let changed = batch.restarted
            || run.source.problem != batch.problem
            || run.source.unreadable != batch.unreadable
            || run.source.abandoned != batch.abandoned
            || run.source.process_gone != batch.process_gone
            || run.source.unread != batch.more
            || !batch.records.is_empty();
        run.source.problem = batch.problem;
        (run.source.unreadable, run.source.abandoned) = (batch.unreadable, batch.abandoned);
        run.source.process_gone = batch.process_gone;
        run.source.unread = batch.more;
        if !batch.records.is_empty() {
            run.apply(batch.records, now, batch.age);
        }
        if changed {
            self.across.take();
        }
        changed
    }

    /// Tells that everything recorded so far was there when watching began.
    pub fn mark_replay(&mut self) {
        self.runs.values_mut().for_each(Run::mark_replay);
    }

    /// Whether the command that was started has ended, and what there is to say of that.
    pub fn set_command(&mut self, ended: bool, notice: Option<String>) {
        self.across.take();
        for run in self.runs.values_mut().chain([&mut self.blank]) {
            run.source.command_ended = ended;
            if notice.is_some() {
                run.source.notice.clone_from(&notice);
            }
        }
    }

    /// Numbers and runs, by rising number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Run)> {
        self.runs.iter().map(|(number, run)| (*number, run))
    }

    /// The same of those that are not left from an earlier run.
    pub fn members(&self) -> impl Iterator<Item = (u32, &Run)> {
        self.iter().filter(|&(number, _)| !self.is_left_over(number))
    }

    fn is_left_over(&self, number: u32) -> bool {
        self.across().membership(number) == Membership::LeftOver
    }

    /// Whether a finding must name its rank.
    pub fn are_several(&self) -> bool {
        self.runs.len() > 1
    }

    /// Whether a record was read of any rank.
    pub fn has_begun(&self) -> bool {
        self.runs.values().any(|run| run.diagnosis().aggregate().run.is_some())
    }

    /// Whether nothing more will come of any rank.
    pub fn are_over(&self, now: Duration) -> bool {
        !self.runs.is_empty() && self.members().all(|(_, run)| run.state(now).is_over())
    }

    /// The rank that is shown: the chosen one where it is there, else the worst.
    pub fn shown(&self, chosen: Option<u32>) -> Option<u32> {
        chosen.filter(|number| self.runs.contains_key(number)).or_else(|| self.worst())
    }

    /// Whether a rank is of this run, as far as is known.
    fn is_member(&self, number: u32) -> bool {
        self.across().membership(number) == Membership::Member
    }

    /// The rank with the gravest finding; of several the one with most of them, then the lowest. Never one that is left from an earlier run.
    pub fn worst(&self) -> Option<u32> {
        let grave = |number: u32, run: &Run| {
            let found: Vec<Severity> = self.severities(number, run);
            let gravest = found.iter().copied().max();
            (gravest, found.into_iter().filter(|severity| Some(*severity) == gravest).count())
        };
        let present = self.runs.iter().filter(|(number, _)| self.is_member(**number));
        present.max_by_key(|&(number, run)| (grave(*number, run), Reverse(*number))).map(|(number, _)| *number)
    }

    /// Of its own findings, and of those that only the others show.
    fn severities(&self, number: u32, run: &Run) -> Vec<Severity> {
        let across = self.across().findings.iter().filter(|of| of.rank == number).map(|of| of.item.severity);
        run.findings().iter().map(|f| f.severity).chain(across).collect()
    }

    /// What the ranks show beside one another.
    pub fn across(&self) -> &Across {
        self.across.get_or_init(|| {
            let (unreadable, read): (Vec<_>, Vec<_>) = self.iter().partition(|(_, run)| run.is_unreadable());
            let peers = read.into_iter().map(|(number, run)| Peer {
                number,
                aggregate: run.diagnosis().aggregate(),
                process_ended: run.has_lost_its_process(),
            });
            let peers = peers.collect();
            let unreadable = unreadable.into_iter().map(|(number, _)| number).collect();
            let company = Company { peers, unreadable, whole: self.are_several(), ..Company::default() };
            Across::of(&company, &self.blank.source.policy)
        })
    }

    /// What is to be shown of that beside a rank's own findings: its part, and what was found of ranks that recorded nothing.
    fn beside(&self, shown: Option<u32>) -> impl Iterator<Item = &Finding> {
        let is_shown = move |of: &&OfRank<Finding>| Some(of.rank) == shown || !self.runs.contains_key(&of.rank);
        self.across().findings.iter().filter(is_shown).map(|of| &of.item)
    }

    /// The run of a rank, or the blank one.
    pub fn run(&self, number: Option<u32>) -> &Run {
        number.and_then(|number| self.runs.get(&number)).unwrap_or(&self.blank)
    }

    /// What each rank is doing at `now`, shown or not: a change is worth a new picture.
    pub fn states(&self, now: Duration) -> Vec<RunState> {
        if self.runs.is_empty() {
            return vec![self.blank.state(now)];
        }
        self.runs.values().map(|run| run.state(now)).collect()
    }

    /// The picture of the rank that is shown, with a line on every rank.
    pub fn snapshot(&self, chosen: Option<u32>, now: Duration) -> Snapshot {
        let shown = self.shown(chosen);
        let mut snapshot = self.run(shown).snapshot(now);
        if self.are_several() {
            snapshot.findings.add(self.beside(shown).cloned());
            snapshot.ranks = self.statuses(now);
            snapshot.rank = shown;
            snapshot.worst_rank = self.worst();
            let unread = |(number, run): (u32, &Run)| {
                run.is_unreadable()
                    .then(|| format!("rank {number}: {}", run.source.problem.clone().unwrap_or_default()))
            };
            snapshot.header.notice = snapshot.header.notice.or_else(|| self.iter().find_map(unread));
        }
        snapshot
    }

    /// One layer over the whole run: of the rank that is shown, or of all.
    pub fn layer(&self, path: &str, chosen: Option<u32>, all: bool) -> LayerDetail {
        let shown = self.shown(chosen);
        let wanted = |number| if all { !self.is_left_over(number) } else { Some(number) == shown };
        let selected = self.iter().filter(|&(number, _)| wanted(number));
        LayerDetail::of_runs(
            path,
            all,
            selected.map(|(number, run)| (number, run.diagnosis().aggregate(), run.findings())),
        )
    }

    /// What other loss scales and formats would make of all ranks of the run together.
    pub fn whatif(&self) -> WhatIf<'_> {
        let aggregates: Vec<_> = self.members().map(|(_, run)| run.diagnosis().aggregate()).collect();
        WhatIf::of(&aggregates)
    }

    fn statuses(&self, now: Duration) -> Vec<RankStatus> {
        let mut remarks = self.disagreements();
        let present = || self.runs.iter().filter(|(number, _)| self.is_member(**number)).map(|(_, run)| run);
        let most = present().filter_map(Run::step).max().unwrap_or(0);
        let running = present().any(|run| !run.state(now).is_over());
        let statuses = self.runs.iter().zip(remarks.drain(..)).map(|((&number, run), mut remarks)| {
            let (state, step) = (run.state(now), run.step());
            match step.filter(|_| self.is_member(number)).and_then(|step| stop(state, step, most, running)) {
                Some(stopped @ Remark::Stopped(_)) => remarks.insert(0, stopped),
                other => remarks.extend(other),
            }
            let header = run.header(now);
            // Those of an earlier run count no more.
            let is_left_over = self.is_left_over(number);
            let findings = if is_left_over { Vec::new() } else { self.severities(number, run) };
            RankStatus {
                number,
                state,
                severity: findings.iter().copied().max(),
                findings: findings.len(),
                step,
                loss: header.loss,
                loss_scale: header.loss_scale,
                skipped: header.skipped,
                is_left_over,
                remarks,
            }
        });
        statuses.collect()
    }

    /// Where the ranks do not do the same, in their order; what is left from an earlier run, or may be, is not compared.
    fn disagreements(&self) -> Vec<Vec<Remark>> {
        let present = self.runs.iter().filter(|(number, _)| self.is_member(**number));
        let aggregates: Vec<_> = present.map(|(_, run)| run.diagnosis().aggregate()).collect();
        let mut remarks: Vec<Vec<Remark>> = apart(&aggregates)
            .into_iter()
            .map(|apart| {
                let skips = apart.skips.map(|skips| Remark::Skips(skips.step));
                let mut remarks: Vec<Remark> =
                    skips.into_iter().chain(apart.scale.map(|scale| Remark::Scale(scale.step))).collect();
                remarks.sort_by_key(|remark| remark.step());
                remarks
            })
            .collect();
        let bad: Vec<_> = aggregates.iter().map(|aggregate| first_non_finite(aggregate)).collect();
        if let Some((rank, step)) = first_alone(&bad).and_then(|rank| Some((rank, bad[rank]?))) {
            // It comes first: that a rank skips alone may follow from it.
            remarks[rank].insert(0, Remark::NonFinite(step));
        }
        let mut remarks = remarks.into_iter();
        let of = |number: &u32| match self.across().membership(*number) {
            Membership::LeftOver => vec![Remark::EarlierRun],
            Membership::Unclear => vec![Remark::EarlierRunOrDied],
            Membership::Member => {
                let gradient =
                    self.across().findings.iter().find(|of| of.rank == *number && of.item.code == GRADIENTS_APART);
                let mut remarks = remarks.next().unwrap_or_default();
                remarks.extend(gradient.map(|of| Remark::Gradient(of.item.onset_step)));
                remarks
            }
        };
        self.runs.keys().map(of).collect()
    }
}

/// The rule that finds a rank with a gradient of another size.
const GRADIENTS_APART: &str = "AMP804";

/// What there is to say of a rank that no longer goes on while others do, or did. Ranks wait for each other at every step, so that one which is a few
/// steps behind is only read late.
fn stop(state: RunState, step: u64, most: u64, others_run: bool) -> Option<Remark> {
    const LATE: u64 = 2;
    let is_behind = step + LATE <= most;
    match state {
        RunState::Killed | RunState::Stalled(_) => (others_run || is_behind).then_some(Remark::Stopped(step)),
        RunState::Ended(_) | RunState::Replay(_) => is_behind.then_some(Remark::Ended(step)),
        RunState::Live | RunState::Waiting | RunState::Empty | RunState::Unreadable => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{EndReason, Record, ScalerEvent};
    use crate::tui::state::{Findings, Source};
    use crate::tui::testing::scenario::{Fault, records};
    use crate::tui::testing::underflow;

    const SECOND: Duration = Duration::from_secs(1);

    /// Ranks whose findings are those of the same place.
    fn ranks(runs: Vec<Vec<Record>>) -> Ranks {
        let mut ranks = Ranks::new(Run::new(Source::default()));
        for (rank, records) in (0..).zip(runs) {
            ranks.take(Batch { rank, records, ..Batch::default() }, SECOND);
        }
        ranks
    }

    fn clean(steps: u64) -> Vec<Record> {
        records("r", Fault::None, steps, false)
    }

    #[test]
    fn the_worst_rank_is_shown_until_one_is_chosen() {
        let ranks = ranks(vec![clean(80), records("r", Fault::Nan("conv2"), 80, false), clean(80)]);
        assert_eq!((ranks.worst(), ranks.shown(None), ranks.shown(Some(2))), (Some(1), Some(1), Some(2)));
        assert_eq!(ranks.shown(Some(7)), Some(1), "a rank that is not there");
        let snapshot = ranks.snapshot(Some(0), SECOND);
        assert_eq!((snapshot.rank, snapshot.worst_rank, snapshot.ranks.len()), (Some(0), Some(1), 3));
    }

    #[test]
    fn ranks_alike_draw_no_remark_and_one_alone_is_no_rank() {
        let both = ranks(vec![clean(60), clean(57)]);
        assert!(both.snapshot(None, SECOND).ranks.iter().all(|rank| rank.remarks.is_empty()));
        assert_eq!(both.worst(), Some(0));
        assert!(ranks(vec![clean(60)]).snapshot(None, SECOND).ranks.is_empty());
    }

    #[test]
    fn a_rank_whose_process_is_gone_while_others_go_on_has_stopped() {
        let mut ranks = ranks(vec![clean(60), clean(40)]);
        let gone = Batch { rank: 1, process_gone: Some(true), age: 60 * SECOND, ..Batch::default() };
        ranks.take(gone, SECOND);
        ranks.take(Batch { rank: 0, records: clean(61).split_off(80), ..Batch::default() }, 59 * SECOND);
        let statuses = ranks.snapshot(None, 60 * SECOND).ranks;
        assert_eq!(
            (statuses[0].remarks.as_slice(), statuses[1].remarks.as_slice()),
            (&[][..], &[Remark::Stopped(39)][..])
        );
    }

    #[test]
    fn ranks_that_ended_together_have_not_stopped_and_one_that_ended_early_has() {
        let ended = |steps| records("r", Fault::None, steps, true);
        let mut two = ranks(vec![ended(60), ended(60)]);
        two.mark_replay();
        assert_eq!(two.states(SECOND), [RunState::Replay(EndReason::Finished); 2]);
        assert!(two.are_over(SECOND) && two.snapshot(None, SECOND).ranks.iter().all(|rank| rank.remarks.is_empty()));
        let early = ranks(vec![ended(60), ended(30)]).snapshot(None, SECOND).ranks;
        assert_eq!(early[1].remarks, [Remark::Ended(29)]);
    }

    #[test]
    fn a_rank_that_skips_alone_and_one_that_is_not_finite_alone_are_remarked() {
        let mut other = clean(60);
        for record in &mut other {
            let Record::Step(step) = record else { continue };
            step.loss_scale = step.loss_scale.map(|scale| if step.index > 20 { scale / 2.0 } else { scale });
            if step.index == 20 {
                step.scaler.push(ScalerEvent::Stepped { optimizer: 0, applied: false });
            }
        }
        let nan = records("r", Fault::Nan("conv2"), 62, false);
        let statuses = ranks(vec![clean(60), other, clean(60), nan]).snapshot(None, SECOND).ranks;
        assert_eq!(statuses[1].remarks, [Remark::Skips(20), Remark::Scale(21)]);
        assert_eq!(statuses[3].remarks[0], Remark::NonFinite(60));
        assert!(statuses[0].remarks.is_empty() && statuses[2].remarks.is_empty());
    }

    #[test]
    fn a_layer_is_of_the_rank_that_is_shown_or_of_all() {
        let found = |_: &crate::rules::Diagnosis| Findings {
            health: crate::rules::Health::Findings,
            found: underflow(),
            doubts: Vec::new(),
            accepted: Vec::new(),
            policy: Vec::new(),
        };
        let mut ranks = Ranks::new(Run::judged_by(Source::default(), std::rc::Rc::new(found)));
        for (rank, steps) in [(0, 40), (1, 60)] {
            ranks.take(Batch { rank, records: clean(steps), ..Batch::default() }, SECOND);
        }
        let steps = |chosen, all| ranks.layer("conv1", chosen, all).tensors[0].largest.len();
        assert_eq!([steps(None, false), steps(Some(1), false), steps(None, true)], [40, 60, 100]);
        assert_eq!(ranks.layer("conv1", None, true).findings[0].ranks, [0, 1]);
    }

    #[test]
    fn what_is_left_from_an_earlier_run_is_said_so_and_not_compared() {
        let mut new = clean(60);
        if let Some(Record::Run(run)) = new.first_mut() {
            run.started_unix_ms += 3_600_000;
        }
        let old = records("r", Fault::Nan("conv2"), 80, true);
        let ranks = ranks(vec![new.clone(), old, new]);
        let remarks: Vec<_> = ranks.snapshot(None, SECOND).ranks.into_iter().map(|rank| rank.remarks).collect();
        assert_eq!(remarks, [vec![], vec![Remark::EarlierRun], vec![]]);
        assert_eq!((ranks.worst(), ranks.shown(Some(1))), (Some(0), Some(1)));
        assert_eq!(ranks.whatif().steps, 60, "the furthest of the new ones");
        assert_eq!(ranks.layer("conv1", None, true).ranks, [0, 2]);
    }

    #[test]
    fn a_rank_that_cannot_be_read_is_said_so_and_leaves_the_run_unjudged() {
        let mut ranks = ranks(vec![records("r", Fault::None, 60, true)]);
        let healthy = ranks.snapshot(None, SECOND);
        assert!(healthy.left_open().is_none(), "{:?}", healthy.left_open());
        let problem = Some("this is no recording".to_owned());
        ranks.take(Batch { rank: 1, unreadable: true, problem, ..Batch::default() }, SECOND);
        let snapshot = ranks.snapshot(None, SECOND);
        assert_eq!((snapshot.rank, snapshot.ranks[1].state), (Some(0), RunState::Unreadable));
        assert_eq!(snapshot.left_open(), Some("a rank could not be read"));
        assert_ne!(snapshot.health(), crate::rules::Health::Healthy);
        assert_eq!(snapshot.header.notice.as_deref(), Some("rank 1: this is no recording"));
        assert!(ranks.are_over(SECOND), "nothing more will come");
    }

    #[test]
    fn a_rank_that_may_be_of_this_run_or_not_is_said_to_be_neither_and_one_that_waits_is_no_old_one() {
        let later = |ms: u64| {
            let mut new = clean(60);
            if let Some(Record::Run(run)) = new.first_mut() {
                run.started_unix_ms += ms;
            }
            new
        };
        let remarks = |runs| {
            let statuses = ranks(runs).snapshot(None, SECOND).ranks;
            statuses.into_iter().map(|rank| rank.remarks).collect::<Vec<_>>()
        };
        let old = records("r", Fault::None, 30, true);
        assert_eq!(remarks(vec![later(9_000), old]), [vec![], vec![Remark::EarlierRunOrDied]]);
        let begun = clean(1).into_iter().take(1).collect();
        assert_eq!(remarks(vec![later(60_000), begun]), [vec![], vec![]]);
    }

    #[test]
    fn another_recording_in_the_place_of_one_leaves_the_others() {
        let mut ranks = ranks(vec![clean(60), clean(60)]);
        ranks.take(Batch { rank: 1, restarted: true, records: clean(5), ..Batch::default() }, SECOND);
        assert_eq!(ranks.iter().map(|(_, run)| run.steps()).collect::<Vec<_>>(), [60, 5]);
    }
}
