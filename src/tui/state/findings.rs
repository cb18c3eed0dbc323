//! What was found, and what could not be told.

use std::cmp::Reverse;

use crate::report::policy_text;
use crate::rules::{Accepted, Diagnosis, Doubt, Finding, Health, Severity};

/// The verdict on the run, with everything it rests on.
#[derive(Clone, Debug)]
pub struct Findings {
    /// The verdict.
    pub health: Health,
    /// Gravest first.
    pub found: Vec<Finding>,
    /// Rules that cannot tell.
    pub doubts: Vec<Doubt>,
    /// What was found and is accepted.
    pub accepted: Vec<Accepted>,
    /// What was decided about the rules, in words.
    pub policy: Vec<String>,
}

impl Findings {
    /// What a diagnosis holds.
    pub fn of(diagnosis: &Diagnosis) -> Self {
        Self {
            health: diagnosis.health(),
            found: diagnosis.findings().to_vec(),
            doubts: diagnosis.doubts().to_vec(),
            accepted: diagnosis.accepted().to_vec(),
            policy: policy_text(diagnosis.policy()),
        }
    }
}

impl Findings {
    /// Adds what was found of the rank beside others.
    pub fn add(&mut self, found: impl Iterator<Item = Finding>) {
        self.found.extend(found);
        self.found.sort_by(|a, b| {
            let order = |f: &Finding| (Reverse(f.severity), f.onset_step, f.code);
            order(a).cmp(&order(b)).then_with(|| a.layer.cmp(&b.layer))
        });
        if self.found.iter().any(|f| f.severity >= Severity::Warning) {
            self.health = Health::Findings;
        }
    }
}

/// Whether two findings are the same fault at the same place, seen at different times.
pub fn same_finding(a: &Finding, b: &Finding) -> bool {
    (a.code, &a.layer, &a.operator, a.probe, a.onset_step) == (b.code, &b.layer, &b.operator, b.probe, b.onset_step)
}
