//! A run in lines of text: its progress, its findings, its end. What `watch` prints where there is no terminal, and when it leaves.

use std::collections::BTreeSet;
use std::time::Duration;

use super::state::{Header, Ranks, RunState, Snapshot};
use super::view::number::{duration, grouped, magnitude, or_dash, percent, scale, scanned_steps};
use crate::observation::EndReason;
use crate::report::{Layout, consequence_text, thinned_text};
use crate::rules::{Doubt, Finding, Health};

/// One line about the present: `step 1,204  loss 0.183  scale 2^13 = 8,192  skips 3  38.2 steps/s  probe 2.1 %`.
pub fn progress(header: &Header) -> String {
    let mut words = vec![
        format!("step {}", or_dash(header.step.map(grouped))),
        format!("loss {}", or_dash(header.loss.map(magnitude))),
        format!("scale {}", header.loss_scale.map_or("none".into(), scale)),
        format!("skips {}", grouped(header.skipped)),
    ];
    words.extend(header.steps_per_second.map(|rate| format!("{} steps/s", magnitude(rate))));
    words.extend(header.probe_share.map(|share| format!("probe {} %", percent(share))));
    if header.dropped > 0 {
        words.push(format!("dropped {}", grouped(header.dropped)));
    }
    words.join("  ")
}

/// One finding in three lines: what and where, what to change, why.
pub fn finding(finding: &Finding) -> String {
    let place = match (finding.layer.as_str(), finding.operator.as_str()) {
        ("", "") => String::new(),
        ("", operator) => format!(" in {operator}"),
        (layer, "") => format!(" in {layer}"),
        (layer, operator) => format!(" in {layer}/{operator}"),
    };
    let (severity, code, name, step) =
        (finding.severity.name(), finding.code, finding.name, grouped(finding.onset_step));
    let follows: String = finding.consequences.iter().map(|f| format!("\n  {}", follower(f))).collect();
    format!(
        "{severity} {code} {name}{place}, since step {step}\n  fix: {}\n  why: {}{follows}",
        finding.remedy.text, finding.explanation
    )
}

/// A finding that follows from another, in a line.
pub fn follower(finding: &Finding) -> String {
    format!("follows: {}", consequence_text(finding))
}

/// What the run is doing, in a line of its own.
pub fn state(state: RunState) -> String {
    match state {
        RunState::Waiting => "waiting for the first record".into(),
        RunState::Empty => "the recording is empty: its process died before it began, or its disk was full".into(),
        RunState::Unreadable => "the recording cannot be read".into(),
        RunState::Live => "the run is going on".into(),
        RunState::Stalled(idle) => {
            format!("no step for {}: the run is stalled, or was killed on another machine", duration(idle))
        }
        RunState::Killed => "the run did not end in order: its process is gone and the recording has no end".into(),
        RunState::Ended(reason) | RunState::Replay(reason) => match reason {
            EndReason::Finished => "the run has ended".into(),
            EndReason::Dropped => "the run has ended: the doctor was dropped".into(),
            EndReason::Panicked => "the run has ended by a panic".into(),
            EndReason::Detached => {
                "the recording ends early: the probe failed and detached itself, training went on".into()
            }
        },
    }
}

/// The end of watching, of each rank by its number: state, verdict, findings; then where the ranks do not do the same. Several lines.
pub fn summary(ranks: &Ranks, now: Duration) -> Vec<String> {
    if !ranks.are_several() {
        return summary_of(&ranks.snapshot(None, now), "");
    }
    let numbers: Vec<u32> = ranks.members().map(|(number, _)| number).collect();
    let each = numbers.iter().flat_map(|&n| summary_of(&ranks.snapshot(Some(n), now), &format!(" rank {n}")));
    let mut lines: Vec<String> = each.collect();
    for rank in ranks.snapshot(None, now).ranks {
        lines.extend(rank.remarks.iter().map(|remark| format!("rank {}: {}", rank.number, remark.words())));
    }
    lines
}

/// A text whose lines are broken between words before they get longer than `width`, each continued a little further right.
pub fn broken(text: &str, width: usize) -> String {
    let of_line = |line: &str| match line.chars().count() <= width {
        true => format!("{line}\n"),
        false => {
            let indent = &line[..line.len() - line.trim_start().len()];
            Layout { width, colour: false }.wrap(indent, &format!("{indent}  "), line)
        }
    };
    text.lines().map(of_line).collect()
}

fn summary_of(snapshot: &Snapshot, rank: &str) -> Vec<String> {
    let (header, findings) = (&snapshot.header, &snapshot.findings);
    let mut lines = vec![format!("{}{rank}: {}", header.name, state(header.state))];
    if let Some(notice) = &header.notice {
        lines.push(format!("note: {notice}"));
    }
    if header.step.is_some() {
        lines.push(progress(header));
    }
    lines.extend(snapshot.instrument.thinned.iter().map(|thinned| format!("thinned: {}", thinned_text(thinned))));
    lines.extend(findings.policy.iter().cloned());
    lines.push(verdict(snapshot));
    lines.extend(findings.found.iter().map(finding));
    let accepted = findings.accepted.iter();
    lines.extend(accepted.map(|a| format!("accepted: {}: {}", consequence_text(&a.finding), a.reason)));
    lines
}

fn verdict(snapshot: &Snapshot) -> String {
    let scanned = scanned_steps(snapshot.instrument.full_steps);
    let followers = match snapshot.findings.found.iter().map(|f| f.consequences.len()).sum::<usize>() {
        0 => String::new(),
        n => format!(" (and {n} more that follow)"),
    };
    let found = match snapshot.findings.found.len() {
        0 => "nothing was found".to_owned(),
        1 => "1 finding for information".to_owned(),
        n => format!("{n} findings for information"),
    };
    match (snapshot.health(), snapshot.left_open(), snapshot.findings.found.len()) {
        (Health::Findings, _, 1) => format!("verdict: 1 finding{followers} in {scanned}"),
        (Health::Findings, _, n) => format!("verdict: {n} findings{followers} in {scanned}"),
        (Health::Healthy, ..) => format!("verdict: healthy{}, {found} in {scanned}", so_far(&snapshot.findings.doubts)),
        (Health::Unknown, Some(why), _) if snapshot.findings.health == Health::Healthy => {
            format!("verdict: could not tell: {found} in {scanned}, and {why}")
        }
        (Health::Unknown, ..) => "verdict: could not tell: not enough was observed".into(),
    }
}

/// For what too little was seen, to stand behind "healthy"; nothing where no rule is in doubt.
fn so_far(doubts: &[Doubt]) -> String {
    let codes: BTreeSet<&str> = doubts.iter().map(|doubt| doubt.code).collect();
    match codes.len() {
        0 => String::new(),
        _ => format!(" so far (too little was seen for {})", Vec::from_iter(codes).join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_end_no_word_is_broken_at_the_edge_of_the_terminal() {
        let text = "verdict: healthy\n  fix: raise init_scale from 2^7 to 2^13, and look again";
        assert_eq!(
            broken(text, 30),
            "verdict: healthy\n  fix: raise init_scale from\n    2^7 to 2^13, and look\n    again\n"
        );
        assert_eq!(broken(text, usize::MAX), format!("{text}\n"), "in a pipe nothing is broken");
    }
}
