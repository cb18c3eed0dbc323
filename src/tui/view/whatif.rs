//! What other loss scales and formats would make of the run, as the report draws it.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::page;
use super::{Theme, View};
use crate::report::{Row, Tone};
use crate::tui::ui::Extent;

/// Draws the page.
pub fn draw(frame: &mut Frame, area: Rect, view: &View) -> Extent {
    let lines = view.whatif.iter().map(|row| line(row, view.theme)).collect();
    page::draw(frame, area, view, vec![Span::raw("what-if")], lines)
}

fn line(row: &Row, theme: Theme) -> Line<'static> {
    let style = |tone| match tone {
        Tone::Plain => Style::new(),
        Tone::Bold => Style::new().bold(),
        Tone::Dim => theme.dim(),
        Tone::Good => theme.good(),
        Tone::Warn => theme.warning(),
        Tone::Bad => theme.bad(),
    };
    row.0.iter().map(|piece| Span::styled(piece.text.clone(), style(piece.tone))).collect::<Vec<_>>().into()
}
