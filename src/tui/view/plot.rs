//! A line chart in few lines: braille dots where the terminal has them, else one character a cell.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::Theme;
use super::canvas::Dots;

/// What is drawn: points, and marks at the bottom and the top.
pub struct Plot<'a> {
    /// First and last step of the horizontal axis.
    pub steps: (u64, u64),
    /// Points, by rising step; all finite.
    pub points: &'a [(u64, f64)],
    /// Steps marked at the bottom, with the character and its style.
    pub below: (&'a [u64], &'a str, Style),
    /// Steps marked at the top.
    pub above: (&'a [u64], &'a str, Style),
    /// Labels of the lowest and the highest value.
    pub label: &'a dyn Fn(f64) -> String,
    /// The step at which the cursor stands.
    pub cursor: Option<u64>,
    /// Whether a value holds until the next point, as a loss scale does.
    pub stairs: bool,
}

/// Columns kept for the labels of the vertical axis.
pub const LABELS: u16 = 8;

impl Plot<'_> {
    /// Draws into `area`: labels at the left, the axis of steps in the last line.
    pub fn draw(&self, area: Rect, buffer: &mut Buffer, theme: Theme) {
        if area.width <= LABELS + 4 || area.height < 3 {
            return;
        }
        let inner = Rect { x: area.x + LABELS + 1, width: area.width - LABELS - 1, height: area.height - 1, ..area };
        let range = self.range();
        self.draw_axes(area, inner, range, buffer, theme);
        draw_cursor(self.cursor, self.steps, inner, buffer, theme);
        if let Some(range) = range {
            self.draw_line(inner, range, buffer, theme);
        }
        self.draw_marks(inner, inner.bottom() - 1, self.below, buffer);
        self.draw_marks(inner, inner.top(), self.above, buffer);
    }

    /// Lowest and highest value; a flat line gets room above and below.
    fn range(&self) -> Option<(f64, f64)> {
        let low = self.points.iter().map(|p| p.1).reduce(f64::min)?;
        let high = self.points.iter().map(|p| p.1).reduce(f64::max)?;
        let room = if high > low { 0.0 } else { 1f64.min(high.abs() / 2.0).max(f64::MIN_POSITIVE) };
        Some((low - room, high + room))
    }

    fn draw_axes(&self, area: Rect, inner: Rect, range: Option<(f64, f64)>, buffer: &mut Buffer, theme: Theme) {
        for y in inner.top()..inner.bottom() {
            buffer.set_string(inner.x - 1, y, theme.pick("│", "|"), theme.dim());
        }
        if let Some((low, high)) = range {
            for (y, value) in [(inner.top(), high), (inner.bottom() - 1, low)] {
                let label = format!("{:>1$.1$}", (self.label)(value), usize::from(LABELS));
                buffer.set_string(area.x, y, label, theme.dim());
            }
        }
        draw_steps(self.steps, area, inner, buffer, theme);
    }

    fn draw_line(&self, inner: Rect, (low, high): (f64, f64), buffer: &mut Buffer, theme: Theme) {
        let mut dots = Dots::new(usize::from(inner.width), usize::from(inner.height), theme);
        let (width, height, style) = (dots.width(), dots.height(), theme.line());
        let row = |value: f64| ((high - value) / (high - low) * (height - 1) as f64).round() as usize;
        let mut previous: Option<(usize, usize)> = None;
        for &(step, value) in self.points {
            let (x, y) = (place(step, self.steps, width), row(value).min(height - 1));
            let (from_x, from_y) = previous.unwrap_or((x, y));
            for between in from_x..=x {
                // A staircase runs level to the new step; a slope is drawn straight.
                let level = if self.stairs || x == from_x { from_y } else { slope(from_x, from_y, x, y, between) };
                dots.set(between, level, style);
            }
            if self.stairs || x == from_x {
                dots.rise(x, from_y, y, style);
            }
            previous = Some((x, y));
        }
        dots.paint(inner, buffer, theme);
    }

    fn draw_marks(&self, inner: Rect, y: u16, (steps, symbol, style): (&[u64], &str, Style), buffer: &mut Buffer) {
        for &step in steps {
            let x = place(step, self.steps, usize::from(inner.width)) as u16;
            buffer.set_string(inner.x + x, y, symbol, style);
        }
    }
}

/// Writes the first and the last step below a chart.
pub fn draw_steps(steps: (u64, u64), area: Rect, inner: Rect, buffer: &mut Buffer, theme: Theme) {
    let (first, last) = (steps.0.to_string(), steps.1.to_string());
    let y = area.bottom() - 1;
    buffer.set_stringn(inner.x, y, &first, usize::from(inner.width), theme.dim());
    let end = inner.right().saturating_sub(last.len() as u16);
    if end > inner.x + first.len() as u16 {
        buffer.set_string(end, y, &last, theme.dim());
    }
    let (middle, word) = (inner.x + (inner.width / 2).saturating_sub(2), "step");
    if middle > inner.x + first.len() as u16 && middle + 4 < end {
        buffer.set_string(middle, y, word, theme.dim());
    }
}

/// Draws a line down at the cursor; what is drawn after lies over it.
pub fn draw_cursor(cursor: Option<u64>, steps: (u64, u64), inner: Rect, buffer: &mut Buffer, theme: Theme) {
    let Some(step) = cursor else { return };
    let x = inner.x + place(step, steps, usize::from(inner.width)) as u16;
    for y in inner.top()..inner.bottom() {
        buffer.set_string(x, y, theme.pick("┊", ":"), theme.key());
    }
}

/// The horizontal position of a step among `width` places.
pub fn place(step: u64, (first, last): (u64, u64), width: usize) -> usize {
    let span = last.saturating_sub(first).max(1);
    let at = step.saturating_sub(first).min(span);
    (at as f64 / span as f64 * (width.saturating_sub(1)) as f64).round() as usize
}

/// The height at `at` of a straight line between two points.
pub fn slope(from_x: usize, from_y: usize, x: usize, y: usize, at: usize) -> usize {
    let part = (at - from_x) as f64 / (x - from_x) as f64;
    (from_y as f64 + (y as f64 - from_y as f64) * part).round() as usize
}
