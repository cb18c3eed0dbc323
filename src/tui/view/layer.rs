//! One layer: its tensors, the exponents of the selected one, its maxima over the run, their quantiles, and its findings with what to do.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::findings::headline;
use super::layers::{letter, name, of_scans};
use super::number::{grouped, magnitude, percent, power};
use super::page::{self, heading};
use super::tensors::short;
use super::wrap::labelled;
use super::{Theme, View, bars, canvas, maxima, quantiles, tensors};
use crate::numerics::Format;
use crate::observation::Probe;
use crate::report::in_words;
use crate::scan::Dtype;
use crate::tui::state::{Layer, LayerDetail, SiteRow, Spread, Tensor, Told, Zone};
use crate::tui::ui::{Extent, Scans};

/// From this width the two charts stand side by side.
const SIDE_BY_SIDE: usize = bars::WIDTH + 1 + 44;
/// Lines of a chart: no fewer, and no more.
const CHART: (usize, usize) = (5, 12);

/// Octaves from an edge at which it no longer matters how many there are.
const FAR: f64 = 40.0;

/// Draws the page of a layer.
pub fn draw(frame: &mut Frame, area: Rect, view: &View, path: &str) -> Extent {
    let Some(detail) = view.detail.filter(|detail| detail.path == path && !detail.tensors.is_empty()) else {
        let gone = vec![Line::raw("This layer is not in the recording.")];
        return page::draw(frame, area, view, vec![Span::raw("layer")], gone);
    };
    let size = (usize::from(area.width), usize::from(area.height.saturating_sub(1)));
    page::draw(frame, area, view, title(detail, view), text(detail, size, view))
}

fn title(detail: &LayerDetail, view: &View) -> Vec<Span<'static>> {
    let theme = view.theme;
    let mut title = vec![Span::raw("layer "), Span::styled(name(&detail.layer).to_owned(), theme.title(true))];
    let (sorted, _) = view.ui.sorted_layers(view.snapshot);
    if let Some(at) = sorted.iter().position(|l| l.path == detail.path) {
        title.push(Span::styled(format!("  {}/{}", at + 1, sorted.len()), theme.dim()));
    }
    match (detail.of_all, view.snapshot.rank) {
        (true, _) => title.push(Span::styled(format!("  all {} ranks", detail.ranks.len()), theme.key())),
        (false, Some(rank)) => title.push(Span::styled(format!("  rank {rank}"), theme.dim())),
        (false, None) => {}
    }
    if let Some(Told { finding, .. }) = detail.findings.first() {
        let text = format!("  {} {}", letter(finding.severity), finding.name);
        title.push(Span::styled(text, theme.severity(finding.severity)));
    }
    title
}

fn text(detail: &LayerDetail, (width, height): (usize, usize), view: &View) -> Vec<Line<'static>> {
    let (theme, layer) = (view.theme, &detail.layer);
    let selected = view.ui.selected_tensor(detail);
    let mut lines = tensors::lines(layer, selected, (height / 4).clamp(3, 8), width, theme);
    if let Some(tensor) = detail.tensors.get(selected) {
        lines.extend(charts(tensor, detail, (width, height), view));
        lines.extend(numbers(tensor, width, view));
    }
    lines.extend(against_fp32(detail, width, view));
    let quantiles = quantiles::lines(&detail.tensors, selected, width, theme);
    if !quantiles.is_empty() {
        lines.extend([Line::default(), heading("quantiles over the run")]);
        lines.extend(quantiles);
    }
    lines.extend(told(detail, width, view));
    lines.extend(non_finite(layer, width, theme));
    lines.extend(parameters(layer, width, view));
    lines
}

/// Both charts, side by side where there is room.
fn charts(tensor: &Tensor, detail: &LayerDetail, (width, height): (usize, usize), view: &View) -> Vec<Line<'static>> {
    let theme = view.theme;
    let bars_of = |width: usize, height: usize| {
        let mut lines = vec![histogram_title(tensor, view)];
        let spread = spread(tensor, view);
        lines.extend(canvas::lines(width, height, |area, buffer| {
            bars::draw(area, buffer, spread, tensor.edges.as_ref(), theme);
        }));
        lines
    };
    let maxima_of = |width: usize, height: usize| {
        let mut lines = vec![Line::from(maxima::legend(detail, view.ui.cursor, theme))];
        lines.extend(canvas::lines(width, height, |area, buffer| {
            maxima::draw(area, buffer, detail, view.ui.cursor, theme)
        }));
        lines
    };
    if width < SIDE_BY_SIDE {
        let each = (height.saturating_sub(10) / 2).clamp(CHART.0, CHART.1);
        let mut lines = bars_of(width, each);
        lines.extend(maxima_of(width, each));
        return lines;
    }
    let each = height.saturating_sub(16).clamp(CHART.0, CHART.1);
    let right = width - bars::WIDTH - 1;
    beside(bars_of(bars::WIDTH, each), maxima_of(right, each), bars::WIDTH + 1)
}

/// Lines next to lines, the second ones from column `at` on.
fn beside(left: Vec<Line<'static>>, right: Vec<Line<'static>>, at: usize) -> Vec<Line<'static>> {
    let joined = left.into_iter().zip(right).map(|(mut left, right)| {
        let missing = at.saturating_sub(left.width());
        left.spans.push(Span::raw(" ".repeat(missing)));
        left.spans.extend(right.spans);
        left
    });
    joined.collect()
}

fn spread<'a>(tensor: &'a Tensor, view: &View) -> &'a Spread {
    match view.ui.scans {
        Scans::Recent => &tensor.recent,
        Scans::Run => &tensor.run,
    }
}

/// `weight grad f32, 32 scans; zones of what FP16 would hold`.
fn histogram_title(tensor: &Tensor, view: &View) -> Line<'static> {
    let scans = match view.ui.scans {
        Scans::Recent => format!("latest {}", tensor.recent.scans),
        Scans::Run => format!("all {}", grouped(tensor.run.scans)),
    };
    let scale = tensor.loss_scale.map(|scale| format!(" x {}", power(scale))).unwrap_or_default();
    let zones = match &tensor.edges {
        Some(edges) if edges.held => String::new(),
        Some(edges) => format!("; what {} would hold", edges.format.name),
        None => "; no zones".into(),
    };
    let site = &tensor.site;
    Line::from(vec![
        Span::styled(
            format!("{} {} {}{scale}", tensor.name(), short(site.probe), site.dtype.name()),
            Style::new().bold(),
        ),
        Span::styled(format!(", {scans} scans{zones}"), view.theme.dim()),
    ])
}

/// The shares of the zones, what is no number of a zone, and the extremes.
fn numbers(tensor: &Tensor, width: usize, view: &View) -> Vec<Line<'static>> {
    let (spread, theme) = (spread(tensor, view), view.theme);
    let mut lines = Vec::new();
    if let Some((edges, zones)) = tensor.edges.as_ref().and_then(|edges| Some((edges, spread.zones(edges)?))) {
        let shown: Vec<(Zone, f64)> =
            zones.into_iter().filter(|&(zone, _)| zone != Zone::Lost || !edges.held).collect();
        lines.extend(zone_shares(&shown, edges.format.name, width, theme));
    }
    let left_out = tensor.run.scans < tensor.scans.0 && view.ui.scans == Scans::Run;
    // What FP16 rounded to zero leaves no trace of its own in a tensor that FP16 holds.
    let rounded = tensor.edges.as_ref().is_some_and(|edges| edges.held && edges.format == Format::F16);
    let rest = format!(
        "zero {} %{}, NaN {}, inf {}{} of {} elements{}",
        percent(spread.share(spread.zeros)),
        if rounded { " (with what was rounded to zero)" } else { "" },
        grouped(spread.nan),
        grouped(spread.inf),
        if spread.masked > 0 { format!(", -inf by a mask {}", grouped(spread.masked)) } else { String::new() },
        grouped(spread.count),
        if left_out { "; exponents without the scans that were not finite" } else { "" },
    );
    lines.extend(labelled("  ", Style::new(), &rest, width));
    lines.extend(extremes(tensor, theme));
    lines
}

/// `lost 0 %  fading 94 %  ...` in as many lines as it takes.
fn zone_shares(zones: &[(Zone, f64)], format: &str, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = vec![Line::from(Span::styled(format!("  {format}:"), theme.dim()))];
    for &(zone, share) in zones {
        let item = [
            Span::raw("  "),
            Span::styled(zone.name(), if share > 0.0 { theme.zone(zone) } else { theme.dim() }),
            Span::raw(format!(" {} %", percent(share))),
        ];
        let long = item.iter().map(Span::width).sum::<usize>();
        match lines.last_mut().filter(|line| line.width() + long <= width) {
            Some(line) => line.spans.extend(item),
            None => lines.push(Line::from(item.to_vec())),
        }
    }
    lines
}

/// The largest magnitude of the latest finite scan and of the run, and how far it is from the edge that matters.
fn extremes(tensor: &Tensor, theme: Theme) -> Option<Line<'static>> {
    let finite = || tensor.maxima.iter().filter_map(|(step, stretch)| Some((step, stretch.range()?.1)));
    let (step, latest) = finite().last()?;
    let is_latest = tensor.maxima.iter().last().is_some_and(|(last, _)| last == step);
    let when = if is_latest { "now".into() } else { format!("at step {}, the last finite one", grouped(step)) };
    let mut spans = vec![Span::raw(format!("  largest {} {when}", magnitude(latest)))];
    spans.extend(to_the_edge(latest, tensor, theme));
    spans.push(Span::raw(format!(", {} in the run", magnitude(finite().map(|(_, high)| high).fold(0.0, f64::max)))));
    Some(Line::from(spans))
}

/// How far a maximum is from the edge that matters: the smallest normal number from below for a gradient, the largest number for all else. Nothing
/// where the format has no edge anywhere near.
fn to_the_edge(max: f64, tensor: &Tensor, theme: Theme) -> Option<Span<'static>> {
    let edges = tensor.edges.as_ref().filter(|_| max > 0.0)?;
    let style = theme.zone(edges.zone(max.log2().floor() as i32));
    let (below_end, above_normal) = ((edges.format.max / max).log2(), (max / edges.format.min_normal()).log2());
    if below_end.min(above_normal).abs() > FAR {
        return None;
    }
    let [_, normal, _, end] = edges.labels();
    let text = match tensor.site.probe {
        _ if below_end < 0.0 => format!("{:.1} octaves above {end}", -below_end),
        probe if !probe.is_gradient() => format!("{below_end:.1} octaves below {end}"),
        _ if above_normal < 0.0 => format!("{:.1} octaves below {normal}", -above_normal),
        _ => format!("{above_normal:.1} octaves above {normal}"),
    };
    Some(Span::styled(format!(", {text}"), style))
}

/// `against FP32 at step 120: cosine 0.9999, norm 1.00 of FP32's, 3.1 % lost ...`.
fn against_fp32(detail: &LayerDetail, width: usize, view: &View) -> Vec<Line<'static>> {
    let Some(shadow) = &detail.shadow else { return Vec::new() };
    let label = format!("  against FP32 at step {}: ", grouped(shadow.step));
    labelled(&label, view.theme.dim(), &in_words(&shadow.likeness), width)
}

/// The findings of the layer, each with its remedy and its reason.
fn told(detail: &LayerDetail, width: usize, view: &View) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for Told { ranks, finding, follows_from } in &detail.findings {
        let mut head = headline(finding, view, None);
        if detail.of_all {
            let numbers: Vec<String> = ranks.iter().map(u32::to_string).collect();
            let word = if ranks.len() == 1 { "rank" } else { "ranks" };
            head.push_span(Span::styled(format!("  {word} {}", numbers.join(", ")), view.theme.dim()));
        }
        lines.push(head);
        if let Some(cause) = follows_from {
            lines.extend(labelled("    follows from: ", view.theme.dim(), cause, width));
        }
        lines.extend(labelled("    fix: ", view.theme.good(), &finding.remedy.text, width));
        lines.extend(labelled("    why: ", view.theme.dim(), &finding.explanation, width));
    }
    if !lines.is_empty() {
        lines.splice(0..0, [Line::default(), heading("findings of this layer")]);
    }
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
    if text.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![Line::default()];
    lines.extend(labelled("holds ", view.theme.dim(), &text, width));
    lines
}

fn non_finite(layer: &Layer, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for site in layer.sites.iter().filter(|s| s.samples.1 > 0) {
        let text = format!("{} {}: {}{}", site.label, short(site.probe), of_scans(site.samples), now(site));
        lines.extend(labelled("  ! ", theme.bad(), &text, width));
    }
    let became_zero = |s: &&SiteRow| s.dtype == Dtype::F16 && s.became_zero && s.probe != Probe::Buffer;
    for site in layer.sites.iter().filter(became_zero) {
        lines.push(Line::styled(format!("  ! {} {} became all zero", site.label, short(site.probe)), theme.bad()));
    }
    if !lines.is_empty() {
        lines.splice(0..0, [Line::default(), heading("not finite, or gone")]);
    }
    lines
}

fn now(site: &SiteRow) -> String {
    match site.non_finite_now {
        (0, 0) => "; finite now".to_owned(),
        (nan, inf) => format!("; now {nan} NaN, {inf} inf{}", if site.inherited { ", from its input" } else { "" }),
    }
}
