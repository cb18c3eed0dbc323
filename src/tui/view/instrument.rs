//! What was sampled, what it cost, what was lost: how far the picture can be trusted.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::header::sampled;
use super::number::{grouped, percent};
use super::page::{self, heading};
use super::wrap::labelled;
use super::{Theme, View};
use crate::aggregate::{Coverage, Instrument};
use crate::observation::{NoteKind, RunInfo};
use crate::report::thinned_text;
use crate::tui::ui::Extent;

/// Draws the page.
pub fn draw(frame: &mut Frame, area: Rect, view: &View) -> Extent {
    let (width, theme, instrument) = (usize::from(area.width), view.theme, &view.snapshot.instrument);
    let mut rows = Vec::new();
    if let Some(run) = &view.snapshot.run {
        rows.extend(about(run, (instrument.full_steps, instrument.steps)));
    }
    rows.extend(counts(instrument));
    rows.extend(view.snapshot.coverage.iter().filter_map(Coverage::seen).map(|seen| ("seen", seen)));
    rows.extend(view.snapshot.findings.policy.iter().map(|text| ("rules", text.clone())));
    let mut lines: Vec<Line> =
        rows.iter().flat_map(|(name, text)| labelled(&format!("{name:<14}"), theme.dim(), text, width)).collect();
    lines.extend(notes(instrument, width, theme));
    lines.extend(view.snapshot.coverage.iter().flat_map(|coverage| not_seen(coverage, width)));
    page::draw(frame, area, view, vec![Span::raw("instrument")], lines)
}

fn about(run: &RunInfo, scanned: (u64, u64)) -> Vec<(&'static str, String)> {
    vec![
        ("run", run.name.clone()),
        ("command", run.command.join(" ")),
        ("process", format!("{}, rank {}, {} threads, {}", run.pid, run.rank, run.threads, run.device)),
        ("framework", run.framework.clone()),
        ("recorded by", run.producer.clone()),
        ("sampling", sampled(run.sampling, scanned)),
    ]
}

fn counts(instrument: &Instrument) -> Vec<(&'static str, String)> {
    let cost = match instrument.step_ns {
        0 => "not known yet".to_owned(),
        all => format!("{} % of the step time", percent(instrument.probe_ns as f64 / all as f64)),
    };
    let scanned =
        format!("{} of {}, the others without scans", grouped(instrument.full_steps), grouped(instrument.steps));
    [
        ("steps scanned", scanned),
        ("cost", cost),
        ("dropped", format!("{} steps, because the queue of the writer was full", grouped(instrument.dropped_steps))),
        ("not scanned", format!("{} tensors of scanned steps", grouped(instrument.unscanned))),
    ]
    .into_iter()
    .chain(instrument.thinned.as_ref().map(|thinned| ("thinned", thinned_text(thinned))))
    .collect()
}

fn notes(instrument: &Instrument, width: usize, theme: Theme) -> Vec<Line<'static>> {
    if instrument.notes.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![Line::default(), heading("notes")];
    for note in &instrument.notes {
        let style = match note.kind {
            NoteKind::Detached | NoteKind::Dropped => theme.bad(),
            NoteKind::BlindSpot => theme.warning(),
            NoteKind::Information => theme.dim(),
        };
        lines.extend(labelled(&format!("step {:<9}", note.step), style, &note.text, width));
    }
    if instrument.notes_dropped > 0 {
        lines.push(Line::raw(format!("and {} more", grouped(instrument.notes_dropped))));
    }
    lines
}

/// What of the model was not seen; why a tensor could not be read stands in the notes.
fn not_seen(coverage: &Coverage, width: usize) -> Vec<Line<'static>> {
    let missing = coverage.missing();
    let title = (!missing.is_empty()).then(|| [Line::default(), heading("not seen of the model")]);
    let lines = missing.iter().flat_map(|missing| labelled("  ", Style::new(), missing, width));
    title.into_iter().flatten().chain(lines).collect()
}
