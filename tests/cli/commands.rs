//! `check -- COMMAND`: what is made of a command and of all that it recorded.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{ampdoctor, code, here, report, run, stderr, stdout};

/// A script that does to its `$AMPDOCTOR_RUN` what a trainer would: leaves a recording there.
fn trainer(recording: &str, then: &str) -> String {
    format!("echo trained; cp runs/{recording}/rank-0.amprec \"$AMPDOCTOR_RUN/\"; {then}")
}

#[test]
fn a_command_is_run_in_a_new_run_directory_and_judged() {
    let here = here();
    for (name, exit) in [("healthy", 0), ("sick", 1), ("blind", 3)] {
        let output = run(&here, &["check", "--report", "report.json", "--", "sh", "-c", &trainer(name, "true")]);
        assert_eq!(code(&output), exit, "{output:?}");
        assert!(stdout(&output).starts_with("trained\n"), "{}", stdout(&output));
        assert!(stderr(&output).contains("recording: ampdoctor-runs/"), "{}", stderr(&output));
        assert_eq!(report(&here)["run"]["name"], name);
    }
    assert_eq!(fs::read_dir(here.path().join("ampdoctor-runs")).unwrap().count(), 3);
}

#[test]
fn the_run_directory_of_a_command_can_be_chosen_and_an_earlier_run_makes_room() {
    let here = here();
    let arguments = ["check", "--run", "mine", "--", "sh", "-c", &trainer("healthy", "true")];
    assert_eq!(code(&run(&here, &arguments)), 0);
    assert!(here.path().join("mine/rank-0.amprec").is_file());
    let again = run(&here, &arguments);
    assert_eq!(code(&again), 0, "{again:?}");
    assert!(stderr(&again).contains("was moved aside"), "{}", stderr(&again));
    assert!(here.path().join("mine/rank-0.amprec.1").is_file());
}

#[test]
fn a_command_whose_recording_has_no_end_is_not_called_healthy() {
    let here = here();
    for (name, then, exit) in [("healthy", "true", 3), ("sick", "true", 1), ("healthy", "exit 7", 4)] {
        let path = here.path().join(format!("runs/{name}/rank-0.amprec"));
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 30]).unwrap();
        let output = run(&here, &["check", "--report", "report.json", "--", "sh", "-c", &trainer(name, then)]);
        assert_eq!(code(&output), exit, "{output:?}");
        assert!(stdout(&output).contains("The recording ended early, after step 3"), "{}", stdout(&output));
        assert_eq!(report(&here)["ranks"][0]["recording"]["ended_early"], true);
    }
}

/// As [`trainer`], of a program with two doctors: the second finds its rank taken, or, where the first had ended, moves its recording aside.
fn two_doctors(second: &str, at: &str) -> String {
    format!(
        "cp runs/healthy/rank-0.amprec \"$AMPDOCTOR_RUN/\"; mkdir -p \"$AMPDOCTOR_RUN/process-7\"; cp runs/{second}/rank-0.amprec \"$AMPDOCTOR_RUN/{at}\""
    )
}

#[test]
fn every_recording_of_a_command_is_judged_and_named_and_the_worst_counts() {
    let cases = [("healthy", 0, "healthy"), ("blind", 3, "could not tell"), ("sick", 1, "findings")];
    for (at, path) in [("process-7/", "runs/x/process-7"), ("rank-0.amprec.1", "runs/x/rank-0.amprec.1")] {
        for (second, exit, verdict) in cases {
            let here = here();
            let script = two_doctors(second, at);
            let output =
                run(&here, &["check", "--run", "runs/x", "--report", "report.json", "--", "sh", "-c", &script]);
            assert_eq!(code(&output), exit, "{output:?}");
            let (said, told) = (stderr(&output), stdout(&output));
            assert!(said.contains("recording: runs/x: healthy\n"), "{said}");
            assert!(
                said.contains(&format!("recording: {path}: {verdict}\n")) && !said.contains("not looked at"),
                "{said}"
            );
            let worst = if exit == 0 { "runs/x" } else { path };
            assert!(told.contains(&format!("recording {worst}, the worst of 2 that the command made\n")), "{told}");
            assert_eq!(report(&here)["run"]["name"], if exit == 0 { "healthy" } else { second });
        }
    }
}

#[test]
fn for_machines_the_worst_recording_of_a_command_is_one_document_and_the_others_are_named() {
    let here = here();
    let script = two_doctors("sick", "process-7/");
    let output = run(&here, &["check", "--run", "runs/x", "--format", "json", "--", "sh", "-c", &script]);
    let document: Value = serde_json::from_str(&stdout(&output)).expect("one document");
    assert_eq!((code(&output), &document["run"]["name"]), (1, &Value::from("sick")));
    let said = stderr(&output);
    assert!(said.contains("that of the worst of 2 recordings, runs/x/process-7; `ampdoctor report PATH"), "{said}");
    assert!(said.contains("recording: runs/x: healthy"), "{said}");
    assert_eq!(code(&run(&here, &["report", "runs/x"])), 0, "and it is there");
}

#[test]
fn what_lay_in_the_directory_before_the_command_is_not_judged_with_it() {
    let here = here();
    let sick = two_doctors("sick", "process-7/");
    assert_eq!(code(&run(&here, &["check", "--run", "runs/x", "--", "sh", "-c", &sick])), 1);
    let output = run(&here, &["check", "--run", "runs/x", "--", "sh", "-c", &trainer("healthy", "true")]);
    assert_eq!(code(&output), 0, "{output:?}");
}

#[test]
fn a_recording_of_a_command_that_cannot_be_read_is_no_health_and_hides_no_finding() {
    for (first, exit) in [("healthy", 2), ("sick", 1)] {
        let script = format!(
            "cp runs/{first}/rank-0.amprec \"$AMPDOCTOR_RUN/\"; echo 'These are notes, and no recording of anything.' > \"$AMPDOCTOR_RUN/rank-0.amprec.1\""
        );
        let output = run(&here(), &["check", "--", "sh", "-c", &script]);
        assert_eq!(code(&output), exit, "{output:?}");
        assert!(stderr(&output).contains("no ampdoctor recording"), "{}", stderr(&output));
    }
}

#[test]
fn a_command_that_fails_exits_4_and_its_findings_are_printed_too() {
    let output = run(&here(), &["check", "--", "sh", "-c", &trainer("sick", "exit 7")]);
    assert_eq!(code(&output), 4);
    assert!(stderr(&output).contains("the command failed with exit status 7"), "{}", stderr(&output));
    assert!(stdout(&output).contains("findings: "), "{}", stdout(&output));
}

#[test]
fn a_command_that_a_signal_ends_exits_4() {
    let output = run(&here(), &["check", "--", "sh", "-c", &trainer("healthy", "kill -9 $$")]);
    assert_eq!(code(&output), 4);
    assert!(stderr(&output).contains("the command was ended by signal 9"), "{}", stderr(&output));
}

#[test]
fn a_command_that_is_not_there_exits_2_and_leaves_nothing_behind() {
    let here = here();
    let output = run(&here, &["check", "--", "no-such-trainer"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("say ./no-such-trainer"), "{}", stderr(&output));
    assert!(!here.path().join("ampdoctor-runs").exists());
}

#[test]
fn a_command_that_records_nothing_exits_3_and_says_how_to_attach() {
    let here = here();
    let output = run(&here, &["check", "--report", "report.json", "--", "true"]);
    assert_eq!(code(&output), 3);
    assert!(stderr(&output).contains("Doctor::attach(&vs)"), "{}", stderr(&output));
    assert_eq!(report(&here)["verdict"]["health"], "unknown");
    assert!(!here.path().join("ampdoctor-runs").exists());
}

#[test]
fn a_command_that_records_nothing_leaves_the_earlier_recording_in_its_place() {
    let here = here();
    let before = fs::read(here.path().join("runs/sick/rank-0.amprec")).unwrap();
    for (command, exit) in [("true", 3), ("no-such-trainer", 2), ("", 2)] {
        for judge in ["check", "watch"] {
            let output = run(&here, &[judge, "--run", "runs/sick", "--", command]);
            if judge == "check" || exit == 2 {
                assert_eq!(code(&output), exit, "{output:?}");
                assert_eq!(fs::read(here.path().join("runs/sick/rank-0.amprec")).unwrap(), before);
                assert!(!here.path().join("runs/sick/rank-0.amprec.1").exists());
                assert!(!here.path().join("runs/sick/output.log").exists());
            }
            if command == "true" {
                break;
            }
        }
    }
}

/// Whether a started program would inherit that this signal is ignored.
fn is_ignored(signal: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or("0");
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal - 1) & 1 == 1
}

#[test]
fn a_signal_to_the_check_alone_is_passed_on_and_still_judged() {
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        if is_ignored(number) {
            // Tests that run under nohup: the check leaves it ignored, and its command too.
            continue;
        }
        let here = here();
        let script = trainer("sick", "touch ready; exec sleep 60");
        let mut check = ampdoctor(here.path(), &["check", "--", "sh", "-c", &script]);
        // A group of its own is not the one that Ctrl-C goes to, wherever the tests are run.
        check.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = check.spawn().unwrap();
        while !here.path().join("ready").exists() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let kill = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
        assert!(kill.unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), 4, "{name}");
        let told = format!("the command was ended by signal {number}");
        assert!(stderr(&output).contains(&told), "{}", stderr(&output));
        assert!(stdout(&output).contains("findings: "), "{}", stdout(&output));
    }
}
