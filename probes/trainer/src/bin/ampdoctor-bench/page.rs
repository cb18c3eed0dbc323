//! What was measured, on standard output as soon as it is known, and kept for a page of the documentation; what is going on, on standard error.

use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::table::Table;

/// The page so far.
pub(crate) struct Page {
    text: String,
    on_terminal: bool,
}

impl Page {
    /// A page that begins with an introduction, which is not printed.
    pub(crate) fn new(introduction: String) -> Self {
        Self { text: introduction, on_terminal: std::io::stderr().is_terminal() }
    }

    /// Begins a part with a table: its text, and the titles of the columns.
    pub(crate) fn part(&mut self, text: &str, table: &Table) -> Result<()> {
        self.add(&format!("\n{text}\n\n{}", table.head()))
    }

    /// Adds a row to the table that was begun last.
    pub(crate) fn row(&mut self, table: &Table, cells: &[String]) -> Result<()> {
        self.add(&table.row(cells))
    }

    /// Says what is measured now, and how long it takes.
    pub(crate) fn begin(&self, what: &str) {
        self.clear();
        eprintln!("measuring {what}");
    }

    /// Says how far it is: a line that the next one takes the place of, on a terminal alone.
    pub(crate) fn progress(&self, how_far: &str) {
        if self.on_terminal {
            eprint!("\r\x1b[K{how_far}");
        }
    }

    /// Writes the page to a file.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, &self.text)
            .with_context(|| format!("the page could not be written; is its folder there? {}", path.display()))
    }

    /// Unlike `print!`, does not panic when nobody reads any more.
    fn add(&mut self, lines: &str) -> Result<()> {
        self.clear();
        self.text.push_str(lines);
        Ok(write!(std::io::stdout().lock(), "{lines}")?)
    }

    fn clear(&self) {
        self.progress("");
    }
}
