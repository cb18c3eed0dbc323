//! Charts among lines of text: drawn into a buffer of their own, and braille dots as characters.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::Theme;

/// What `draw` paints on `width` columns and `height` rows, as lines that can stand in a page and scroll with it.
pub fn lines(width: usize, height: usize, draw: impl FnOnce(Rect, &mut Buffer)) -> Vec<Line<'static>> {
    let area = Rect::new(0, 0, width.min(1000) as u16, height.min(200) as u16);
    let mut buffer = Buffer::empty(area);
    draw(area, &mut buffer);
    buffer.content.chunks(usize::from(area.width).max(1)).map(line).collect()
}

/// A row of cells, neighbours of one style in one span.
fn line(cells: &[ratatui::buffer::Cell]) -> Line<'static> {
    let mut spans: Vec<Span> = Vec::new();
    for cell in cells {
        let style = Style { underline_color: None, ..cell.style() };
        match spans.last_mut().filter(|last| last.style == style) {
            Some(last) => last.content.to_mut().push_str(cell.symbol()),
            None => spans.push(Span::styled(cell.symbol().to_owned(), style)),
        }
    }
    Line::from(spans)
}

/// A grid of dots over some cells: two across and four down in each where the terminal has braille, else one.
pub struct Dots {
    across: usize,
    down: usize,
    columns: usize,
    cells: Vec<(u32, Style)>,
}

impl Dots {
    /// No dot yet, on this many columns and rows.
    pub fn new(columns: usize, rows: usize, theme: Theme) -> Self {
        let (across, down) = if theme.unicode { (2, 4) } else { (1, 1) };
        Self { across, down, columns, cells: vec![(0, Style::new()); columns * rows] }
    }

    /// Dots across.
    pub fn width(&self) -> usize {
        self.columns * self.across
    }

    /// Dots down.
    pub fn height(&self) -> usize {
        self.cells.len() / self.columns.max(1) * self.down
    }

    /// Sets a dot; one outside is passed over. The cell takes the style.
    pub fn set(&mut self, x: usize, y: usize, style: Style) {
        /// The bit of each dot of a braille cell, by row and column.
        const BITS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
        if x >= self.width() {
            return;
        }
        if let Some(cell) = self.cells.get_mut(y / self.down * self.columns + x / self.across) {
            *cell = (cell.0 | BITS[y % self.down][x % self.across], style);
        }
    }

    /// Sets the dots of one column from one row to another, in either order.
    pub fn rise(&mut self, x: usize, from: usize, to: usize, style: Style) {
        (from.min(to)..=from.max(to)).for_each(|y| self.set(x, y, style));
    }

    /// Writes the cells with a dot, the top left one at the corner of `area`.
    pub fn paint(&self, area: Rect, buffer: &mut Buffer, theme: Theme) {
        for (i, &(bits, style)) in self.cells.iter().enumerate().filter(|(_, cell)| cell.0 > 0) {
            let symbol = if theme.unicode { char::from_u32(0x2800 + bits).unwrap_or('*') } else { '*' };
            let (x, y) = ((i % self.columns) as u16, (i / self.columns) as u16);
            buffer.set_string(area.x + x, area.y + y, symbol.to_string(), style);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_share_a_cell_and_what_lies_outside_is_passed_over() {
        let mut dots = Dots::new(2, 1, Theme::PLAIN);
        assert_eq!((dots.width(), dots.height()), (4, 4));
        dots.rise(0, 3, 0, Style::new());
        dots.set(3, 0, Style::new());
        dots.set(4, 0, Style::new());
        dots.set(0, 4, Style::new());
        let drawn = lines(2, 1, |area, buffer| dots.paint(area, buffer, Theme::PLAIN));
        assert_eq!(drawn[0].to_string(), "⡇⠈");
    }

    #[test]
    fn neighbours_of_one_style_are_one_span() {
        let drawn = lines(4, 2, |_, buffer| {
            buffer.set_string(1, 0, "ab", Style::new().bold());
        });
        assert_eq!(drawn.iter().map(|line| line.spans.len()).collect::<Vec<_>>(), [3, 1]);
        assert!(lines(0, 0, |_, _| {}).is_empty());
    }
}
