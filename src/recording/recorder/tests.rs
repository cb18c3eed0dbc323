//! The recorder before disks that are slow, full, or hang.

use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use super::*;
use crate::observation::{Cost, Probe, Sampling, Tier};
use crate::recording::Decoder;
use crate::scan::{Dtype, ExponentHistogram, Fidelity, Stats};

/// A disk that takes the first write, and others when it is open.
#[derive(Clone, Default)]
struct Disk(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    open: bool,
    /// A write waits for it to open.
    waited_for: bool,
    bytes: Vec<u8>,
    writes: usize,
    /// Writes that it takes before it is full.
    room: Option<usize>,
}

impl Disk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().expect("no test panics while it holds the disk")
    }

    fn open(&self) {
        self.state().open = true;
        self.0.1.notify_all();
    }

    fn full_after(writes: usize) -> Self {
        let disk = Self::default();
        disk.open();
        disk.state().room = Some(writes);
        disk
    }

    fn records(&self) -> Vec<Record> {
        let mut decoder = Decoder::new();
        decoder.push(&self.state().bytes);
        std::iter::from_fn(|| decoder.next_record().expect("ours")).collect()
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        while !state.open && state.writes > 0 {
            state.waited_for = true;
            state = self.0.1.wait(state).expect("no test panics while it holds the disk");
        }
        if state.room == Some(state.writes) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.writes += 1;
        state.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Disk {
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn lies_at(&self, _: &Path) -> bool {
        true
    }
}

/// What gathers is written when something asks for it, and never because time has passed.
const NEVER: Duration = Duration::from_secs(3600);

fn recorder(disk: &Disk) -> Recorder {
    let info = RunInfo {
        name: "run".into(),
        command: vec![],
        started_unix_ms: 0,
        pid: 1,
        rank: 0,
        world_size: None,
        producer: "test".into(),
        framework: "none".into(),
        device: "cpu".into(),
        threads: 1,
        sampling: Sampling::Every(1),
        parameters: vec![],
    };
    Recorder::start(disk.clone(), PathBuf::from("test.amprec"), &info, None, NEVER).expect("a recorder")
}

fn site(layer: &str) -> Site {
    let (operator, tensor) = (String::new(), "weight".into());
    Site { layer: layer.into(), operator, tensor, probe: Probe::Param, dtype: Dtype::F32 }
}

fn step(index: u64, observations: Vec<Observation>) -> Step {
    Step {
        index,
        time_ns: index,
        tier: Tier::Full,
        observations,
        loss: Some(1.0),
        loss_scale: None,
        scaler: vec![],
        recipe: vec![],
        lr: None,
        metrics: vec![],
        cost: Cost::default(),
    }
}

/// An observation that takes about 17 KB.
fn wide(site: SiteId) -> Observation {
    let exponents = ExponentHistogram::from_counts(-1074, [1; 2098]);
    let stats = Stats { count: 2098, min_abs: f64::from_bits(1), max_abs: f64::MAX, exponents, ..Stats::default() };
    Observation::new(site, stats)
}

fn steps(records: &[Record]) -> Vec<&Step> {
    records.iter().filter_map(|r| if let Record::Step(step) = r { Some(step) } else { None }).collect()
}

fn wait_for(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(20), "it never happened");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_full_queue_drops_steps_counts_them_and_loses_no_site() {
    let disk = Disk::default();
    let mut recorder = recorder(&disk);
    let first = recorder.intern(&site("first"));
    assert!(recorder.step(step(0, vec![wide(first)])));
    wait_for(|| disk.state().waited_for);
    while recorder.dropped_steps() == 0 {
        recorder.step(step(1, vec![]));
    }
    let late = recorder.intern(&site("late"));
    assert!(!recorder.step(step(100, vec![wide(late)])));
    let (taken, dropped) = (recorder.steps, recorder.dropped_steps());
    assert!(dropped >= 2 && taken - dropped == QUEUE as u64 + 1, "{dropped} of {taken} dropped");

    disk.open();
    wait_for(|| recorder.shared.queued.load(Ordering::Relaxed) == 0);
    assert!(recorder.step(step(200, vec![wide(late)])));
    recorder.finish(EndReason::Finished).expect("written");

    let records = disk.records();
    let last = *steps(&records).last().expect("a step");
    assert_eq!((last.index, last.cost.dropped_steps, last.observations.len()), (200, dropped, 1));
    assert_eq!(steps(&records).len() as u64, taken + 1 - dropped);
    let notes: Vec<_> =
        records.iter().filter_map(|r| if let Record::Note(n) = r { Some(n.kind) } else { None }).collect();
    assert_eq!(notes, [NoteKind::Dropped], "noted once");
    let end = Record::End(End { steps: taken + 1, dropped_steps: dropped, reason: EndReason::Finished });
    assert_eq!(records.last(), Some(&end));
}

#[test]
fn the_memory_of_waiting_steps_is_bounded() {
    let disk = Disk::default();
    let mut recorder = recorder(&disk);
    let id = recorder.intern(&site("fc"));
    let large = |index| step(index, (0..200).map(|_| wide(id)).collect());
    let one = memory(&large(0));
    let accepted = (0..40).filter(|&index| recorder.step(large(index))).count();
    assert_eq!(accepted, QUEUE_BYTES / one, "each takes {one} bytes");
    let huge = step(41, (0..5000).map(|_| wide(id)).collect());
    disk.open();
    wait_for(|| recorder.shared.queued.load(Ordering::Relaxed) == 0);
    assert!(!recorder.step(huge), "larger than the whole queue");
    assert!(recorder.step(step(42, vec![])));
    recorder.finish(EndReason::Finished).expect("written");
    assert_eq!(steps(&disk.records()).len(), accepted + 1);
}

#[test]
fn notes_wait_for_room_and_what_is_lost_of_them_is_told() {
    let disk = Disk::default();
    let mut recorder = recorder(&disk);
    let note = |step| Note { step, kind: NoteKind::Information, text: "hello".into() };
    let many = (QUEUE + PENDING) as u64 + 100;
    recorder.note(note(0));
    wait_for(|| disk.state().waited_for);
    (1..many).for_each(|step| recorder.note(note(step)));
    let lost = recorder.lost_notes;
    assert_eq!(lost, 99, "one is being written");
    disk.open();
    recorder.finish(EndReason::Finished).expect("written");
    let records = disk.records();
    let kept: Vec<u64> =
        records.iter().filter_map(|r| if let Record::Note(n) = r { Some(n.step) } else { None }).collect();
    assert_eq!(kept[..kept.len() - 1], (0..many - lost).collect::<Vec<_>>(), "in order, none between lost");
    let told = format!("{lost} notes were dropped while the recorder's queue was full.");
    assert!(matches!(&records[records.len() - 2], Record::Note(n) if n.text == told));
}

/// The first steps have been written, and what comes now gathers.
fn begun(disk: &Disk) -> Recorder {
    disk.open();
    let mut recorder = recorder(disk);
    assert!((0..FIRST_STEPS).all(|index| recorder.step(step(index, vec![]))));
    wait_for(|| steps(&disk.records()).len() as u64 == FIRST_STEPS);
    // The last of them may have been written before it was asked for.
    *recorder.shared.hurried.lock().expect("no test panics while it holds it") = false;
    recorder
}

#[test]
fn steps_gather_until_the_queue_is_half_full() {
    let disk = Disk::default();
    let mut recorder = begun(&disk);
    let writes = disk.state().writes;
    let mut index = FIRST_STEPS;
    while disk.state().writes == writes {
        assert!(recorder.step(step(index, vec![])), "none is dropped before the writer is woken");
        index += 1;
        thread::sleep(Duration::from_millis(2));
    }
    assert!(index > FIRST_STEPS + QUEUE as u64 / 2, "{index}");
    recorder.finish(EndReason::Finished).expect("written");
    let records = disk.records();
    assert!(steps(&records).iter().map(|step| step.index).eq(0..index));
    assert!(disk.state().writes <= writes + 3, "with one call what has gathered");
}

#[test]
fn what_a_viewer_must_not_miss_does_not_gather() {
    let stepped = |applied| ScalerEvent::Stepped { optimizer: 0, applied };
    let with = |loss, event| Step { loss: Some(loss), scaler: vec![event], ..step(9, vec![]) };
    for urgent in [with(f64::NAN, stepped(true)), with(1.0, stepped(false))] {
        let disk = Disk::default();
        let mut recorder = begun(&disk);
        recorder.step(with(1.0, stepped(true)));
        recorder.step(urgent);
        wait_for(|| steps(&disk.records()).len() as u64 == FIRST_STEPS + 2);
    }
    let disk = Disk::default();
    let mut recorder = begun(&disk);
    recorder.step(with(1.0, stepped(true)));
    thread::sleep(Duration::from_millis(20));
    assert_eq!(steps(&disk.records()).len() as u64, FIRST_STEPS, "this one gathers");
    recorder.note(Note { step: 9, kind: NoteKind::Detached, text: "why".into() });
    wait_for(|| matches!(disk.records().last(), Some(Record::Note(_))));
}

#[test]
fn the_end_does_not_wait_for_more_to_gather() {
    let disk = Disk::default();
    let mut recorder = begun(&disk);
    recorder.step(step(9, vec![]));
    let began = Instant::now();
    recorder.finish(EndReason::Finished).expect("written");
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(matches!(disk.records().last(), Some(Record::End(end)) if end.steps == FIRST_STEPS + 1));
}

#[test]
fn a_full_disk_ends_writing_and_not_the_training() {
    let disk = Disk::full_after(3);
    let mut recorder = recorder(&disk);
    let start = Instant::now();
    let mut index = 0;
    while recorder.failure().is_none() {
        assert!(start.elapsed() < Duration::from_secs(20), "the disk is full after three writes");
        recorder.step(step(index, vec![]));
        index += 1;
    }
    let dropped = recorder.dropped_steps();
    assert!((0..1000).all(|i| !recorder.step(step(index + i, vec![]))), "nothing is accepted any more");
    assert_eq!(recorder.dropped_steps(), dropped + 1000);
    assert!(recorder.pending.len() <= 1, "nothing piles up for a writer that has given up");
    let records = disk.records();
    let written = steps(&records);
    assert!(matches!(records[0], Record::Run(_)));
    assert!(written.len() >= 2 && written.is_sorted_by_key(|step| step.index), "those of two writes, in order");
    let error = recorder.finish(EndReason::Finished).expect_err("full");
    assert!(matches!(error, WriteError::Write { .. }), "{error}");
}

#[test]
fn a_full_disk_at_the_end_is_told_by_finish() {
    let disk = Disk::full_after(1);
    let error = recorder(&disk).finish(EndReason::Finished).expect_err("no room for the end");
    assert!(error.to_string().starts_with("writing the recording failed ("), "{error}");
    assert_eq!(disk.records().len(), 1);
}

#[test]
fn a_disk_that_hangs_does_not_hang_the_end_for_ever() {
    let disk = Disk::default();
    let mut recorder = recorder(&disk);
    recorder.patience = Duration::from_millis(20);
    recorder.step(step(0, vec![]));
    let error = recorder.finish(EndReason::Finished).expect_err("stuck");
    assert!(matches!(error, WriteError::Stuck { .. }), "{error}");
    disk.open();
}

#[test]
fn no_step_takes_more_than_twice_its_memory_in_the_file() {
    for step in [step(0, vec![]), step(1, vec![wide(SiteId(0)); 3]), step(2, vec![sparse(); 100])] {
        let mut frame = Vec::new();
        crate::recording::encode_frame(&Record::Step(step.clone()), &mut frame);
        assert!(frame.len() <= 2 * memory(&step), "{} bytes for {}", frame.len(), memory(&step));
    }
}

/// An observation with the longest numbers and the shortest histogram.
fn sparse() -> Observation {
    let exponents = ExponentHistogram::from_counts(0, [u64::MAX]);
    let stats = Stats {
        count: u64::MAX,
        zeros: u64::MAX,
        nan: u64::MAX,
        pos_inf: u64::MAX,
        neg_inf: u64::MAX,
        min_abs: 1.0,
        max_abs: 1.5,
        sum: crate::scan::Scaled { value: 1.0, exponent: i32::MIN },
        sum_squares: crate::scan::Scaled { value: 1.0, exponent: i32::MIN },
        exponents,
    };
    let most = Fidelity { intended: u64::MAX, dead: u64::MAX, non_finite: u64::MAX, dot: 1.5, energy: 1.5 };
    let rounding = Rounding {
        stepped: Some(most),
        without_masters: Some(most),
        decay: Some(most),
        unlike_master: Some(u64::MAX),
        unmoved: Some(1.5),
    };
    Observation {
        inherited: true,
        via: Some(SiteId(u32::MAX)),
        rounding: Some(Box::new(rounding)),
        ..Observation::new(SiteId(u32::MAX), stats)
    }
}
