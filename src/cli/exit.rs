//! Exit codes.

use std::process::ExitCode;

use crate::rules::Health;

/// How a command came out. Scripts rely on the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// Done; for a check: observed, and nothing found.
    Success = 0,
    /// A check found something that is at least a warning.
    Findings = 1,
    /// Wrong usage, or nothing could be read.
    Usage = 2,
    /// A check could not tell: not enough was observed.
    Unknown = 3,
    /// The command that was started failed.
    CommandFailed = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

impl From<Health> for Exit {
    fn from(health: Health) -> Self {
        match health {
            Health::Healthy => Exit::Success,
            Health::Findings => Exit::Findings,
            Health::Unknown => Exit::Unknown,
        }
    }
}
