//! The JSON report: everything that is known of a run, in a fixed order.
//!
//! `docs/report.schema.json` describes it. The structures of [`model`] and [`rank`] mirror the document and mean nothing else; a change
//! that could break a reader raises [`SCHEMA_VERSION`].

mod configuration;
mod format;
mod magnitudes;
mod model;
mod rank;
mod rounding;
mod shadows;

use serde::Serialize;

use super::Run;
use format::ShallowFormatter;

/// The version of the document; it changes when a reader of the old one could misread the new one, not when keys are added.
pub const SCHEMA_VERSION: u32 = 2;

/// The JSON report of a run, ending in a line break. The same recordings give the same bytes.
pub fn json(run: &Run<'_>) -> String {
    shallow(&model::Document::of(run))
}

/// A document as JSON, ending in a line break. What lies deep stands on one line.
pub(super) fn shallow(document: &impl Serialize) -> String {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, ShallowFormatter::default());
    // Plain structures with string keys, written to memory: there is nothing that can fail.
    document.serialize(&mut serializer).expect("a report serializes");
    bytes.push(b'\n');
    String::from_utf8(bytes).expect("JSON is UTF-8")
}

#[cfg(test)]
mod tests;
