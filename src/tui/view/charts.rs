//! Loss and loss scale over time.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Span;
use ratatui::widgets::Widget;

use super::number::{grouped, magnitude, or_dash, power};
use super::plot::Plot;
use super::{View, panel};
use crate::tui::state::{AtStep, Charts};

/// Draws both charts side by side; the loss alone where there is not room for two.
pub fn draw(frame: &mut Frame, area: Rect, view: &View) {
    if area.height < 4 {
        return;
    }
    if area.width < 50 {
        return draw_loss(frame, area, view);
    }
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).spacing(1).areas(area);
    draw_loss(frame, left, view);
    draw_scale(frame, right, view);
}

fn draw_loss(frame: &mut Frame, area: Rect, view: &View) {
    let (charts, theme) = (&view.snapshot.charts, view.theme);
    let logarithmic = charts.loss_is_logarithmic();
    let mut title = vec![Span::raw(if logarithmic { "loss (log)" } else { "loss" })];
    if let Some(at) = view.ui.cursor.map(|step| charts.at(step)) {
        let loss = or_dash(at.loss.map(|loss| if loss.is_finite() { magnitude(loss) } else { "not finite".into() }));
        title.push(Span::styled(format!("  {}: {loss}", steps(&at)), theme.key()));
    } else if !charts.loss_non_finite.is_empty() {
        title.push(Span::styled(format!("  {} not finite", theme.pick("×", "x")), theme.bad()));
    }
    let points: Vec<_> = charts.loss.iter().map(|&(step, y)| (step, if logarithmic { y.log2() } else { y })).collect();
    let label = |y: f64| magnitude(if logarithmic { y.exp2() } else { y });
    let plot = Plot {
        steps: charts.steps.unwrap_or((0, 0)),
        points: &points,
        below: (&[], "", theme.dim()),
        above: (&charts.loss_non_finite, theme.pick("×", "x"), theme.bad()),
        label: &label,
        cursor: view.ui.cursor,
        stairs: false,
    };
    chart(frame, area, title, &plot, "no loss yet", view);
}

fn draw_scale(frame: &mut Frame, area: Rect, view: &View) {
    let (charts, theme) = (&view.snapshot.charts, view.theme);
    // The numbers of a step are worth more than a word on the axis, whose labels are powers of two.
    let mut title = vec![Span::raw(if view.ui.cursor.is_some() { "loss scale" } else { "loss scale (log2)" })];
    if let Some(at) = view.ui.cursor.map(|step| charts.at(step)) {
        let skipped = if at.skipped { ", skipped" } else { "" };
        let scale = or_dash(at.loss_scale.map(power));
        title.push(Span::styled(format!("  {}: {scale}{skipped}", steps(&at)), theme.key()));
    } else if !charts.skips.is_empty() {
        title.push(Span::styled(format!("  {} step skipped", theme.pick("▲", "^")), theme.warning()));
    }
    let label = |y: f64| if y == y.round() { format!("2^{y:.0}") } else { format!("2^{y:.1}") };
    let plot = Plot {
        steps: charts.steps.unwrap_or((0, 0)),
        points: &charts.scale_log2,
        below: (&charts.skips, theme.pick("▲", "^"), theme.warning()),
        above: (&[], "", theme.dim()),
        label: &label,
        cursor: view.ui.cursor,
        stairs: true,
    };
    chart(frame, area, title, &plot, nothing_scaled(charts), view);
}

/// `step 57`, or the steps that a point stands for.
fn steps(at: &AtStep) -> String {
    match at.steps {
        (first, last) if first == last => format!("step {}", grouped(first)),
        (first, last) => format!("steps {}-{}", grouped(first), grouped(last)),
    }
}

fn nothing_scaled(charts: &Charts) -> &'static str {
    if charts.steps.is_some() { "no loss scaler was seen" } else { "no step yet" }
}

fn chart(frame: &mut Frame, area: Rect, title: Vec<Span<'static>>, plot: &Plot, empty: &str, view: &View) {
    let block = panel(title, false, view.theme);
    let inner = block.inner(area);
    block.render(area, frame.buffer_mut());
    if plot.points.is_empty() && plot.above.0.is_empty() && plot.below.0.is_empty() {
        let at = Rect { x: inner.x + 2, width: inner.width.saturating_sub(2), ..inner };
        frame.render_widget(Span::styled(empty.to_owned(), view.theme.dim()), at);
    } else {
        plot.draw(inner, frame.buffer_mut(), view.theme);
    }
}
