//! A limit on the size of files (`ulimit -f`) ends the recording, and not the training.

#![cfg(unix)]

use std::path::Path;
use std::process::Command;

use ampdoctor::observation::EndReason;
use ampdoctor::recording::{Recorder, WriteError, read_run};

use crate::sample::{observed, run_info, site};

/// Where the process with the limit records.
const RUN: &str = "AMPDOCTOR_TEST_LIMITED_RUN";

/// Not a test: the process with the limit. Its last line says how the recording ended.
#[test]
#[ignore = "started by the tests below"]
fn the_process_with_a_limit() {
    let Some(run) = std::env::var_os(RUN) else { return };
    let mut recorder = match Recorder::create(Path::new(&run), &run_info()) {
        Ok(recorder) => recorder,
        Err(error) => return println!("not created: {error}"),
    };
    let sites: Vec<_> = (0..50).map(|i| recorder.intern(&site(&format!("layer.{i}")))).collect();
    let mut index = 0;
    while index < 2000 && recorder.failure().is_none() {
        index += u64::from(recorder.step(observed(index, &sites)));
    }
    match recorder.finish(EndReason::Finished) {
        Err(error @ WriteError::Write { .. }) => println!("not written: {error}"),
        other => println!("unexpected: {other:?}"),
    }
}

/// What the process says under `ulimit -f blocks`.
fn limited(blocks: u32, run: &Path) -> String {
    let output = Command::new("sh")
        .args(["-c", &format!("ulimit -f {blocks}; exec \"$0\" \"$@\"")])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "--nocapture", "file_limit::the_process_with_a_limit"])
        .env(RUN, run)
        .output()
        .expect("started");
    assert!(output.status.success(), "the training lives on: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_file_size_limit_ends_the_recording_and_not_the_training() {
    let dir = tempfile::tempdir().expect("a folder");
    let said = limited(20, dir.path());
    assert!(said.contains("not written: writing the recording failed (File too large"), "{said}");
    let mut reading = read_run(dir.path()).expect("a recording");
    assert!(reading.by_ref().count() > 1, "what was written before is there");
    assert!(reading.integrity().is_cut());
    assert_eq!(reading.integrity().damage_count, 0);
}

#[test]
fn a_limit_that_leaves_no_room_for_the_first_record_refuses_to_create() {
    let dir = tempfile::tempdir().expect("a folder");
    let said = limited(0, dir.path());
    assert!(said.contains("not created: writing the recording failed (File too large"), "{said}");
}
