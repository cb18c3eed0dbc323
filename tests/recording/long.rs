//! A million steps: what the recorder holds in memory, and what a reader that follows it does, are the same after a tenth of them and after all.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Command, Stdio};

use ampdoctor::aggregate::Aggregate;
use ampdoctor::observation::scenario::{Scenario, normal};
use ampdoctor::observation::{EndReason, Record, Step};
use ampdoctor::recording::{Follower, News, Recorder, recording_path};
use ampdoctor::scan::Dtype::{F16, F32};

/// Where the process that is measured records.
const RUN: &str = "AMPDOCTOR_TEST_RUN";
const STEPS: u64 = 1_000_000;
const LIMIT: u64 = 4 << 20;
/// Both sides at rest take this much more or less from one time to the next.
const NOISE_KB: u64 = 4 << 10;

/// Not a test: the process whose memory is measured, so that no other test is measured with it. It records a million steps, and follows its own recording as `watch` does.
#[test]
#[ignore = "started by the test below"]
fn the_process_that_is_measured() {
    let Some(run) = std::env::var_os(RUN) else { return };
    let run = Path::new(&run);
    let mut scenario = Scenario::new();
    scenario.dynamic_scaler(1024.0).steps(16, |s, i| {
        s.loss(1.0).applied(1024.0).activation("fc", "linear", F16, &normal(64, 1.0, i));
        s.param_grad("fc", "weight", F32, &normal(64, 1.0, i));
    });
    let step = |record: &Record| if let Record::Step(step) = record { Some(step.clone()) } else { None };
    let templates: Vec<Step> = scenario.records().iter().filter_map(step).collect();
    let Some(Record::Run(info)) = scenario.records().first() else { panic!("a run begins with itself") };
    let mut recorder = Recorder::create_within(run, info, Some(LIMIT)).expect("a recorder");
    for record in scenario.records() {
        if let Record::Site(_, site) = record {
            recorder.intern(site);
        }
    }
    let mut follower = Follower::new(&recording_path(run, 0));
    let (mut aggregate, mut rewritten, mut early) = (Aggregate::default(), 0, 0);
    for index in 0..STEPS {
        let template = &templates[index as usize % templates.len()];
        let step = Step { index, time_ns: index * 1_000_000, ..template.clone() };
        while !recorder.step(step.clone()) {
            std::thread::yield_now();
        }
        if index % 64 == 0 {
            while let Some(news) = follower.poll().expect("readable") {
                match news {
                    News::Record(record) => aggregate.apply(record),
                    News::Rewritten => (aggregate, rewritten) = (Aggregate::default(), rewritten + 1),
                    News::Restarted => panic!("it is the same run"),
                }
            }
        }
        if index == STEPS / 10 {
            early = resident_kb();
        }
    }
    let late = resident_kb();
    recorder.finish(EndReason::Finished).expect("written");
    let size = recording_path(run, 0).metadata().expect("there").len();
    println!("numbers: {early} {late} {size} {rewritten}");
}

fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory");
    line.split_whitespace().next().and_then(|kb| kb.parse().ok()).expect("in kB")
}

#[test]
fn the_memory_of_a_million_steps_is_that_of_a_hundred_thousand() {
    let dir = tempfile::tempdir().expect("a folder");
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "--nocapture", "long::the_process_that_is_measured"])
        .env(RUN, dir.path())
        .stderr(Stdio::inherit())
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let measured = text.lines().find_map(|line| line.split_once("numbers: ").map(|(_, numbers)| numbers.to_owned()));
    let numbers: Vec<u64> =
        measured.unwrap_or_else(|| panic!("{text}")).split(' ').map(|n| n.parse().expect("a number")).collect();
    let [early, late, size, rewritten] = numbers[..] else { panic!("{numbers:?}") };
    assert!(late <= early + NOISE_KB, "{early} kB after a tenth, {late} kB after all");
    assert!(size <= LIMIT, "{size} bytes");
    assert!(rewritten > 3, "the follower met {rewritten} thinnings");
}
