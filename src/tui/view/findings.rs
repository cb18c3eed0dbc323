//! The findings, each in a line, the selected one with its remedy and its reason.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::layers::letter;
use super::number::{grouped, scanned_steps};
use super::wrap::labelled;
use super::{View, panel, theme::Theme};
use crate::aggregate::Coverage;
use crate::report::consequence_text;
use crate::rules::{Finding, Health, Severity};
use crate::tui::state::Findings;
use crate::tui::ui::Panel;

/// Draws the panel.
pub fn draw(frame: &mut Frame, area: Rect, view: &View) {
    if area.height == 0 {
        return;
    }
    let focused = view.ui.panel == Panel::Findings;
    let block = panel(title(&view.snapshot.findings, view), focused, view.theme);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let (lines, at) = lines(view, usize::from(inner.width), focused);
    // The selected finding stands first with what follows it, or as low as the end of the list allows.
    let first = at.min(lines.len().saturating_sub(usize::from(inner.height)));
    let shown: Vec<Line> = lines.into_iter().skip(first).take(usize::from(inner.height)).collect();
    frame.render_widget(Paragraph::new(shown), inner);
}

fn title(findings: &Findings, view: &View) -> Vec<Span<'static>> {
    let theme = view.theme;
    let mut spans = vec![Span::raw("findings")];
    for (severity, style) in [
        (Severity::Error, theme.severity(Severity::Error)),
        (Severity::Warning, theme.severity(Severity::Warning)),
        (Severity::Info, theme.severity(Severity::Info)),
    ] {
        let n = findings.found.iter().filter(|f| f.severity == severity).count();
        if n > 0 {
            spans.push(Span::styled(format!("  {n} {}", plural(severity.name(), n)), style));
        }
    }
    if findings.found.is_empty() {
        spans.push(Span::styled("  none", theme.dim()));
    }
    let followers: usize = findings.found.iter().map(|f| f.consequences.len()).sum();
    if followers > 0 {
        spans.push(Span::styled(format!("  {followers} more that follow"), theme.dim()));
    }
    spans
}

fn plural(word: &str, n: usize) -> String {
    if n == 1 || word == "info" { word.to_owned() } else { format!("{word}s") }
}

/// All lines of the panel, and the place of the selected finding among them.
fn lines(view: &View, width: usize, focused: bool) -> (Vec<Line<'static>>, usize) {
    let findings = &view.snapshot.findings;
    let selected = view.ui.selected_finding(view.snapshot);
    let (mut lines, mut at) = (Vec::new(), 0);
    if findings.found.is_empty() {
        lines.extend(verdict(view, width));
    }
    for (i, finding) in findings.found.iter().enumerate() {
        if i == selected {
            at = lines.len();
        }
        lines.push(headline(finding, view, (i == selected).then_some(focused)));
        if i == selected {
            lines.extend(labelled("    fix: ", view.theme.good(), &finding.remedy.text, width));
            lines.extend(labelled("    why: ", view.theme.dim(), &finding.explanation, width));
        }
        lines.extend(finding.consequences.iter().map(|f| follower(f, "    follows: ", view.theme)));
    }
    for accepted in &findings.accepted {
        let text = format!("{}: {}", consequence_text(&accepted.finding), accepted.reason);
        lines.extend(labelled("  accepted  ", view.theme.dim(), &text, width));
    }
    for doubt in &findings.doubts {
        let text = format!("{} {}: {}", doubt.code, doubt.name, doubt.reason);
        lines.extend(labelled("  ? cannot tell  ", view.theme.dim(), &text, width));
    }
    (lines, at)
}

/// What it means that nothing was found. While a run goes on that is no health yet, and the header says that it does.
fn verdict(view: &View, width: usize) -> Vec<Line<'static>> {
    let (snapshot, theme) = (view.snapshot, view.theme);
    let scanned = scanned_steps(snapshot.instrument.full_steps);
    let is_going_on = !snapshot.header.state.is_over() && !snapshot.is_blind();
    match (snapshot.findings.health, snapshot.left_open().filter(|_| !is_going_on)) {
        (Health::Healthy, None) => {
            let nothing = Span::styled(format!("  nothing wrong in {scanned}"), theme.good());
            let is_whole = snapshot.coverage.as_ref().is_none_or(Coverage::whole);
            let hint = Span::styled("; not all of the model was seen: i", theme.dim());
            vec![Line::from_iter([nothing].into_iter().chain((!is_whole).then_some(hint)))]
        }
        (Health::Healthy, Some(why)) => {
            let text = format!("nothing was found in {scanned}, and {why}");
            labelled("  could not tell: ", theme.warning(), &text, width)
        }
        (Health::Unknown, _) => vec![Line::styled("  not enough was observed to say", theme.dim())],
        (Health::Findings, _) => vec![Line::default()],
    }
}

/// A finding in one line: `E AMP201 gradient-underflow  attn.qk  since step 40`.
pub fn headline(finding: &Finding, view: &View, selected: Option<bool>) -> Line<'static> {
    let theme = view.theme;
    let chosen = selected.map_or(Style::new(), |focused| theme.selected(focused));
    let style = theme.severity(finding.severity);
    Line::from(vec![
        Span::styled(format!("{} ", letter(finding.severity)), style),
        Span::styled(format!("{} {}", finding.code, finding.name), chosen),
        Span::raw("  "),
        Span::styled(place(finding), Style::new().bold()),
        Span::styled(format!("  {}", steps(finding)), theme.dim()),
    ])
}

/// A finding that follows from another, in a line under it.
pub fn follower(finding: &Finding, indent: &'static str, theme: Theme) -> Line<'static> {
    Line::from(vec![
        Span::styled(indent, theme.dim()),
        Span::styled(format!("{} ", letter(finding.severity)), theme.severity(finding.severity)),
        Span::raw(format!("{} {}  {}", finding.code, finding.name, place(finding))),
        Span::styled(format!("  {}", steps(finding)), theme.dim()),
    ])
}

/// Where a finding is: the layer and operator, or the whole run.
pub fn place(finding: &Finding) -> String {
    match (finding.layer.is_empty(), finding.operator.is_empty()) {
        (true, true) => "the whole run".into(),
        (true, false) => finding.operator.clone(),
        (false, true) => finding.layer.clone(),
        (false, false) => format!("{}/{}", finding.layer, finding.operator),
    }
}

/// When a finding was seen: `step 40`, `steps 40-72`.
pub fn steps(finding: &Finding) -> String {
    match (finding.onset_step, finding.last_step) {
        (a, b) if a >= b => format!("step {}", grouped(a)),
        (a, b) => format!("steps {}-{}", grouped(a), grouped(b)),
    }
}
