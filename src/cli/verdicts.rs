//! The verdicts on all that a command recorded: a program with two doctors records two runs.

use std::path::{Path, PathBuf};

use super::check::{Told, judge};
use super::exit::Exit;
use super::load::load_alone;
use super::terminal::Terminal;
use crate::recording::ReadError;
use crate::report::{Run, RunRecording};
use crate::rules::{Health, Policy};

/// What a command recorded, read.
pub(super) struct Verdicts {
    read: Vec<(PathBuf, RunRecording)>,
    /// Why others could not be read.
    unreadable: Vec<ReadError>,
}

impl Verdicts {
    /// Reads these runs, none of which is within another.
    pub fn of(paths: &[PathBuf], policy: &Policy, terminal: &Terminal) -> Self {
        let (mut read, mut unreadable) = (Vec::new(), Vec::new());
        for path in paths {
            match load_alone(path, policy, terminal) {
                Ok(recording) => read.push((path.clone(), recording)),
                Err(error) => unreadable.push(error),
            }
        }
        Self { read, unreadable }
    }

    /// Tells the verdict on each, by its path; the worst counts. What could not be read is an error, unless something was found elsewhere.
    pub fn tell(self, told: Told, terminal: &Terminal) -> anyhow::Result<Exit> {
        let Self { read, unreadable } = self;
        let runs: Vec<(String, Run<'_>)> =
            read.iter().map(|(path, recording)| (shown(path), recording.run().after_its_processes())).collect();
        let exit = match &runs[..] {
            [] => None,
            [(path, run)] => {
                terminal.note(&format!("recording: {path}"));
                Some(judge(run, told, terminal)?)
            }
            several => Some(tell_all(several, told, terminal)?),
        };
        let mut errors = unreadable.into_iter();
        match (exit, errors.next()) {
            (Some(exit), None) => Ok(exit),
            (Some(Exit::Findings), Some(error)) => {
                std::iter::once(error).chain(errors).for_each(|error| terminal.warn(&error.to_string()));
                Ok(Exit::Findings)
            }
            (_, Some(error)) => {
                errors.for_each(|error| terminal.warn(&error.to_string()));
                Err(error.into())
            }
            (None, None) => Ok(Exit::Unknown),
        }
    }
}

/// Several runs: for people one after the other, for machines, who want one document, the worst.
fn tell_all(runs: &[(String, Run<'_>)], told: Told, terminal: &Terminal) -> anyhow::Result<Exit> {
    let Some((worst, run)) = runs.iter().rev().max_by_key(|(_, run)| badness(run.health())) else {
        return Ok(Exit::Unknown);
    };
    for (path, run) in runs {
        terminal.note(&format!("recording: {path}: {}", verdict(run.health())));
    }
    let count = runs.len();
    if told.format.is_one_document || told.report.is_some() {
        terminal.note(&format!(
            "the report for machines is that of the worst of {count} recordings, {worst}; `ampdoctor report PATH --format json` makes that of another"
        ));
    }
    if !told.format.is_one_document {
        for (path, run) in runs.iter().filter(|(path, _)| path != worst) {
            let title = terminal.layout.bold(&format!("recording {path}"));
            terminal.print(&format!("{title}\n\n{}\n", (told.format.render)(run, &terminal.layout)))?;
        }
        let title = format!("recording {worst}, the worst of {count} that the command made");
        terminal.print(&format!("{}\n\n", terminal.layout.bold(&title)))?;
    }
    judge(run, told, terminal)
}

/// What decides the exit status of a check.
fn badness(health: Health) -> u8 {
    match health {
        Health::Healthy => 0,
        Health::Unknown => 1,
        Health::Findings => 2,
    }
}

fn verdict(health: Health) -> &'static str {
    match health {
        Health::Healthy => "healthy",
        Health::Unknown => "could not tell",
        Health::Findings => "findings",
    }
}

/// The path from here where it lies below, so that it can be typed.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}
