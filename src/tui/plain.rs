//! `watch` where there is no terminal: plain lines.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, bail};

use super::app::Exit;
use super::lines;
use super::state::{Ranks, Run, RunState, Source, same_finding};
use super::world::{Command, Event, World};
use crate::rules::Finding;

/// How often the recording is looked at.
const POLL: Duration = Duration::from_millis(200);
/// How often a line about the progress is printed, while steps come in.
const PROGRESS: Duration = Duration::from_secs(2);

/// A run that is told in lines.
pub struct Plain {
    ranks: Ranks,
    told: BTreeMap<u32, Told>,
    waits: bool,
    told_step: Option<u64>,
    told_at: Option<Duration>,
    command: Command,
}

/// What was told of one rank.
#[derive(Default)]
struct Told {
    findings: Vec<Finding>,
    state: &'static str,
    problem: Option<String>,
}

impl Plain {
    /// A run of which nothing was told yet.
    pub fn new(source: Source) -> Self {
        Self {
            ranks: Ranks::new(Run::new(source)),
            told: BTreeMap::new(),
            waits: false,
            told_step: None,
            told_at: None,
            command: Command::None,
        }
    }

    /// What was read of the run.
    pub fn into_ranks(self) -> Ranks {
        self.ranks
    }

    /// Tells the run until it ends, its command included.
    pub fn tell(&mut self, world: &mut impl World, out: &mut impl Write) -> anyhow::Result<Exit> {
        loop {
            let drained = self.read(world)?;
            let over = drained && self.is_over(world.now());
            // A run that is over is told by the summary.
            if !over {
                self.tell_news(world.now(), out).or_else(closed_pipe)?;
            }
            if over {
                return Ok(Exit::Quit);
            }
            let timeout = if drained { POLL } else { Duration::ZERO };
            if let Some(Event::Signal(signal)) = world.event(timeout)? {
                return Ok(Exit::Signal(signal));
            }
        }
    }

    /// Takes in what is new of each rank; true when there is no more for now.
    fn read(&mut self, world: &mut impl World) -> anyhow::Result<bool> {
        // The command first: what it recorded before it ended is read after.
        self.command = world.command().context("the command cannot be waited for")?;
        let batches = world.records();
        let drained = batches.iter().all(|batch| !batch.more);
        // Nobody is there to read a note and wait for another recording; a command that runs may still make one.
        let problem = batches.iter().find(|b| b.unreadable).and_then(|b| b.problem.clone());
        let is_empty = batches.iter().all(|batch| batch.records.is_empty()) && !self.ranks.has_begun();
        if let (true, Command::None, Some(problem)) = (is_empty, self.command, problem) {
            bail!("{problem}");
        }
        for batch in batches {
            if batch.restarted && !batch.rewritten {
                self.told.remove(&batch.rank);
            }
            self.ranks.take(batch, world.now());
        }
        self.ranks.set_command(matches!(self.command, Command::Ended(_)) && drained, None);
        Ok(drained)
    }

    fn is_over(&self, now: Duration) -> bool {
        match self.command {
            Command::Running => false,
            Command::Ended(_) => true,
            Command::None => self.ranks.are_over(now),
        }
    }

    fn tell_news(&mut self, now: Duration, out: &mut impl Write) -> io::Result<()> {
        if !self.ranks.has_begun() && !std::mem::replace(&mut self.waits, true) {
            writeln!(out, "waiting for a recording in {}", self.ranks.run(None).source.place)?;
        }
        let several = self.ranks.are_several();
        for (number, run) in self.ranks.members() {
            let told = self.told.entry(number).or_default();
            let who = if several { format!("rank {number}: ") } else { String::new() };
            tell_state(run.state(now), told, &who, out)?;
            tell_problem(run, told, &who, out)?;
            tell_findings(run, told, &who, out)?;
        }
        for of in &self.ranks.across().findings {
            let told = self.told.entry(of.rank).or_default();
            if told.is_news(&of.item) {
                of.item.with_consequences().for_each(|f| told.remember(f));
                writeln!(out, "rank {}: {}", of.rank, lines::finding(&of.item))?;
            }
        }
        self.tell_progress(now, out)?;
        out.flush()
    }

    fn tell_progress(&mut self, now: Duration, out: &mut impl Write) -> io::Result<()> {
        let due = self.told_at.is_none_or(|at| now.saturating_sub(at) >= PROGRESS);
        let furthest = self.ranks.members().max_by_key(|(number, run)| (run.step(), Reverse(*number)));
        let Some((_, run)) = furthest.filter(|(_, run)| due && run.step().is_some() && run.step() != self.told_step)
        else {
            return Ok(());
        };
        writeln!(out, "{}", lines::progress(&run.header(now)))?;
        (self.told_at, self.told_step) = (Some(now), run.step());
        Ok(())
    }
}

fn tell_state(state: RunState, told: &mut Told, who: &str, out: &mut impl Write) -> io::Result<()> {
    let kind = match state {
        RunState::Stalled(_) => "stalled",
        RunState::Killed => "killed",
        RunState::Empty => "empty",
        RunState::Unreadable | RunState::Waiting | RunState::Live | RunState::Ended(_) | RunState::Replay(_) => "",
    };
    if std::mem::replace(&mut told.state, kind) == kind || kind.is_empty() {
        return Ok(());
    }
    writeln!(out, "{who}{}", lines::state(state))
}

fn tell_problem(run: &Run, told: &mut Told, who: &str, out: &mut impl Write) -> io::Result<()> {
    if told.problem != run.source.problem {
        told.problem.clone_from(&run.source.problem);
        if let Some(problem) = &told.problem {
            writeln!(out, "{who}note: {problem}")?;
        }
    }
    Ok(())
}

/// A finding is told when it appears and when it becomes graver; one that follows from another, when that is found out.
fn tell_findings(run: &Run, told: &mut Told, who: &str, out: &mut impl Write) -> io::Result<()> {
    for finding in run.diagnosis().findings() {
        if told.is_news(finding) {
            finding.consequences.iter().for_each(|f| told.remember(f));
            told.remember(finding);
            writeln!(out, "{who}{}", lines::finding(finding))?;
            continue;
        }
        for follower in &finding.consequences {
            if told.is_news(follower) {
                told.remember(follower);
                writeln!(out, "{who}{} {}: {}", finding.code, finding.name, lines::follower(follower))?;
            }
        }
    }
    Ok(())
}

impl Told {
    fn is_news(&self, finding: &Finding) -> bool {
        self.findings.iter().find(|f| same_finding(f, finding)).is_none_or(|told| told.severity < finding.severity)
    }

    fn remember(&mut self, finding: &Finding) {
        match self.findings.iter_mut().find(|f| same_finding(f, finding)) {
            Some(told) => told.severity = told.severity.max(finding.severity),
            None => self.findings.push(finding.clone()),
        }
    }
}

/// A reader that has seen enough is no error; watching goes on, for the command's sake.
pub fn closed_pipe(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}
