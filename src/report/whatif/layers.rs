//! The layers: which scales each allows, and what becomes of it at one.

use super::Selection;
use super::chart::{LABEL, axis_row, bar, columns};
use super::pieces::{Canvas, Row, Tone, fitted, layer_name};
use crate::numerics::Format;
use crate::report::number::{percent, readable};
use crate::rules::whatif::{AtScale, LayerOutlook, SCALES, WhatIf};

/// Layers shown where none were asked for: those that limit the window most.
const SHOWN: usize = 16;

/// A bar of good scales per layer. Those that limit the window first, where there are too many to show.
pub(super) fn windows(whatif: &WhatIf<'_>, selection: &Selection, canvas: &Canvas) -> Vec<Row> {
    let (layers, left_out) = selected(whatif, selection);
    if layers.is_empty() {
        return Vec::new();
    }
    let narrow = Canvas { width: LABEL + SCALES.count(), ..*canvas };
    let name_width = canvas.width.saturating_sub(columns(&narrow) * SCALES.count() + ENDS).clamp(8, 28);
    let mut rows = vec![Row::of("The scales that each layer allows", Tone::Bold)];
    rows.extend(layers.iter().map(|layer| {
        let name = Row::of(format!("{} ", fitted(layer_name(layer.layer), name_width, canvas)), Tone::Plain);
        let row = bar(name, layer.low, layer.high, &narrow);
        let tone = if layer.conflicts() { Tone::Bad } else { Tone::Plain };
        row.with(&format!(" {}", ends(layer)), tone)
    }));
    let blank = " ".repeat((name_width + 1).saturating_sub(LABEL));
    let axis = axis_row(&narrow).0.into_iter().map(|piece| piece.text).collect::<String>();
    rows.push(Row::of(format!("{blank}{}", axis.trim_end()), Tone::Dim));
    rows.extend(more(left_out, canvas));
    rows
}

/// Columns of a blank, the bar's ends and blanks around them.
const ENDS: usize = 18;

fn ends(layer: &LayerOutlook<'_>) -> String {
    let end = |end: Option<i32>| end.map_or("any".into(), |e| format!("2^{e}"));
    let word = if layer.conflicts() { " none" } else { "" };
    format!("{} to {}{word}", end(layer.low), end(layer.high))
}

/// Numbers of each layer at one loss scale.
pub(super) fn at_scale(whatif: &WhatIf<'_>, selection: &Selection, canvas: &Canvas) -> Vec<Row> {
    let (layers, left_out) = selected(whatif, selection);
    if layers.is_empty() {
        return Vec::new();
    }
    let asked = selection.scale.unwrap_or_else(|| whatif.shown_scale());
    let scale = asked.clamp(*SCALES.start(), *SCALES.end());
    let name_width = canvas.width.saturating_sub(4 * 12).clamp(8, 28);
    let mut rows = vec![Row::of(format!("Each layer at 2^{scale}{}", outside(asked, scale)), Tone::Bold)];
    let caption = format!("{:name_width$} {:>10} {:>11} {:>11} {:>11}", "", "Ehat", "fading", "lost", "overflow");
    rows.push(Row::of(caption, Tone::Dim));
    rows.extend(layers.iter().filter_map(|layer| Some(numbers(layer.layer, layer.at(scale)?, name_width, canvas))));
    if layers.iter().filter_map(|layer| layer.at(scale)).any(|at| at.inherits_loss) {
        rows.extend(canvas.wrapped("", &inherited(canvas), Tone::Dim));
    }
    rows.extend(more(left_out, canvas));
    rows
}

/// Why some numbers are bounds.
fn inherited(canvas: &Canvas) -> String {
    let [more, less] = [canvas.pick("≥", ">="), canvas.pick("≤", "<=")];
    format!(
        "{more} at least, {less} at most, ~ about: at this scale a gradient computed before it in backward loses more than 0.5 %, and what that one does not hand on is in no \
         histogram of the layer."
    )
}

fn outside(asked: i32, shown: i32) -> String {
    if asked == shown { String::new() } else { format!(", the nearest to 2^{asked} that is computed") }
}

fn numbers(layer: &str, at: &AtScale, name_width: usize, canvas: &Canvas) -> Row {
    let ehat = at.ehat.map_or("-".into(), |ehat| readable(significant(ehat)));
    let bad = at.ehat.is_some_and(|ehat| ehat >= Format::F16.tolerated_error());
    let share = |share: f64, sign: &str| format!("{sign}{}", percent(significant(share)));
    Row::of(format!("{} ", fitted(layer_name(layer), name_width, canvas)), Tone::Plain)
        .with(&format!("{ehat:>10}"), if bad { Tone::Bad } else { Tone::Plain })
        .with(&format!(" {:>11}", share(at.fading_share, fading_sign(at, canvas))), Tone::Plain)
        .with(&format!(" {:>11}", share(at.lost_share, lost_sign(at, canvas))), Tone::Plain)
        .with(
            &format!(" {:>11}", share(at.overflow_share, "")),
            if at.overflow_share > 0.0 { Tone::Bad } else { Tone::Plain },
        )
}

/// More may fade, or less, or either.
fn fading_sign(at: &AtScale, canvas: &Canvas) -> &'static str {
    match (at.fading_at_least, at.inherits_loss && at.fading_share > 0.0) {
        (true, false) => canvas.pick("≥ ", ">= "),
        (false, true) if at.ehat.is_some() => canvas.pick("≤ ", "<= "),
        (_, true) => "~ ",
        (false, false) => "",
    }
}

/// More may be lost; of sums over what was passed on, as the gradient of a parameter is, either.
fn lost_sign(at: &AtScale, canvas: &Canvas) -> &'static str {
    match at.lost_at_least || at.inherits_loss {
        true if at.lost_at_least || at.ehat.is_some() => canvas.pick("≥ ", ">= "),
        true if at.lost_share > 0.0 => "~ ",
        _ => "",
    }
}

/// Two digits: more would promise what no prediction holds.
fn significant(x: f64) -> f64 {
    format!("{x:.1e}").parse().unwrap_or(x)
}

/// The layers that are asked for; where none are, in a large model those that limit the window most, from both ends. And how many were left out.
fn selected<'a, 'b>(whatif: &'b WhatIf<'a>, selection: &Selection) -> (Vec<&'b LayerOutlook<'a>>, usize) {
    let all: Vec<&LayerOutlook<'a>> = whatif.layers.iter().filter(|layer| selection.shows(layer.layer)).collect();
    if selection.layers.is_some() || all.len() <= SHOWN {
        return (all, 0);
    }
    let mut by_low: Vec<usize> = (0..all.len()).collect();
    by_low.sort_by_key(|&i| std::cmp::Reverse(all[i].low));
    let mut by_high: Vec<usize> = (0..all.len()).filter(|&i| all[i].high.is_some()).collect();
    by_high.sort_by_key(|&i| all[i].high);
    let mut kept: Vec<usize> = by_low.into_iter().take(SHOWN / 2).chain(by_high.into_iter().take(SHOWN / 2)).collect();
    kept.sort_unstable();
    kept.dedup();
    let left_out = all.len() - kept.len();
    (kept.into_iter().map(|i| all[i]).collect(), left_out)
}

fn more(left_out: usize, canvas: &Canvas) -> Vec<Row> {
    let text = format!("{left_out} layers that limit less are left out; `--layer '*'` shows all.");
    if left_out == 0 { Vec::new() } else { canvas.wrapped("", &text, Tone::Dim) }
}
