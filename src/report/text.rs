//! The report for people: the verdict first, then what ran and what was found, and the verdict again last, where a terminal leaves the eye.

use super::brief::{counted, empty, head, verdict, within};
use super::evidence::evidence_lines;
use super::number::{bytes, percent, readable};
use super::policy::{policy_text, unmatched_text, unused_text};
use super::thinned::thinned_text;
use super::whatif::section;
use super::{Attributed, Layout, Rank, Run, coverage, rounding, shadows};
use crate::rules::{Doubt, Finding, Health, Omitted, Severity};

/// The text report of a run.
pub fn text(run: &Run<'_>, layout: &Layout) -> String {
    let mut out = head(run, layout);
    for rank in &run.ranks {
        out.push_str(&header(rank, layout));
    }
    out.extend(worst(run, layout));
    for error in run.unreadable {
        out.push_str(&layout.wrap("a rank that could not be read: ", "  ", &error.to_string()));
    }
    for line in run.policy().map(policy_text).unwrap_or_default() {
        out.push_str(&layout.wrap("", "  ", &line));
    }
    for line in unmatched_text(run) {
        out.push_str(&layout.wrap("", "  ", &line));
    }
    out.extend(section(run, layout));
    for finding in run.findings() {
        out.push('\n');
        out.push_str(&finding_text(&finding, run.is_distributed(), layout));
    }
    out.push_str(&omitted_text(run, layout));
    out.push_str(&accepted_text(run, layout));
    out.push_str(&doubts_text(&run.doubts(), run.is_distributed(), layout));
    out.push('\n');
    out.push_str(&verdict(run, layout, "above"));
    if run.health() == Health::Findings {
        out.push_str(&layout.wrap("", "", MORE));
    }
    out
}

const MORE: &str = "`ampdoctor explain CODE` tells more of a finding.";

/// Which of several ranks is worst off.
fn worst(run: &Run<'_>, layout: &Layout) -> Option<String> {
    let worst = run.worst_rank()?;
    let found = run.findings();
    let of = |severity| found.iter().filter(|of| of.rank == worst && of.item.severity == severity).count() as u64;
    let counts = [(Severity::Error, "error"), (Severity::Warning, "warning"), (Severity::Info, "information")];
    let said: Vec<String> = counts
        .map(|(severity, what)| (of(severity), what))
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| counted(n, what))
        .collect();
    let text =
        format!("The worst of {} is rank {worst}: {}.", counted(run.ranks.len() as u64, "rank"), said.join(", "));
    Some(layout.wrap("  ", "  ", &text))
}

/// What ran and how closely it was watched.
fn header(rank: &Rank<'_>, layout: &Layout) -> String {
    if rank.is_empty() {
        return layout.wrap("", "  ", &format!("{}: {}", layout.bold(rank.file), empty(rank)));
    }
    let instrument = &rank.aggregate.instrument;
    let mut parts = Vec::new();
    match &rank.aggregate.run {
        Some(info) => parts.push(format!(
            "{} (rank {}{}): {} on {}",
            layout.bold(&info.name),
            info.rank,
            info.world_size.filter(|size| *size > 1).map_or(String::new(), |size| format!(" of {size}")),
            info.framework,
            info.device
        )),
        None => parts.push(layout.bold("a run that never said what it is")),
    }
    parts.push(format!("{}, {} of them scanned", counted(rank.steps(), "step"), instrument.full_steps));
    if instrument.step_ns > 0 {
        parts.push(format!("probe {} of step time", percent(instrument.probe_ns as f64 / instrument.step_ns as f64)));
    }
    if instrument.dropped_steps > 0 {
        parts.push(counted(instrument.dropped_steps, "dropped step"));
    }
    if instrument.unscanned > 0 {
        parts.push(counted(instrument.unscanned, "unscanned tensor"));
    }
    parts.extend(scaler_part(rank));
    let mut out = layout.wrap("", "  ", &parts.join(", "));
    out.extend(rounding::recent(rank, layout));
    out.extend(shadows::summary(rank, layout));
    out.extend(coverage::text(rank, layout));
    if let Some(thinned) = &instrument.thinned {
        out.push_str(&layout.wrap("  ", "    ", &format!("The recording was thinned: {}.", thinned_text(thinned))));
    }
    for line in endings(rank) {
        out.push_str(&layout.wrap("  ", "  ", &line));
    }
    out
}

fn scaler_part(rank: &Rank<'_>) -> Option<String> {
    let scale = rank.aggregate.scale_in_force()?;
    let scaler = &rank.aggregate.scaler;
    let calibration = match scaler.calibration_skips {
        0 => String::new(),
        n => format!(" ({n} in calibration)"),
    };
    let skipped = counted(scaler.skipped, "skipped step");
    Some(format!("loss scale {}, {skipped}{calibration}", readable(scale)))
}

fn endings(rank: &Rank<'_>) -> Vec<String> {
    use crate::observation::EndReason::{Detached, Dropped, Finished, Panicked};
    let mut lines = Vec::new();
    match rank.aggregate.end.as_ref().map(|end| end.reason) {
        Some(Finished | Dropped) => {}
        Some(Panicked) => lines.push("The run ended in a panic.".into()),
        Some(Detached) => lines.push("The probe failed and detached itself; what came after was not observed.".into()),
        None => lines.push(cut(rank)),
    }
    if let Some(integrity) = rank.integrity.filter(|integrity| integrity.damage_count > 0) {
        let (places, bytes) = (counted(integrity.damage_count, "place"), bytes(integrity.damaged_bytes));
        lines.push(format!("{} is damaged in {places}; {bytes} of it were left out.", rank.file));
        if integrity.lost_observations > 0 {
            let lost = counted(integrity.lost_observations, "observation");
            lines.push(format!("{lost} were left out because the definition of their site was lost with them."));
        }
    }
    if let Some(error) = rank.stopped {
        lines.push(format!("It was read in part only: {error}"));
    }
    lines
}

/// A recording without an end.
fn cut(rank: &Rank<'_>) -> String {
    if !rank.process_ended {
        return "The recording has no end: the run still goes on, it was killed, or its disk was full.".into();
    }
    let place = match rank.integrity.and_then(|integrity| integrity.last_step) {
        Some(step) => format!("after step {step}"),
        None => "before its first step".into(),
    };
    format!(
        "The recording ended early, {place}; its process has ended. Its disk was full, it left by `exit()` or was killed before \
         the doctor was dropped, or the doctor was leaked."
    )
}

fn finding_text(of: &Attributed<'_, Finding>, name_rank: bool, layout: &Layout) -> String {
    let finding = of.item;
    let severity = layout.severity(finding.severity, finding.severity.name());
    let title = layout.bold(&format!("{} {}", finding.code, finding.name));
    let mut out = format!("{severity} {title}\n");
    out.push_str(&layout.wrap("  where     ", INDENT, &place(of, name_rank)));
    out.push_str(&layout.wrap("  since     ", INDENT, &period(finding)));
    out.push_str(&layout.wrap("  why       ", INDENT, &finding.explanation));
    out.push_str(&layout.wrap("  change    ", INDENT, &finding.remedy.text));
    if let Some(settings) = finding.remedy.settings() {
        out.push_str(&layout.wrap("  settings  ", INDENT, &settings));
    }
    if !finding.evidence.is_empty() {
        out.push_str(&evidence_lines("  evidence  ", INDENT, &finding.evidence, layout));
    }
    out.push_str(&consequences_text(&finding.consequences, layout));
    out
}

/// Consequences of a finding that are told one by one; the JSON report has all.
const SHOWN_CONSEQUENCES: usize = 6;

fn consequences_text(consequences: &[Finding], layout: &Layout) -> String {
    let mut lines: Vec<String> = consequences.iter().take(SHOWN_CONSEQUENCES).map(consequence_text).collect();
    match consequences.len().saturating_sub(SHOWN_CONSEQUENCES) {
        0 => {}
        more => lines.push(format!("and {more} more")),
    }
    let first = std::iter::once("  follows   ").chain(std::iter::repeat(INDENT));
    first.zip(&lines).map(|(first, line)| layout.wrap(first, INDENT, line)).collect()
}

/// A finding that follows from another, in a line: `AMP501 non-finite-origin in fc, operator log, since step 3 (error)`.
pub fn consequence_text(finding: &Finding) -> String {
    let Finding { code, name, onset_step, .. } = finding;
    format!("{code} {name}{}, since step {onset_step} ({})", within(finding), finding.severity.name())
}

const INDENT: &str = "            ";

fn place(of: &Attributed<'_, Finding>, name_rank: bool) -> String {
    let finding = of.item;
    let layer = match (finding.layer.as_str(), finding.operator.as_str()) {
        ("", "") => "the run as a whole".to_string(),
        ("", operator) => format!("operator {operator}"),
        (layer, "") => layer.to_string(),
        (layer, operator) => format!("{layer}, operator {operator}"),
    };
    let probe = finding.probe.map(|probe| format!(", in {}", probe.described())).unwrap_or_default();
    let rank = if name_rank { format!(", on rank {}", of.rank) } else { String::new() };
    layer + &probe + &rank
}

fn period(finding: &Finding) -> String {
    match finding.last_step {
        last if last > finding.onset_step => format!("step {}, last seen at step {last}", finding.onset_step),
        _ => format!("step {}, seen there only", finding.onset_step),
    }
}

fn omitted_text(run: &Run<'_>, layout: &Layout) -> String {
    let line = |of: &Attributed<'_, Omitted>| {
        let rank = if run.is_distributed() { format!(" on rank {}", of.rank) } else { String::new() };
        let layers = counted(of.item.layers, "more layer");
        format!("\n{}", layout.wrap("", "  ", &format!("{} was also found in {layers}{rank}.", of.item.code)))
    };
    run.omitted().iter().map(line).collect()
}

fn accepted_text(run: &Run<'_>, layout: &Layout) -> String {
    let accepted = run.accepted();
    let rank = |rank: u32| if run.is_distributed() { format!(" on rank {rank}") } else { String::new() };
    let lines = accepted.iter().map(|of| {
        let follow = match of.item.finding.consequences.len() {
            0 => String::new(),
            n => format!(", with {n} that follow"),
        };
        format!("{}{}{follow}: {}", consequence_text(&of.item.finding), rank(of.rank), of.item.reason)
    });
    let unused = run.allowances().into_iter().filter(|(_, used)| !used).map(|(allow, _)| unused_text(allow));
    let mut out = String::new();
    for (title, lines) in [("accepted", lines.collect::<Vec<_>>()), ("accepted in vain", unused.collect())] {
        if !lines.is_empty() {
            out.push_str(&format!("\n{}\n", layout.bold(title)));
        }
        lines.iter().for_each(|line| out.push_str(&layout.wrap("  ", "    ", line)));
    }
    out
}

fn doubts_text(doubts: &[Attributed<'_, Doubt>], name_rank: bool, layout: &Layout) -> String {
    let mut out = String::new();
    if !doubts.is_empty() {
        out.push_str(&format!("\n{}\n", layout.bold("could not tell")));
    }
    // Rules that miss the same thing are told together.
    for alike in doubts.chunk_by(|a, b| a.rank == b.rank && a.item.reason == b.item.reason) {
        let Some(first) = alike.first() else { continue };
        let rank = if name_rank { format!(" (rank {})", first.rank) } else { String::new() };
        let names: Vec<String> = alike.iter().map(|of| format!("{} {}", of.item.code, of.item.name)).collect();
        out.push_str(&layout.wrap("  ", "    ", &format!("{}{rank}: {}", names.join(", "), first.item.reason)));
    }
    out
}

#[cfg(test)]
mod tests;
