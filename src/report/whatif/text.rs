//! What-if for people.

use super::super::Layout;
use super::pieces::{Canvas, Row, Tone};
use super::{Selection, chart, formats, layers, memory, shares, summary};
use crate::rules::whatif::WhatIf;

/// The lines of a what-if, for a terminal or a page of the dashboard.
pub fn whatif_rows(whatif: &WhatIf<'_>, selection: &Selection, canvas: &Canvas) -> Vec<Row> {
    // Who asks for some layers gets these, and of the run the one sentence to hold them against.
    let whole = selection.layers.is_none();
    let lead = if whole { "Loss scales" } else { "Loss scales of the whole run" };
    let mut rows = canvas.wrapped("", &format!("{lead}: {}.", summary::window(whatif)), Tone::Plain);
    rows.extend(canvas.wrapped("", &plain(&summary::basis(whatif), canvas), Tone::Dim));
    let of_the_run = |rows: Vec<Row>| if whole { rows } else { Vec::new() };
    let parts = [
        of_the_run(chart::chart(whatif, canvas)),
        layers::windows(whatif, selection, canvas),
        layers::at_scale(whatif, selection, canvas),
        formats::table(whatif, selection, canvas),
        shares::table(whatif, selection, canvas),
        of_the_run(memory::table(&whatif.memory, canvas)),
    ];
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        rows.push(Row::default());
        rows.extend(part);
    }
    rows
}

fn plain(text: &str, canvas: &Canvas) -> String {
    if canvas.unicode { text.to_owned() } else { text.replace('≥', ">=") }
}

/// The what-if as text, ending in a line break.
pub fn whatif_text(whatif: &WhatIf<'_>, selection: &Selection, layout: &Layout, unicode: bool) -> String {
    // Beyond 120 columns the chart gains nothing.
    let canvas = Canvas { width: layout.width.min(120), unicode };
    let rows = whatif_rows(whatif, selection, &canvas);
    rows.iter().map(|row| row.text(layout) + "\n").collect()
}
