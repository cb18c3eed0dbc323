//! The engine: feeds records to the aggregate and the rules, and keeps what they find.

use super::{Finding, Severity};
use crate::aggregate::Aggregate;
use crate::observation::Record;

/// The answer to "is this run numerically healthy?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Observed, and nothing found.
    Healthy,
    /// A warning or an error was found.
    Findings,
    /// Not enough was observed to say.
    Unknown,
}

/// A rule that could not tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The rule's code.
    pub code: &'static str,
    /// The rule's name.
    pub name: &'static str,
    /// Why it could not tell, and what to do so that it can.
    pub reason: String,
}

/// The same recording always gives the same diagnosis, live, offline and in CI.
#[derive(Default)]
pub struct Diagnosis {
    aggregate: Aggregate,
    findings: Vec<Finding>,
    doubts: Vec<Doubt>,
}

impl Diagnosis {
    /// A diagnosis of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one record.
    pub fn apply(&mut self, record: Record) {
        self.aggregate.apply(record);
    }

    /// What is known of the run.
    pub fn aggregate(&self) -> &Aggregate {
        &self.aggregate
    }

    /// What was found: gravest first, then by onset, code and layer.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Rules that cannot tell, by code.
    pub fn doubts(&self) -> &[Doubt] {
        &self.doubts
    }

    /// The verdict on the run.
    pub fn health(&self) -> Health {
        if self.findings.iter().any(|f| f.severity >= Severity::Warning) {
            Health::Findings
        } else if self.aggregate.instrument.full_steps == 0 {
            Health::Unknown
        } else {
            Health::Healthy
        }
    }
}
