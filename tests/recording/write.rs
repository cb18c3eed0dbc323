//! The recorder on a real file system.

use std::fs;
use std::path::Path;

use ampdoctor::observation::{EndReason, Note, NoteKind, Record};
use ampdoctor::recording::{Recorder, WriteError, read_run};

use crate::sample::{observed, records, run_info, site, step};

fn read(path: &Path) -> Vec<Record> {
    read_run(path).and_then(|records| records.collect()).expect("readable")
}

#[test]
fn a_run_is_written_with_its_sites_before_the_steps_that_use_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut recorder = Recorder::create(&dir.path().join("a/b"), &run_info()).expect("a recorder");
    let (fc, head) = (recorder.intern(&site("fc")), recorder.intern(&site("head")));
    assert_eq!(recorder.intern(&site("fc")), fc);
    assert!(recorder.step(observed(0, &[fc, head])));
    let late = recorder.intern(&site("late"));
    recorder.note(Note { step: 1, kind: NoteKind::Information, text: "hello".into() });
    assert!(recorder.step(observed(1, &[late])));
    assert!(recorder.failure().is_none());
    let path = recorder.finish(EndReason::Finished).expect("written");

    assert!(path.ends_with("a/b/rank-0.amprec"));
    let kinds: String = read(&path).iter().map(kind).collect();
    assert_eq!(kinds, "RssSsnSE");
    assert_eq!(read(&path)[3], Record::Step(observed(0, &[fc, head])));
}

fn kind(record: &Record) -> char {
    match record {
        Record::Run(_) => 'R',
        Record::Site(..) => 's',
        Record::Scaler(_) => 'c',
        Record::Step(_) => 'S',
        Record::Shadow(_) => 'h',
        Record::Note(_) => 'n',
        Record::Thinned(_) => 't',
        Record::End(_) => 'E',
    }
}

#[test]
fn the_run_is_on_disk_before_create_returns() {
    let dir = tempfile::tempdir().expect("a folder");
    let recorder = Recorder::create(dir.path(), &run_info()).expect("a recorder");
    assert_eq!(read(recorder.path()), [Record::Run(run_info())]);
}

#[test]
fn a_dropped_recorder_ends_the_recording_and_says_so() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut recorder = Recorder::create(dir.path(), &run_info()).expect("a recorder");
    recorder.step(step(0));
    drop(recorder);
    let last = read(dir.path()).pop();
    assert!(matches!(last, Some(Record::End(end)) if end.reason == EndReason::Dropped && end.steps == 1), "ended");
}

#[test]
fn a_panic_that_drops_the_recorder_is_the_reason_of_its_end() {
    let dir = tempfile::tempdir().expect("a folder");
    let recorder = Recorder::create(dir.path(), &run_info()).expect("a recorder");
    let path = recorder.path().to_path_buf();
    let panicked = std::thread::spawn(move || {
        let _recorder = recorder;
        panic!("planted");
    });
    assert!(panicked.join().is_err());
    assert!(matches!(read(&path).pop(), Some(Record::End(end)) if end.reason == EndReason::Panicked));
}

#[test]
fn a_run_directory_that_cannot_be_made_is_an_error_that_says_so() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("file");
    fs::write(&file, "").expect("written");
    let error = Recorder::create(&file.join("run"), &run_info()).expect_err("a file is in the way");
    assert!(matches!(error, WriteError::Create { .. }));
    assert!(error.to_string().starts_with("cannot create the run directory ("), "{error}");
}

#[cfg(unix)]
#[test]
fn a_read_only_directory_is_an_error_that_says_so() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a folder");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).expect("made read-only");
    if fs::write(dir.path().join("probe"), "").is_ok() {
        // The superuser may write anywhere; /proc refuses even it.
        let error = Recorder::create(Path::new("/proc/ampdoctor"), &run_info()).expect_err("nobody writes there");
        assert!(error.to_string().starts_with("cannot create the run directory ("), "{error}");
        return;
    }
    let error = Recorder::create(dir.path(), &run_info()).expect_err("read-only");
    assert!(error.to_string().starts_with("cannot create the recording ("), "{error}");
}

#[test]
fn a_recording_that_is_gone_at_the_end_is_an_error_that_says_so() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().join("run");
    let deleted = |run: &Path| fs::remove_dir_all(run).expect("deleted");
    let moved = |run: &Path| fs::rename(run.join("rank-0.amprec"), run.join("elsewhere.amprec")).expect("moved");
    for lose in [&deleted as &dyn Fn(&Path), &moved] {
        let mut recorder = Recorder::create(&run, &run_info()).expect("a recorder");
        recorder.step(step(0));
        lose(&run);
        let error = recorder.finish(EndReason::Finished).expect_err("it is gone");
        assert!(error.to_string().contains("it was deleted or moved"), "{error}");
    }
}

#[test]
fn a_second_recorder_of_the_same_rank_is_refused_and_the_first_loses_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut first = Recorder::create(dir.path(), &run_info()).expect("a recorder");
    let error = Recorder::create(dir.path(), &run_info()).expect_err("it is being recorded");
    assert!(matches!(error, WriteError::Busy { .. }) && error.to_string().contains("RANK"), "{error}");
    first.step(step(0));
    first.finish(EndReason::Finished).expect("it lies where it lay");
    Recorder::create(dir.path(), &run_info()).expect("now it is an older one, and makes room");
}

#[test]
fn many_sites_and_steps_come_back_in_order() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut recorder = Recorder::create(dir.path(), &run_info()).expect("a recorder");
    for index in 0..500 {
        let id = recorder.intern(&site(&format!("layer.{index}")));
        while !recorder.step(observed(index, &[id])) {
            std::thread::yield_now();
        }
    }
    recorder.finish(EndReason::Finished).expect("written");
    let indices: Vec<u64> =
        read(dir.path()).iter().filter_map(|r| if let Record::Step(s) = r { Some(s.index) } else { None }).collect();
    assert_eq!(indices, (0..500).collect::<Vec<_>>());
    assert!(records().len() > 1);
}
