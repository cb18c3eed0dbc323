//! What `ampdoctor watch` was asked to do, and how it came out.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::rules::Policy;

/// The run to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchTarget {
    /// A run directory (or a recording in it): followed while it grows, replayed when it has ended, waited for when it is not there yet.
    Run(PathBuf),
    /// A command to start; it finds the run directory in `AMPDOCTOR_RUN`.
    Command {
        /// The program and its arguments; never empty.
        command: Vec<OsString>,
        /// The run directory; created when it does not exist.
        run: PathBuf,
    },
}

/// What `ampdoctor watch` was asked to do.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchOptions {
    /// The run to watch.
    pub target: WatchTarget,
    /// Print one frame of this many columns and rows as text, and leave (`--once`, `--size 120x40`).
    pub once: Option<(u16, u16)>,
    /// Leave when the run ends, without waiting for a key (`--exit-at-end`).
    pub exit_at_end: bool,
    /// Print plain lines even where standard output is a terminal (`--plain`).
    pub plain: bool,
    /// What was decided about the rules.
    pub policy: Policy,
}

impl WatchOptions {
    /// The size of a frame printed by `--once` where none is given.
    pub const ONCE_SIZE: (u16, u16) = (120, 40);

    /// Watches `target` with the defaults: the dashboard on a terminal, plain lines elsewhere, until the user leaves.
    pub fn new(target: WatchTarget) -> Self {
        Self { target, once: None, exit_at_end: false, plain: false, policy: Policy::default() }
    }
}

/// How watching came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchOutcome {
    /// The exit status to pass on: that of the command that was started (128 + n where signal n ended it), 0 for a run that was
    /// only watched, 128 + n where signal n ended the watching.
    pub code: u8,
}

impl WatchOutcome {
    /// Everything went as it should.
    pub const OK: Self = Self { code: 0 };

    /// Whether the exit status is 0.
    pub fn success(self) -> bool {
        self.code == 0
    }
}

impl From<WatchOutcome> for ExitCode {
    fn from(outcome: WatchOutcome) -> Self {
        ExitCode::from(outcome.code)
    }
}
