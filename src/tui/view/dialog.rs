//! The question what becomes of the command that is running.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::View;
use super::help::popup;
use crate::tui::keys::ANSWERS;

/// Draws the question over the middle of the screen.
pub fn draw(frame: &mut Frame, area: Rect, view: &View) {
    let mut lines = vec![Line::raw("The command is still running."), Line::default()];
    lines.extend(ANSWERS.iter().map(|(_, key, _, words)| {
        Line::from(vec![Span::styled(format!("{key:>4}  "), view.theme.key()), Span::raw(*words)])
    }));
    // Where the screen is small, the answers are what must be seen.
    if usize::from(area.height) < lines.len() + 2 {
        lines.drain(..2);
    }
    let width = lines.iter().map(Line::width).max().unwrap_or(0) as u16 + 4;
    let height = lines.len() as u16 + 2;
    popup(frame, area, (width, height), "quit", lines, view);
}
