//! The real binary, on recordings written by the real recorder.

#[path = "cli/recordings.rs"]
mod recordings;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use recordings::{healthy, nothing_scanned, overflowing, record};
use serde_json::Value;
use tempfile::TempDir;

/// The binary, in a directory of its own and without an environment that could change what it prints.
fn ampdoctor(here: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ampdoctor"));
    command.current_dir(here).args(arguments).stdin(Stdio::null());
    for variable in ["NO_COLOR", "CLICOLOR_FORCE", "COLUMNS", "AMPDOCTOR_RUN"] {
        command.env_remove(variable);
    }
    // Wide enough that no sentence which a test looks for is broken.
    command.env("COLUMNS", "110");
    command
}

fn run(here: &TempDir, arguments: &[&str]) -> Output {
    ampdoctor(here.path(), arguments).output().expect("the binary starts")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("it ends by itself")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A directory with `runs/healthy`, `runs/sick` and `runs/blind`.
fn here() -> TempDir {
    let here = tempfile::tempdir().unwrap();
    record(&here.path().join("runs/healthy"), 0, &healthy());
    record(&here.path().join("runs/sick"), 0, &overflowing());
    record(&here.path().join("runs/blind"), 0, &nothing_scanned());
    here
}

/// A script that does to its `$AMPDOCTOR_RUN` what a trainer would: leaves a recording there.
fn trainer(recording: &str, then: &str) -> String {
    format!("echo trained; cp runs/{recording}/rank-0.amprec \"$AMPDOCTOR_RUN/\"; {then}")
}

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

fn report(here: &TempDir) -> Value {
    serde_json::from_str(&fs::read_to_string(here.path().join("report.json")).unwrap()).unwrap()
}

#[test]
fn the_report_holds_the_finding_and_is_the_same_each_time() {
    let here = here();
    let first = run(&here, &["report", "runs/sick", "--format", "json"]);
    assert_eq!((code(&first), stderr(&first)), (0, String::new()));
    assert_eq!(first.stdout, run(&here, &["report", "runs/sick", "--format", "json"]).stdout);
    assert_eq!(code(&run(&here, &["report", "runs/sick", "--format", "json", "--output", "report.json"])), 0);
    assert_eq!(first.stdout, fs::read(here.path().join("report.json")).unwrap());

    let report = report(&here);
    assert_eq!(report["schema_version"], 2);
    assert_eq!(report["verdict"]["health"], "findings");
    let finding = &report["findings"][0];
    assert_eq!((&finding["layer"], &finding["operator"]), (&"fc2".into(), &"linear".into()));
    assert_eq!(finding["onset_step"], recordings::ONSET);
    assert_eq!(report["ranks"][0]["timeline"]["loss"][recordings::ONSET as usize], "NaN");
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
fn a_report_that_cannot_be_written_is_told_before_the_command_runs() {
    let here = here();
    fs::write(here.path().join("file"), "").unwrap();
    let output = run(&here, &["check", "--report", "file/report.json", "--", "sh", "-c", "touch ran"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("name a file in a directory that can be written"), "{}", stderr(&output));
    assert!(!here.path().join("ran").exists());
}

#[test]
fn a_recording_is_never_overwritten_by_a_report_whatever_its_name() {
    let here = here();
    let recording = here.path().join("runs/sick/rank-0.amprec");
    fs::copy(&recording, here.path().join("report.json")).unwrap();
    for path in ["report.json", "runs/sick/rank-0.amprec", "rank-7.amprec"] {
        for arguments in [["check", "--report", path, "runs/sick"], ["report", "-o", path, "runs/sick"]] {
            let output = run(&here, &arguments);
            assert_eq!(code(&output), 2, "{output:?}");
            assert!(stderr(&output).contains("this is a recording"), "{}", stderr(&output));
        }
    }
    assert_eq!(fs::read(&recording).unwrap(), fs::read(here.path().join("report.json")).unwrap());
    assert!(!here.path().join("rank-7.amprec").exists());
}

#[test]
fn a_pipe_is_no_recording_and_is_not_waited_for() {
    let here = here();
    fs::create_dir(here.path().join("piped")).unwrap();
    assert!(Command::new("mkfifo").arg(here.path().join("piped/rank-0.amprec")).status().unwrap().success());
    for path in ["piped", "piped/rank-0.amprec"] {
        for arguments in [&["check", path][..], &["report", path], &["watch", "--once", path], &["watch", path]] {
            let output = run(&here, arguments);
            assert_eq!(code(&output), 2, "{arguments:?} {output:?}");
            assert!(stderr(&output).contains("this is no file but a pipe"), "{}", stderr(&output));
        }
    }
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

#[test]
fn a_closed_pipe_is_no_error() {
    let here = here();
    for arguments in
        [&["report", "runs/sick", "--format", "json"][..], &["rules"], &["--help"], &["check", "runs/healthy"]]
    {
        let mut child =
            ampdoctor(here.path(), arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((code(&output), stderr(&output)), (0, String::new()), "{arguments:?}");
    }
}

#[test]
fn the_verdict_outlives_a_closed_pipe() {
    let here = here();
    let mut child = ampdoctor(here.path(), &["check", "runs/sick"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn what_is_no_terminal_gets_no_colours() {
    let output = run(&here(), &["check", "runs/sick"]);
    assert!(!output.stdout.contains(&0x1b));
}

#[test]
fn wrong_usage_exits_2_with_a_hint() {
    let here = here();
    let cases = [
        (&["chekc", "x"][..], "check"),
        (&["report", "runs/healthy", "--format", "jsn"], "json"),
        (&["check", "runs/healthy", "--repot", "x"], "--report"),
        (&["runs/healthy"], "ampdoctor check runs/healthy"),
        (&["check"], "Usage: ampdoctor check [OPTIONS] RUN"),
        (&["check", "--config", "a.toml"], "`ampdoctor config FILE`"),
        (&["watch", "runs/healthy", "--once", "--size", "10x5"], "below 40x10"),
    ];
    for (arguments, hint) in cases {
        let output = run(&here, arguments);
        assert_eq!((code(&output), stdout(&output)), (2, String::new()), "{arguments:?}");
        assert!(stderr(&output).contains(hint), "{arguments:?}: {}", stderr(&output));
    }
    let unknown = stderr(&run(&here, &["check", "--foo", "runs/healthy"]));
    assert!(unknown.contains("--foo") && !unknown.contains("-- --foo"), "{unknown}");
}

#[test]
fn a_rule_is_explained_by_code_and_by_name() {
    let here = here();
    let by_code = run(&here, &["explain", "amp201"]);
    assert_eq!(code(&by_code), 0);
    assert!(stdout(&by_code).starts_with("AMP201 gradient-underflow\n"), "{}", stdout(&by_code));
    assert_eq!(by_code.stdout, run(&here, &["explain", "gradient-underflow"]).stdout);
}

#[test]
fn an_unknown_rule_exits_2_and_suggests_the_nearest() {
    let output = run(&here(), &["explain", "gradient-underlow"]);
    assert_eq!((code(&output), stdout(&output)), (2, String::new()));
    assert!(stderr(&output).contains("gradient-underflow"), "{}", stderr(&output));
}

#[test]
fn a_code_that_is_no_rule_names_its_family_and_no_neighbour() {
    let output = run(&here(), &["explain", "AMP103"]);
    assert_eq!(code(&output), 2);
    let said = stderr(&output);
    assert!(said.contains("no rule AMP103. Of its family there are AMP101 activation-near-overflow, AMP102"), "{said}");
    assert!(!said.contains("Did you mean"), "{said}");
}

#[test]
fn a_pipe_is_as_wide_as_columns_says_or_80() {
    let here = here();
    for (columns, width) in [(None, 80), (Some("60"), 60)] {
        let mut command = ampdoctor(here.path(), &["check", "runs/sick"]);
        command.env_remove("COLUMNS");
        columns.map(|columns| command.env("COLUMNS", columns));
        let text = stdout(&command.output().unwrap());
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest > Some(width - 20) && longest <= Some(width), "{longest:?} of {width}:\n{text}");
    }
}

#[test]
fn the_rules_are_listed_for_people_and_for_machines() {
    let here = here();
    let listed: Value = serde_json::from_str(&stdout(&run(&here, &["rules", "--format", "json"]))).unwrap();
    let table = stdout(&run(&here, &["rules"]));
    assert_eq!(listed.as_array().unwrap().len(), ampdoctor::rules::all().len());
    for rule in listed.as_array().unwrap() {
        assert!(table.contains(&format!("{}  {}", rule["code"].as_str().unwrap(), rule["name"].as_str().unwrap())));
    }
}

#[test]
fn the_version_is_printed() {
    let output = run(&here(), &["--version"]);
    assert_eq!((code(&output), stdout(&output)), (0, format!("ampdoctor {}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn what_if_shows_the_window_for_people_and_for_machines() {
    let here = here();
    let output = run(&here, &["whatif", "runs/healthy"]);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    let text = stdout(&output);
    assert!(text.starts_with("Loss scales: 2^") && text.contains("recommended"), "{text}");
    assert!(text.contains("Ehat, the predicted loss of direction") && text.contains("Which format"), "{text}");

    let output = run(&here, &["whatif", "runs/healthy", "--format", "json", "--layer", "fc2"]);
    let document: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert!(document["window"]["recommended"].is_i64(), "{document}");
    let layers = document["layers"].as_array().expect("layers");
    assert_eq!(layers.iter().map(|layer| &layer["layer"]).collect::<Vec<_>>(), ["fc2"]);
    let one = stdout(&run(&here, &["whatif", "runs/healthy", "--layer", "fc2"]));
    assert!(one.contains("Loss scales of the whole run: ") && !one.contains("Ehat, the predicted"), "{one}");
    let report: Value =
        serde_json::from_str(&stdout(&run(&here, &["report", "runs/healthy", "--format", "json"]))).expect("JSON");
    assert_eq!(report["whatif"]["window"], document["window"]);
}

#[test]
fn what_if_of_a_scale_or_a_layer_that_is_none_is_wrong_usage() {
    let here = here();
    let output = run(&here, &["whatif", "runs/healthy", "--scale", "much"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("as in 2^13 or 8192"), "{}", stderr(&output));
    let output = run(&here, &["whatif", "runs/healthy", "--layer", "fd2"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("no layer matches fd2. Did you mean fc2?"), "{}", stderr(&output));
}

#[test]
fn what_if_of_nothing_scanned_says_so() {
    let output = run(&here(), &["whatif", "runs/blind"]);
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).contains("nothing can be said of loss scales"), "{}", stdout(&output));
}

#[test]
fn no_threshold_of_a_configuration_changes_what_if() {
    let here = here();
    let window = || stdout(&run(&here, &["whatif", "runs/healthy", "--format", "json"]));
    let before = window();
    let set =
        "[rules.gradient-underflow]\nmedian-near = 0.5\nlayer-harmed = 0.5\n[rules.gradient-headroom]\nheadroom = 12\n";
    fs::write(here.path().join("ampdoctor.toml"), set).unwrap();
    assert!(stdout(&run(&here, &["report", "runs/healthy"])).contains("gradient-underflow median-near = 0.5"));
    assert_eq!(window(), before);
    let named = run(&here, &["whatif", "runs/healthy", "--config", "ampdoctor.toml"]);
    assert_eq!(code(&named), 2);
    let help = stdout(&run(&here, &["whatif", "--help"]));
    assert!(help.contains("There is no --config: no threshold of a rule is used here."), "{help}");
}

#[test]
fn a_configuration_accepts_a_finding_and_every_report_says_so() {
    let here = here();
    let found = run(&here, &["report", "runs/sick", "--format", "json"]);
    let report: Value = serde_json::from_str(&stdout(&found)).unwrap();
    let code_found = report["findings"][0]["code"].as_str().unwrap().to_owned();
    let text = format!(
        "[rules.AMP301]\nskip-share = 0.5\n[[allow]]\ncode = \"{code_found}\"\nreason = \"It is being looked at.\"\n\
         [[allow]]\ncode = \"AMP408\"\nreason = \"Only the head is trained.\"\n"
    );
    fs::write(here.path().join("ampdoctor.toml"), text).unwrap();
    let output = run(&here, &["check", "runs/sick"]);
    let said = stdout(&output);
    assert_eq!(code(&output), 0, "{said}");
    assert!(said.contains("configuration ampdoctor.toml: scale-thrash skip-share = 0.5 (default 0.02)"), "{said}");
    assert!(said.contains("with 3 that follow: It is being") && said.contains("accepted in vain\n  AMP408"), "{said}");
    let output = run(&here, &["report", "runs/sick", "--format", "json"]);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["accepted"][0]["finding"]["code"], code_found.as_str());
    assert_eq!(report["configuration"]["allow"][1]["used"], false);
    let lines = stdout(&run(&here, &["watch", "runs/sick", "--plain"]));
    assert!(lines.contains("accepted: ") && lines.contains("configuration ampdoctor.toml"), "{lines}");
    fs::write(here.path().join("none.toml"), "").unwrap();
    assert_eq!(code(&run(&here, &["check", "runs/sick", "--config", "none.toml"])), 1);
}

#[test]
fn a_configuration_that_is_wrong_is_told_with_its_line_before_anything_is_read() {
    let here = here();
    fs::write(here.path().join("ampdoctor.toml"), "[rules.AMP301]\nskip-shar = 0.5\n").unwrap();
    for command in ["check", "report", "watch"] {
        let output = run(&here, &[command, "runs/healthy"]);
        assert_eq!(code(&output), 2, "{command}");
        let said = stderr(&output);
        assert!(said.contains("Did you mean `skip-share`?") && said.contains("ampdoctor.toml:2"), "{said}");
    }
    let output = run(&here, &["check", "runs/healthy", "--config", "missing.toml"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("missing.toml"), "{}", stderr(&output));
}

#[test]
fn a_run_is_compared_with_another_and_a_new_error_fails() {
    let here = here();
    let mended = run(&here, &["compare", "runs/sick", "runs/healthy"]);
    assert_eq!((code(&mended), stderr(&mended)), (0, String::new()));
    assert!(stdout(&mended).starts_with("better: none new, "), "{}", stdout(&mended));
    let broken = run(&here, &["compare", "runs/healthy", "runs/sick", "--format", "json"]);
    assert_eq!(code(&broken), 1);
    let document: Value = serde_json::from_str(&stdout(&broken)).unwrap();
    assert_eq!((&document["judgement"], &document["base"]["health"]), (&"worse".into(), &"healthy".into()));
    assert!(document["findings"]["new"].as_array().is_some_and(|new| !new.is_empty()), "{document}");
    assert_eq!(code(&run(&here, &["compare", "runs/sick", "runs/sick"])), 0, "what was there before is not new");
    assert_eq!(code(&run(&here, &["compare", "runs/healthy", "runs/blind"])), 3);
    let missing = run(&here, &["compare", "runs/helthy", "runs/sick"]);
    assert_eq!(code(&missing), 2);
    assert!(stderr(&missing).contains("Did you mean runs/healthy?"), "{}", stderr(&missing));
}

#[test]
fn a_check_is_printed_in_every_form_and_its_exit_status_is_the_same() {
    let here = here();
    for (format, beginning) in [
        ("brief", "findings: 1 error"),
        ("json", "{\n"),
        ("junit", "<?xml"),
        ("layers", "One value a step"),
        ("markdown", "## ampdoctor: sick\n\nfindings: "),
        ("text", "findings: 1 error"),
    ] {
        let output = run(&here, &["check", "runs/sick", "--format", format]);
        assert_eq!(code(&output), 1, "{format}");
        assert!(stdout(&output).starts_with(beginning), "{format}: {}", stdout(&output));
        assert_eq!(output.stdout, run(&here, &["report", "runs/sick", "--format", format]).stdout, "{format}");
    }
    assert_eq!(ampdoctor::report::FORMATS.len(), 6, "each is tried");
}

#[test]
fn a_configuration_is_read_without_a_run() {
    let here = here();
    let output = run(&here, &["config"]);
    assert_eq!((code(&output), stdout(&output)), (2, String::new()), "there is none here");
    fs::write(here.path().join("ampdoctor.toml"), "[rules.AMP301]\nskip-share = 0.5\n[layers.fd2.AMP101]\nnear = 2\n")
        .unwrap();
    let output = run(&here, &["config"]);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    assert!(stdout(&output).contains("scale-thrash skip-share = 0.5 (default 0.02)"), "{}", stdout(&output));
    let said = stdout(&run(&here, &["check", "runs/healthy"]));
    assert!(said.contains("no layer of this run matches `fd2` of the configuration. Did you mean `fc2`?"), "{said}");
    fs::write(here.path().join("wrong.toml"), "[rules.AMP31]\n[rules.AMP301]\nskip-shar = 0.5\n").unwrap();
    let output = run(&here, &["config", "wrong.toml"]);
    assert_eq!((code(&output), stdout(&output)), (2, String::new()));
    assert!(
        stderr(&output).contains("wrong.toml:1") && stderr(&output).contains("wrong.toml:3"),
        "{}",
        stderr(&output)
    );
}
