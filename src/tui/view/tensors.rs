//! The tensors of a layer: a line each with its latest numbers and its strip, the selected one marked.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::number::{magnitude, or_dash, percent};
use super::window::{Resolution, strip};
use super::wrap::keep_end;
use super::{Theme, first_row};
use crate::observation::Probe;
use crate::tui::state::{Layer, SiteRow};

/// Characters of a tensor's numbers: what, dtype, maximum, unscaled, subnormal share, zero share.
const NUMBERS: usize = 9 + 1 + 4 + 1 + 7 + 1 + 8 + 1 + 5 + 1 + 5;
/// The least characters of a name.
const NAME: usize = 8;

/// The caption and at most `rows` tensors, those around the selected one.
pub fn lines(layer: &Layer, selected: usize, rows: usize, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let free = |resolution: Resolution| width.saturating_sub(NUMBERS + 2 + usize::from(resolution.width()));
    let resolution = if free(Resolution::Fine) >= 16 { Resolution::Fine } else { Resolution::Coarse };
    let shown_strip = (free(resolution) >= NAME).then_some(resolution);
    let longest = layer.sites.iter().map(|s| s.name.chars().count()).max().unwrap_or(0).max(NAME);
    let room = if shown_strip.is_some() { free(resolution) } else { width.saturating_sub(NUMBERS + 1) };
    let name = room.clamp(NAME, longest);
    let mut lines = vec![caption(name, shown_strip, theme)];
    let first = first_row(selected, layer.sites.len(), rows);
    for (i, site) in layer.sites.iter().enumerate().skip(first).take(rows) {
        lines.push(row(site, name, shown_strip, i == selected, theme));
    }
    let hidden = layer.sites.len().saturating_sub(rows);
    if hidden > 0 {
        lines.push(Line::styled(format!("  and {hidden} more, Tab goes on"), theme.dim()));
    }
    lines
}

fn caption(name: usize, strip: Option<Resolution>, theme: Theme) -> Line<'static> {
    let strip = strip.map(Resolution::caption).unwrap_or_default();
    let titles = ["tensor", "kind", "held", "max", "unscaled", "subn%", "zero%"];
    let [tensor, kind, held, max, unscaled, subnormal, zero] = titles;
    let text = format!("{tensor:<name$} {kind:<9} {held:<4} {max:>7} {unscaled:>8} {subnormal:>5} {zero:>5} {strip}");
    Line::styled(text.trim_end().to_owned(), theme.dim())
}

fn row(site: &SiteRow, width: usize, resolution: Option<Resolution>, selected: bool, theme: Theme) -> Line<'static> {
    let unscaled = or_dash(site.probe.is_gradient().then(|| magnitude(site.max_unscaled)));
    let numbers = format!(
        " {:<9} {:<4} {:>7} {unscaled:>8} {:>5} {:>5} ",
        short(site.probe),
        site.dtype.name(),
        magnitude(site.max),
        or_dash(site.fading().map(percent)),
        or_dash(site.zero_share().map(percent)),
    );
    let name = format!("{:<width$}", keep_end(&site.name, width, theme.pick("…", "~")));
    let style = if site.is_non_finite() { theme.bad() } else { Style::new() };
    let style = if selected { style.patch(theme.selected(true)) } else { style };
    let mut spans = vec![Span::styled(name, style), Span::raw(numbers)];
    spans.extend(resolution.into_iter().flat_map(|resolution| strip(&site.window, resolution, theme)));
    Line::from(spans)
}

/// A kind of tensor in nine characters.
pub fn short(probe: Probe) -> &'static str {
    match probe {
        Probe::Activation => "output",
        Probe::ActivationGrad => "grad out",
        Probe::CastGrad => "pre-cast",
        Probe::ParamGrad => "grad",
        Probe::Param => "value",
        Probe::Update => "update",
        Probe::Buffer => "buffer",
        Probe::OptimizerState => "state",
        Probe::Average => "average",
    }
}
