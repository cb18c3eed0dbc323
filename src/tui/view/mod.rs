//! How a [`Snapshot`] looks: one function a panel. Nothing here decides anything; `state` has a module of the same name for most.

mod bars;
mod canvas;
mod charts;
mod dialog;
mod finding;
mod findings;
mod footer;
mod header;
mod help;
mod instrument;
mod layer;
mod layers;
mod maxima;
pub mod number;
mod output;
mod page;
mod plot;
mod quantiles;
mod ranks;
mod tensors;
mod theme;
mod whatif;
mod window;
pub mod wrap;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders};

pub use theme::Theme;

use super::state::{LayerDetail, Snapshot};
use super::ui::{Extent, Overlay, Page, Ui};
use crate::report::Row;

/// What one frame is drawn from.
pub struct View<'a> {
    /// What is known.
    pub snapshot: &'a Snapshot,
    /// The layer whose page is shown, whole.
    pub detail: Option<&'a LayerDetail>,
    /// The lines of what-if, where its page is shown.
    pub whatif: &'a [Row],
    /// What is looked at.
    pub ui: &'a Ui,
    /// What the terminal can show.
    pub theme: Theme,
    /// Steps that came in since the picture was held, where it is held.
    pub held: Option<u64>,
    /// The last lines that the command printed; `None` where no command was started.
    pub output: Option<&'a [String]>,
}

/// Draws one frame and tells how far its page can be scrolled.
pub fn draw(frame: &mut Frame, view: &View) -> Extent {
    let area = frame.area();
    let header_height = header::height(area, view);
    let footer_height = u16::from(area.height > 3);
    let [top, middle, bottom] =
        Layout::vertical([Constraint::Length(header_height), Constraint::Fill(1), Constraint::Length(footer_height)])
            .areas(area);
    header::draw(frame, top, view);
    let extent = draw_page(frame, middle, view);
    footer::draw(frame, bottom, view);
    match view.ui.overlay {
        Some(Overlay::Help) => help::draw(frame, area, view),
        Some(Overlay::Quit) => dialog::draw(frame, area, view),
        None => {}
    }
    extent
}

fn draw_page(frame: &mut Frame, area: Rect, view: &View) -> Extent {
    match &view.ui.page {
        Page::Overview => draw_overview(frame, area, view),
        Page::Layer(path) => layer::draw(frame, area, view, path),
        Page::Finding(finding) => finding::draw(frame, area, view, finding),
        Page::Output => output::draw(frame, area, view),
        Page::Instrument => instrument::draw(frame, area, view),
        Page::WhatIf => whatif::draw(frame, area, view),
        Page::Ranks => ranks::draw(frame, area, view),
    }
}

fn draw_overview(frame: &mut Frame, area: Rect, view: &View) -> Extent {
    let [charts_height, findings_height] = overview_heights(area.height, view);
    let [charts_area, layers_area, findings_area] =
        Layout::vertical([Constraint::Length(charts_height), Constraint::Fill(1), Constraint::Length(findings_height)])
            .areas(area);
    charts::draw(frame, charts_area, view);
    let extent = layers::draw(frame, layers_area, view);
    findings::draw(frame, findings_area, view);
    extent
}

/// Lines for charts and findings; the table of layers gets the rest. Where there is little room the charts go first.
fn overview_heights(height: u16, view: &View) -> [u16; 2] {
    /// More lines make a chart no clearer.
    const CHARTS_MOST: u16 = 14;
    let charts = match height {
        0..16 => 0,
        16..30 => 6,
        30.. => 10,
    };
    let findings = match height {
        0..7 => 0,
        _ => (height - charts).saturating_mul(2) / 5,
    };
    let layers_wanted = view.snapshot.layers.len().min(usize::from(u16::MAX) - 2) as u16 + 2;
    let layers_wanted = layers_wanted.max(3);
    let spare = (height - charts - findings).saturating_sub(layers_wanted);
    let taller = if charts > 0 { spare.min(CHARTS_MOST - charts) } else { 0 };
    [charts + taller, findings + if findings > 0 { spare - taller } else { 0 }]
}

/// The block of a panel: a rule with its title.
fn panel(title: Vec<Span<'static>>, focused: bool, theme: Theme) -> Block<'static> {
    let mut line = vec![Span::styled(theme.pick("─ ", "- ").to_owned(), theme.dim())];
    line.extend(
        title.into_iter().map(|span| if span.style == Style::new() { span.style(theme.title(focused)) } else { span }),
    );
    line.push(Span::raw(" "));
    let borders = Block::new().borders(Borders::TOP).border_style(theme.dim()).title(Line::from(line));
    if theme.unicode { borders } else { borders.border_set(ASCII_BORDER) }
}

const ASCII_BORDER: ratatui::symbols::border::Set<'static> = ratatui::symbols::border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

/// The first row of a list of `rows` to draw, so that the selected one is among the `height` that fit.
fn first_row(selected: usize, rows: usize, height: usize) -> usize {
    let last_start = rows.saturating_sub(height);
    selected.saturating_sub(height.saturating_sub(1) / 2).min(last_start)
}
