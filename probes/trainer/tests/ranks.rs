//! Ranks as processes of their own: they write without knowing of each other, and are held against one another when they are read.

mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ampdoctor::recording::{Records, recording_path, runs_within};
use ampdoctor::report::{Layout, RunRecording, read_run, text};
use ampdoctor::rules::whatif::WhatIf;
use ampdoctor::rules::{Finding, Health};
use common::{Run, trainer};

const RANKS: u32 = 4;
const STEPS: u64 = 120;
/// A scale that every seed bears from the start: ranks that do not average their gradients search for one each by itself.
const SCALE: f64 = 1024.0;

/// One rank, as `torchrun` starts it: with its own data and, since nobody averages anything here, its own weights.
fn rank(run: &Path, number: u32, arguments: &str) -> Command {
    let of =
        |flag: &str, value: String| if arguments.contains(flag) { String::new() } else { format!("{flag} {value}") };
    let (steps, scale) = (of("--steps", STEPS.to_string()), of("--init-scale", SCALE.to_string()));
    let common = format!("--model mlp --precision fp16 --optimizer sgd {steps} {scale}");
    let mut command = trainer(&format!("{common} --seed {number} --run {} {arguments}", run.display()));
    command.env("RANK", number.to_string()).env("WORLD_SIZE", RANKS.to_string());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn end(children: Vec<Child>) {
    for mut child in children {
        assert!(child.wait().expect("it can be waited for").success());
    }
}

/// Four ranks, of which one has other arguments.
fn four(run: &Path, other: u32, arguments: &str) -> RunRecording {
    let of = |number| rank(run, number, if number == other { arguments } else { "" }).spawn().expect("it starts");
    end((0..RANKS).map(of).collect());
    read_run(run, &mut |_| ()).expect("recordings")
}

fn across(recording: &RunRecording) -> Vec<(u32, &'static str)> {
    recording.run().across().iter().map(|of| (of.rank, of.item.code)).collect()
}

#[test]
fn four_healthy_ranks_are_one_healthy_run() {
    let run = Run::new();
    let recording = four(&run.dir(), 0, "");
    let of = recording.run();
    assert_eq!((across(&recording), of.worst_rank(), of.world_size()), (vec![], None, Some(RANKS)));
    assert_eq!(of.health(), Health::Healthy, "{}", text(&of, &Layout { width: 100, colour: false }));
    assert_eq!(of.ranks.iter().map(|rank| rank.number()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let aggregates: Vec<_> = of.ranks.iter().map(|rank| rank.aggregate).collect();
    assert_eq!(WhatIf::of(&aggregates).scanned_steps, STEPS, "of each");
    let scans = |site: usize| aggregates.iter().map(|a| a.sites[site].samples).sum::<u64>();
    assert_eq!(scans(0), u64::from(RANKS) * STEPS);
}

#[test]
fn the_rank_that_makes_a_nan_is_named_in_the_merged_view() {
    let run = Run::new();
    let recording = four(&run.dir(), 2, "--fault nan@60:fc2");
    let of = recording.run();
    let told = text(&of, &Layout { width: 200, colour: false });
    assert_eq!(across(&recording), [(2, "AMP803")], "{told}");
    let Finding { onset_step, consequences, .. } = &of.across()[0].item;
    assert_eq!((*onset_step, consequences.iter().map(|f| f.code).collect::<Vec<_>>()), (60, vec!["AMP801"]), "{told}");
    assert_eq!((of.worst_rank(), of.health()), (Some(2), Health::Findings), "{told}");
    assert!(of.findings().iter().all(|found| found.rank == 2), "{told}");
    assert!(told.contains("rank 2 of 4") && told.contains("The worst of 4 ranks is rank 2"), "{told}");
}

#[test]
fn the_rank_with_a_scale_of_its_own_is_named() {
    let run = Run::new();
    let recording = four(&run.dir(), 3, "--init-scale 512");
    assert_eq!(across(&recording), [(3, "AMP801")]);
}

#[test]
fn a_rank_that_is_killed_and_one_that_never_came_are_named() {
    let run = Run::new();
    // However slow the machine is, the others are at it for longer.
    let others: Vec<Child> =
        [0, 2].map(|number| rank(&run.dir(), number, "--steps 800").spawn().expect("it starts")).into();
    let mut killed = rank(&run.dir(), 1, "--steps 2000").spawn().expect("it starts");
    let began = Instant::now();
    // A recording that is over before another begins is taken for one of an earlier run.
    let have = |number, least| steps(&recording_path(&run.dir(), number)) >= least;
    while !(have(0, 1) && have(1, 20) && have(2, 1)) && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    killed.kill().expect("it runs");
    killed.wait().expect("it is gone");
    end(others);
    let recording = read_run(&run.dir(), &mut |_| ()).expect("recordings");
    let mut found = across(&recording);
    found.sort();
    assert_eq!(found, [(1, "AMP802"), (3, "AMP802")]);
    assert_eq!(recording.run().health(), Health::Findings);
}

/// Steps in a recording, as far as it goes; none where there is none.
fn steps(path: &Path) -> u64 {
    let Ok(mut records) = Records::open(path) else { return 0 };
    records.by_ref().for_each(drop);
    records.integrity().last_step.map_or(0, |last| last + 1)
}

#[test]
fn two_processes_without_a_rank_leave_each_other_the_recording() {
    let run = Run::new();
    let alone = |steps: u64| {
        let mut command = rank(&run.dir(), 0, &format!("--steps {steps}"));
        for name in ["RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"] {
            command.env_remove(name);
        }
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    };
    let mut first = alone(1_000_000).spawn().expect("it starts");
    let began = Instant::now();
    while steps(&run.recording()) == 0 && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = alone(30).output().expect("it starts");
    let (before, began) = (steps(&run.recording()), Instant::now());
    while steps(&run.recording()) == before && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(steps(&run.recording()) > before, "the first goes on where it was");
    first.kill().expect("it runs");
    first.wait().expect("it is gone");
    let [own] = &runs_within(&run.dir())[..] else { panic!("{:?}", runs_within(&run.dir())) };
    assert_eq!(steps(&recording_path(own, 0)), 30, "and the second loses nothing");
    assert!(common::said(&second).contains("records rank 0 in"), "{}", common::said(&second));
    assert!(!run.dir().join("rank-0.amprec.1").exists());
}

#[test]
fn what_is_no_rank_is_said() {
    let run = Run::new();
    let mut command = rank(&run.dir(), 0, "--steps 3");
    let output = command.env("RANK", "first").stderr(Stdio::piped()).output().expect("it starts");
    assert!(common::said(&output).contains("RANK is \"first\" and not a whole number"), "{}", common::said(&output));
    assert_eq!(steps(&run.recording()), 3);
}
