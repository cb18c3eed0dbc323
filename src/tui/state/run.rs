//! A run as it is read: the diagnosis, its speed, and how long nothing has come.

use std::rc::Rc;
use std::time::Duration;

use super::{Findings, Header, Rates, RunState, Snapshot};
use crate::observation::Record;
use crate::rules::{Diagnosis, Finding, Policy};

/// What is known of the recording beside what it holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    /// Where it lies, as the user wrote it.
    pub place: String,
    /// Whether the observed process is gone; `None` where that cannot be told.
    pub process_gone: Option<bool>,
    /// Whether more of it lies there unread: until that is read, it is not known whether the run ended.
    pub unread: bool,
    /// Whether the command that was started has ended.
    pub command_ended: bool,
    /// Why it cannot be read on, where it cannot.
    pub problem: Option<String>,
    /// Whether it cannot be read at all.
    pub unreadable: bool,
    /// Whether it holds nothing and nobody writes it.
    pub abandoned: bool,
    /// What was decided about the rules.
    pub policy: Policy,
    /// Something else to say in the header.
    pub notice: Option<String>,
}

/// What the rules make of a run. The screens are tested without them, so that a better sentence in a rule changes no screen.
pub type Judge = Rc<dyn Fn(&Diagnosis) -> Findings>;

/// A run as it is read. Times are counted from the start of watching.
#[derive(Clone)]
pub struct Run {
    judge: Judge,
    diagnosis: Diagnosis,
    rates: Rates,
    /// What is known of the recording beside what it holds.
    pub source: Source,
    /// When records were read last, and how long before that the recording had grown.
    read_at: Duration,
    age: Duration,
    replay: bool,
}

impl Run {
    /// A recording without news is called stalled after this long, or after [`Run::STALL_STEPS`] of its steps if that is longer.
    const STALL: Duration = Duration::from_secs(10);
    const STALL_STEPS: u32 = 8;

    /// A run of which nothing was read yet.
    pub fn new(source: Source) -> Self {
        Self::judged_by(source, Rc::new(Findings::of))
    }

    /// As [`Run::new`], with another judge than the rules.
    pub fn judged_by(source: Source, judge: Judge) -> Self {
        let (diagnosis, rates) = (Diagnosis::under(source.policy.clone()), Rates::default());
        Self { judge, diagnosis, rates, source, read_at: Duration::ZERO, age: Duration::ZERO, replay: false }
    }

    /// Adds records that were read at `now`; `age` is how long before that the recording had last grown.
    pub fn apply(&mut self, records: Vec<Record>, now: Duration, age: Duration) {
        (self.read_at, self.age) = (now, age);
        for record in records {
            if let Record::Step(step) = &record {
                self.rates.push(step);
            }
            self.diagnosis.apply(record);
        }
    }

    /// Forgets what was read: another recording took its place.
    pub fn restart(&mut self) {
        let blank = Diagnosis::under(self.source.policy.clone());
        (self.diagnosis, self.rates, self.replay) = (blank, Rates::default(), false);
    }

    /// Tells that everything recorded so far was there when watching began: if the run has ended, this is a replay.
    pub fn mark_replay(&mut self) {
        self.replay = self.diagnosis.aggregate().end.is_some();
    }

    /// What the rules make of the run.
    pub fn diagnosis(&self) -> &Diagnosis {
        &self.diagnosis
    }

    /// Steps read.
    pub fn steps(&self) -> u64 {
        self.diagnosis.aggregate().instrument.steps
    }

    /// The latest step.
    pub fn step(&self) -> Option<u64> {
        self.diagnosis.aggregate().latest.as_ref().map(|step| step.index)
    }

    /// What was found, gravest first.
    pub fn findings(&self) -> Vec<Finding> {
        (self.judge)(&self.diagnosis).found
    }

    /// Whether its process is known to have ended, and all that it recorded was read.
    pub fn has_lost_its_process(&self) -> bool {
        !self.source.unread && (self.source.command_ended || self.source.process_gone == Some(true))
    }

    /// Whether nothing of it can be read.
    pub fn is_unreadable(&self) -> bool {
        self.source.unreadable && self.diagnosis.aggregate().run.is_none()
    }

    /// What the run is doing at `now`.
    pub fn state(&self, now: Duration) -> RunState {
        let aggregate = self.diagnosis.aggregate();
        match &aggregate.end {
            Some(end) if self.replay => return RunState::Replay(end.reason),
            Some(end) => return RunState::Ended(end.reason),
            None if aggregate.run.is_none() && self.source.unreadable => return RunState::Unreadable,
            None if aggregate.run.is_none() && self.source.abandoned => return RunState::Empty,
            None if aggregate.run.is_none() => return RunState::Waiting,
            None => {}
        }
        if self.source.unread {
            return RunState::Live;
        }
        if self.source.command_ended {
            return RunState::Killed;
        }
        let idle = now.saturating_sub(self.read_at).saturating_add(self.age);
        let patience = self.rates.step_time().unwrap_or_default().saturating_mul(Self::STALL_STEPS).max(Self::STALL);
        match (idle > patience, self.source.process_gone) {
            (false, _) => RunState::Live,
            (true, Some(true)) => RunState::Killed,
            (true, _) => RunState::Stalled(Duration::from_secs(idle.as_secs())),
        }
    }

    fn waiting_for(&self, now: Duration) -> Option<String> {
        let place = &self.source.place;
        (self.state(now) == RunState::Waiting)
            .then(|| format!("no recording yet; a trainer makes one with AMPDOCTOR_RUN={place}"))
    }

    /// The run in two lines at `now`.
    pub fn header(&self, now: Duration) -> Header {
        let aggregate = self.diagnosis.aggregate();
        let name = aggregate.run.as_ref().map_or(&self.source.place, |run| &run.name).clone();
        let notice =
            self.source.problem.clone().or_else(|| self.source.notice.clone()).or_else(|| self.waiting_for(now));
        let problem = self.source.problem.is_some();
        Header { problem, ..Header::new(name, self.state(now), aggregate, &self.rates, notice) }
    }

    /// The picture of the run at `now`.
    pub fn snapshot(&self, now: Duration) -> Snapshot {
        Snapshot::new(self.diagnosis.aggregate(), (self.judge)(&self.diagnosis), self.header(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{End, EndReason};
    use crate::tui::testing::{run_info, step};

    const SECOND: Duration = Duration::from_secs(1);

    fn started() -> Run {
        let mut run = Run::new(Source::default());
        run.apply(vec![Record::Run(run_info("r")), Record::Step(step(0))], SECOND, Duration::ZERO);
        run
    }

    #[test]
    fn a_run_without_a_record_is_waited_for() {
        assert_eq!(Run::new(Source::default()).state(100 * SECOND), RunState::Waiting);
    }

    #[test]
    fn silence_is_a_stall_and_with_the_process_gone_a_kill() {
        let mut run = started();
        assert_eq!(run.state(5 * SECOND), RunState::Live);
        assert_eq!(run.state(61 * SECOND), RunState::Stalled(60 * SECOND));
        run.source.process_gone = Some(true);
        assert_eq!(run.state(61 * SECOND), RunState::Killed);
        assert_eq!(run.state(5 * SECOND), RunState::Live);
    }

    #[test]
    fn an_old_recording_without_an_end_is_known_as_killed_at_once() {
        let mut run = Run::new(Source { process_gone: Some(true), ..Source::default() });
        run.apply(vec![Record::Run(run_info("r")), Record::Step(step(0))], Duration::ZERO, 3600 * SECOND);
        assert_eq!(run.state(Duration::ZERO), RunState::Killed);
    }

    #[test]
    fn slow_steps_are_no_stall() {
        let mut run = Run::new(Source::default());
        let slow = |index| crate::observation::Step { time_ns: index * 30_000_000_000, ..step(index) };
        run.apply(
            vec![Record::Run(run_info("r")), Record::Step(slow(0)), Record::Step(slow(1))],
            SECOND,
            Duration::ZERO,
        );
        assert_eq!(run.state(100 * SECOND), RunState::Live);
    }

    #[test]
    fn a_run_that_had_ended_before_is_a_replay() {
        let end = || Record::End(End { steps: 1, dropped_steps: 0, reason: EndReason::Finished });
        let mut run = started();
        run.apply(vec![end()], SECOND, Duration::ZERO);
        assert_eq!(run.state(SECOND), RunState::Ended(EndReason::Finished));
        run.mark_replay();
        assert_eq!(run.state(SECOND), RunState::Replay(EndReason::Finished));
    }

    /// For measuring by hand: what a picture of a large model costs.
    #[test]
    #[ignore = "prints a time"]
    fn the_time_of_a_large_picture() {
        use crate::observation::{Observation, SiteId};
        use crate::tui::testing::scenario::{sites, tensor};
        let mut run = Run::new(Source::default());
        let mut records = vec![Record::Run(run_info("r"))];
        let (layers, count) = (500u32, 1500u32);
        for i in 0..count {
            let site = sites().swap_remove(i as usize % 3);
            let layer = format!("block.{}.fc", i % layers);
            records.push(Record::Site(SiteId(i), crate::observation::Site { layer, ..site }));
        }
        let observe = |i| {
            let stats = tensor(-8.0, 3.5, 0.4, crate::scan::Dtype::F16);
            Observation::new(SiteId(i), stats)
        };
        let observations: Vec<_> = (0..count).map(observe).collect();
        let full = |index| crate::observation::Step { observations: observations.clone(), ..step(index) };
        records.extend((0..32).map(|index| Record::Step(full(index))));
        let start = std::time::Instant::now();
        run.apply(records, SECOND, Duration::ZERO);
        let applied = start.elapsed();
        let layers = run.snapshot(SECOND).layers.len();
        println!(
            "{layers} layers, 1500 sites, 32 steps: applied in {applied:?}, drawn from in {:?}",
            start.elapsed() - applied
        );
    }
}
