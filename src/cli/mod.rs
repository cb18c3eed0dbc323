//! The command line, in two layers: `args` is what was typed, the other modules are what it means.
//!
//! This is the edge of the program: the clock, the environment, the terminal and other processes are met here and nowhere before.

mod args;
mod check;
mod child;
mod compare;
mod config;
mod exit;
mod explain;
mod help;
mod load;
mod report;
mod report_file;
mod run_dir;
mod terminal;
mod verdicts;
mod watch;
mod whatif;

use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};
use exit::Exit;
use terminal::Terminal;

pub use help::help_pages;

/// Runs the command line of this process and says how it came out.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return help::usage_error(error).into(),
    };
    let terminal = Terminal::of_process();
    match dispatch(arguments, &terminal) {
        Ok(code) => code,
        Err(error) => {
            terminal.error(&error);
            Exit::Usage.into()
        }
    }
}

fn dispatch(arguments: Arguments, terminal: &Terminal) -> anyhow::Result<ExitCode> {
    Ok(match arguments.command {
        Command::Check(args) => check::check(args, terminal)?.into(),
        Command::Report(args) => report::report(args, terminal)?.into(),
        Command::Watch(args) => watch::watch(args)?,
        Command::Whatif(args) => whatif::whatif(args, terminal)?.into(),
        Command::Compare(args) => compare::compare(args, terminal)?.into(),
        Command::Config(args) => config::config(&args, terminal)?.into(),
        Command::Rules(args) => explain::rules(args, terminal)?.into(),
        Command::Explain(args) => explain::explain(&args, terminal)?.into(),
    })
}
