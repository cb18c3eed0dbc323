//! Help texts, and what is said to those who typed something wrong.

use std::ffi::OsString;
use std::path::Path;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::args::Arguments;
use super::exit::Exit;
use super::terminal::say_on_stderr;

/// Columns of the help texts in the documentation.
const DOCUMENTED_WIDTH: usize = 100;

/// The help text of the program and of each of its commands, by name: `ampdoctor`, `ampdoctor check`, ...
pub fn help_pages() -> Vec<(String, String)> {
    let mut root = Arguments::command().term_width(DOCUMENTED_WIDTH);
    root.build();
    let mut pages = vec![("ampdoctor".to_string(), root.render_long_help().to_string())];
    for command in root.get_subcommands_mut().filter(|command| command.get_name() != "help") {
        pages.push((format!("ampdoctor {}", command.get_name()), command.render_long_help().to_string()));
    }
    pages
}

/// Prints help, version or a usage error, with a hint where a run was typed in place of a command.
pub(super) fn usage_error(mut error: clap::Error) -> Exit {
    drop_misleading_tip(&mut error);
    // A closed pipe is no error, and there is nobody left to tell of another.
    let _ = error.print();
    let typed: Vec<OsString> = std::env::args_os().collect();
    if let Some(hint) = run_as_command(&error, &typed).or_else(|| config_alone(&error, &typed)) {
        say_on_stderr(&hint);
    }
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Success,
        _ => Exit::Usage,
    }
}

/// Who names a configuration and no run may want to know whether it is right.
fn config_alone(error: &clap::Error, typed: &[OsString]) -> Option<String> {
    let is_named = typed.iter().any(|word| word.to_string_lossy().starts_with("--config"));
    (error.kind() == ErrorKind::MissingRequiredArgument && is_named)
        .then(|| "\n  hint: to check a configuration without a run, say `ampdoctor config FILE`\n".into())
}

/// After `--` stands the command to start: an option that is none is not meant to be passed there, as clap suggests.
fn drop_misleading_tip(error: &mut clap::Error) {
    if error.kind() == ErrorKind::UnknownArgument {
        error.remove(ContextKind::Suggested);
    }
}

fn run_as_command(error: &clap::Error, typed: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let is_first = typed.get(1).is_some_and(|first| first == word.as_str());
    (is_first && Path::new(word).exists()).then(|| {
        format!("\n  hint: to judge a run, say `ampdoctor check {word}`; to look at it, `ampdoctor watch {word}`\n")
    })
}
