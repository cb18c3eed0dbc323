//! The dashboard: `ampdoctor watch`.
//!
//! [`watch`] follows a run that is going on, replays one that has ended, or starts a command and follows what it records.

mod options;

pub use options::{WatchOptions, WatchOutcome, WatchTarget};

/// Watches a run until its user leaves, or until it ends where nobody can press a key.
///
/// Draws the dashboard where standard output is a terminal, and plain lines where it is not.
pub fn watch(options: WatchOptions) -> anyhow::Result<WatchOutcome> {
    anyhow::bail!("the dashboard is not built yet: {:?}", options.target)
}
