//! The verdict on a run in a line, and its findings in a line each: what is read first.

use super::{Attributed, Counts, Layout, Rank, Run};
use crate::observation::Sampling;
use crate::rules::{Finding, Health, Severity};

/// The verdict, and a line for each finding.
pub(super) fn brief(run: &Run<'_>, layout: &Layout) -> String {
    // Scripts take it line by line, and a terminal breaks its lines itself.
    let unbroken = Layout { width: usize::MAX, ..*layout };
    verdict(run, &unbroken, "the text report") + &lines(run, &unbroken)
}

/// What a report with findings begins with: the verdict, and a line for each of them. Nothing where nothing was found.
pub(super) fn head(run: &Run<'_>, layout: &Layout) -> String {
    match run.findings().is_empty() {
        true => String::new(),
        false => verdict(run, layout, "below") + &lines(run, layout) + "\n",
    }
}

fn lines(run: &Run<'_>, layout: &Layout) -> String {
    let line = |of: &Attributed<'_, Finding>| {
        let severity = layout.severity(of.item.severity, &format!("{:7}", of.item.severity.name()));
        layout.wrap(&format!("  {severity} "), "          ", &line(of, run.is_distributed()))
    };
    run.findings().iter().map(line).collect()
}

/// A finding in a line, short enough to stand on one: `AMP501 non-finite-origin in fc, on rank 1, since step 3 (2 follow)`.
fn line(of: &Attributed<'_, Finding>, name_rank: bool) -> String {
    let Finding { code, name, onset_step, consequences, .. } = of.item;
    let rank = if name_rank { format!(", on rank {}", of.rank) } else { String::new() };
    let follow = match consequences.len() {
        0 => String::new(),
        1 => " (1 follows)".into(),
        n => format!(" ({n} follow)"),
    };
    let place = match of.item.layer.as_str() {
        "" => within(of.item),
        layer => format!(" in {layer}"),
    };
    format!("{code} {name}{place}{rank}, since step {onset_step}{follow}")
}

/// ` in fc, operator log`; nothing for the run as a whole.
pub(super) fn within(finding: &Finding) -> String {
    match (finding.layer.as_str(), finding.operator.as_str()) {
        ("", "") => String::new(),
        ("", operator) => format!(" in operator {operator}"),
        (layer, "") => format!(" in {layer}"),
        (layer, operator) => format!(" in {layer}, operator {operator}"),
    }
}

/// The verdict in a sentence; `place` is where what it leaves out is told: `above`, `below`.
pub(super) fn verdict(run: &Run<'_>, layout: &Layout, place: &str) -> String {
    let counts = run.counts();
    match run.health() {
        Health::Healthy => healthy(run, counts, layout, place),
        Health::Findings => {
            let gravest = run.findings().first().map_or(Severity::Warning, |of| of.item.severity);
            let first = format!("{}: ", layout.severity(gravest, "findings"));
            let said =
                format!("{}, {}", counted(counts.errors as u64, "error"), counted(counts.warnings as u64, "warning"));
            layout.wrap(&first, "          ", &format!("{said}{}{}", infos_of(counts), followers_of(counts)))
        }
        Health::Unknown => layout.wrap("", "", &unknown(run, place)),
    }
}

/// A run in which nothing was found; where a rule could not tell, that is said in the same breath.
fn healthy(run: &Run<'_>, counts: Counts, layout: &Layout, place: &str) -> String {
    let doubts = run.doubts();
    let codes: std::collections::BTreeSet<&str> = doubts.iter().map(|of| of.item.code).collect();
    if codes.is_empty() {
        return format!("{}{}\n", layout.good("healthy"), infos_of(counts));
    }
    let names: Vec<&str> = codes.into_iter().collect();
    let said = format!(
        "too little was seen for {} ({}), see {place}{}",
        counted(names.len() as u64, "rule"),
        names.join(", "),
        infos_of(counts)
    );
    layout.wrap("healthy so far: ", "  ", &said)
}

fn followers_of(counts: Counts) -> String {
    match counts.consequences {
        0 => String::new(),
        1 => ", and 1 that follows from them".into(),
        n => format!(", and {n} that follow from them"),
    }
}

fn infos_of(counts: Counts) -> String {
    if counts.infos == 0 { String::new() } else { format!(", {} worth knowing", counts.infos) }
}

/// `1 step`, `2 steps`.
pub(super) fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Why nothing can be said, and what to do so that it can.
fn unknown(run: &Run<'_>, place: &str) -> String {
    let instruments = || run.ranks.iter().map(|rank| &rank.aggregate.instrument);
    let why: String = if !run.unreadable.is_empty() {
        format!("a rank could not be read; see {place}.")
    } else if let Some(rank) = run.ranks.iter().find(|rank| rank.is_empty()) {
        empty(rank)
    } else if instruments().all(|instrument| instrument.steps == 0) && run.ranks.iter().any(Rank::panicked) {
        "the run ended in a panic before its first step; what it printed last says why.".into()
    } else if instruments().all(|instrument| instrument.steps == 0) {
        "no step was recorded. `doctor.step(&loss)` must be called once per training step.".into()
    } else if run.ranks.iter().any(is_off) {
        "steps were recorded, but no tensor was scanned: the sampling is off. Set it to every step \
         (`Doctor::builder().every(1)`), or to a budget."
            .into()
    } else if instruments().any(|instrument| instrument.full_steps == 0) {
        "steps were recorded, but no tensor was scanned. Set the sampling to every step \
         (`Doctor::builder().every(1)`), or let the run go on longer."
            .into()
    } else if run.ranks.iter().any(|rank| rank.health == Health::Unknown) {
        format!("not enough was observed; see {place}.")
    } else if run.ranks.iter().any(Rank::is_damaged) {
        format!("nothing was found in what could be read, but a part of the recording was lost; see {place}.")
    } else if let Some(rank) = run.ranks.iter().find(|rank| rank.panicked()) {
        format!("nothing was found in {}, and then the run ended in a panic.", counted(rank.steps(), "step"))
    } else if let Some(rank) = run.ranks.iter().filter(|rank| rank.ended_early()).min_by_key(|rank| rank.steps()) {
        let steps = counted(rank.steps(), "step");
        format!("nothing was found in {steps}, and there the recording ends early: its process is gone; see {place}.")
    } else {
        let steps = run.ranks.iter().filter(|rank| !rank.ended_in_order()).map(Rank::steps).min().unwrap_or(0);
        format!(
            "nothing was found in {}, and the recording has no end: the run was killed, or it still goes on. Judge it when it has ended; `ampdoctor watch RUN` \
             follows one that goes on.",
            counted(steps, "step")
        )
    };
    format!("could not tell: {why}")
}

/// Whether nothing was scanned because nothing was to be.
fn is_off(rank: &Rank<'_>) -> bool {
    let is_off = rank.aggregate.run.as_ref().is_some_and(|info| info.sampling == Sampling::Off);
    is_off && rank.aggregate.instrument.full_steps == 0
}

/// What is said of a rank of which there is a recording and nothing in it.
pub(super) fn empty(rank: &Rank<'_>) -> String {
    format!("the recording of rank {} is empty: its process died before it began, or its disk was full.", rank.number())
}
