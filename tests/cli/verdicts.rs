//! `check RUN`: what becomes of a recording, whole, cut, damaged or missing.

use std::fs;

use crate::recordings::{overflowing, record};
use crate::{code, here, report, run, stderr, stdout};

#[test]
fn a_healthy_run_exits_0() {
    let output = run(&here(), &["check", "runs/healthy"]);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    // Forty steps: what they are too few for is said.
    let so_far = "\nhealthy so far: too little was seen for 1 rule (AMP702), see above\n";
    assert!(stdout(&output).ends_with(so_far), "{}", stdout(&output));
}

#[test]
fn a_sick_run_exits_1_and_names_the_layer() {
    let output = run(&here(), &["check", "runs/sick"]);
    assert_eq!(code(&output), 1, "{output:?}");
    let text = stdout(&output);
    assert!(text.contains("error AMP") && text.contains("where     fc2, operator linear"), "{text}");
    assert!(text.starts_with("findings: 1 error"), "the verdict comes first: {text}");
    assert_eq!(text.matches("findings: 1 error").count(), 2, "and last: {text}");
}

#[test]
fn a_run_of_which_nothing_was_scanned_exits_3_and_says_what_to_set() {
    let output = run(&here(), &["check", "runs/blind"]);
    assert_eq!(code(&output), 3);
    assert!(stdout(&output).contains("could not tell: steps were recorded, but no tensor was scanned"));
}

#[test]
fn a_path_that_is_not_there_exits_2_and_suggests_the_nearest() {
    let output = run(&here(), &["check", "runs/helthy"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).starts_with("error:") && stderr(&output).contains("Did you mean runs/healthy?"));
}

#[test]
fn a_directory_of_runs_exits_2_and_names_the_newest_run() {
    let output = run(&here(), &["check", "runs"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("The newest run in it is runs/"), "{}", stderr(&output));
}

#[test]
fn a_file_that_is_no_recording_exits_2() {
    let here = here();
    fs::write(here.path().join("notes.txt"), "These are notes on a run, and no recording of it.\n").unwrap();
    let output = run(&here, &["check", "notes.txt"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("no ampdoctor recording"), "{}", stderr(&output));
}

#[test]
fn an_empty_recording_exits_3() {
    let here = here();
    fs::write(here.path().join("rank-0.amprec"), "").unwrap();
    assert_eq!(code(&run(&here, &["check", "rank-0.amprec"])), 3);
}

#[test]
fn a_truncated_recording_is_judged_by_what_it_holds() {
    let here = here();
    for (name, exit) in [("healthy", 3), ("sick", 1)] {
        let path = here.path().join(format!("runs/{name}/rank-0.amprec"));
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 30]).unwrap();
        let output = run(&here, &["check", &format!("runs/{name}"), "--report", "report.json"]);
        assert_eq!(code(&output), exit, "{name}");
        assert!(
            stdout(&output).contains("the run still goes on, it was killed, or its disk was full"),
            "{}",
            stdout(&output)
        );
        assert_eq!(report(&here)["ranks"][0]["recording"]["end"], "cut");
    }
}

#[test]
fn a_damaged_recording_is_judged_and_its_damage_is_told() {
    let here = here();
    let path = here.path().join("runs/healthy/rank-0.amprec");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&path, bytes).unwrap();
    let output = run(&here, &["check", "runs/healthy", "--report", "report.json"]);
    assert_eq!(code(&output), 3, "{output:?}");
    assert!(stderr(&output).starts_with("warning: damaged, "), "{}", stderr(&output));
    assert!(stdout(&output).contains("but a part of the recording was lost"), "{}", stdout(&output));
    assert_eq!(report(&here)["ranks"][0]["recording"]["damage_count"], 1);
    assert_eq!(report(&here)["verdict"]["health"], "unknown");
}

/// The definition of the site at which the run overflows is lost, and with it every sign of the overflow there.
#[test]
fn a_lost_site_never_makes_a_run_healthy_and_all_it_cost_is_counted() {
    let here = here();
    for (name, exit) in [("healthy", 3), ("sick", 1)] {
        let path = here.path().join(format!("runs/{name}/rank-0.amprec"));
        let mut bytes = fs::read(&path).unwrap();
        let site = bytes.windows(3).position(|window| window == b"fc2").and_then(|run| {
            let behind = run + 20;
            bytes[behind..].windows(3).position(|window| window == b"fc2").map(|at| behind + at)
        });
        bytes[site.expect("a definition")] ^= 0xff;
        fs::write(&path, bytes).unwrap();
        let output = run(&here, &["check", &format!("runs/{name}"), "--report", "report.json"]);
        assert_eq!(code(&output), exit, "{output:?}");
        assert!(stdout(&output).contains("40 observations were left out"), "{}", stdout(&output));
        assert_eq!(report(&here)["ranks"][0]["recording"]["lost_observations"], 40);
    }
}

#[test]
fn an_empty_rank_beside_a_healthy_one_is_named() {
    let here = here();
    fs::write(here.path().join("runs/healthy/rank-1.amprec"), "").unwrap();
    let output = run(&here, &["check", "runs/healthy", "--report", "report.json"]);
    assert_eq!(code(&output), 3, "{output:?}");
    let text = stdout(&output);
    let reason = "could not tell: the recording of rank 1 is empty";
    assert!(text.contains(reason) && !text.contains("doctor.step"), "{text}");
    assert_eq!(report(&here)["ranks"][1]["rank"], 1);
}

#[test]
fn every_rank_is_judged_and_a_finding_names_its_rank() {
    let here = here();
    record(&here.path().join("runs/healthy"), 1, &overflowing());
    let output = run(&here, &["check", "runs/healthy", "--report", "report.json"]);
    assert_eq!(code(&output), 1);
    assert!(stdout(&output).contains("on rank 1"), "{}", stdout(&output));
    assert_eq!(report(&here)["findings"][0]["rank"], 1);
    assert_eq!(report(&here)["ranks"].as_array().unwrap().len(), 2);
}

#[test]
fn a_rank_that_cannot_be_read_is_not_passed_over() {
    let here = here();
    fs::write(here.path().join("runs/healthy/rank-1.amprec"), "neither a recording nor the start of one\n").unwrap();
    let output = run(&here, &["check", "runs/healthy"]);
    assert_eq!(code(&output), 3, "{output:?}");
    assert!(stderr(&output).contains("rank-1.amprec"), "{}", stderr(&output));
}

#[test]
fn what_cannot_be_watched_is_told_on_standard_error() {
    let here = here();
    fs::write(here.path().join("notes.txt"), "no recording at all, but a note\n".repeat(9)).unwrap();
    let cases = [
        (&["watch", "--once", "runs/sik"][..], "Did you mean runs/sick?"),
        (&["watch", "--once", "runs"], "The newest run in it is "),
        (&["watch", "--once", "notes.txt"], "this is no ampdoctor recording"),
        (&["watch", "--plain", "notes.txt"], "this is no ampdoctor recording"),
    ];
    for (arguments, message) in cases {
        let output = run(&here, arguments);
        assert_eq!((code(&output), stdout(&output)), (2, String::new()), "{arguments:?}");
        assert_eq!(stderr(&output).matches(message).count(), 1, "{}", stderr(&output));
    }
}

#[test]
fn a_link_that_leads_nowhere_does_not_suggest_itself() {
    let here = here();
    std::os::unix::fs::symlink("gone", here.path().join("latest")).unwrap();
    let output = run(&here, &["check", "latest"]);
    assert_eq!(code(&output), 2);
    assert!(!stderr(&output).contains("Did you mean"), "{}", stderr(&output));
}
