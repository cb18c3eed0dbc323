//! One layer: its findings, its sites with their strip and numbers, its maxima against the edges of FP16.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::findings::headline;
use super::layers::{letter, name, of_scans};
use super::number::{magnitude, or_dash, percent};
use super::page::{self, heading};
use super::window::{Resolution, strip};
use super::wrap::{keep_end, labelled};
use super::{Theme, View};
use crate::observation::Probe;
use crate::scan::Dtype;
use crate::tui::state::{Layer, SiteRow, Window, Zone};
use crate::tui::ui::Extent;

/// Draws the page of a layer.
pub fn draw(frame: &mut Frame, area: Rect, view: &View, path: &str) -> Extent {
    let Some(layer) = view.snapshot.layers.iter().find(|l| l.path == path) else {
        let gone = vec![Line::raw("This layer is not in the recording.")];
        return page::draw(frame, area, view, vec![Span::raw("layer")], gone);
    };
    let mut title = vec![Span::raw("layer "), Span::styled(name(layer).to_owned(), view.theme.title(true))];
    if let Some(severity) = layer.severity {
        title.push(Span::styled(format!("  {}", letter(severity)), view.theme.severity(severity)));
    }
    let width = usize::from(area.width);
    page::draw(frame, area, view, title, text(layer, width, view))
}

fn text(layer: &Layer, width: usize, view: &View) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for finding in view.snapshot.findings.found.iter().filter(|f| f.layer == layer.path && !f.layer.is_empty()) {
        lines.push(headline(finding, view, None));
        lines.extend(labelled("    fix: ", view.theme.good(), &finding.remedy, width));
    }
    lines.extend(parameters(layer, width, view));
    if !lines.is_empty() {
        lines.push(Line::default());
    }
    lines.extend(sites(layer, width, view.theme));
    lines.push(Line::default());
    lines.extend(maxima(layer, width, view.theme));
    lines.extend(non_finite(layer, width, view.theme));
    lines
}

fn parameters(layer: &Layer, width: usize, view: &View) -> Vec<Line<'static>> {
    let described = view.snapshot.parameters(&layer.path).map(|p| {
        let shape: Vec<String> = p.shape.iter().map(i64::to_string).collect();
        let frozen = if p.trainable { "" } else { " frozen" };
        let tensor = p.name.rsplit('.').next().unwrap_or(&p.name);
        format!("{tensor} {} [{}]{frozen}", p.dtype, shape.join(" x "))
    });
    let text = described.collect::<Vec<_>>().join(", ");
    if text.is_empty() { Vec::new() } else { labelled("holds ", view.theme.dim(), &text, width) }
}

/// Characters of a site's numbers: what, dtype, maximum, unscaled, subnormal share, zero share.
const NUMBERS: usize = 9 + 1 + 4 + 1 + 7 + 1 + 8 + 1 + 5 + 1 + 5;

fn sites(layer: &Layer, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let free = |resolution: Resolution| width.saturating_sub(NUMBERS + 2 + usize::from(resolution.width()));
    let resolution = if free(Resolution::Fine) >= 16 { Resolution::Fine } else { Resolution::Coarse };
    let label = free(resolution).clamp(8, longest(&layer.sites.iter().collect::<Vec<_>>()).max(8));
    let caption = format!(
        "{:<label$} {:<9} {:<4} {:>7} {:>8} {:>5} {:>5} {}",
        "site",
        "tensor",
        "held",
        "max",
        "unscaled",
        "subn%",
        "zero%",
        resolution.caption()
    );
    let mut lines = vec![Line::styled(caption, theme.dim())];
    lines.extend(layer.sites.iter().map(|site| site_line(site, label, resolution, theme)));
    lines
}

fn site_line(site: &SiteRow, label: usize, resolution: Resolution, theme: Theme) -> Line<'static> {
    let unscaled = or_dash(site.probe.is_gradient().then(|| magnitude(site.max_unscaled)));
    let numbers = format!(
        " {:<9} {:<4} {:>7} {unscaled:>8} {:>5} {:>5} ",
        short(site.probe),
        site.dtype.name(),
        magnitude(site.max),
        or_dash(site.fading().map(percent)),
        or_dash(site.zero_share.map(percent)),
    );
    let name = format!("{:<label$}", keep_end(&site.name, label, theme.pick("…", "~")));
    let style = if site.is_non_finite() { theme.bad() } else { Style::new() };
    let mut spans = vec![Span::styled(name, style), Span::raw(numbers)];
    spans.extend(strip(&site.window, resolution, theme));
    Line::from(spans)
}

fn short(probe: Probe) -> &'static str {
    match probe {
        Probe::Activation => "output",
        Probe::ActivationGrad => "grad out",
        Probe::CastGrad => "pre-cast",
        Probe::ParamGrad => "grad",
        Probe::Param => "value",
        Probe::Update => "update",
        Probe::Buffer => "buffer",
    }
}

/// The largest magnitude of each activation and gradient: a bar a scan over the range of the window, and what is left to its edges.
fn maxima(layer: &Layer, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let shown = layer.sites.iter().filter(|s| s.probe == Probe::Activation || s.probe.is_gradient());
    let sites: Vec<&SiteRow> = shown.filter(|s| !s.maxima.is_empty()).collect();
    let Some((first, last)) = sites.first().and_then(|s| Some((s.maxima.first()?.0, s.maxima.last()?.0))) else {
        return Vec::new();
    };
    let label = width.saturating_sub(10 + 33 + 26).clamp(6, longest(&sites).max(6));
    let mut lines = vec![heading(&format!("largest magnitude by scan, steps {first}-{last}, and its way to the edge"))];
    for site in sites {
        let name = keep_end(&site.name, label, theme.pick("…", "~"));
        let mut spans = vec![Span::raw(format!("{name:<label$} {:<9} ", short(site.probe)))];
        spans.extend(site.maxima.iter().map(|&(_, max)| bar(max, theme)));
        spans.push(Span::raw(" "));
        spans.extend(site.maxima.last().map(|&(_, max)| to_the_edge(max, site.probe, theme)));
        let of_the_run = Span::styled(format!(", {} in the run", magnitude(site.max_of_run)), theme.dim());
        let used: usize = spans.iter().map(Span::width).sum();
        if used + of_the_run.width() <= width {
            spans.push(of_the_run);
        }
        lines.push(Line::from(spans));
    }
    lines
}

fn longest(sites: &[&SiteRow]) -> usize {
    sites.iter().map(|s| s.name.chars().count()).max().unwrap_or(0)
}

fn exponent(max: f64) -> i32 {
    if max > 0.0 { max.log2().floor() as i32 } else { i32::MIN }
}

/// A bar that is empty at 2^-30 and full at 65504.
fn bar(max: f64, theme: Theme) -> Span<'static> {
    let levels = theme.pick("_▁▂▃▄▅▆▇█", "_.,:-=+*#");
    let octaves = (exponent(max).clamp(Window::FIRST, Window::LAST) - Window::FIRST) as usize;
    let level = if max > 0.0 { 1 + octaves * 7 / (Window::LAST - Window::FIRST) as usize } else { 0 };
    let symbol = levels.chars().nth(level).unwrap_or(' ');
    Span::styled(symbol.to_string(), theme.zone(Zone::of(exponent(max))))
}

/// How far the latest maximum is from the edge that matters: 2^-14 from below for a gradient, 65504 for an activation.
fn to_the_edge(max: f64, probe: Probe, theme: Theme) -> Span<'static> {
    const HALF_MAX: f64 = 65504.0;
    if max == 0.0 {
        return Span::styled("all zero", theme.dim());
    }
    let style = theme.zone(Zone::of(exponent(max)));
    let above_normal = max.log2() + 14.0;
    let text = match probe {
        _ if max > HALF_MAX => format!("{:.1} octaves above 65504", (max / HALF_MAX).log2()),
        Probe::Activation => format!("{:.1} octaves below 65504", (HALF_MAX / max).log2()),
        _ if above_normal < 0.0 => format!("{:.1} octaves below 2^-14", -above_normal),
        _ => format!("{above_normal:.1} octaves above 2^-14"),
    };
    Span::styled(text, style)
}

fn non_finite(layer: &Layer, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for site in layer.sites.iter().filter(|s| s.samples.1 > 0) {
        let (nan, inf) = site.non_finite_now;
        let now = match (nan, inf) {
            (0, 0) => "; finite now".to_owned(),
            _ => format!("; now {nan} NaN, {inf} inf{}", if site.inherited { ", from its input" } else { "" }),
        };
        let text = format!("{} {}: {}{now}", site.label, short(site.probe), of_scans(site.samples));
        lines.extend(labelled("  ! ", theme.bad(), &text, width));
    }
    if !lines.is_empty() {
        lines.insert(0, Line::default());
        lines.insert(1, heading("not finite"));
    }
    let below = |s: &&SiteRow| s.dtype == Dtype::F16 && s.became_zero;
    for site in layer.sites.iter().filter(below) {
        lines.push(Line::styled(format!("  ! {} {} became all zero", site.label, short(site.probe)), theme.bad()));
    }
    lines
}
