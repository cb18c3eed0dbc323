//! A trainer that is killed with SIGKILL leaves a recording that reads to its last whole frame.

#![cfg(unix)]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ampdoctor::observation::Record;
use ampdoctor::recording::{Recorder, read_run};

use crate::sample::{observed, run_info, site};

/// Where the process that is to be killed records.
const RUN: &str = "AMPDOCTOR_TEST_RUN";

/// Not a test: the process that is killed. Records steps for ten seconds at most.
#[test]
#[ignore = "started by the test below"]
fn the_process_that_is_killed() {
    let Some(run) = std::env::var_os(RUN) else { return };
    let mut recorder = Recorder::create(Path::new(&run), &run_info()).expect("a recorder");
    let sites: Vec<_> = (0..200).map(|i| recorder.intern(&site(&format!("layer.{i}")))).collect();
    let start = Instant::now();
    let mut index = 0;
    while start.elapsed() < Duration::from_secs(10) {
        index += u64::from(recorder.step(observed(index, &sites)));
    }
}

#[test]
fn a_killed_run_reads_to_its_last_whole_frame() {
    let program = std::env::current_exe().expect("this program");
    let mut steps = 0;
    for moment in 0..20 {
        let dir = tempfile::tempdir().expect("a folder");
        let mut child = Command::new(&program)
            .args(["--ignored", "--exact", "killed::the_process_that_is_killed"])
            .env(RUN, dir.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("started");
        let deadline = Instant::now() + Duration::from_secs(10);
        while !has_step(dir.path()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(moment * 1700));
        child.kill().expect("killed");
        child.wait().expect("gone");

        let mut reading = read_run(dir.path()).expect("a recording");
        let read: Vec<Record> = reading.by_ref().collect::<Result<_, _>>().expect("readable");
        let indices: Vec<u64> =
            read.iter().filter_map(|r| if let Record::Step(s) = r { Some(s.index) } else { None }).collect();
        assert_eq!(indices, (0..indices.len() as u64).collect::<Vec<_>>(), "no step is missing");
        assert!(reading.integrity().is_cut());
        assert_eq!(reading.integrity().damage_count, 0);
        steps += indices.len();
    }
    assert!(steps > 20, "the processes recorded something before they were killed");
}

fn has_step(run: &Path) -> bool {
    read_run(run).is_ok_and(|records| records.flatten().any(|record| matches!(record, Record::Step(_))))
}
