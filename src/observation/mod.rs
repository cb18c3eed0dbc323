//! The vocabulary of a run: where something was observed, what a step consists of, what the scaler did.

mod recipe;
mod run;
mod scaler;
pub mod scenario;
mod shadow;
mod site;
mod step;
mod thinned;

pub use recipe::{Act, Product, RecipeEvent, Refusal};
pub use run::{End, EndReason, Note, NoteKind, Parameter, RunInfo, Sampling};
pub use scaler::{ScalerConfig, ScalerEvent};
pub use shadow::{Shadow, ShadowGradient};
pub use site::{INPUT, Probe, SCALE_LOSS, SCALER, Site, SiteId};
pub use step::{Cost, Observation, Provenance, Rounding, Step, Tier};
pub use thinned::Thinned;

/// One entry of a recording, in the order in which it was written.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// The first record: what ran, where, and how it is sampled.
    Run(RunInfo),
    /// A site, before the first step that refers to it.
    Site(SiteId, Site),
    /// The settings of a loss scaler, when first seen and whenever they change.
    Scaler(ScalerConfig),
    /// One step.
    Step(Step),
    /// A comparison with FP32, after the step before it and before the one that it belongs to.
    Shadow(Shadow),
    /// Something about the instrument itself.
    Note(Note),
    /// What was left out of the older part of the recording so that it stays below its size; before the first step that is as it was recorded.
    Thinned(Thinned),
    /// The last record of a run that ended in order; a killed run has none.
    End(End),
}
