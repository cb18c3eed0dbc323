//! `ampdoctor check`: the verdict on a run, as an exit status.

use std::path::Path;

use anyhow::Context;

use super::args::CheckArgs;
use super::child::{self, Outcome};
use super::config::policy;
use super::exit::Exit;
use super::load::{load, with_hint};
use super::report_file::ReportFile;
use super::run_dir::RunDir;
use super::terminal::Terminal;
use super::verdicts::Verdicts;
use crate::report::{Format, Run, json};
use crate::rules::Policy;

/// How the verdict is told, besides the exit status.
pub(super) struct Told {
    /// On standard output.
    pub format: &'static Format,
    /// In a file, as JSON.
    pub report: Option<ReportFile>,
}

pub(super) fn check(args: CheckArgs, terminal: &Terminal) -> anyhow::Result<Exit> {
    // Before a training of hours: a report that cannot be written is told now.
    let format = Format::named(&args.format).context("there is no such format")?;
    let told = Told { format, report: args.report.map(ReportFile::prepare).transpose()? };
    let policy = policy(args.config.config.as_deref())?;
    match args.target.run {
        Some(run) => check_run(&run, &policy, told, terminal),
        None => {
            let dir = RunDir::for_command(args.target.run_dir, &args.target.command)?;
            let outcome = child::run(&args.target.command, &dir.path);
            if outcome.is_err() {
                dir.nothing_recorded();
            }
            check_command(&dir, outcome?, &policy, told, terminal)
        }
    }
}

fn check_run(path: &Path, policy: &Policy, told: Told, terminal: &Terminal) -> anyhow::Result<Exit> {
    let recording = load(path, policy, terminal).map_err(with_hint)?;
    judge(&recording.run(), told, terminal)
}

/// Judges all that a command recorded. That it failed outweighs the verdict, for then the run is not the one that was meant.
fn check_command(
    dir: &RunDir,
    outcome: Outcome,
    policy: &Policy,
    told: Told,
    terminal: &Terminal,
) -> anyhow::Result<Exit> {
    let recorded = dir.recorded();
    let verdict = if recorded.is_empty() {
        dir.nothing_recorded();
        terminal.warn(NOTHING_RECORDED);
        judge(&Run::empty(), told, terminal)
    } else {
        Verdicts::of(&recorded, policy, terminal).tell(told, terminal)
    };
    if outcome.succeeded() {
        return verdict;
    }
    if let Err(error) = verdict {
        terminal.error(&error);
    }
    terminal.warn(&outcome.to_string());
    Ok(Exit::CommandFailed)
}

const NOTHING_RECORDED: &str = "the command recorded nothing. Attach the doctor to its training loop \
    (`let mut doctor = Doctor::attach(&vs);`, and `doctor.step(&loss);` at the end of each step), and let it record where \
    AMPDOCTOR_RUN says: a run directory set in code wins over it.";

/// Tells the verdict on one run.
pub(super) fn judge(run: &Run<'_>, told: Told, terminal: &Terminal) -> anyhow::Result<Exit> {
    terminal.print(&(told.format.render)(run, &terminal.layout))?;
    if let Some(file) = told.report {
        let path = file.path().to_owned();
        file.write(&json(run))?;
        terminal.note(&format!("report: {}", path.display()));
    }
    Ok(run.health().into())
}
