//! `watch` where there is no terminal: plain lines.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, bail};

use super::app::Exit;
use super::lines;
use super::state::{Run, RunState, Source, same_finding};
use super::world::{Command, Event, World};
use crate::rules::Finding;

/// How often the recording is looked at.
const POLL: Duration = Duration::from_millis(200);
/// How often a line about the progress is printed, while steps come in.
const PROGRESS: Duration = Duration::from_secs(2);

/// A run that is told in lines.
pub struct Plain {
    run: Run,
    told: Vec<Finding>,
    told_state: Option<&'static str>,
    told_problem: Option<String>,
    told_step: Option<u64>,
    told_at: Option<Duration>,
    command: Command,
}

impl Plain {
    /// A run of which nothing was told yet.
    pub fn new(source: Source) -> Self {
        Self {
            run: Run::new(source),
            told: Vec::new(),
            told_state: None,
            told_problem: None,
            told_step: None,
            told_at: None,
            command: Command::None,
        }
    }

    /// What was read of the run.
    pub fn into_run(self) -> Run {
        self.run
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

    /// Takes in one batch; true when there is no more for now.
    fn read(&mut self, world: &mut impl World) -> anyhow::Result<bool> {
        // The command first: what it recorded before it ended is read after.
        self.command = world.command().context("the command cannot be waited for")?;
        let batch = world.records();
        if batch.restarted {
            self.run.restart();
            self.told.clear();
        }
        // Nobody is there to read a note and wait for another recording; a command that runs may still make one.
        if let (true, Command::None, Some(problem)) = (batch.unreadable, self.command, &batch.problem)
            && batch.records.is_empty()
            && self.run.diagnosis().aggregate().run.is_none()
        {
            bail!("{problem}");
        }
        self.run.source.problem = batch.problem;
        self.run.source.process_gone = batch.process_gone;
        if !batch.records.is_empty() {
            self.run.apply(batch.records, world.now(), batch.age);
        }
        self.run.source.command_ended = matches!(self.command, Command::Ended(_)) && !batch.more;
        Ok(!batch.more)
    }

    fn is_over(&self, now: Duration) -> bool {
        match self.command {
            Command::Running => false,
            Command::Ended(_) => true,
            Command::None => self.run.state(now).is_over(),
        }
    }

    fn tell_news(&mut self, now: Duration, out: &mut impl Write) -> io::Result<()> {
        self.tell_state(now, out)?;
        self.tell_problem(out)?;
        self.tell_findings(out)?;
        self.tell_progress(now, out)?;
        out.flush()
    }

    fn tell_state(&mut self, now: Duration, out: &mut impl Write) -> io::Result<()> {
        let state = self.run.state(now);
        let kind = match state {
            RunState::Waiting => "waiting",
            RunState::Stalled(_) => "stalled",
            RunState::Killed => "killed",
            RunState::Live | RunState::Ended(_) | RunState::Replay(_) => "",
        };
        if self.told_state.replace(kind) == Some(kind) || kind.is_empty() {
            return Ok(());
        }
        match state {
            RunState::Waiting => writeln!(out, "waiting for a recording in {}", self.run.source.place),
            _ => writeln!(out, "{}", lines::state(state)),
        }
    }

    fn tell_problem(&mut self, out: &mut impl Write) -> io::Result<()> {
        if self.told_problem != self.run.source.problem {
            self.told_problem.clone_from(&self.run.source.problem);
            if let Some(problem) = &self.told_problem {
                writeln!(out, "note: {problem}")?;
            }
        }
        Ok(())
    }

    /// A finding is told when it appears and when it becomes graver.
    fn tell_findings(&mut self, out: &mut impl Write) -> io::Result<()> {
        for finding in self.run.diagnosis().findings() {
            let known = self.told.iter_mut().find(|f| same_finding(f, finding));
            match known {
                Some(told) if told.severity >= finding.severity => continue,
                Some(told) => told.severity = finding.severity,
                None => self.told.push(finding.clone()),
            }
            writeln!(out, "{}", lines::finding(finding))?;
        }
        Ok(())
    }

    fn tell_progress(&mut self, now: Duration, out: &mut impl Write) -> io::Result<()> {
        let due = self.told_at.is_none_or(|at| now.saturating_sub(at) >= PROGRESS);
        let step = self.run.diagnosis().aggregate().latest.as_ref().map(|step| step.index);
        if due && step.is_some() && step != self.told_step {
            (self.told_at, self.told_step) = (Some(now), step);
            writeln!(out, "{}", lines::progress(&self.run.snapshot(now).header))?;
        }
        Ok(())
    }
}

/// A reader that has seen enough is no error; watching goes on, for the command's sake.
pub fn closed_pipe(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}
