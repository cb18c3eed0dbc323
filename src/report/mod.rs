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
    /// Renders the run; a format for machines ignores the layout.
    pub render: fn(&Run<'_>, &Layout) -> String,
}

/// All formats, in the order in which help lists them.
pub const FORMATS: &[Format] = &[
    Format { name: "brief", summary: "the verdict, and a line for each finding", render: brief },
    Format { name: "json", summary: "everything, for machines (docs/report.schema.json)", render: |run, _| json(run) },
    #[cfg(feature = "cli")]
    Format {
        name: "junit",
        summary: "JUnit XML for CI: a rule is a test, a finding its failure",
        render: |run, _| junit::junit(run),
    },
    Format {
        name: "layers",
        summary: "quantiles of each layer's gradients, activations and updates",
        render: layers::layers,
    },
    Format { name: "markdown", summary: "for the summary page of a CI job", render: |run, _| summary::markdown(run) },
    Format { name: "text", summary: "verdict and findings, for people", render: text },
];

impl Format {
    /// The format of that name.
    pub fn named(name: &str) -> Option<&'static Format> {
        FORMATS.iter().find(|format| format.name == name)
    }
}
