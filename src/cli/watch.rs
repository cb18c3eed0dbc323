//! `ampdoctor watch`: hands over to the dashboard.

use std::process::ExitCode;

use super::args::WatchArgs;
use super::run_dir;
use crate::tui::{WatchOptions, WatchTarget};

pub(super) fn watch(args: WatchArgs) -> anyhow::Result<ExitCode> {
    let target = match args.target.run {
        Some(run) => WatchTarget::Run(run),
        None => {
            let run = run_dir::for_command(args.target.run_dir, &args.target.command)?;
            WatchTarget::Command { command: args.target.command, run }
        }
    };
    let once = args.once.then(|| args.size.unwrap_or(WatchOptions::ONCE_SIZE));
    let options = WatchOptions { once, exit_at_end: args.exit_at_end, plain: args.plain, ..WatchOptions::new(target) };
    Ok(crate::tui::watch(options)?.into())
}
