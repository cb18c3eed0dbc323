//! A finding: a fault with its place, time, evidence and remedy.

use super::Remedy;
use crate::observation::Probe;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing; does not fail a check.
    Info,
    /// Something will go wrong, or already costs quality.
    Warning,
    /// The run is damaged.
    Error,
}

impl Severity {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// A value of evidence.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A measured number; may be non-finite.
    Number(f64),
    /// A count.
    Count(u64),
    /// Words.
    Text(String),
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// One number that a finding stands on.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    /// A key in snake case, with its unit: `max_abs`, `lost_share_estimate`.
    pub name: &'static str,
    /// The value.
    pub value: Value,
}

/// A fault with its place, time, evidence and remedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The rule's code.
    pub code: &'static str,
    /// The rule's name.
    pub name: &'static str,
    /// The gravest it was, or that what follows from it was.
    pub severity: Severity,
    /// The layer, empty for the run as a whole.
    pub layer: String,
    /// The operator, where one is to blame; else empty.
    pub operator: String,
    /// The kind of tensor it was seen in.
    pub probe: Option<Probe>,
    /// The step at which it began.
    pub onset_step: u64,
    /// The last step at which it was seen.
    pub last_step: u64,
    /// The numbers it stands on.
    pub evidence: Vec<Evidence>,
    /// What happened and why it matters.
    pub explanation: String,
    /// What to change in this run, with the value to set.
    pub remedy: Remedy,
    /// Findings that follow from this one, by onset; they have none of their own.
    pub consequences: Vec<Finding>,
}

impl Finding {
    /// The finding itself, then those that follow from it.
    pub fn with_consequences(&self) -> impl Iterator<Item = &Finding> {
        std::iter::once(self).chain(&self.consequences)
    }
}
