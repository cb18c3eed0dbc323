//! A page of text under a title, longer than the screen perhaps.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::{View, panel};
use crate::tui::ui::Extent;

/// Draws the part of `lines` that the user has scrolled to.
pub fn draw(
    frame: &mut Frame,
    area: Rect,
    view: &View,
    title: Vec<Span<'static>>,
    lines: Vec<Line<'static>>,
) -> Extent {
    let block = panel(title, true, view.theme);
    let inner = block.inner(area);
    let height = usize::from(inner.height);
    let scroll_max = lines.len().saturating_sub(height);
    let first = view.ui.scroll.min(scroll_max);
    frame.render_widget(block, area);
    if scroll_max > 0 && area.width > 24 {
        let place = format!(" {}-{} of {} ", first + 1, (first + height).min(lines.len()), lines.len());
        let at = Rect { x: area.right() - place.len() as u16 - 1, width: place.len() as u16, height: 1, ..area };
        frame.render_widget(Span::styled(place, view.theme.dim()), at);
    }
    frame.render_widget(Paragraph::new(lines.into_iter().skip(first).take(height).collect::<Vec<_>>()), inner);
    Extent { scroll_max, page: height.max(1) }
}

/// A heading between parts of a page.
pub fn heading(text: &str) -> Line<'static> {
    Line::styled(text.to_owned(), ratatui::style::Style::new().bold())
}
