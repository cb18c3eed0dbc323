use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::observation::scenario::{Scenario, normal};
use crate::rules::text::{counted, measured, said};
use crate::rules::{Diagnosis, find};
use crate::scan::Dtype::F16;

/// Rules that other parts of the program are about to bring.
const TO_COME: [&str; 2] = ["AMP103", "AMP205"];

/// A finding of a code, or of another name that the table has for one, in a layer, seen from one step to another.
fn found(name: &'static str, layer: &str, onset_step: u64, last_step: u64) -> Finding {
    let made_by = match name {
        JUMP_OF_SOMETHING => "unknown",
        JUMP_IN_THE_REPORT => "loss scale reported with the loss",
        JUMP_AFTER_OVERFLOW => "gradient",
        FLAT_BY_SKIPS => "steps skipped",
        _ => "learning rate",
    };
    let mut evidence = vec![said("cause", made_by)];
    if [EXPLODED_AFTER_OVERFLOW, JUMP_AFTER_OVERFLOW].contains(&name) {
        evidence.push(counted(SKIPPED_BEFORE, 8));
    }
    if name == SCALE_TOO_LOW {
        evidence = vec![measured(MEDIAN_EHAT, 1e-3)];
    }
    Finding {
        code: &name[..6],
        name: "made-up",
        severity: Severity::Error,
        layer: layer.into(),
        operator: String::new(),
        probe: None,
        onset_step,
        last_step,
        evidence,
        explanation: String::new(),
        remedy: "".into(),
        consequences: Vec::new(),
    }
}

/// A run of 200 steps through the layers a, b and c, every `nth` of them scanned.
fn run(nth: u64) -> Aggregate {
    let mut run = Scenario::new();
    run.steps(200, |s, i| {
        if i % nth > 0 {
            s.tier(crate::observation::Tier::Off);
            return;
        }
        for layer in ["a", "b", "c"] {
            s.activation(layer, "linear", F16, &normal(8, 1.0, i));
        }
    });
    Aggregate::of(&run)
}

/// The roots, each with its consequences: `AMP102 a: AMP501 b, AMP303`.
fn told(findings: Vec<Finding>, aggregate: &Aggregate) -> Vec<String> {
    let name = |f: &Finding| format!("{} {}", f.code, f.layer).trim().to_string();
    let line = |root: &Finding| {
        let consequences: Vec<String> = root.consequences.iter().map(name).collect();
        format!("{}: {}", name(root), consequences.join(", ")).trim_end_matches([':', ' ']).to_string()
    };
    under_their_causes(findings, aggregate).iter().map(line).collect()
}

#[test]
fn every_code_of_the_table_is_a_rule() {
    let codes = ROWS.iter().flat_map(|row| row.effects.iter().copied().flatten().chain([&row.cause]));
    let unknown: BTreeSet<&str> =
        codes.map(|name| &name[..6]).filter(|code| find(code).is_none() && !TO_COME.contains(code)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn as_a_graph_of_codes_the_table_has_no_cycle() {
    let mut causes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for row in ROWS {
        for effect in row.effects.iter().copied().flatten().filter(|effect| **effect != row.cause) {
            causes.entry(effect).or_default().insert(row.cause);
        }
    }
    // Codes whose causes are all taken out are taken out, until none is left.
    let mut left: BTreeSet<&str> = causes.keys().copied().collect();
    while let Some(free) = left.iter().copied().find(|code| causes[code].iter().all(|cause| !left.contains(cause))) {
        left.remove(free);
    }
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn each_row_holds_at_its_place_and_time_and_nowhere_else() {
    let aggregate = run(1);
    let course = Course::of(&aggregate);
    for row in ROWS {
        for effect in row.effects.iter().copied().flatten().copied().filter(|effect| *effect != row.cause) {
            let holds = |layer: &str, onset| {
                row.holds(&found(row.cause, "b", 100, 110), &found(effect, layer, onset, 200), &course)
            };
            let who = format!("{} explains {effect}", row.cause);
            assert!(holds("b", 105) && holds("", 105), "{who}");
            assert_eq!(holds("b", 60), row.time == Time::Whenever, "{who} that came before");
            assert_eq!(holds("b", 190), matches!(row.time, Time::Ever | Time::Whenever), "{who} that came long after");
            assert_eq!(holds("a", 105), matches!(row.place, Place::Anywhere | Place::Back), "{who} nearer the input");
            assert_eq!(holds("c", 105), matches!(row.place, Place::Anywhere | Place::Onward), "{who} nearer the loss");
        }
    }
}

#[test]
fn steps_that_are_too_large_explain_what_overflows_after_them() {
    let findings = || {
        let (cause, jump) = (found("AMP403", "", 100, 104), found("AMP701", "", 101, 104));
        vec![cause, jump, found("AMP101", "a", 102, 120), found("AMP501", "c", 104, 199), found("AMP303", "", 150, 199)]
    };
    assert_eq!(told(findings(), &run(1)), ["AMP403: AMP701, AMP101 a, AMP501 c, AMP303"]);
    let mut before = findings();
    before[2].onset_step = 20;
    // What follows from the overflow as well as from the update is told where it is nearer.
    assert_eq!(told(before, &run(1)), ["AMP403: AMP701, AMP501 c, AMP303", "AMP101 a"]);
}

#[test]
fn a_gradient_that_overflowed_and_then_fits_is_one_finding_with_the_update_that_it_makes() {
    let findings =
        |update| vec![found("AMP202", "b", 60, 85), found(update, "", 86, 119), found("AMP703", "", 87, 119)];
    assert_eq!(told(findings(EXPLODED_AFTER_OVERFLOW), &run(1)), ["AMP202 b: AMP403, AMP703"]);
    // An update that exploded by itself long after is a fault of its own.
    let mut late = findings("AMP403");
    late[1].onset_step = 150;
    assert_eq!(told(late, &run(1))[1], "AMP403");
}

#[test]
fn the_jump_that_such_an_update_makes_is_one_finding_with_them() {
    let findings = |jump| {
        vec![found("AMP202", "b", 60, 85), found(EXPLODED_AFTER_OVERFLOW, "", 86, 119), found(jump, "", 87, 119)]
    };
    assert_eq!(told(findings(JUMP_AFTER_OVERFLOW), &run(1)), ["AMP202 b: AMP403, AMP701"]);
    // A jump that the learning rate made, and after it gradients that overflow.
    let by_rate = vec![found("AMP701", "", 87, 119), found("AMP202", "b", 88, 119)];
    assert_eq!(told(by_rate, &run(1)), ["AMP701: AMP202 b"]);
}

#[test]
fn a_flat_loss_stands_under_what_makes_its_steps_skip_though_it_was_flat_before() {
    for cause in ["AMP102", "AMP106", "AMP202", "AMP307", "AMP410", "AMP501", "AMP504"] {
        let with = |flat| vec![found(flat, "", 1, 199), found(cause, "b", 60, 199)];
        assert_eq!(told(with(FLAT_BY_SKIPS), &run(1)), [format!("{cause} b: AMP702")]);
        assert_eq!(told(with("AMP702"), &run(1)).len(), 2, "a learning rate of zero is a reason of its own");
    }
}

#[test]
fn a_decay_that_is_lost_first_is_another_view_of_the_copies_that_are_missing() {
    let findings = vec![found("AMP404", "", 0, 97), found("AMP401", "", 79, 199)];
    assert_eq!(told(findings, &run(1)), ["AMP401: AMP404"]);
}

#[test]
fn a_jump_of_the_loss_that_nothing_explains_is_the_mark_of_what_began_there() {
    for cause in ["AMP102", "AMP104", "AMP105", "AMP106", "AMP501"] {
        let with = |jump| vec![found(jump, "", 87, 120), found(cause, "b", 88, 199)];
        assert_eq!(told(with(JUMP_OF_SOMETHING), &run(1)), [format!("{cause} b: AMP701")]);
        let of_the_rate = told(with("AMP701"), &run(1));
        assert!(!of_the_rate.iter().any(|line| line.starts_with(cause) && line.contains(':')), "{of_the_rate:?}");
    }
    let zeros = |jump| vec![found(jump, "", 87, 120), found("AMP105", "b", 88, 199), found("AMP102", "b", 88, 199)];
    assert_eq!(told(zeros(JUMP_OF_SOMETHING), &run(1)), ["AMP105 b: AMP701, AMP102 b"]);
    assert_eq!(told(zeros("AMP701"), &run(1)), ["AMP701: AMP102 b, AMP105 b"]);
    // A loss that is reported with its scale neither made it nor comes of it.
    assert_eq!(told(zeros(JUMP_IN_THE_REPORT), &run(1)), ["AMP701", "AMP105 b: AMP102 b"]);
}

#[test]
fn what_began_long_before_a_jump_or_after_it_is_not_its_cause() {
    let with = |onset| vec![found(JUMP_OF_SOMETHING, "", 100, 140), found("AMP102", "b", onset, 199)];
    assert_eq!(told(with(20), &run(1)).len(), 2);
    assert_eq!(told(with(104), &run(1)).len(), 2);
    assert_eq!(told(with(104), &run(8)), ["AMP102 b: AMP701"]);
}

#[test]
fn one_overflow_explains_the_layers_after_it_and_not_those_before() {
    let findings = vec![found("AMP102", "b", 10, 60), found("AMP102", "a", 10, 60), found("AMP102", "c", 10, 60)];
    assert_eq!(told(findings, &run(1)), ["AMP102 a: AMP102 b, AMP102 c"]);
    let findings = vec![found("AMP102", "b", 10, 60), found("AMP501", "a", 12, 60), found("AMP303", "", 30, 60)];
    assert_eq!(told(findings, &run(1)), ["AMP102 b", "AMP501 a: AMP303"]);
}

#[test]
fn what_no_row_connects_stands_apart() {
    assert_eq!(told(vec![found("AMP201", "b", 10, 60), found("AMP201", "c", 40, 60)], &run(1)).len(), 2);
    assert_eq!(told(vec![found("AMP401", "", 10, 60), found("AMP102", "c", 20, 60)], &run(1)).len(), 2);
}

#[test]
fn one_bad_batch_long_ago_does_not_explain_a_descent() {
    let findings = vec![found("AMP501", "input", 3, 3), found("AMP302", "", 150, 199)];
    assert_eq!(told(findings, &run(1)), ["AMP501 input", "AMP302"]);
}

#[test]
fn bad_batches_that_no_scale_makes_are_the_cause_of_the_descent_that_they_drive() {
    let findings = vec![found("AMP501", "c", 2, 147), found("AMP302", "", 32, 147), found("AMP303", "", 140, 147)];
    assert_eq!(told(findings, &run(1)), ["AMP501 c: AMP302, AMP303"]);
}

#[test]
fn one_overflow_is_the_cause_of_the_buffers_that_it_poisoned_however_late_they_are_seen() {
    let findings = vec![found("AMP102", "a", 10, 10), found("AMP502", "b", 60, 199)];
    assert_eq!(told(findings, &run(1)), ["AMP102 a: AMP502 b"]);
    let before = vec![found("AMP102", "a", 100, 100), found("AMP502", "b", 60, 199)];
    assert_eq!(told(before, &run(1)).len(), 2);
}

#[test]
fn a_static_scale_that_is_too_high_explains_an_overflow_and_one_too_low_is_set_for_it() {
    let findings = |scale| vec![found(scale, "", 0, 19), found("AMP202", "b", 20, 199), found("AMP204", "b", 18, 30)];
    assert_eq!(told(findings("AMP307"), &run(1)), ["AMP307: AMP204 b, AMP202 b"]);
    assert_eq!(told(findings(SCALE_TOO_LOW), &run(1)), ["AMP202 b: AMP307, AMP204 b"]);
    assert_eq!(told(vec![found(SCALE_TOO_LOW, "", 0, 199), found("AMP201", "", 20, 199)], &run(1)), ["AMP307: AMP201"]);
}

#[test]
fn of_gradients_that_overflow_from_one_step_on_the_one_nearest_the_loss_is_the_cause() {
    for findings in [["a", "b", "c"], ["c", "b", "a"]].map(|layers| layers.map(|l| found("AMP202", l, 20, 99)).to_vec())
    {
        let told = told(findings, &run(1));
        assert!(told.len() == 1 && told[0].starts_with("AMP202 c: "), "{told:?}");
    }
}

#[test]
fn onsets_are_known_to_the_distance_of_two_scans() {
    let findings = || vec![found("AMP403", "", 100, 150), found("AMP303", "", 70, 199)];
    assert_eq!(told(findings(), &run(1)).len(), 2);
    assert_eq!(told(findings(), &run(40)).len(), 1);
}

#[test]
fn what_began_with_a_fault_is_not_laid_to_what_followed_a_step_later() {
    let findings = vec![found("AMP101", "b", 89, 199), found("AMP105", "b", 88, 199), found("AMP102", "b", 88, 199)];
    assert_eq!(told(findings, &run(4)), ["AMP101 b", "AMP105 b: AMP102 b"]);
    let near = Finding { severity: Severity::Warning, ..found("AMP101", "b", 88, 199) };
    let findings = vec![near, found("AMP105", "b", 88, 199), found("AMP102", "b", 88, 199)];
    assert_eq!(told(findings, &run(8)), ["AMP101 b", "AMP105 b: AMP102 b"]);
}

#[test]
fn a_root_is_as_grave_as_what_follows_from_it_and_information_explains_nothing_graver() {
    let of = |severity| {
        let findings = vec![Finding { severity, ..found("AMP302", "", 10, 60) }, found("AMP303", "", 40, 60)];
        let mut roots = under_their_causes(findings, &run(1));
        roots.iter_mut().for_each(weigh);
        roots
    };
    assert_eq!(
        of(Severity::Warning).iter().map(|f| (f.code, f.severity)).collect::<Vec<_>>(),
        [("AMP302", Severity::Error)]
    );
    assert_eq!(of(Severity::Info).len(), 2);
}

#[test]
fn a_live_run_ends_with_the_diagnosis_of_its_recording() {
    // The scale is at its floor before the layer is scanned: then the floor is a finding, and afterwards a consequence.
    let mut run = Scenario::new();
    let settings = crate::rules::scale_simulation::settings(2000);
    run.scaler_config(crate::observation::ScalerConfig { init_scale: 16.0, min_scale: Some(1.0), ..settings });
    run.steps(24, |s, i| {
        let scale = 2f64.powi(4 - i as i32).max(1.0);
        s.loss(1.0).skipped(scale, (scale / 2.0).max(1.0));
        if i == 0 || i == 16 {
            s.activation("head", "linear", F16, &[if i == 16 { f64::INFINITY } else { 1.0 }; 64]);
            s.gradient("head", "linear", F16, &normal(64, 1.0, i));
        } else {
            s.tier(crate::observation::Tier::Off);
        }
    });
    let (mut live, mut seen) = (Diagnosis::new(), BTreeSet::new());
    for record in run.records() {
        live.apply(record.clone());
        seen.insert(live.findings().iter().map(|f| f.code).collect::<Vec<_>>());
    }
    assert!(seen.contains(&vec!["AMP303"]), "{seen:?}");
    let mut replayed = Diagnosis::new();
    run.records().iter().cloned().for_each(|record| replayed.apply(record));
    assert_eq!(live.findings(), replayed.findings());
    let roots: Vec<&str> = live.findings().iter().map(|f| f.code).collect();
    assert_eq!(roots, ["AMP102"], "{:#?}", live.findings());
    assert!(live.findings()[0].consequences.iter().any(|f| f.code == "AMP303"));
}
