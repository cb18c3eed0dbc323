//! Two runs side by side: what a change of the recipe or of the code did to the findings, to the end of the loss, to the loss scale and to the layers.
//!
//! A finding is the same where its rule and its layer are, whatever its step and its rank. A [`Comparison`] is a pure function of two [`Run`]s, and every
//! form of it one of the comparison.

mod findings;
mod json;
mod layers;
mod outcome;
mod settings;
#[cfg(test)]
mod tests;
mod text;

pub use findings::FindingChanges;
pub use json::{COMPARE_SCHEMA_VERSION, compare_json};
pub use layers::{LayerChange, LayerState};
pub use outcome::{LossAtEnd, Outcome};
pub use settings::SettingChange;
pub use text::compare_text;

use super::Run;
use crate::rules::{Health, Severity};

/// What differs between two runs.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    /// How the run came out that is held against.
    pub base: Outcome,
    /// How the other came out.
    pub run: Outcome,
    /// Findings that are gone, new, and still there.
    pub findings: FindingChanges<'a>,
    /// Layers whose use of FP16's range changed so much that it matters, in the order of the runs.
    pub layers: Vec<LayerChange<'a>>,
    /// Settings that differ.
    pub settings: Vec<SettingChange>,
}

/// What a comparison says of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// A finding of severity error is new.
    Worse,
    /// Not enough was seen of the run to say that none is.
    Unknown,
    /// Nothing that is new is an error.
    NoWorse,
}

impl<'a> Comparison<'a> {
    /// Holds `run` against `base`.
    pub fn of(base: &'a Run<'a>, run: &'a Run<'a>) -> Self {
        Self {
            base: Outcome::of(base),
            run: Outcome::of(run),
            findings: FindingChanges::of(base, run),
            layers: layers::changes(base, run),
            settings: settings::changes(base, run),
        }
    }

    /// What it comes to.
    pub fn judgement(&self) -> Judgement {
        match self.findings.new.iter().any(|finding| finding.severity == Severity::Error) {
            true => Judgement::Worse,
            false if self.run.health == Health::Unknown => Judgement::Unknown,
            false => Judgement::NoWorse,
        }
    }
}
