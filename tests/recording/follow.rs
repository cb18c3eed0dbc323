//! A recording that is followed while it grows.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use ampdoctor::observation::{EndReason, Record, RunInfo};
use ampdoctor::recording::{Follower, News, ReadError, Recorder, recording_path};

use crate::sample::{encode, records, run_info, step};

fn all_news(follower: &mut Follower) -> Vec<News> {
    std::iter::from_fn(|| follower.poll().expect("readable")).collect()
}

fn append(path: &Path, bytes: &[u8]) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).expect("a file");
    file.write_all(bytes).expect("written");
}

fn news(records: &[Record]) -> Vec<News> {
    records.iter().cloned().map(News::Record).collect()
}

#[test]
fn it_waits_for_the_directory_the_file_and_each_byte() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().join("run");
    let mut follower = Follower::new(&run);
    assert_eq!(all_news(&mut follower), []);
    fs::create_dir(&run).expect("created");
    assert_eq!(all_news(&mut follower), []);
    let path = recording_path(&run, 0);
    let (bytes, ends) = encode(&records());
    let mut got = Vec::new();
    for (i, byte) in bytes.iter().enumerate() {
        append(&path, &[*byte]);
        got.extend(all_news(&mut follower));
        let whole = ends.iter().filter(|&&end| end <= i + 1).count();
        assert_eq!(got.len(), whole, "after byte {i}");
        assert_eq!(follower.ended(), whole == ends.len());
    }
    assert_eq!(got, news(&records()));
    assert_eq!(follower.file(), Some(&*path));
}

#[test]
fn a_step_is_seen_while_the_run_goes_on() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut recorder = Recorder::create(dir.path(), &run_info()).expect("a recorder");
    let mut follower = Follower::new(recorder.path());
    for index in 0..5 {
        assert!(recorder.step(step(index)));
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let mut seen = None;
        while seen != Some(index) {
            assert!(std::time::Instant::now() < deadline, "step {index} never came");
            if let Some(News::Record(Record::Step(step))) = follower.poll().expect("readable") {
                seen = Some(step.index);
            }
        }
        assert!(!follower.ended());
    }
    recorder.finish(EndReason::Finished).expect("written");
    assert!(matches!(all_news(&mut follower)[..], [News::Record(Record::End(_))]));
    assert!(follower.ended());
}

#[test]
fn a_new_run_in_the_same_place_starts_afresh() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = recording_path(dir.path(), 0);
    append(&path, &encode(&records()).0);
    let mut follower = Follower::new(dir.path());
    assert_eq!(all_news(&mut follower).len(), records().len());

    let next = || RunInfo { started_unix_ms: run_info().started_unix_ms + 1, ..run_info() };
    let recorder = Recorder::create(dir.path(), &next()).expect("a recorder");
    let after = all_news(&mut follower);
    assert_eq!(after, [News::Restarted, News::Record(Record::Run(next()))]);
    assert!(!follower.ended());
    drop(recorder);

    let (bytes, _) = encode(&records()[..2]);
    fs::write(&path, &bytes[..9]).expect("truncated and written");
    assert_eq!(all_news(&mut follower), [News::Restarted]);
    append(&path, &bytes[9..]);
    assert_eq!(all_news(&mut follower), news(&records()[..2]));
}

#[test]
fn a_recording_that_vanishes_keeps_what_was_read_and_is_known_when_it_comes_back() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = recording_path(dir.path(), 0);
    append(&path, &encode(&records()[..4]).0);
    let mut follower = Follower::new(&path);
    assert_eq!(all_news(&mut follower).len(), 4);
    fs::remove_file(&path).expect("removed");
    assert_eq!(all_news(&mut follower), []);
    assert_eq!(follower.integrity().and_then(|i| i.last_step), Some(0));
    append(&path, &encode(&records()[..1]).0);
    assert_eq!(all_news(&mut follower), [News::Rewritten, News::Record(Record::Run(run_info()))]);
}

#[test]
fn a_foreign_file_is_refused_until_a_recording_takes_its_place() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = recording_path(dir.path(), 0);
    fs::write(&path, "epoch 1, loss 2.5\n").expect("written");
    let mut follower = Follower::new(&path);
    assert!(matches!(follower.poll(), Err(ReadError::Content { .. })));
    assert!(matches!(follower.poll(), Err(ReadError::Content { .. })));
    fs::remove_file(&path).expect("removed");
    append(&path, &encode(&records()).0);
    assert_eq!(all_news(&mut follower)[0], News::Restarted);
}

#[cfg(unix)]
#[test]
fn bytes_that_a_network_disk_shows_as_zeros_first_are_read_when_they_come() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().expect("a folder");
    let path = recording_path(dir.path(), 0);
    let (bytes, ends) = encode(&records());
    for (from, to) in [(0, ends[0]), (ends[2], ends[4]), (ends[2] + 30, ends[3])] {
        let mut holed = bytes.clone();
        holed[from..to].fill(0);
        holed.truncate(to);
        fs::write(&path, &holed).expect("written");
        let mut follower = Follower::new(&path);
        let mut got = all_news(&mut follower);
        assert_eq!(all_news(&mut follower), []);
        let file = OpenOptions::new().write(true).open(&path).expect("a file");
        file.write_all_at(&bytes[from..], from as u64).expect("written");
        got.extend(all_news(&mut follower));
        assert_eq!(got, news(&records()), "hole from {from} to {to}");
        assert!(follower.integrity().is_some_and(|integrity| integrity.is_whole()));
    }
}

#[test]
fn real_damage_is_passed_when_the_next_frame_comes() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = recording_path(dir.path(), 0);
    let (mut bytes, ends) = encode(&records());
    bytes[ends[3] + 20] ^= 1;
    append(&path, &bytes[..ends[4]]);
    let mut follower = Follower::new(&path);
    assert_eq!(all_news(&mut follower), news(&records()[..4]));
    append(&path, &bytes[ends[4]..]);
    assert_eq!(all_news(&mut follower), news(&records()[5..]));
    assert_eq!(follower.integrity().map(|integrity| integrity.damage_count), Some(1));
}
