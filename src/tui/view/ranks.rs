//! The ranks of a run: a line in the header, and a page with a line on each.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::header::{Item, short_state};
use super::layers::letter;
use super::number::{grouped, magnitude, or_dash, power};
use super::page;
use super::wrap::labelled;
use super::{Theme, View};
use crate::tui::state::{RankStatus, RunState};
use crate::tui::ui::Extent;

/// All ranks in one line, the shown one reversed, the worst one said to be it; `None` where there is one alone. Where not all fit, those stay that
/// have something to say.
pub fn line(width: usize, view: &View) -> Option<Line<'static>> {
    let snapshot = view.snapshot;
    if snapshot.ranks.is_empty() {
        return None;
    }
    let all: Vec<(bool, Item)> = snapshot.ranks.iter().map(|rank| (is_notable(rank, view), item(rank, view))).collect();
    let length = |items: &[(bool, Item)]| items.iter().map(|(_, item)| spans_width(item) + 2).sum::<usize>();
    let (known, size) = (snapshot.ranks.len(), snapshot.run.as_ref().and_then(|run| run.world_size));
    let label = match size {
        Some(size) if size as usize > known => format!("{known} of {size} ranks"),
        _ => format!("{known} ranks"),
    };
    let mut shown = all;
    let mut left_out = 0;
    while label.len() + length(&shown) + if left_out > 0 { 12 } else { 0 } > width && shown.len() > 1 {
        // The last one that has nothing to say goes first.
        let at = shown.iter().rposition(|(notable, _)| !notable).unwrap_or(shown.len() - 1);
        shown.remove(at);
        left_out += 1;
    }
    let mut spans = vec![Span::styled(label, view.theme.dim())];
    for (_, item) in shown {
        spans.push(Span::raw("  "));
        spans.extend(item);
    }
    if left_out > 0 {
        spans.push(Span::styled(format!("  {left_out} more: R"), view.theme.dim()));
    }
    Some(Line::from(spans))
}

fn spans_width(spans: &[Span]) -> usize {
    spans.iter().map(Span::width).sum()
}

fn is_notable(rank: &RankStatus, view: &View) -> bool {
    let shown_or_worst = [view.snapshot.rank, view.snapshot.worst_rank].contains(&Some(rank.number));
    shown_or_worst || rank.state.tells_nothing() || rank.severity.is_some() || !rank.remarks.is_empty()
}

/// `1 E worst, stopped at step 340`.
fn item(rank: &RankStatus, view: &View) -> Item {
    let theme = view.theme;
    let number = Style::new().bold();
    let number = if view.snapshot.rank == Some(rank.number) { number.reversed() } else { number };
    let mut item = vec![Span::styled(rank.number.to_string(), number)];
    match rank.severity {
        _ if rank.is_left_over => {}
        _ if rank.state == RunState::Unreadable => item.push(Span::styled(" unreadable", theme.bad())),
        _ if rank.state == RunState::Empty => item.push(Span::styled(" empty", theme.bad())),
        Some(severity) => item.push(Span::styled(format!(" {}", letter(severity)), theme.severity(severity))),
        None => item.push(Span::styled(" ok", theme.good())),
    }
    if view.snapshot.worst_rank == Some(rank.number) && rank.severity.is_some() {
        item.push(Span::raw(" worst"));
    }
    item.extend(rank.remarks.first().map(|remark| Span::styled(format!(", {}", remark.words()), theme.bad())));
    item
}

/// Draws the page: what each rank is doing, and below it what it does and the others do not.
pub fn draw(frame: &mut Frame, area: Rect, view: &View) -> Extent {
    let (width, theme) = (usize::from(area.width), view.theme);
    let mut lines = Vec::new();
    if view.snapshot.ranks.is_empty() {
        lines.push(Line::raw(
            "This run has one rank. A rank writes its own recording where RANK is set in its environment.",
        ));
    } else {
        lines.push(Line::styled(caption(), theme.dim()));
        lines.extend(view.snapshot.ranks.iter().map(|rank| row(rank, view)));
        lines.extend(remarks(view, width, theme));
    }
    page::draw(frame, area, view, vec![Span::raw("ranks")], lines)
}

fn caption() -> String {
    format!("{:>6} {:>10} {:>9} {:>8} {:>7}  {:<12} state", "rank", "step", "loss", "scale", "skips", "findings")
}

fn row(rank: &RankStatus, view: &View) -> Line<'static> {
    let theme = view.theme;
    let chosen = if view.snapshot.rank == Some(rank.number) { theme.selected(true) } else { Style::new() };
    let numbers = format!(
        " {:>10} {:>9} {:>8} {:>7}  ",
        or_dash(rank.step.map(grouped)),
        or_dash(rank.loss.map(magnitude)),
        or_dash(rank.loss_scale.map(power)),
        grouped(rank.skipped),
    );
    let worst = if view.snapshot.worst_rank == Some(rank.number) { " worst" } else { "" };
    let (findings, style) = match rank.severity {
        _ if rank.is_left_over || rank.state.tells_nothing() => ("-".to_owned(), theme.dim()),
        Some(severity) => (format!("{} {}{worst}", rank.findings, letter(severity)), theme.severity(severity)),
        None => ("none".to_owned(), theme.good()),
    };
    let number = format!("{:>6}", rank.number);
    let mut spans =
        vec![Span::styled(number, chosen), Span::raw(numbers), Span::styled(format!("{findings:<13}"), style)];
    spans.extend(short_state(rank.state, theme));
    Line::from(spans)
}

fn remarks(view: &View, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for rank in &view.snapshot.ranks {
        for remark in &rank.remarks {
            lines.extend(labelled(&format!("  rank {}: ", rank.number), theme.bad(), &remark.words(), width));
        }
    }
    if !lines.is_empty() {
        let why = "All ranks of a data-parallel run skip the same steps and so have one loss scale. Where one is alone, the weights of the ranks drift \
                   apart: is the check for infinities reduced over all ranks, and does each rank step its scaler?";
        lines.splice(0..0, [Line::default(), page::heading("what a rank does and the others do not")]);
        lines.push(Line::default());
        lines.extend(labelled("", Style::new(), why, width));
    }
    lines
}
