//! The table of layers, one line each, with the FP16 window.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::number::{grouped, magnitude, or_dash, percent};
use super::window::{Resolution, strip};
use super::wrap::keep_end;
use super::{Theme, View, first_row, panel};
use crate::rules::Severity;
use crate::scan::Dtype;
use crate::tui::state::{Layer, Sort};
use crate::tui::ui::{Extent, Panel, Tensors};

/// A column of numbers.
struct Column {
    title: &'static str,
    width: usize,
    text: fn(&Layer) -> String,
    style: fn(&Layer, Theme) -> Style,
}

/// The columns of numbers, the ones that are needed most first: a narrow screen keeps as many as fit.
const COLUMNS: &[Column] = &[
    Column { title: "max grad", width: 8, text: |l| number(l.gradient_max), style: gradient_style },
    Column { title: "subn%", width: 5, text: |l| share(l.subnormal_share), style: subnormal_style },
    Column { title: "nonf", width: 4, text: |l| non_finite(l), style: non_finite_style },
    Column { title: "max act", width: 7, text: |l| number(l.activation_max), style: activation_style },
    Column { title: "zero%", width: 5, text: |l| share(l.zero_share), style: |_, _| Style::new() },
    Column { title: "ops", width: 6, text: operators, style: |_, theme| theme.dim() },
    Column { title: "unscaled", width: 8, text: |l| number(l.gradient_unscaled), style: |_, _| Style::new() },
    Column { title: "room", width: 5, text: |l| octaves(l.headroom), style: headroom_style },
];

/// The order in which the columns stand, as places in [`COLUMNS`].
const ORDER: [usize; 8] = [5, 3, 0, 6, 7, 1, 4, 2];
const NAME: std::ops::RangeInclusive<usize> = 10..=28;
const MARK: usize = 2;

/// What fits a width.
struct Fit {
    name: usize,
    columns: Vec<&'static Column>,
    strip: Option<Resolution>,
}

/// Draws the table.
pub fn draw(frame: &mut Frame, area: Rect, view: &View) -> Extent {
    let (layers, selected) = view.ui.sorted_layers(view.snapshot);
    let focused = view.ui.panel == Panel::Layers;
    let block = panel(title(layers.len(), selected, view), focused, view.theme);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let fit = fit(usize::from(inner.width), &layers, view.ui.sort);
    let height = usize::from(inner.height).saturating_sub(1);
    let first = first_row(selected, layers.len(), height);
    let mut lines = vec![caption(&fit, view.theme)];
    if layers.is_empty() {
        lines.push(Line::styled(nothing_shown(view), view.theme.dim()));
    }
    let rows = layers.iter().enumerate().skip(first).take(height);
    lines.extend(rows.map(|(i, layer)| row(layer, &fit, view, (i == selected).then_some(focused))));
    frame.render_widget(Paragraph::new(lines), inner);
    Extent { scroll_max: 0, page: height.max(1) }
}

fn title(count: usize, selected: usize, view: &View) -> Vec<Span<'static>> {
    let (theme, ui) = (view.theme, view.ui);
    let place = if count > 0 { format!("{}/{}", selected + 1, count) } else { "0".into() };
    let mut title = vec![Span::raw("layers"), Span::styled(format!("  {place}"), theme.dim())];
    let hidden = view.snapshot.layers.len() - count;
    if hidden > 0 {
        title.push(Span::styled(format!(" ({} hidden)", grouped(hidden as u64)), theme.warning()));
    }
    if ui.writes_filter || !ui.filter.text.is_empty() {
        let cursor = if ui.writes_filter { "_" } else { "" };
        title.push(Span::styled(format!("  /{}{cursor}", ui.filter.text), theme.key()));
    }
    if ui.filter.with_findings {
        title.push(Span::styled("  f: with findings", theme.key()));
    }
    let details = format!("  s: by {}; FP16 window of {}", ui.sort.name(), ui.tensors.name());
    title.push(Span::styled(details, theme.dim()));
    title
}

fn nothing_shown(view: &View) -> String {
    if view.snapshot.layers.is_empty() {
        return "  no tensor was scanned yet".into();
    }
    let of_these = if view.ui.filter.with_findings { " with a finding" } else { "" };
    let named = if view.ui.filter.text.is_empty() { String::new() } else { format!(" named {}", view.ui.filter.text) };
    format!("  no layer{of_these}{named}; Esc shows all")
}

/// Columns that give way to a longer name, and to a finer strip.
const LATE: (usize, usize) = (2, 1);

/// The column that shows what the layers are sorted by, as a place in [`COLUMNS`].
fn sorted_by(sort: Sort) -> Option<usize> {
    let title = match sort {
        Sort::Gradient => "max grad",
        Sort::Fading => "subn%",
        Sort::Headroom => "room",
        Sort::Trouble | Sort::Model | Sort::Name => return None,
    };
    COLUMNS.iter().position(|column| column.title == title)
}

/// Chooses columns: the strip and what is sorted by first, then numbers by need, then a finer strip, then the names.
fn fit(width: usize, layers: &[&Layer], sort: Sort) -> Fit {
    let longest = layers.iter().map(|l| name(l).chars().count()).max().unwrap_or(0).clamp(*NAME.start(), *NAME.end());
    let mut left = width.saturating_sub(MARK + *NAME.start());
    let mut take = |wanted: usize| {
        let fits = wanted <= left;
        left -= if fits { wanted } else { 0 };
        fits
    };
    let coarse = usize::from(Resolution::Coarse.width());
    let mut strip = take(1 + coarse).then_some(Resolution::Coarse);
    let first = sorted_by(sort);
    let by_need = first.into_iter().chain((0..COLUMNS.len() - LATE.0 - LATE.1).filter(|&i| Some(i) != first));
    let mut chosen: Vec<usize> = by_need.filter(|&i| take(1 + COLUMNS[i].width)).collect();
    let mut name = *NAME.start();
    while name < longest.min(16) && take(1) {
        name += 1;
    }
    let late = |from: usize, count: usize| (from..from + count).filter(move |&i| Some(i) != first);
    chosen.extend(late(COLUMNS.len() - LATE.0 - LATE.1, LATE.0).filter(|&i| take(1 + COLUMNS[i].width)));
    if strip.is_some() && take(usize::from(Resolution::Fine.width()) - coarse) {
        strip = Some(Resolution::Fine);
    }
    while name < longest && take(1) {
        name += 1;
    }
    chosen.extend(late(COLUMNS.len() - LATE.1, LATE.1).filter(|&i| take(1 + COLUMNS[i].width)));
    let columns = ORDER.iter().filter(|i| chosen.contains(i)).map(|&i| &COLUMNS[i]).collect();
    Fit { name, columns, strip }
}

fn caption(fit: &Fit, theme: Theme) -> Line<'static> {
    let mut text = format!("{:MARK$}{:<2$}", "", "layer", fit.name);
    for column in &fit.columns {
        text.push_str(&format!(" {:>1$}", column.title, column.width));
    }
    if let Some(resolution) = fit.strip {
        text.push(' ');
        text.push_str(&resolution.caption());
    }
    Line::styled(text, theme.dim())
}

fn row(layer: &Layer, fit: &Fit, view: &View, selected: Option<bool>) -> Line<'static> {
    let theme = view.theme;
    let name = keep_end(name(layer), fit.name, theme.pick("…", "~"));
    let chosen = selected.map_or(Style::new(), |focused| theme.selected(focused));
    let mut spans = vec![mark(layer, theme), Span::styled(format!("{name:<0$}", fit.name), chosen)];
    for column in &fit.columns {
        spans.push(Span::raw(" "));
        spans.push(Span::styled(format!("{:>1$}", (column.text)(layer), column.width), (column.style)(layer, theme)));
    }
    if let Some(resolution) = fit.strip {
        let window = match view.ui.tensors {
            Tensors::Gradients => &layer.gradients,
            Tensors::Activations => &layer.activations,
        };
        spans.push(Span::raw(" "));
        spans.extend(strip(window, resolution, theme));
    }
    Line::from(spans)
}

/// The name of a layer as it is shown.
pub fn name(layer: &Layer) -> &str {
    if layer.path.is_empty() { "(root)" } else { &layer.path }
}

fn mark(layer: &Layer, theme: Theme) -> Span<'static> {
    match layer.severity {
        Some(severity) => Span::styled(format!("{} ", letter(severity)), theme.severity(severity)),
        None if layer.non_finite_now => Span::styled("! ", theme.bad()),
        None => Span::raw("  "),
    }
}

/// One letter for a severity.
pub fn letter(severity: Severity) -> char {
    match severity {
        Severity::Info => 'I',
        Severity::Warning => 'W',
        Severity::Error => 'E',
    }
}

fn number(value: Option<f64>) -> String {
    or_dash(value.map(magnitude))
}

/// Octaves with one place after the point, in five characters.
fn octaves(value: Option<f64>) -> String {
    or_dash(value.map(|octaves| if octaves == f64::NEG_INFINITY { "none".into() } else { format!("{octaves:.1}") }))
}

fn share(value: Option<f64>) -> String {
    or_dash(value.map(percent))
}

fn operators(layer: &Layer) -> String {
    let dtype = match layer.dtypes.as_slice() {
        [one] => one.name(),
        [] => "-",
        _ => "mix",
    };
    match layer.operators {
        0 => dtype.to_owned(),
        n => format!("{n} {dtype}"),
    }
}

fn non_finite(layer: &Layer) -> String {
    match layer.non_finite_scans {
        0 => "0".into(),
        n if n < 1000 => n.to_string(),
        n if n < 10_000 => format!("{}k", n / 1000),
        _ => ">9k".into(),
    }
}

fn non_finite_style(layer: &Layer, theme: Theme) -> Style {
    match (layer.non_finite_now, layer.non_finite_scans) {
        (true, _) => theme.bad(),
        (false, 0) => Style::new(),
        (false, _) => theme.warning(),
    }
}

fn gradient_style(layer: &Layer, theme: Theme) -> Style {
    let below_normal = |max: f64| max < 2f64.powi(Dtype::F16.min_normal_exponent());
    match layer.gradient_max {
        Some(max) if layer.holds_gradients_in_fp16() && below_normal(max) => theme.bad(),
        _ => Style::new(),
    }
}

fn subnormal_style(layer: &Layer, theme: Theme) -> Style {
    /// Up to this share healthy runs go (calibration: at most 0.70; a tensor is itself undamaged up to 0.9).
    const MUCH: f64 = 0.9;
    match layer.subnormal_share {
        Some(share) if layer.holds_gradients_in_fp16() && share > MUCH => theme.bad(),
        _ => Style::new(),
    }
}

fn headroom_style(layer: &Layer, theme: Theme) -> Style {
    match layer.headroom {
        Some(octaves) if octaves < 1.0 => theme.bad(),
        Some(octaves) if octaves < 3.0 => theme.warning(),
        _ => Style::new(),
    }
}

fn activation_style(layer: &Layer, theme: Theme) -> Style {
    match layer.activation_max {
        Some(max) if layer.dtypes.contains(&Dtype::F16) && max > 2f64.powi(15) => theme.bad(),
        Some(max) if layer.dtypes.contains(&Dtype::F16) && max > 2f64.powi(13) => theme.warning(),
        _ => Style::new(),
    }
}

/// How often something was not finite, for people: `12 of 340 scans`.
pub fn of_scans((all, non_finite): (u64, u64)) -> String {
    format!("{} of {} scans", grouped(non_finite), grouped(all))
}
