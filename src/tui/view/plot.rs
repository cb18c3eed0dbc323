//! A line chart in few lines: braille dots where the terminal has them, else one character a cell.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::Theme;

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
        let (first, last) = (self.steps.0.to_string(), self.steps.1.to_string());
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

    /// The horizontal position of a step among `width` places.
    fn place(&self, step: u64, width: usize) -> usize {
        let span = self.steps.1.saturating_sub(self.steps.0).max(1);
        let at = step.saturating_sub(self.steps.0).min(span);
        (at as f64 / span as f64 * (width.saturating_sub(1)) as f64).round() as usize
    }

    fn draw_line(&self, inner: Rect, (low, high): (f64, f64), buffer: &mut Buffer, theme: Theme) {
        let (across, down) = if theme.unicode { (2, 4) } else { (1, 1) };
        let (width, height) = (usize::from(inner.width) * across, usize::from(inner.height) * down);
        let row = |value: f64| ((high - value) / (high - low) * (height - 1) as f64).round() as usize;
        let mut dots = vec![false; width * height];
        let mut previous: Option<(usize, usize)> = None;
        for &(step, value) in self.points {
            let (x, y) = (self.place(step, width), row(value).min(height - 1));
            let (from_x, from_y) = previous.unwrap_or((x, y));
            for between in from_x..=x {
                // A staircase runs level to the new step; a slope is drawn straight.
                let level = if self.stairs || x == from_x { from_y } else { slope(from_x, from_y, x, y, between) };
                dots[level * width + between] = true;
            }
            (from_y.min(y)..=from_y.max(y))
                .filter(|_| self.stairs || x == from_x)
                .for_each(|y| dots[y * width + x] = true);
            previous = Some((x, y));
        }
        paint(&dots, width, (across, down), inner, buffer, theme);
    }

    fn draw_marks(&self, inner: Rect, y: u16, (steps, symbol, style): (&[u64], &str, Style), buffer: &mut Buffer) {
        for &step in steps {
            let x = self.place(step, usize::from(inner.width)) as u16;
            buffer.set_string(inner.x + x, y, symbol, style);
        }
    }
}

fn slope(from_x: usize, from_y: usize, x: usize, y: usize, at: usize) -> usize {
    let part = (at - from_x) as f64 / (x - from_x) as f64;
    (from_y as f64 + (y as f64 - from_y as f64) * part).round() as usize
}

/// Turns dots into characters: a braille cell holds two dots across and four down.
fn paint(dots: &[bool], width: usize, (across, down): (usize, usize), inner: Rect, buffer: &mut Buffer, theme: Theme) {
    /// The bit of each dot of a braille cell, by row and column.
    const BITS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
    for y in 0..usize::from(inner.height) {
        for x in 0..usize::from(inner.width) {
            let cells = (0..down).flat_map(|dy| (0..across).map(move |dx| (dx, dy)));
            let bits: u32 = cells
                .filter(|(dx, dy)| dots[(y * down + dy) * width + x * across + dx])
                .map(|(dx, dy)| BITS[dy][dx])
                .sum();
            if bits == 0 {
                continue;
            }
            let symbol = if theme.unicode { char::from_u32(0x2800 + bits).unwrap_or('*') } else { '*' };
            buffer.set_string(inner.x + x as u16, inner.y + y as u16, symbol.to_string(), theme.line());
        }
    }
}
