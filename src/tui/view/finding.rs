//! One finding, whole: remedy, reason, the numbers it stands on.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::findings::{follower, place, steps};
use super::page::{self, heading};
use super::wrap::labelled;
use super::{View, theme::Theme};
use crate::report::evidence_words;
use crate::rules::Finding;
use crate::tui::state::same_finding;
use crate::tui::ui::Extent;

/// Draws the page of a finding. Its latest numbers are shown while it is still there.
pub fn draw(frame: &mut Frame, area: Rect, view: &View, opened: &Finding) -> Extent {
    // It may have come to stand under another.
    let mut held = view.snapshot.findings.found.iter().flat_map(Finding::with_consequences);
    let current = held.find(|f| same_finding(f, opened));
    let finding = current.unwrap_or(opened);
    let width = usize::from(area.width);
    let mut lines = text(finding, width, view.theme);
    if current.is_none() {
        lines.insert(
            0,
            Line::styled(
                "This finding is no longer held; below is what it was when it was opened.",
                view.theme.warning(),
            ),
        );
    }
    let title = vec![
        Span::styled(finding.severity.name(), view.theme.severity(finding.severity)),
        Span::raw(" "),
        Span::styled(format!("{} {}", finding.code, finding.name), view.theme.title(true)),
    ];
    page::draw(frame, area, view, title, lines)
}

fn text(finding: &Finding, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = labelled("where  ", theme.dim(), &place(finding), width);
    if let Some(probe) = finding.probe {
        lines.extend(labelled("seen   in ", theme.dim(), probe.described(), width));
    }
    lines.extend(labelled("when   ", theme.dim(), &steps(finding), width));
    lines.extend([Line::default(), heading("What to change")]);
    lines.extend(labelled("  ", Style::new(), &finding.remedy.text, width));
    if let Some(settings) = finding.remedy.settings() {
        lines.extend(labelled("  settings: ", theme.good(), &settings, width));
    }
    lines.extend([Line::default(), heading("What happened")]);
    lines.extend(labelled("  ", Style::new(), &finding.explanation, width));
    if !finding.consequences.is_empty() {
        lines.extend([Line::default(), heading("What follows from it")]);
        lines.extend(finding.consequences.iter().map(|f| follower(f, "  ", theme)));
    }
    lines.extend([Line::default(), heading("The numbers it stands on")]);
    let words: Vec<(String, String)> = finding.evidence.iter().map(evidence_words).collect();
    let longest = words.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    for (label, value) in &words {
        lines.extend(labelled(&format!("  {label:<longest$}  "), theme.dim(), value, width));
    }
    lines.extend([Line::default()]);
    lines.extend(labelled(
        "",
        Style::new(),
        &format!("The rule, its thresholds and their reasons: ampdoctor explain {}", finding.code),
        width,
    ));
    lines
}
