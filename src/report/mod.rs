//! The findings as documents.
//!
//! [`Run`] is what is reported: one [`Rank`] per recording. A format is one file of this module and one row of [`FORMATS`];
//! every format is a pure function of the run, so the same recording gives the same bytes.

mod brief;
mod compare;
mod coverage;
mod evidence;
#[cfg(test)]
mod fixture;
mod json;
#[cfg(feature = "cli")]
mod junit;
mod layers;
mod layout;
mod markdown;
mod number;
mod page;
mod policy;
mod read;
mod rounding;
mod run;
mod shadows;
mod suggest;
mod summary;
mod text;
mod thinned;
mod whatif;
mod words;

use brief::brief;
pub use compare::{
    COMPARE_SCHEMA_VERSION, Comparison, FindingChanges, Judgement, LayerChange, LayerState, LossAtEnd, Outcome,
    SettingChange, compare_json, compare_text,
};
pub use evidence::{evidence_text, evidence_words};
pub use json::{SCHEMA_VERSION, json};
pub use layers::{LayerMagnitudes, Magnitudes, Quantity, layer_magnitudes};
pub use layout::Layout;
pub use page::{page, page_file_name, page_index, render_page};
pub use policy::{policy_text, settings_text};
pub use read::{Progress, RankRecording, RunRecording, read_run, read_run_under};
pub use rounding::TensorRounding;
pub use run::{Attributed, Counts, Rank, Run};
pub use shadows::{LayerShadow, in_words};
#[cfg(feature = "cli")]
pub(crate) use suggest::nearest;
pub use text::{consequence_text, text};
pub use thinned::thinned_text;
pub use whatif::{Canvas, Piece, Row, Selection, Tone, WHATIF_SCHEMA_VERSION, whatif_json, whatif_rows, whatif_text};

/// A form in which a run is reported.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// What `--format` calls it.
    pub name: &'static str,
    /// One line for the help text.
    pub summary: &'static str,
    /// Whether it is for machines, which read one document, and not several that stand one behind another.
    pub is_one_document: bool,
    /// Renders the run; a format for machines ignores the layout.
    pub render: fn(&Run<'_>, &Layout) -> String,
}

/// All formats, in the order in which help lists them.
pub const FORMATS: &[Format] = &[
    Format::for_people("brief", "the verdict, and a line for each finding", brief),
    Format::for_machines("json", "everything, for machines (docs/report.schema.json)", |run, _| json(run)),
    #[cfg(feature = "cli")]
    Format::for_machines("junit", "JUnit XML for CI: a rule is a test, a finding its failure", |run, _| {
        junit::junit(run)
    }),
    Format::for_people("layers", "quantiles of each layer's gradients, activations and updates", layers::layers),
    Format::for_people("markdown", "for the summary page of a CI job", |run, _| summary::markdown(run)),
    Format::for_people("text", "verdict and findings, for people", text),
];

type Render = fn(&Run<'_>, &Layout) -> String;

impl Format {
    const fn for_people(name: &'static str, summary: &'static str, render: Render) -> Self {
        Self { name, summary, is_one_document: false, render }
    }

    const fn for_machines(name: &'static str, summary: &'static str, render: Render) -> Self {
        Self { name, summary, is_one_document: true, render }
    }

    /// The format of that name.
    pub fn named(name: &str) -> Option<&'static Format> {
        FORMATS.iter().find(|format| format.name == name)
    }
}
