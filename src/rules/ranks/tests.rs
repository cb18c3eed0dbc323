//! Four ranks beside one another, one of which does something else.

use super::{Across, Company, OfRank, Peer};
use crate::aggregate::Aggregate;
use crate::observation::scenario::{Scenario, StepBuilder, normal};
use crate::observation::{End, EndReason, Parameter, Record};
use crate::rules::{Allow, Finding, Policy, Severity};
use crate::scan::Dtype::{F16, F32};

const SCALE: f64 = 1024.0;

/// A rank of `steps` steps, of which `build` may change each; ended as `end` says.
fn rank(number: u32, steps: u64, end: Option<EndReason>, build: impl Fn(&mut StepBuilder<'_>, u64)) -> Aggregate {
    let mut run = Scenario::new();
    run.dynamic_scaler(SCALE).steps(steps, |s, i| {
        let seed = i * 4 + u64::from(number);
        s.loss(1.0).activation("fc", "linear", F16, &normal(64, 1.0, seed));
        s.param_grad("fc", "weight", F32, &normal(64, 1e-3 * SCALE, seed));
        build(s, i);
    });
    let mut aggregate = Aggregate::default();
    run.records().iter().cloned().for_each(|record| aggregate.apply(record));
    if let Some(info) = &mut aggregate.run {
        info.rank = number;
        info.world_size = Some(4);
        info.started_unix_ms = 1_700_000_000_000;
        info.parameters =
            vec![Parameter { name: "fc.weight".into(), dtype: "f32".into(), shape: vec![8, 8], trainable: true }];
    }
    if let Some(reason) = end {
        aggregate.apply(Record::End(End { steps, dropped_steps: 0, reason }));
    }
    aggregate
}

/// Takes its step.
fn applied(s: &mut StepBuilder<'_>, _: u64) {
    s.applied(SCALE);
}

const FINISHED: Option<EndReason> = Some(EndReason::Finished);

fn healthy(number: u32) -> Aggregate {
    rank(number, 64, FINISHED, applied)
}

/// Three healthy ranks, and this one as the third.
fn with_third(bad: Aggregate) -> Vec<Aggregate> {
    vec![healthy(0), healthy(1), bad, healthy(3)]
}

fn company(ranks: &[Aggregate]) -> Company<'_> {
    let peer = |aggregate| Peer { number: number(aggregate), aggregate, process_ended: false };
    Company { peers: ranks.iter().map(peer).collect(), unreadable: Vec::new(), whole: true, of_one_command: false }
}

fn number(aggregate: &Aggregate) -> u32 {
    aggregate.run.as_ref().map_or(0, |run| run.rank)
}

fn found(ranks: &[Aggregate]) -> Vec<OfRank<Finding>> {
    Across::of(&company(ranks), &Policy::default()).findings
}

fn told(found: &[OfRank<Finding>]) -> Vec<(u32, &'static str, Severity)> {
    found.iter().map(|of| (of.rank, of.item.code, of.item.severity)).collect()
}

#[test]
fn ranks_that_do_the_same_on_other_data_draw_no_finding() {
    let ranks: Vec<Aggregate> = (0..4).map(healthy).collect();
    assert_eq!(told(&found(&ranks)), []);
    assert_eq!(told(&found(&ranks[..0])), []);
}

#[test]
fn the_rank_that_skips_alone_is_named_with_what_the_others_have() {
    let alone = rank(2, 64, FINISHED, |s, i| {
        match i {
            20 => s.skipped(SCALE, SCALE / 2.0),
            21.. => s.applied(SCALE / 2.0),
            _ => s.applied(SCALE),
        };
    });
    let found = found(&with_third(alone));
    assert_eq!(told(&found), [(2, "AMP801", Severity::Error)]);
    let finding = &found[0].item;
    assert_eq!((finding.onset_step, finding.last_step), (20, 63));
    for said in
        ["at step 20 it skipped once, the others not", "from step 21 on its loss scale is 512", "the others 1024"]
    {
        assert!(finding.explanation.contains(said), "{said}: {}", finding.explanation);
    }
}

#[test]
fn of_two_ranks_that_differ_both_are_named() {
    let other = rank(1, 64, FINISHED, |s, _| {
        s.applied(SCALE / 2.0);
    });
    let found = found(&[healthy(0), other]);
    let apart: Vec<u32> = found.iter().filter(|of| of.item.code == "AMP801").map(|of| of.rank).collect();
    assert_eq!(apart, [0, 1]);
}

#[test]
fn a_rank_that_stopped_is_named_once_the_others_have_gone_on() {
    let killed = || rank(2, 40, None, applied);
    let stopped = found(&with_third(killed()));
    assert_eq!(told(&stopped), [(2, "AMP802", Severity::Warning)]);
    assert_eq!(stopped[0].item.onset_step, 39);
    // Others that go on, too: read a moment later they are further, and nobody stopped.
    let running = [rank(0, 64, None, applied), rank(1, 63, None, applied), killed(), rank(3, 64, None, applied)];
    assert_eq!(told(&found(&running)), []);
    // Its process is gone: it has.
    let mut known = company(&running);
    known.peers[2].process_ended = true;
    assert_eq!(told(&Across::of(&known, &Policy::default()).findings), [(2, "AMP802", Severity::Warning)]);
    // Nobody knows of its process, and it has been silent for long.
    let mut later = running.clone();
    for (place, rank) in later.iter_mut().enumerate().filter(|(place, _)| *place != 2) {
        rank.latest.as_mut().expect("a step").time_ns = 11_000_000_000 + place as u64;
    }
    assert_eq!(told(&found(&later)), [(2, "AMP802", Severity::Warning)]);
}

#[test]
fn a_rank_that_ended_or_panicked_early_is_named_and_one_that_is_a_step_behind_is_not() {
    let of = |steps, end| told(&found(&with_third(rank(2, steps, Some(end), applied)))).len();
    assert_eq!([of(63, EndReason::Finished), of(62, EndReason::Finished), of(62, EndReason::Panicked)], [0, 1, 1]);
    assert_eq!(of(40, EndReason::Detached), 0, "a rule of its own says so");
}

#[test]
fn a_rank_that_recorded_nothing_is_missed_where_the_launcher_said_how_many_there_are() {
    let three = [healthy(0), healthy(1), healthy(3)];
    let found = found(&three);
    assert_eq!(told(&found), [(2, "AMP802", Severity::Warning)]);
    assert!(found[0].item.explanation.contains("4 ranks, and one recorded nothing here: rank 2"), "{found:?}");
    let of = |company: &Company<'_>| told(&Across::of(company, &Policy::default()).findings).len();
    assert_eq!(of(&Company { whole: false, ..company(&three) }), 0, "one recording that was read by its path");
    assert_eq!(of(&Company { unreadable: vec![2], ..company(&three) }), 0, "it is there, and said to be unreadable");
    let beginning = [rank(0, 3, None, applied), rank(1, 3, None, applied)];
    assert_eq!(of(&company(&beginning)), 0, "they may still come");
}

#[test]
fn the_rank_that_is_not_finite_first_is_named_and_its_skips_follow() {
    let bad = rank(2, 64, FINISHED, |s, i| {
        if (30..32).contains(&i) {
            s.activation("fc", "linear", F16, &[1.0, f64::NAN]).skipped(SCALE, SCALE);
        } else {
            s.applied(SCALE);
        }
    });
    let found = found(&with_third(bad));
    assert_eq!(told(&found), [(2, "AMP803", Severity::Error)]);
    let finding = &found[0].item;
    assert!(finding.explanation.contains("in `fc/linear` at step 30, and no other rank"), "{}", finding.explanation);
    assert_eq!(finding.consequences.iter().map(|f| (f.code, f.onset_step)).collect::<Vec<_>>(), [("AMP801", 30)]);
}

#[test]
fn of_two_ranks_the_one_that_skips_for_a_nan_of_its_own_is_named_alone() {
    let bad = rank(1, 64, FINISHED, |s, i| {
        if (30..32).contains(&i) {
            s.activation("fc", "linear", F16, &[1.0, f64::NAN]).skipped(SCALE, SCALE / 2.0);
        } else {
            s.applied(if i < 30 { SCALE } else { SCALE / 4.0 });
        }
    });
    let found = found(&[healthy(0), bad]);
    assert_eq!(told(&found[..1]), [(1, "AMP803", Severity::Error)]);
    assert!(!found.iter().any(|of| of.item.code == "AMP801"), "{found:?}");
}

#[test]
fn one_bad_step_that_all_ranks_skip_is_only_told() {
    let skipping = |number: u32| {
        rank(number, 64, FINISHED, move |s, i| {
            if i == 30 && number == 2 {
                s.activation("fc", "linear", F16, &[1.0, f64::INFINITY]);
            }
            if i == 30 {
                s.skipped(SCALE, SCALE)
            } else {
                s.applied(SCALE)
            };
        })
    };
    let ranks: Vec<Aggregate> = (0..4).map(skipping).collect();
    assert_eq!(told(&found(&ranks)), [(2, "AMP803", Severity::Info)]);
}

#[test]
fn a_rank_whose_gradient_is_of_another_size_is_named_and_one_hard_batch_is_not() {
    let large = |from: u64, to: u64| {
        rank(2, 64, FINISHED, move |s, i| {
            s.applied(SCALE);
            if (from..to).contains(&i) {
                s.param_grad("fc", "bias", F32, &normal(64, 64e-3 * SCALE, i));
            }
        })
    };
    let found_of = |from, to| told(&found(&with_third(large(from, to))));
    assert_eq!(found_of(24, 64), [(2, "AMP804", Severity::Warning)]);
    assert_eq!(found_of(24, 32), []);
    let found = found(&with_third(large(24, 64)));
    assert_eq!(found[0].item.onset_step, 24);
    // Another model is another gradient.
    let mut part = large(0, 64);
    part.run.as_mut().expect("a run").parameters[0].shape = vec![4, 8];
    assert_eq!(told(&self::found(&with_third(part))), []);
}

#[test]
fn what_is_left_from_an_earlier_run_is_held_against_nobody() {
    let mut old = rank(2, 20, None, |s, _| {
        s.applied(SCALE / 8.0);
    });
    old.run.as_mut().expect("a run").started_unix_ms -= 3_600_000;
    assert_eq!(told(&found(&with_third(old))), [(2, "AMP802", Severity::Warning), (2, "AMP802", Severity::Info)]);
}

/// Rank 2, killed after 20 steps at a scale of its own, that began this much before the others; all of them of a run of so many ranks.
fn killed_before_the_others(ms: u64, world_size: Option<u32>) -> Vec<Aggregate> {
    killed_after(20, ms, world_size)
}

/// The same after so many steps.
fn killed_after(steps: u64, ms: u64, world_size: Option<u32>) -> Vec<Aggregate> {
    let mut ranks = with_third(rank(2, steps, None, |s, _| {
        s.applied(SCALE / 8.0);
    }));
    ranks[2].run.as_mut().expect("a run").started_unix_ms -= ms;
    ranks.iter_mut().for_each(|rank| rank.run.as_mut().expect("a run").world_size = world_size);
    ranks
}

#[test]
fn a_rank_that_died_before_another_began_is_of_this_run_where_the_launcher_counts_it() {
    let stopped = found(&killed_before_the_others(5_000, Some(4)));
    let of_rank_2: Vec<_> = stopped.iter().filter(|of| of.item.code == "AMP802").collect();
    assert_eq!(of_rank_2.len(), 1, "{stopped:?}");
    let Finding { severity, explanation, .. } = &of_rank_2[0].item;
    assert_eq!((of_rank_2[0].rank, *severity), (2, Severity::Warning));
    assert!(explanation.starts_with("Rank 2 stopped recording after 20 steps"), "{explanation}");
    assert!(explanation.contains(" s before the last of the others began") && !explanation.contains("earlier run"));
}

#[test]
fn a_rank_that_died_before_another_began_is_the_one_that_stopped_though_it_took_more_steps() {
    let found = found(&killed_after(200, 5_000, Some(4)));
    let stopped: Vec<_> = found.iter().filter(|of| of.item.code == "AMP802").collect();
    assert_eq!(stopped.len(), 1, "{found:?}");
    let said = &stopped[0].item.explanation;
    assert!(stopped[0].rank == 2 && said.starts_with("Rank 2 stopped recording after 200 steps: it hangs"), "{said}");
}

#[test]
fn where_no_launcher_counts_the_ranks_nobody_knows_whether_one_died_early_or_is_left_over() {
    let found = found(&killed_before_the_others(5_000, None));
    assert_eq!(told(&found), [(2, "AMP802", Severity::Info)], "and its scale is held against nobody");
    let said = &found[0].item.explanation;
    assert!(said.contains("is of this run and died early, or it is left from a run") && said.contains("do not tell"));
}

#[test]
fn a_rank_of_a_launch_of_another_size_is_left_over_however_shortly_before_it_ran() {
    let mut ranks = killed_before_the_others(5_000, Some(4));
    ranks[2].run.as_mut().expect("a run").world_size = Some(8);
    assert_eq!(
        told(&found(&ranks)),
        [(2, "AMP802", Severity::Warning), (2, "AMP802", Severity::Info)],
        "and 2 is missed"
    );
    // A number that this launch does not have.
    ranks[2].run.as_mut().expect("a run").rank = 6;
    ranks[2].run.as_mut().expect("a run").world_size = None;
    ranks[3].run.as_mut().expect("a run").rank = 2;
    ranks.iter_mut().for_each(|rank| rank.run.as_mut().expect("a run").world_size = Some(3));
    ranks[2].run.as_mut().expect("a run").world_size = None;
    assert_eq!(told(&found(&ranks)), [(6, "AMP802", Severity::Info)]);
}

#[test]
fn a_rank_that_has_not_stepped_yet_waits_for_the_others_unless_it_is_known_to_have_ended() {
    let begun = |ms: u64, steps: u64| {
        let of = |number| rank(number, if number == 2 { 0 } else { steps }, None, applied);
        let mut ranks: Vec<_> = (0..4).map(of).collect();
        ranks[2].run.as_mut().expect("a run").started_unix_ms -= ms;
        ranks
    };
    assert_eq!(told(&found(&begun(60_000, 1))), []);
    let ranks = begun(5_000, 3);
    let mut known = company(&ranks);
    known.peers[2].process_ended = true;
    let found = Across::of(&known, &Policy::default()).findings;
    assert_eq!(told(&found), [(2, "AMP802", Severity::Warning)]);
    assert!(found[0].item.explanation.starts_with("Rank 2 stopped recording after 0 steps"), "{found:?}");
}

#[test]
fn of_the_ranks_of_one_command_none_is_left_over_however_long_before_it_died() {
    let ranks = killed_before_the_others(60_000, None);
    let known = Company { of_one_command: true, ..company(&ranks) };
    let found = Across::of(&known, &Policy::default()).findings;
    let stopped = found.iter().find(|of| of.item.code == "AMP802").expect("it stopped");
    assert_eq!((stopped.rank, stopped.item.severity), (2, Severity::Warning));
    assert!(stopped.item.explanation.contains("It was over 60 s before"), "{}", stopped.item.explanation);
}

#[test]
fn a_finding_between_ranks_can_be_accepted() {
    let three = [healthy(0), healthy(1), healthy(3)];
    let allow = vec![Allow { code: "AMP802", layers: None, reason: "rank 2 only serves data".into() }];
    let across = Across::of(&company(&three), &Policy { allow, ..Policy::default() });
    assert_eq!((across.findings.len(), across.accepted.len()), (0, 1));
}
