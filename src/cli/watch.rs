//! `ampdoctor watch`: hands over to the dashboard.

use std::process::ExitCode;

use super::args::WatchArgs;
use super::config::policy;
use super::load::with_hint;
use super::run_dir::RunDir;
use crate::recording::rank_files;
use crate::tui::{WatchOptions, WatchTarget};

pub(super) fn watch(args: WatchArgs) -> anyhow::Result<ExitCode> {
    let policy = policy(args.config.config.as_deref())?;
    let made = match args.target.run {
        Some(_) => None,
        None => Some(RunDir::for_command(args.target.run_dir, &args.target.command)?),
    };
    let target = match (args.target.run, &made) {
        (None, Some(made)) => WatchTarget::Command { command: args.target.command, run: made.path.clone() },
        (run, _) => WatchTarget::Run(run.unwrap_or_default()),
    };
    let once = args.once.then(|| args.size.unwrap_or(WatchOptions::ONCE_SIZE));
    let options =
        WatchOptions { once, exit_at_end: args.exit_at_end, plain: args.plain, policy, ..WatchOptions::new(target) };
    let outcome = crate::tui::watch(options).map_err(|error| error.downcast().map_or_else(|error| error, with_hint));
    if let (Err(_), Some(made)) = (&outcome, &made)
        && rank_files(&made.path).is_err()
    {
        made.nothing_recorded();
    }
    Ok(outcome?.into())
}
