//! The keys and how to read the screen, in front of the page.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::footer::key_label;
use super::wrap::labelled;
use super::{ASCII_BORDER, View};
use crate::tui::keys::BINDINGS;

/// How to read the screen.
const READING: [&str; 7] = [
    "FP16 window: where the exponents of a layer lie, from 2^-30 to 2^16. Below 2^-24 FP16 holds zero, up to 2^-14 it holds subnormals, \
     with ever fewer bits, above 65504 infinity. The higher a character, the more values: full from 30 %, a dot below 0.01 %.",
    "max grad is the gradient as it is held, times the loss scale; unscaled is what you print by hand. subn% is the share that is \
     subnormal in the worst gradient of the layer: harmless up to 90 % while the maximum is high.",
    "Numbers are of the last 32 scans; nonf counts the scans of the run with a NaN or an infinity that no mask put there.",
    "room: octaves from the largest FP16 value of the layer to 65504; below 3 it is near overflow.",
    "In a layer: bars of one exponent each, as high as their share; lost is rounded to zero, fading subnormal, beyond infinite. An FP32 gradient \
     is shown with what FP16 would hold of it. The maxima are as they were held, drawn from the lowest to the highest value where a column stands \
     for many steps; steps that were not finite are marked and not in them.",
    "E W I: a finding (error, warning, information) in this layer; !: not finite in the latest scan.",
    "Held gradients in FP16 are preferred; a layer that has none shows those it has, and the limits of FP16 are then not its own.",
];

/// Draws the help over the middle of the screen.
pub fn draw(frame: &mut Frame, area: Rect, view: &View) {
    let width = area.width.min(84);
    let lines = text(usize::from(width.saturating_sub(4)), view);
    let height = (lines.len() as u16 + 2).min(area.height);
    popup(
        frame,
        area,
        (width, height),
        view.theme.pick("help: ↓ scrolls, Esc closes", "help: Dn scrolls, Esc closes"),
        lines,
        view,
    );
}

fn text(width: usize, view: &View) -> Vec<Line<'static>> {
    let key = |b: &crate::tui::keys::Binding| key_label(b.label, view);
    let longest = BINDINGS.iter().map(|b| key(b).chars().count()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for binding in BINDINGS {
        lines.extend(labelled(&format!("{:<longest$}  ", key(binding)), view.theme.key(), binding.help, width));
    }
    for paragraph in READING {
        lines.extend(labelled("- ", Style::new(), paragraph, width));
    }
    lines
}

/// Draws a framed text over the middle of the screen.
pub fn popup(frame: &mut Frame, area: Rect, size: (u16, u16), title: &str, lines: Vec<Line<'static>>, view: &View) {
    let (width, height) = (size.0.min(area.width), size.1.min(area.height));
    let at = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    let block = Block::bordered().title(Span::styled(format!(" {title} "), view.theme.title(true)));
    let block = if view.theme.unicode { block } else { block.border_set(ASCII_BORDER) };
    let inner = block.inner(at);
    let inner = Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner };
    frame.render_widget(Clear, at);
    frame.render_widget(block, at);
    let scroll_max = lines.len().saturating_sub(usize::from(inner.height));
    let first = view.ui.overlay_scroll.min(scroll_max);
    frame.render_widget(Paragraph::new(lines.into_iter().skip(first).collect::<Vec<_>>()), inner);
}
