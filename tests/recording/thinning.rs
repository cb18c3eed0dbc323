//! Recordings that are longer than their limit, written by the recorder and read by everybody.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use ampdoctor::aggregate::Aggregate;
use ampdoctor::observation::scenario::{Scenario, StepBuilder, normal};
use ampdoctor::observation::{Cost, EndReason, Record, Step, Thinned, Tier};
use ampdoctor::recording::{Follower, News, Recorder, Records, recording_path};
use ampdoctor::rules::Diagnosis;
use ampdoctor::scan::Dtype::{F16, F32};

const LIMIT: u64 = 256 << 10;
const SCALE: f64 = 65536.0;
/// Steps that may be kept because of the note that the queue was full: it depends on how fast the disk is.
const NOTED: usize = 4;
const LAYERS: [&str; 3] = ["fc1", "fc2", "fc3"];

/// A step of a healthy run, of which there are 16 different ones.
fn healthy(s: &mut StepBuilder<'_>, i: u64) {
    s.loss(2.0 / (1.0 + i as f64 / 500.0) + 0.05 * (i as f64 * 1.7).sin()).applied(SCALE);
    for (k, layer) in LAYERS.iter().enumerate() {
        let seed = i % 16 * 8 + k as u64;
        s.activation(layer, "linear", F16, &normal(256, 2.0, seed));
        s.gradient(layer, "linear", F16, &normal(256, 1e-4 * SCALE, seed));
        s.param_grad(layer, "weight", F32, &normal(64, 1e-4 * SCALE, seed));
    }
}

/// The records of a run of `steps`, each as `build` has it.
fn run(steps: u64, build: impl Fn(&mut StepBuilder<'_>, u64)) -> Vec<Record> {
    let mut run = Scenario::new();
    run.dynamic_scaler(SCALE).steps(steps, |s, i| build(s, i));
    run.records().to_vec()
}

/// Records a run within a limit, and asks after each step.
fn record(dir: &Path, records: &[Record], limit: u64, mut ask: impl FnMut(&Path)) -> Aggregate {
    let path = recording_path(dir, 0);
    let Some((Record::Run(info), rest)) = records.split_first() else { panic!("a run begins with itself") };
    let mut recorder = Recorder::create_within(dir, info, Some(limit)).expect("a recorder");
    for record in rest {
        match record {
            Record::Site(_, site) => drop(recorder.intern(site)),
            Record::Scaler(config) => recorder.scaler(config.clone()),
            Record::Step(step) => {
                while !recorder.step(step.clone()) {
                    std::thread::sleep(Duration::from_micros(50));
                }
                ask(&path);
            }
            _ => {}
        }
    }
    recorder.finish(EndReason::Finished).expect("written");
    ask(&path);
    aggregate(&path)
}

fn read(path: &Path) -> Vec<Record> {
    let mut records = Records::open(path).expect("there");
    let read = records.by_ref().map(|record| record.expect("readable")).collect();
    assert!(records.integrity().is_whole(), "{}", records.integrity());
    read
}

fn aggregate(path: &Path) -> Aggregate {
    let mut aggregate = Aggregate::default();
    read(path).into_iter().for_each(|record| aggregate.apply(record));
    aggregate
}

fn steps(records: &[Record]) -> impl Iterator<Item = &Step> {
    records.iter().filter_map(|record| if let Record::Step(step) = record { Some(step) } else { None })
}

fn scanned(records: &[Record]) -> BTreeSet<u64> {
    steps(records).filter(|step| step.tier == Tier::Full).map(|step| step.index).collect()
}

fn size(path: &Path) -> u64 {
    path.metadata().map_or(0, |metadata| metadata.len())
}

fn thinned(aggregate: &Aggregate) -> Thinned {
    aggregate.instrument.thinned.clone().expect("it was thinned")
}

#[test]
fn a_long_recording_stays_below_its_limit_at_all_times_and_is_thinned_evenly() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut largest = 0;
    let all = run(6000, healthy);
    let found = record(dir.path(), &all, 4 * LIMIT, |path| largest = largest.max(size(path)));
    assert!(largest <= 4 * LIMIT && largest > 2 * LIMIT, "{largest}");
    let left = read(&recording_path(dir.path(), 0));
    let Thinned { until, stride, lightened, removed, lightened_events, .. } = thinned(&found);
    let older: BTreeSet<u64> = scanned(&left).into_iter().filter(|step| (64..until).contains(step)).collect();
    let expected: BTreeSet<u64> = (64..until).filter(|step| step % stride == 0).collect();
    assert!(stride > 1 && expected.len() > 4, "{stride}, {until}");
    assert!(older.is_superset(&expected), "evenly");
    assert!(older.len() <= expected.len() + NOTED, "{:?}", older.difference(&expected));
    assert_eq!(lightened_events, 0, "a healthy run has few");
    assert!((until..6000).all(|step| scanned(&left).contains(&step)), "the latest are all there");
    assert_eq!((found.instrument.steps, steps(&left).count() as u64 + removed), (6000, 6000));
    assert!(lightened > 1000, "{lightened}");
}

#[test]
fn where_the_light_steps_alone_are_too_many_they_go_evenly_too_and_are_counted() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut largest = 0;
    let found = record(dir.path(), &run(8000, healthy), LIMIT / 2, |path| largest = largest.max(size(path)));
    assert!(largest <= LIMIT / 2, "{largest}");
    let thinned = thinned(&found);
    assert!(thinned.removed > 4000 && thinned.stride < 4096, "{thinned:?}");
    assert_eq!((found.instrument.steps, found.instrument.step_ns), (8000, 8_000_000_000));
    let left = read(&recording_path(dir.path(), 0));
    let older: Vec<u64> =
        steps(&left).map(|step| step.index).filter(|step| (64..thinned.until).contains(step)).collect();
    let gaps = || older.windows(2).map(|pair| pair[1] - pair[0]);
    let usual = gaps().max().expect("some are left");
    assert!(gaps().filter(|gap| *gap != usual).count() <= 2 * NOTED, "evenly: {older:?}");
}

#[test]
fn no_event_is_lost_and_the_findings_stay() {
    let events = [700u64, 1900, 3300];
    let build = |s: &mut StepBuilder<'_>, i: u64| {
        healthy(s, i);
        if events.contains(&i) {
            s.activation("fc2", "log", F16, &[f64::NAN, 1.0]).skipped(SCALE, SCALE).loss(f64::NAN);
        }
    };
    let (dir, all) = (tempfile::tempdir().expect("a folder"), run(5000, build));
    let found = record(dir.path(), &all, 2 * LIMIT, |_| ());
    let path = recording_path(dir.path(), 0);
    let left = read(&path);
    assert!(thinned(&found).lightened > 500);
    for event in events {
        for step in event - 1..=event + 1 {
            // How many steps were refused and tried again is a matter of this test.
            let of = |records: &[Record]| {
                steps(records).find(|s| s.index == step).map(|s| Step { cost: Cost::default(), ..s.clone() })
            };
            assert_eq!(format!("{:?}", of(&left)), format!("{:?}", of(&all)), "step {step} is as it was recorded");
        }
    }
    let diagnose = |records: &[Record]| {
        let mut diagnosis = Diagnosis::new();
        records.iter().cloned().for_each(|record| diagnosis.apply(record));
        // Steps that were refused by a full queue, and handed over again, are none that are missing.
        let found = diagnosis.findings().iter().filter(|f| f.code != "AMP002");
        found.map(|f| (f.code, f.layer.clone(), f.onset_step)).collect::<Vec<_>>()
    };
    let (before, after) = (diagnose(&all), diagnose(&left));
    assert!(!before.is_empty());
    assert_eq!(after, before);
    assert_eq!(found.scaler.skipped, 3);
}

#[test]
fn where_everything_is_an_event_the_events_stay_without_their_tensors() {
    let build = |s: &mut StepBuilder<'_>, i: u64| {
        healthy(s, i);
        s.moved(SCALE, if i.is_multiple_of(2) { SCALE / 2.0 } else { 2.0 * SCALE });
    };
    let dir = tempfile::tempdir().expect("a folder");
    let all = run(1200, build);
    let mut largest = 0;
    let found = record(dir.path(), &all, 2 * LIMIT, |path| largest = largest.max(size(path)));
    assert!(largest <= 2 * LIMIT, "{largest}");
    assert!(thinned(&found).lightened_events > 100, "{:?}", thinned(&found));
    assert_eq!((thinned(&found).removed, found.scaler.growths, found.scaler.backoffs), (0, 600, 600));
}

#[test]
fn a_follower_reads_on_across_a_thinning_and_sees_each_of_the_latest_steps() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut follower = Follower::new(&recording_path(dir.path(), 0));
    let (mut seen, mut thinnings, mut aggregate) = (BTreeSet::new(), 0, Aggregate::default());
    let mut poll = |follower: &mut Follower| {
        while let Some(news) = follower.poll().expect("readable") {
            match news {
                News::Record(record) => {
                    if let Record::Step(step) = &record {
                        seen.insert(step.index);
                    }
                    aggregate.apply(record);
                }
                News::Rewritten => (thinnings, aggregate) = (thinnings + 1, Aggregate::default()),
                News::Restarted => panic!("it is the same run"),
            }
        }
    };
    let written = record(dir.path(), &run(3000, healthy), LIMIT, |_| poll(&mut follower));
    let deadline = Instant::now() + Duration::from_secs(10);
    while !follower.ended() && Instant::now() < deadline {
        poll(&mut follower);
    }
    assert!(thinnings > 0);
    assert_eq!(aggregate.instrument, written.instrument, "in the end it knows what the file says");
    assert_eq!(seen.len(), 3000, "and no step went by unseen");
}

#[test]
fn a_recording_that_was_moved_is_not_put_back_by_its_copy() {
    let dir = tempfile::tempdir().expect("a folder");
    let (path, elsewhere) = (recording_path(dir.path(), 0), dir.path().join("elsewhere"));
    let Some((Record::Run(info), rest)) = run(1500, healthy).split_first().map(|(a, b)| (a.clone(), b.to_vec())) else {
        panic!("a run")
    };
    let mut recorder = Recorder::create_within(dir.path(), &info, Some(LIMIT)).expect("a recorder");
    for (n, record) in rest.iter().enumerate() {
        match record {
            Record::Site(_, site) => drop(recorder.intern(site)),
            Record::Step(step) => {
                while !recorder.step(step.clone()) {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
            _ => {}
        }
        if n == 20 {
            std::fs::rename(&path, &elsewhere).expect("moved");
        }
    }
    let error = recorder.finish(EndReason::Finished).expect_err("it is gone");
    assert!(error.to_string().contains("deleted or moved"), "{error}");
    let names: Vec<_> = std::fs::read_dir(dir.path()).expect("listed").flatten().map(|entry| entry.path()).collect();
    assert_eq!(names, std::slice::from_ref(&elsewhere), "and no copy is left");
    let is_ours = |record: &Record| matches!(record, Record::Note(note) if note.text.contains("could not be thinned"));
    let notes = read(&elsewhere).into_iter().filter(is_ours).count();
    assert_eq!((notes, steps(&read(&elsewhere)).count()), (1, 1500), "nothing is lost, and it says that it may grow");
}

#[test]
fn a_recording_without_a_limit_grows() {
    let dir = tempfile::tempdir().expect("a folder");
    let found = record(dir.path(), &run(2000, healthy), u64::MAX, |_| ());
    assert_eq!((found.instrument.thinned, found.instrument.full_steps), (None, 2000));
}
