//! The run in two lines, and a third where something must be said.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::number::{duration, grouped, magnitude, percent, scale};
use super::{Theme, View, ranks};
use crate::observation::{EndReason, Sampling};
use crate::tui::state::{Header, RunState};

/// Something said in the header: a word and its value.
pub type Item = Vec<Span<'static>>;

/// Lines that the header takes.
pub fn height(area: Rect, view: &View) -> u16 {
    match area.height {
        0..=2 => u16::from(area.height > 0),
        3..=7 => 1,
        _ => 2 + u16::from(!view.snapshot.ranks.is_empty()) + u16::from(view.snapshot.header.notice.is_some()),
    }
}

/// Draws the header.
pub fn draw(frame: &mut Frame, area: Rect, view: &View) {
    let header = &view.snapshot.header;
    let rows = usize::from(area.height.min(2));
    let mut lines = flow(items(header, view), usize::from(area.width), rows);
    if area.height > 2 {
        lines.extend(ranks::line(usize::from(area.width), view));
        lines.extend(header.notice.iter().map(|notice| Line::styled(notice.clone(), view.theme.warning())));
    }
    frame.render_widget(ratatui::widgets::Paragraph::new(lines), area);
}

fn items(header: &Header, view: &View) -> Vec<Item> {
    let theme = view.theme;
    let name = match view.snapshot.rank {
        Some(rank) => format!("{} rank {rank}", header.name),
        None => header.name.clone(),
    };
    let mut items = vec![vec![Span::styled(name, Style::new().bold())], state(header.state, theme)];
    if let Some(steps) = view.held {
        let held = if steps > 0 { format!("held, {} steps behind", grouped(steps)) } else { "held".into() };
        items.push(vec![Span::styled(held, theme.warning().reversed())]);
    }
    if let Some(step) = header.step {
        items.push(item("step", grouped(step), Style::new(), theme));
    }
    if let Some(rate) = header.steps_per_second.filter(|_| header.state == RunState::Live) {
        items.push(vec![Span::raw(magnitude(rate)), Span::styled(" steps/s", theme.dim())]);
    }
    items.extend(header.loss.map(|loss| {
        let style = if loss.is_finite() { Style::new() } else { theme.bad() };
        item("loss", magnitude(loss), style, theme)
    }));
    items.extend(header.step.map(|_| loss_scale(header, theme)));
    items.extend(header.step.map(|_| skips(header, theme)));
    items.extend(instrument(header, theme));
    items
}

fn item(label: &str, value: String, style: Style, theme: Theme) -> Item {
    vec![Span::styled(format!("{label} "), theme.dim()), Span::styled(value, style)]
}

/// What a run is doing, in few words.
pub fn state(state: RunState, theme: Theme) -> Item {
    let dot = theme.pick("●", "*");
    let (text, style) = match state {
        RunState::Waiting => ("waiting".into(), theme.warning()),
        RunState::Empty => ("empty: its process died before it began, or its disk was full".into(), theme.bad()),
        RunState::Unreadable => ("cannot be read".into(), theme.bad()),
        RunState::Live => ("live".into(), theme.good()),
        RunState::Stalled(idle) => (format!("no step for {}", duration(idle)), theme.warning()),
        RunState::Killed => ("killed: the process is gone, the run did not end".into(), theme.bad()),
        RunState::Ended(reason) => (format!("ended{}", because(reason)), ended_style(reason, theme)),
        RunState::Replay(reason) => (format!("replay, ended{}", because(reason)), ended_style(reason, theme)),
    };
    vec![Span::styled(format!("{dot} {text}"), style)]
}

/// The same in a column: at most 20 characters.
pub fn short_state(state: RunState, theme: Theme) -> Item {
    let mut item = self::state(state, theme);
    let text = match state {
        RunState::Empty => "empty",
        RunState::Killed => "killed",
        RunState::Ended(EndReason::Detached) | RunState::Replay(EndReason::Detached) => "detached",
        RunState::Ended(EndReason::Panicked) | RunState::Replay(EndReason::Panicked) => "ended by a panic",
        RunState::Replay(_) | RunState::Ended(_) => "ended",
        RunState::Waiting | RunState::Unreadable | RunState::Live | RunState::Stalled(_) => return item,
    };
    item.iter_mut().for_each(|span| span.content = format!("{} {text}", theme.pick("●", "*")).into());
    item
}

fn because(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Finished => "",
        EndReason::Dropped => " (doctor dropped)",
        EndReason::Panicked => " by a panic",
        EndReason::Detached => ": the probe failed and detached itself",
    }
}

fn ended_style(reason: EndReason, theme: Theme) -> Style {
    match reason {
        EndReason::Finished | EndReason::Dropped => theme.line(),
        EndReason::Panicked | EndReason::Detached => theme.bad(),
    }
}

fn loss_scale(header: &Header, theme: Theme) -> Item {
    match header.loss_scale {
        Some(value) => item("scale", scale(value), if value < 1.0 { theme.bad() } else { Style::new() }, theme),
        None => item("scale", "none".into(), theme.dim(), theme),
    }
}

fn skips(header: &Header, theme: Theme) -> Item {
    let calibrating = match header.calibration_skips {
        0 => String::new(),
        n if n == header.skipped => " (calibration)".into(),
        n => format!(" ({} calibration)", grouped(n)),
    };
    let style = if header.skipped > header.calibration_skips { theme.warning() } else { Style::new() };
    item("skips", format!("{}{calibrating}", grouped(header.skipped)), style, theme)
}

fn instrument(header: &Header, theme: Theme) -> Vec<Item> {
    let mut items = Vec::new();
    if let Some(share) = header.probe_share {
        items.push(item("probe", format!("{} %", percent(share)), Style::new(), theme));
    }
    if header.step.is_some() {
        let style = if header.dropped > 0 { theme.bad() } else { Style::new() };
        items.push(item("dropped", grouped(header.dropped), style, theme));
    }
    if let Some(sampling) = header.sampling {
        items.push(vec![Span::styled(sampled(sampling, header.scanned), theme.dim())]);
    }
    items
}

/// How steps are sampled, in few words.
pub fn sampled(sampling: Sampling, (full, all): (u64, u64)) -> String {
    match sampling {
        Sampling::Every(1) => "every step scanned".into(),
        Sampling::Every(n) => format!("1 step in {} scanned", grouped(n)),
        Sampling::Budget(share) => {
            format!("budget {} %, {} of {} steps scanned", percent(share), grouped(full), grouped(all))
        }
        Sampling::Off => "no step scanned".into(),
    }
}

/// Lays items out in at most `rows` lines, two spaces apart; what does not fit is left out from the end.
fn flow(items: Vec<Item>, width: usize, rows: usize) -> Vec<Line<'static>> {
    let mut lines: Vec<Line<'static>> = Vec::new();
    for item in items {
        let length: usize = item.iter().map(Span::width).sum();
        let used = lines.last().map_or(usize::MAX, Line::width);
        if used.saturating_add(2).saturating_add(length) <= width {
            if let Some(line) = lines.last_mut() {
                line.spans.push(Span::raw("  "));
                line.spans.extend(item);
            }
        } else if lines.len() < rows {
            lines.push(Line::from(item));
        } else {
            break;
        }
    }
    lines
}
