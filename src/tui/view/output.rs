//! The end of what the command printed.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::{View, page};
use crate::tui::ui::Extent;

/// Draws the page; it stays at the end until the user scrolls up.
pub fn draw(frame: &mut Frame, area: Rect, view: &View) -> Extent {
    let title = vec![Span::raw("output of the command")];
    let lines: Vec<Line> = match view.output {
        None => vec![Line::raw("No command was started here: its output went where it was started.")],
        Some([]) => vec![Line::styled("It has printed nothing yet.", view.theme.dim())],
        Some(lines) => lines.iter().map(|line| Line::raw(line.clone())).collect(),
    };
    page::draw(frame, area, view, title, lines)
}
