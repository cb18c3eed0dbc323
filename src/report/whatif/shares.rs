//! What each format would make of the tensors of a layer, in numbers.

use super::Selection;
use super::pieces::{Canvas, Row, Tone, fitted, layer_name};
use crate::numerics::Share;
use crate::report::number::{percent, readable};
use crate::rules::whatif::{FORMATS, Kind, LayerFormats, Shares, WhatIf};

/// Columns of one share.
const CELL: usize = 13;
/// Columns of the kind of tensor, and of the format.
const NAMES: usize = 12 + 9;

/// A row per kind and format, of the layers that were asked for; nothing where none were.
pub(super) fn table(whatif: &WhatIf<'_>, selection: &Selection, canvas: &Canvas) -> Vec<Row> {
    let asked = selection.layers.is_some();
    let shown = whatif.formats.iter().filter(|of| asked && selection.shows(of.layer));
    let name_width = canvas.width.saturating_sub(NAMES + 3 * CELL).clamp(8, 28);
    let mut rows: Vec<Row> = shown.flat_map(|of| layer(of, name_width, canvas)).collect();
    if rows.is_empty() {
        return rows;
    }
    let caption =
        format!("{:width$}{:>CELL$}{:>CELL$}{:>CELL$}", "", "fading", "lost", "overflow", width = name_width + NAMES);
    rows.splice(
        0..0,
        [Row::of("What each format would make of it, as it is", Tone::Bold), Row::of(caption, Tone::Dim)],
    );
    let bounds = "Of two numbers the share lies between them: where in their binade the elements lie no histogram of exponents tells.";
    if whatif.formats.iter().filter(|of| selection.shows(of.layer)).any(has_bounds) {
        rows.extend(canvas.wrapped("", bounds, Tone::Dim));
    }
    rows
}

fn all(of: Shares) -> [Share; 3] {
    [of.fading, of.lost, of.overflow]
}

fn has_bounds(of: &LayerFormats<'_>) -> bool {
    of.shares.iter().flatten().flatten().flat_map(|shares| all(*shares)).any(|share| !share.told)
}

/// Rows of a layer; its name and a kind stand where they begin.
fn layer(of: &LayerFormats<'_>, name_width: usize, canvas: &Canvas) -> Vec<Row> {
    let mut name = layer_name(of.layer);
    let mut rows = Vec::new();
    for (kind, shares) in Kind::ALL.into_iter().zip(of.shares) {
        let mut kind = kind.name();
        for (format, shares) in FORMATS.iter().zip(shares.into_iter().flatten()) {
            let names = format!("{}{kind:<12}{:<9}", fitted(name, name_width, canvas), format.name);
            let overflows = shares.overflow.likely > 0.0;
            let text = all(shares).map(|share| format!("{:>CELL$}", said(share))).concat();
            rows.push(Row::of(names, Tone::Plain).with(&text, if overflows { Tone::Bad } else { Tone::Plain }));
            (name, kind) = ("", "");
        }
    }
    rows
}

/// `3.1 %`, or `0 to 14 %` where only bounds are known.
fn said(share: Share) -> String {
    /// Two digits: more would promise what no prediction holds.
    fn significant(x: f64) -> f64 {
        format!("{x:.1e}").parse().unwrap_or(x)
    }
    match share.told {
        true => percent(significant(share.likely)),
        // Rounded outward: a bound must hold.
        false => {
            format!("{} to {}", readable((100.0 * share.low).floor()), percent((100.0 * share.high).ceil() / 100.0))
        }
    }
}
