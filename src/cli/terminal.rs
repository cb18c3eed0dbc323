//! Standard output and standard error.

use std::ffi::OsStr;
use std::io::{self, ErrorKind, IsTerminal, Write};

use anyhow::Context;

use crate::report::Layout;

/// How text is written to this process's standard output and standard error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terminal {
    /// For standard output.
    pub layout: Layout,
    /// For standard error.
    stderr: Layout,
    stderr_is_terminal: bool,
}

impl Terminal {
    /// Asks the process: are these terminals, how wide, and are colours wanted?
    pub fn of_process() -> Self {
        let (stdout, stderr) = (io::stdout().is_terminal(), io::stderr().is_terminal());
        let layout = || terminal_layout(wants_colour(), columns);
        let piped = piped_width(std::env::var("COLUMNS").ok().as_deref());
        // A message in a log stays on its line, where it can be searched for.
        let unbroken = Layout { width: usize::MAX, colour: false };
        let on_stderr = if stderr { layout() } else { unbroken };
        Self { layout: if stdout { layout() } else { piped }, stderr: on_stderr, stderr_is_terminal: stderr }
    }

    /// Writes to standard output. A reader that has gone away is no error.
    pub fn print(&self, text: &str) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            other => other.context("could not write to standard output; is the disk full?"),
        }
    }

    /// Whether somebody sees what is overwritten on standard error.
    pub fn shows_progress(&self) -> bool {
        self.stderr_is_terminal
    }

    /// Tells people of something that does not change the outcome.
    pub fn note(&self, text: &str) {
        say_on_stderr(&self.stderr.wrap("", "", text));
    }

    /// Tells people of something that is wrong with what was read.
    pub fn warn(&self, text: &str) {
        say_on_stderr(&self.stderr.wrap("warning: ", "         ", text));
    }

    /// Tells people why it did not work.
    pub fn error(&self, error: &anyhow::Error) {
        say_on_stderr(&self.stderr.wrap("error: ", "       ", &whole(error)));
    }
}

/// An error and its causes, each said once: the messages of the library name theirs already.
fn whole(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for part in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = part;
        } else if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
    }
    text
}

/// Writes to standard error; where that is closed, nobody can be told.
pub(super) fn say_on_stderr(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// For a pipe or a file: as wide as COLUMNS says, where it says anything, and without colours.
fn piped_width(columns: Option<&str>) -> Layout {
    let columns = columns.and_then(|text| text.trim().parse().ok()).filter(|&columns| columns > 0);
    columns.map_or_else(Layout::default, |columns| Layout::terminal(columns, false))
}

fn terminal_layout(wants_colour: bool, columns: impl Fn() -> Option<usize>) -> Layout {
    Layout::terminal(columns().unwrap_or(Layout::PLAIN_WIDTH), wants_colour)
}

fn columns() -> Option<usize> {
    crossterm::terminal::size().ok().map(|(columns, _)| usize::from(columns)).filter(|&columns| columns > 0)
}

fn wants_colour() -> bool {
    colour_allowed(std::env::var_os("NO_COLOR").as_deref(), std::env::var_os("TERM").as_deref())
}

/// <https://no-color.org>: set and not empty means no.
fn colour_allowed(no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_color_turns_colours_off_unless_empty() {
        let allowed =
            |no_color: Option<&str>, term: Option<&str>| colour_allowed(no_color.map(OsStr::new), term.map(OsStr::new));
        assert!(allowed(None, Some("xterm-256color")));
        assert!(allowed(Some(""), Some("xterm")));
        assert!(!allowed(Some("1"), Some("xterm")));
        assert!(!allowed(None, Some("dumb")));
    }

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::Error::from(crate::recording::ReadError::Content {
            source: crate::recording::DecodeError::NotOurs { why: "it begins with \"x\"".into() },
            path: "run".into(),
        });
        assert_eq!(whole(&error).matches("it begins with").count(), 1, "{}", whole(&error));
        let error = anyhow::Error::from(io::Error::other("the disk is full")).context("could not write");
        assert_eq!(whole(&error), "could not write: the disk is full");
    }

    #[test]
    fn only_a_terminal_gets_colours_and_a_pipe_the_width_of_columns() {
        assert_eq!(terminal_layout(true, || Some(60)), Layout { width: 60, colour: true });
        assert_eq!(terminal_layout(false, || None), Layout { width: 80, colour: false });
        for (columns, width) in [(None, 80), (Some("60"), 60), (Some("x"), 80), (Some("0"), 80), (Some("300"), 110)] {
            assert_eq!(piped_width(columns), Layout { width, colour: false }, "{columns:?}");
        }
    }
}
