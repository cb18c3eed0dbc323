//! Which layer could run in which format.

use super::Selection;
use super::pieces::{Canvas, Row, Tone, fitted, layer_name};
use crate::rules::whatif::{FORMATS, Fit, Kind, LayerFormats, WhatIf};

/// Columns of one format in the table.
const CELL: usize = 5;
/// Blanks between the kinds.
const GAP: usize = 2;

/// A row per layer, a column per kind of tensor and format.
pub(super) fn table(whatif: &WhatIf<'_>, selection: &Selection, canvas: &Canvas) -> Vec<Row> {
    let shown: Vec<&LayerFormats<'_>> =
        whatif.formats.iter().filter(|of| selection.shows(of.layer) && of.fits.iter().any(Option::is_some)).collect();
    if shown.is_empty() {
        return Vec::new();
    }
    let columns = Kind::ALL.len() * (FORMATS.len() * CELL + GAP);
    let name_width = canvas.width.saturating_sub(columns).clamp(8, 28);
    let mut rows = vec![Row::of("Which format could hold what", Tone::Bold)];
    rows.push(Row::of(caption(name_width), Tone::Plain));
    rows.push(Row::of(formats(name_width), Tone::Dim));
    let (alike, groups) = grouped(&shown);
    rows.extend(groups.iter().map(|(name, of)| layer(name, of, name_width, canvas)));
    rows.extend(canvas.wrapped("", &legend(whatif, alike, canvas), Tone::Dim));
    rows
}

fn caption(name_width: usize) -> String {
    let kinds =
        Kind::ALL.map(|kind| format!("{}{:<width$}", " ".repeat(GAP), kind.name(), width = FORMATS.len() * CELL));
    format!("{:name_width$}{}", "", kinds.concat()).trim_end().to_owned()
}

fn formats(name_width: usize) -> String {
    let names: String = FORMATS.iter().map(|format| format!("{:<CELL$}", short(format.name))).collect();
    format!("{:name_width$}{}", "", format!("{}{names}", " ".repeat(GAP)).repeat(Kind::ALL.len())).trim_end().to_owned()
}

fn short(name: &str) -> &str {
    name.strip_prefix("fp8_").unwrap_or(name)
}

/// In a model of many layers, those with the same answers stand in one row. Whether any do.
fn grouped<'a, 'b>(shown: &[&'b LayerFormats<'a>]) -> (bool, Vec<(String, &'b LayerFormats<'a>)>) {
    /// More rows than this are read by nobody.
    const MANY: usize = 24;
    if shown.len() <= MANY {
        return (false, shown.iter().map(|of| (layer_name(of.layer).to_owned(), *of)).collect());
    }
    let answers = |of: &LayerFormats<'_>| of.fits.map(|kind| kind.map(|fits| fits.map(Fit::name)));
    let mut groups: Vec<(Vec<&str>, &LayerFormats<'a>)> = Vec::new();
    for &of in shown {
        match groups.iter_mut().find(|(_, first)| answers(first) == answers(of)) {
            Some((layers, _)) => layers.push(of.layer),
            None => groups.push((vec![of.layer], of)),
        }
    }
    let name = |layers: Vec<&str>| match layers.as_slice() {
        [one] => layer_name(one).to_owned(),
        [first, rest @ ..] => format!("{} and {} more", layer_name(first), rest.len()),
        [] => String::new(),
    };
    (true, groups.into_iter().map(|(layers, of)| (name(layers), of)).collect())
}

fn layer(name: &str, of: &LayerFormats<'_>, name_width: usize, canvas: &Canvas) -> Row {
    let mut row = Row::of(fitted(name, name_width, canvas), Tone::Plain);
    for fits in of.fits {
        row.push(&" ".repeat(GAP), Tone::Plain);
        for place in 0..FORMATS.len() {
            let (symbol, tone) = match fits.map(|fits| fits[place]) {
                None => (canvas.pick("·", "."), Tone::Dim),
                Some(Fit::AsIs) => (canvas.pick("✓", "y"), Tone::Good),
                Some(Fit::PerTensorScale(_)) => ("s", Tone::Warn),
                Some(Fit::No(_)) => (canvas.pick("✗", "n"), Tone::Bad),
            };
            row.push(&format!("{symbol:<CELL$}"), tone);
        }
    }
    if of.non_finite_scans > 0 {
        row.push("!", Tone::Bad);
    }
    row
}

fn legend(whatif: &WhatIf<'_>, alike: bool, canvas: &Canvas) -> String {
    let scale = whatif.window.as_ref().and_then(|window| window.recommended);
    let scale = scale.map_or(String::new(), |e| format!(", gradients in FP16 and FP8 at 2^{e}"));
    let mut text = format!(
        "{} as it is{scale}; s only with a scale of its own for each tensor; {} not at all: what keeps its small elements makes its large ones overflow. Well is a bit \
         of headroom and Ehat below 1e-4; in FP8, below twice what its rounding alone costs. What autocast leaves in FP32, and tensors of less than 64 elements, are not asked. `--layer` shows the shares that fade, are lost and overflow.",
        canvas.pick("✓", "y"),
        canvas.pick("✗", "n"),
    );
    if whatif.formats.iter().any(|of| of.non_finite_scans > 0) {
        text.push_str(" ! some scans held NaN or infinities, which are not in the answer.");
    }
    if alike {
        text.push_str(" Layers with the same answers stand in one row; `--layer` shows them one by one.");
    }
    text
}
