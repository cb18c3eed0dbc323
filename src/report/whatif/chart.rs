//! Ehat and shares over the loss scales, in characters.

use super::pieces::{Canvas, Row, Tone};
use crate::numerics::Format;
use crate::rules::whatif::{AtScale, SCALES, ScaleOutlook, WhatIf};

/// Columns left of the first scale: a label and a blank.
pub(super) const LABEL: usize = 9;
/// Decades of Ehat that are drawn, from 1 down to 1e-8, where a tensor of normal numbers stands.
const DECADES: i32 = 8;
/// Scales between two labels of the axis.
const TICK: i32 = 5;

/// Columns of one scale; at least one.
pub(super) fn columns(canvas: &Canvas) -> usize {
    (canvas.width.saturating_sub(LABEL) / SCALES.count()).clamp(1, 3)
}

/// The chart of the run; nothing where there is no gradient.
pub(super) fn chart(whatif: &WhatIf<'_>, canvas: &Canvas) -> Vec<Row> {
    if whatif.scales.is_empty() {
        return Vec::new();
    }
    let (worst, median) = (canvas.pick("●", "*"), canvas.pick("○", "o"));
    let title = format!("Ehat, the predicted loss of direction ({worst} worst layer, {median} median layer)");
    let mut rows = vec![Row::of(title, Tone::Bold)];
    rows.extend((0..=DECADES).map(|decade| ehat_row(whatif, decade, canvas)));
    rows.push(window_row(whatif, canvas));
    rows.extend(mark_rows(whatif, canvas));
    rows.push(axis_row(canvas));
    rows.push(Row::of("share of the elements, from none to all", Tone::Bold));
    for (label, tone, share) in SHARES {
        rows.push(share_row(label, tone, share, whatif, canvas));
    }
    rows.extend(at_least_rows(whatif, canvas));
    rows
}

/// A share at a scale.
type Share = fn(&ScaleOutlook<'_>) -> f64;

const SHARES: [(&str, Tone, Share); 4] = [
    ("fading", Tone::Warn, |at| at.worst.fading_share),
    ("  median", Tone::Warn, |at| at.median.fading_share),
    ("lost", Tone::Bad, |at| at.worst.lost_share),
    ("overflow", Tone::Bad, |at| at.worst.overflow_share),
];

fn labelled(label: &str) -> Row {
    Row::of(format!("{label:>width$} ", width = LABEL - 1), Tone::Dim)
}

/// The decade in whose row an Ehat is drawn.
fn decade_of(ehat: f64) -> i32 {
    (-ehat.max(1e-300).log10()).round().clamp(0.0, f64::from(DECADES)) as i32
}

fn ehat_row(whatif: &WhatIf<'_>, decade: i32, canvas: &Canvas) -> Row {
    let label = if decade == 0 { "1".to_owned() } else { format!("1e-{decade}") };
    let tolerated = decade == decade_of(Format::F16.tolerated_error());
    let mut row = labelled(&label);
    for at in &whatif.scales {
        let is_here = |of: &AtScale| of.ehat.is_some_and(|ehat| decade_of(ehat) == decade);
        let tone = |of: &AtScale| match of.ehat {
            Some(ehat) if ehat >= Format::F16.tolerated_error() => Tone::Bad,
            _ => Tone::Good,
        };
        let fill = if tolerated { canvas.pick("┄", "-") } else { " " };
        match () {
            () if is_here(&at.worst) => row.push(canvas.pick("●", "*"), tone(&at.worst)),
            () if is_here(&at.median) => row.push(canvas.pick("○", "o"), tone(&at.median)),
            () => row.push(fill, Tone::Dim),
        }
        row.push(&fill.repeat(columns(canvas) - 1), Tone::Dim);
    }
    row
}

/// The bar of the good scales.
fn window_row(whatif: &WhatIf<'_>, canvas: &Canvas) -> Row {
    let window = whatif.window.as_ref();
    bar(labelled("window"), window.map(|w| w.scales.low), window.map(|w| w.scales.high), canvas)
}

/// Appends a bar from `low` to `high` on the columns of [`SCALES`]; without a lower end it begins where they begin.
pub(super) fn bar(mut row: Row, low: Option<i32>, high: Option<i32>, canvas: &Canvas) -> Row {
    for scale in SCALES {
        let good = high.is_some_and(|high| low.unwrap_or(i32::MIN) <= scale && scale <= high);
        let (symbol, tone) =
            if good { (canvas.pick("█", "="), Tone::Good) } else { (canvas.pick("·", "."), Tone::Dim) };
        row.push(&symbol.repeat(columns(canvas)), tone);
    }
    row
}

/// Where the scale in force and the recommended one lie: a line each, or one where they are the same.
fn mark_rows(whatif: &WhatIf<'_>, canvas: &Canvas) -> Vec<Row> {
    let in_force = whatif.scale_in_force.map(|scale| scale.log2().round() as i32);
    let recommended = whatif.window.as_ref().and_then(|window| window.recommended);
    let marks = match (in_force, recommended) {
        (Some(a), Some(b)) if a == b => vec![(a, "in force and recommended")],
        _ => {
            let both = [(recommended, "recommended"), (in_force, "in force")];
            both.into_iter().filter_map(|(exponent, word)| Some((exponent?, word))).collect()
        }
    };
    marks.into_iter().filter(|(e, _)| SCALES.contains(e)).map(|(e, word)| mark_row(e, word, canvas)).collect()
}

/// An arrow below a scale, its word beside it where there is room.
fn mark_row(exponent: i32, word: &str, canvas: &Canvas) -> Row {
    let (arrow, at) = (canvas.pick("▲", "^"), (exponent - SCALES.start()) as usize * columns(canvas));
    let after = at + 2 + word.len() <= columns(canvas) * SCALES.count();
    let blank = " ".repeat(if after { at } else { at.saturating_sub(word.len() + 1) });
    let text = if after { format!("{blank}{arrow} {word}") } else { format!("{blank}{word} {arrow}") };
    labelled("").with(&text, Tone::Bold)
}

/// The exponents of the scales, every fifth one; every tenth where there is no room.
pub(super) fn axis_row(canvas: &Canvas) -> Row {
    let mut line = vec![' '; columns(canvas) * SCALES.count() + 6];
    let tick = if columns(canvas) > 1 { TICK } else { 2 * TICK };
    for scale in SCALES.filter(|scale| scale % tick == 0) {
        let at = (scale - SCALES.start()) as usize * columns(canvas);
        let label = format!("2^{scale}");
        line.iter_mut().skip(at).zip(label.chars()).for_each(|(cell, c)| *cell = c);
    }
    labelled("scale").with(&line.into_iter().collect::<String>(), Tone::Dim)
}

/// Whether more than is shown may be there.
type IsMore = fn(&AtScale) -> bool;

/// Where more may fade or be lost than is shown; nothing where nowhere.
fn at_least_rows(whatif: &WhatIf<'_>, canvas: &Canvas) -> Vec<Row> {
    let more = canvas.pick("≥", ">");
    let marks: [(&str, IsMore); 2] =
        [("fading", |at| at.fading_at_least), ("lost", |at| at.lost_at_least || at.inherits_loss)];
    let marked = marks.into_iter().filter(|(_, is_more)| whatif.scales.iter().any(|at| is_more(&at.worst)));
    let row = |(label, is_more): (&str, IsMore)| {
        let marks = whatif.scales.iter().map(|at| if is_more(&at.worst) { more } else { " " });
        let blank = " ".repeat(columns(canvas) - 1);
        let line: String = marks.flat_map(|mark| [mark, &blank]).collect();
        labelled(&format!("{label} {more}")).with(&line, Tone::Dim)
    };
    marked.map(row).collect()
}

fn share_row(label: &str, tone: Tone, share: Share, whatif: &WhatIf<'_>, canvas: &Canvas) -> Row {
    let mut row = labelled(label);
    for at in &whatif.scales {
        row.push(&canvas.block(share(at)).repeat(columns(canvas)), tone);
    }
    row
}
