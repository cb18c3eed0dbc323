//! Reports: what is in them, their forms, and the file that one is written to.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::recordings::ONSET;
use crate::{code, here, report, run, stderr, stdout};

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
    assert_eq!(finding["onset_step"], ONSET);
    assert_eq!(report["ranks"][0]["timeline"]["loss"][ONSET as usize], "NaN");
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
