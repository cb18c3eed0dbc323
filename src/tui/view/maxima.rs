//! The largest activation, gradient and update of a layer over the whole run, against the ends of FP16.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Span;

use super::Theme;
use super::canvas::Dots;
use super::number::{grouped, magnitude};
use super::plot::{LABELS, draw_cursor, draw_steps, place, slope};
use crate::aggregate::{Maxima, Stretch};
use crate::tui::state::{LayerDetail, Quantity};

/// FP16's smallest normal number and its end, as base-2 logarithms, with their labels.
const THRESHOLDS: [Threshold; 2] = [(-14.0, "2^-14"), (HALF_MAX_LOG2, "65504")];
/// A base-2 logarithm and its label.
type Threshold = (f64, &'static str);
/// log2 of 65504.
const HALF_MAX_LOG2: f64 = 15.999_295_387_023_41;
/// Octaves kept free beyond the thresholds and the values.
const ROOM: f64 = 1.5;

/// The letter of a quantity, written where its line ends: nothing is said by colour alone.
fn letter(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Activation => "a",
        Quantity::Gradient => "g",
        Quantity::Update => "u",
    }
}

/// What the lines are: `a activation  g gradient`, of those that were seen, and the mark of steps that were not finite. With the cursor at a step, their
/// values there.
pub fn legend(detail: &LayerDetail, cursor: Option<u64>, theme: Theme) -> Vec<Span<'static>> {
    let mut spans = vec![Span::styled("maxima:", Style::new().bold())];
    let seen = || detail.maxima.iter().filter(|(_, maxima)| maxima.steps().is_some());
    if let Some(step) = cursor {
        spans.push(Span::styled(format!(" step {}", grouped(step)), theme.key()));
        for (quantity, maxima) in seen() {
            let value = match maxima.at(step) {
                None => "not scanned".into(),
                Some(stretch) => stretch.range().map_or("not finite".into(), |(_, high)| magnitude(high)),
            };
            spans.push(Span::styled(format!("  {} ", letter(*quantity)), theme.quantity(*quantity)));
            spans.push(Span::raw(value));
        }
        return spans;
    }
    for &(quantity, _) in seen() {
        spans.push(Span::styled(format!("  {} ", letter(quantity)), theme.quantity(quantity)));
        spans.push(Span::raw(quantity.name()));
    }
    if seen().any(|(_, maxima)| maxima.iter().any(|(_, stretch)| stretch.non_finite > 0)) {
        spans.push(Span::styled(format!("  {} not finite", theme.pick("×", "x")), theme.bad()));
    }
    spans
}

/// Draws the lines into `area`, the steps in its last line. A stretch of many steps is drawn from its lowest to its highest value, so that a peak of
/// one step is seen.
pub fn draw(area: Rect, buffer: &mut Buffer, detail: &LayerDetail, cursor: Option<u64>, theme: Theme) {
    let Some(steps) = detail.steps() else { return };
    if area.width <= LABELS + 4 || area.height < 4 {
        return;
    }
    let inner = Rect { x: area.x + LABELS + 1, width: area.width - LABELS - 1, height: area.height - 1, ..area };
    let thresholds: &[_] = if detail.is_held_against_fp16() { &THRESHOLDS } else { &[] };
    let axis = Axis { steps, range: range(detail, thresholds), thresholds, inner };
    axis.draw(area, buffer, theme);
    draw_cursor(cursor, steps, inner, buffer, theme);
    let mut dots = Dots::new(usize::from(inner.width), usize::from(inner.height), theme);
    let seen: Vec<&(Quantity, Maxima)> = detail.maxima.iter().filter(|(_, m)| m.steps().is_some()).collect();
    for (quantity, maxima) in &seen {
        axis.line(&mut dots, maxima, theme.quantity(*quantity));
    }
    dots.paint(inner, buffer, theme);
    for (quantity, maxima) in &seen {
        axis.name(maxima, *quantity, buffer, theme);
        axis.marks(maxima, buffer, theme);
    }
}

/// Lowest and highest logarithm of the thresholds and all values, with some room; zeros lie below.
fn range(detail: &LayerDetail, thresholds: &[Threshold]) -> (f64, f64) {
    let mut low = thresholds.iter().map(|t| t.0).fold(f64::INFINITY, f64::min);
    let mut high = thresholds.iter().map(|t| t.0).fold(f64::NEG_INFINITY, f64::max);
    let stretches = detail.maxima.iter().flat_map(|(_, maxima)| maxima.iter());
    for (smallest, largest) in stretches.filter_map(|(_, stretch)| stretch.range()) {
        if smallest > 0.0 {
            low = low.min(smallest.log2());
        }
        high = high.max(largest.log2());
    }
    // Nothing but zeros, and no threshold.
    if low > high || !(low.is_finite() && high.is_finite()) {
        return (-ROOM, ROOM);
    }
    (low - ROOM, high + ROOM)
}

struct Axis {
    steps: (u64, u64),
    range: (f64, f64),
    thresholds: &'static [Threshold],
    inner: Rect,
}

impl Axis {
    /// The row of a logarithm among `height`; what is zero stands at the bottom.
    fn row(&self, log2: f64, height: usize) -> usize {
        let (low, high) = self.range;
        let at = (high - log2.clamp(low, high)) / (high - low) * (height.saturating_sub(1)) as f64;
        at.round() as usize
    }

    fn draw(&self, area: Rect, buffer: &mut Buffer, theme: Theme) {
        for y in self.inner.top()..self.inner.bottom() {
            buffer.set_string(self.inner.x - 1, y, theme.pick("│", "|"), theme.dim());
        }
        let label = |log2: f64| format!("2^{log2:.0}");
        let ends = [(self.range.1, label(self.range.1)), (self.range.0, label(self.range.0))];
        let thresholds = self.thresholds.iter().map(|&(log2, label)| (log2, label.to_owned()));
        for (log2, label) in thresholds.chain(ends) {
            let y = self.inner.y + self.row(log2, usize::from(self.inner.height)) as u16;
            let free = buffer.cell((area.x + LABELS - 1, y)).is_some_and(|cell| cell.symbol() == " ");
            if free {
                buffer.set_string(area.x, y, format!("{label:>0$.0$}", usize::from(LABELS)), theme.dim());
            }
        }
        let line = theme.pick("┄", "-").repeat(usize::from(self.inner.width));
        for &(log2, _) in self.thresholds {
            let y = self.inner.y + self.row(log2, usize::from(self.inner.height)) as u16;
            buffer.set_string(self.inner.x, y, &line, theme.dim());
        }
        draw_steps(self.steps, area, self.inner, buffer, theme);
    }

    fn line(&self, dots: &mut Dots, maxima: &Maxima, style: Style) {
        let rows = |stretch: Stretch| {
            let (low, high) = stretch.range()?;
            Some((self.row(low.log2(), dots.height()), self.row(high.log2(), dots.height())))
        };
        let spans = maxima.iter().filter_map(|(step, stretch)| Some((step, rows(stretch)?)));
        let spans: Vec<_> = spans.map(|(step, rows)| (place(step, self.steps, dots.width()), rows)).collect();
        for (i, &(x, (low, high))) in spans.iter().enumerate() {
            dots.rise(x, low, high, style);
            if let Some(&(from, (_, from_high))) = i.checked_sub(1).and_then(|i| spans.get(i)) {
                (from..x).for_each(|at| dots.set(at, slope(from, from_high, x, high, at), style));
                // Neighbours that do not touch are joined.
                if x == from + 1 {
                    dots.rise(x, from_high.clamp(high.min(low), high.max(low)), from_high, style);
                }
            }
        }
    }

    /// Writes the letter of a line at its end.
    fn name(&self, maxima: &Maxima, quantity: Quantity, buffer: &mut Buffer, theme: Theme) {
        let last = maxima.iter().filter_map(|(step, stretch)| Some((step, stretch.range()?.1))).last();
        if let Some((step, high)) = last {
            let x = place(step, self.steps, usize::from(self.inner.width)) as u16;
            let y = self.row(high.log2(), usize::from(self.inner.height)) as u16;
            buffer.set_string(self.inner.x + x, self.inner.y + y, letter(quantity), theme.quantity(quantity).bold());
        }
    }

    fn marks(&self, maxima: &Maxima, buffer: &mut Buffer, theme: Theme) {
        for (step, _) in maxima.iter().filter(|(_, stretch)| stretch.non_finite > 0) {
            let x = place(step, self.steps, usize::from(self.inner.width)) as u16;
            buffer.set_string(self.inner.x + x, self.inner.y, theme.pick("×", "x"), theme.bad());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::canvas;
    use super::*;

    fn detail(maxima: [Maxima; 3]) -> LayerDetail {
        let [a, g, u] = maxima;
        let maxima = [(Quantity::Activation, a), (Quantity::Gradient, g), (Quantity::Update, u)];
        LayerDetail::of_maxima(maxima)
    }

    fn maxima(values: impl Fn(u64) -> f64, steps: u64) -> Maxima {
        let mut maxima = Maxima::default();
        (0..steps).for_each(|step| maxima.push(step, values(step), false));
        maxima
    }

    fn text(size: (usize, usize), detail: &LayerDetail, theme: Theme) -> String {
        let drawn = canvas::lines(size.0, size.1, |area, buffer| draw(area, buffer, detail, None, theme));
        drawn.iter().map(|line| line.to_string().trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn lines_stand_against_both_thresholds_and_end_in_their_letter() {
        let mut gradient = maxima(|step| if step > 60 { 1e-6 } else { 0.5 }, 120);
        gradient.push(50, 1.0, true);
        let detail = detail([maxima(|_| 400.0, 120), gradient, maxima(|_| 1e-3, 120)]);
        insta::assert_snapshot!(text((60, 12), &detail, Theme::PLAIN));
        let ascii = text((60, 12), &detail, Theme { unicode: false, colour: false });
        assert!(ascii.is_ascii() && ["a", "g", "u", "x"].iter().all(|mark| ascii.contains(mark)), "{ascii}");
    }

    #[test]
    fn a_peak_of_one_step_in_a_long_run_is_drawn() {
        let peak = |at| move |step| if step == at { 60_000.0 } else { 1.0 };
        let with =
            text((60, 8), &detail([maxima(peak(7_777), 20_000), Maxima::default(), Maxima::default()]), Theme::PLAIN);
        let without = text(
            (60, 8),
            &detail([maxima(peak(u64::MAX), 20_000), Maxima::default(), Maxima::default()]),
            Theme::PLAIN,
        );
        let top = |text: &str| text.lines().take(2).map(str::to_owned).collect::<String>();
        assert_ne!(top(&with), top(&without));
    }

    #[test]
    fn no_scan_draws_nothing() {
        let detail = detail([Maxima::default(), Maxima::default(), Maxima::default()]);
        assert_eq!(text((60, 8), &detail, Theme::PLAIN).trim(), "");
    }
}
