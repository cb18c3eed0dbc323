//! The quantiles of the per-step magnitudes of a layer's tensors, over the whole run.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::Theme;
use super::number::{grouped, magnitude, or_dash};
use super::tensors::short;
use super::wrap::keep_end;
use crate::aggregate::MagnitudeHistogram;
use crate::tui::state::Tensor;

/// The quantiles shown, with their titles.
const QUANTILES: [(f64, &str); 5] = [(0.0, "p0"), (0.01, "p1"), (0.5, "p50"), (0.99, "p99"), (1.0, "p100")];
/// Characters of a quantile, and of the count of steps.
const NUMBER: usize = 8;
/// Characters of the quantity: `grad out largest`.
const QUANTITY: usize = 18;

/// A caption and a line for each quantity that is followed; none where nothing was.
pub fn lines(tensors: &[Tensor], selected: usize, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let longest = tensors.iter().map(|t| t.name().chars().count()).max().unwrap_or(0).max(6);
    let numbers = (QUANTILES.len() + 1) * NUMBER;
    let name = width.saturating_sub(QUANTITY + 1 + numbers).clamp(6, longest);
    let mut lines = Vec::new();
    for (i, tensor) in tensors.iter().enumerate() {
        let style = if i == selected { Style::new().bold() } else { Style::new() };
        for (end, histogram) in [("largest", &tensor.largest), ("smallest", &tensor.smallest)] {
            if histogram.len() + histogram.zero + histogram.non_finite > 0 {
                let what = format!("{} {end}", short(tensor.site.probe));
                let label = keep_end(tensor.name(), name, theme.pick("…", "~"));
                lines.push(row(format!("{label:<name$} {what:<QUANTITY$}"), histogram, style));
                lines.extend(remark(histogram, theme));
            }
        }
    }
    if !lines.is_empty() {
        lines.insert(0, caption(name + 1 + QUANTITY, theme));
    }
    lines
}

fn caption(label: usize, theme: Theme) -> Line<'static> {
    let titles: String = QUANTILES.iter().map(|(_, title)| format!("{title:>NUMBER$}")).collect();
    Line::styled(format!("{:<label$}{:>NUMBER$}{titles}", "one a step, as it was held", "steps"), theme.dim())
}

fn row(label: String, histogram: &MagnitudeHistogram, style: Style) -> Line<'static> {
    let quantile = |&(q, _): &(f64, &str)| or_dash(histogram.quantile(q).map(magnitude));
    let numbers: String = QUANTILES.iter().map(|q| format!("{:>NUMBER$}", quantile(q))).collect();
    Line::from(vec![Span::styled(label, style), Span::raw(format!("{:>NUMBER$}{numbers}", grouped(histogram.len())))])
}

/// Steps that have no magnitude, and those that lie outside the scale of the histogram.
fn remark(histogram: &MagnitudeHistogram, theme: Theme) -> Option<Line<'static>> {
    let counts = [
        (histogram.zero, "all zero"),
        (histogram.non_finite, "not finite"),
        (histogram.clamped, "outside 2^-64..2^64, held at that end"),
    ];
    let words: Vec<String> =
        counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", grouped(*n))).collect();
    (!words.is_empty()).then(|| Line::styled(format!("    and steps: {}", words.join(", ")), theme.dim()))
}
