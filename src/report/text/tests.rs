use super::*;
use crate::aggregate::Aggregate;
use crate::observation::scenario::Scenario;
use crate::observation::{End, EndReason, Record, Sampling, Tier};
use crate::report::fixture::{Fixture, run_info};
use crate::rules::Policy;

/// Wide enough that no sentence which a test looks for is broken.
const WIDE: Layout = Layout { width: 110, colour: false };

#[test]
fn a_finding_says_where_since_when_why_and_what_to_change() {
    insta::assert_snapshot!(text(&Fixture::sick().run(), &Layout { width: 72, colour: false }));
}

#[test]
fn ranks_are_named_where_there_are_several() {
    let report = text(&Fixture::sick().three_ranks(), &WIDE);
    assert_eq!(report.matches(", on rank 0").count(), 12);
    assert!(report.contains("rank-0.amprec is damaged in 1 place"), "{report}");
    assert!(report.contains("the disk is broken): rank-2.amprec"), "{report}");
    assert!(report.contains("findings: 2 errors, 2 warnings, 2 worth knowing"), "{report}");
}

#[test]
fn no_line_is_wider_than_asked() {
    for width in [Layout::MIN_WIDTH, 60, 100] {
        let report = text(&Fixture::sick().run(), &Layout { width, colour: false });
        assert!(report.lines().all(|line| line.chars().count() <= width), "{report}");
    }
}

#[test]
fn colours_change_nothing_but_colours() {
    let fixture = Fixture::sick();
    let layout = Layout { width: 200, colour: true };
    let mut coloured = text(&fixture.run(), &layout);
    assert!(coloured.contains("\x1b[1;31merror\x1b[0m"));
    for code in ["0", "1", "1;31", "1;33", "1;36"] {
        coloured = coloured.replace(&format!("\x1b[{code}m"), "");
    }
    assert_eq!(coloured, text(&fixture.run(), &Layout { colour: false, ..layout }));
}

fn quiet(records: &[Record], health: Health) -> String {
    let mut aggregate = Aggregate::default();
    records.iter().cloned().for_each(|record| aggregate.apply(record));
    nothing_found(&aggregate, health, &WIDE)
}

/// The report on a run of one rank in which nothing was found.
fn nothing_found(aggregate: &Aggregate, health: Health, layout: &Layout) -> String {
    let policy = Policy::default();
    let rank = Rank {
        file: "",
        integrity: None,
        stopped: None,
        process_ended: false,
        aggregate,
        findings: &[],
        doubts: &[],
        omitted: &[],
        accepted: &[],
        policy: &policy,
        health,
    };
    text(&Run::single(rank), layout)
}

#[test]
fn a_healthy_run_is_called_so() {
    let end = Record::End(End { steps: 300, dropped_steps: 0, reason: EndReason::Finished });
    let report = quiet(&[Record::Run(run_info(Sampling::Every(1))), end], Health::Healthy);
    assert_eq!(report, "digits (rank 0): LibTorch 2.13.0 on cpu, 300 steps, 0 of them scanned\n\nhealthy\n");
}

#[test]
fn a_run_that_was_cut_is_told() {
    let report = quiet(&[Record::Run(run_info(Sampling::Every(1)))], Health::Healthy);
    assert!(report.contains("the run still goes on, it was killed, or its disk was full"), "{report}");
}

#[test]
fn nothing_found_in_a_run_that_was_killed_or_panicked_is_no_health() {
    let told = |end: Option<EndReason>| {
        let mut aggregate = Aggregate::default();
        (aggregate.instrument.steps, aggregate.instrument.full_steps) = (13, 13);
        end.iter().for_each(|&reason| aggregate.apply(Record::End(End { steps: 13, dropped_steps: 0, reason })));
        nothing_found(&aggregate, Health::Healthy, &Layout { width: 400, colour: false })
    };
    let killed = "could not tell: nothing was found in 13 steps, and the recording has no end: the run was killed, or";
    assert!(told(None).contains(killed), "{}", told(None));
    let panicked = "could not tell: nothing was found in 13 steps, and then the run ended in a panic.";
    assert!(told(Some(EndReason::Panicked)).contains(panicked), "{}", told(Some(EndReason::Panicked)));
    assert!(!told(Some(EndReason::Dropped)).contains("could not tell"));
}

#[test]
fn who_cannot_tell_says_what_to_do() {
    let report = quiet(&[Record::Run(run_info(Sampling::Off))], Health::Unknown);
    assert!(report.contains("could not tell: no step was recorded. `doctor.step(&loss)` must"), "{report}");
}

#[test]
fn with_the_sampling_off_nobody_is_told_to_let_the_run_go_on() {
    let said = |sampling| {
        let mut run = Scenario::sampled(sampling);
        run.steps(3, |s, _| {
            s.tier(Tier::Light).loss(1.0);
        });
        quiet(run.records(), Health::Unknown)
    };
    let (off, budget) = (said(Sampling::Off), said(Sampling::Budget(0.02)));
    assert!(off.contains("the sampling is off") && !off.contains("go on longer"), "{off}");
    assert!(budget.contains("go on longer"), "{budget}");
}

#[test]
fn a_run_too_short_for_a_rule_is_healthy_only_so_far() {
    let doubts = [Doubt { code: "AMP201", name: "gradient-underflow", reason: "1 of 3 samples".into() }];
    let mut aggregate = Aggregate::default();
    aggregate.apply(Record::End(End { steps: 5, dropped_steps: 0, reason: EndReason::Finished }));
    let policy = Policy::default();
    let rank = Rank {
        file: "",
        integrity: None,
        stopped: None,
        process_ended: false,
        aggregate: &aggregate,
        findings: &[],
        doubts: &doubts,
        omitted: &[],
        accepted: &[],
        policy: &policy,
        health: Health::Healthy,
    };
    let report = text(&Run::single(rank), &WIDE);
    assert!(report.ends_with("healthy so far: too little was seen for 1 rule (AMP201), see above\n"), "{report}");
}
