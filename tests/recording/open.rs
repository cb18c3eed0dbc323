//! What is opened, and what is said when it cannot be.

use std::fs;

use ampdoctor::observation::Record;
use ampdoctor::recording::{ReadError, Recording, read_run, recording_path};

use crate::sample::{encode, records};

fn message(result: Result<Recording, ReadError>) -> String {
    result.expect_err("not a recording").to_string()
}

#[test]
fn a_run_directory_gives_its_ranks_in_order() {
    let dir = tempfile::tempdir().expect("a folder");
    for rank in [10, 2, 0] {
        fs::write(recording_path(dir.path(), rank), encode(&records()).0).expect("written");
    }
    fs::write(dir.path().join("rank-0.amprec.1"), "an older one").expect("written");
    let recording = Recording::open(dir.path()).expect("three ranks");
    let names: Vec<_> = recording.files().iter().filter_map(|f| f.file_name()?.to_str()).collect();
    assert_eq!(names, ["rank-0.amprec", "rank-2.amprec", "rank-10.amprec"]);
}

#[test]
fn a_file_of_any_name_is_read_and_says_that_the_run_was_cut() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("copy.bin");
    let (bytes, ends) = encode(&records());
    fs::write(&path, &bytes[..ends[7] + 5]).expect("written");
    let mut reading = read_run(&path).expect("a recording");
    let read: Vec<Record> = reading.by_ref().collect::<Result<_, _>>().expect("readable");
    assert_eq!(read, records()[..8]);
    let integrity = reading.integrity();
    assert_eq!((integrity.is_cut(), integrity.tail_bytes, integrity.last_step), (true, 5, Some(1)));
    assert_eq!(
        integrity.to_string(),
        "the recording stops after step 1 without an end: the run was killed, is still going on, or its disk was full"
    );
}

#[test]
fn a_large_recording_is_read_in_small_pieces() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = recording_path(dir.path(), 0);
    let mut all = records();
    let end = all.pop();
    let step = all[6].clone();
    all.extend(std::iter::repeat_n(step, 2000));
    all.extend(end);
    let (bytes, _) = encode(&all);
    assert!(bytes.len() > 4 * (64 << 10), "more than a few chunks");
    fs::write(&path, bytes).expect("written");
    let read: Vec<Record> = read_run(&path).and_then(|records| records.collect()).expect("readable");
    assert_eq!(read, all);
}

#[test]
fn an_empty_file_is_a_recording_without_records() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = recording_path(dir.path(), 0);
    fs::write(&path, "").expect("written");
    let mut reading = read_run(dir.path()).expect("a recording");
    assert!(reading.next().is_none());
    assert!(reading.integrity().to_string().starts_with("the recording holds no step and no end"));
}

#[test]
fn each_way_to_be_no_recording_has_its_own_message() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    let missing = message(Recording::open(&at("nowhere")));
    assert!(missing.starts_with("there is no such file or directory; give the run directory"), "{missing}");
    assert!(missing.ends_with("nowhere"), "the path comes last: {missing}");

    fs::create_dir(at("empty")).expect("created");
    let empty = message(Recording::open(&at("empty")));
    assert!(empty.contains("looked for rank-<n>.amprec, found nothing, it is empty"), "{empty}");

    for name in ["a.txt", "b.txt", "rank-0.amprec.1", "c.txt", "d.txt", "e.txt"] {
        fs::write(at(name), "x").expect("written");
    }
    fs::create_dir(at("run-7")).expect("created");
    fs::write(recording_path(&at("run-7"), 0), encode(&records()).0).expect("written");
    let other = message(Recording::open(dir.path()));
    assert!(
        other.contains("found rank-0.amprec.1, run-7/ (a run directory), a.txt, b.txt, c.txt and 3 more"),
        "{other}"
    );

    fs::write(at("log.txt"), "epoch 1, loss 2.5, accuracy 0.1\n").expect("written");
    let foreign = message(Recording::open(&at("log.txt")));
    assert!(foreign.starts_with("this is no ampdoctor recording: "), "{foreign}");

    let (mut bytes, ends) = encode(&records());
    bytes.truncate(ends[0]);
    bytes[20] ^= 1;
    fs::write(at("damaged"), bytes).expect("written");
    let damaged = message(Recording::open(&at("damaged")));
    assert!(damaged.starts_with("the recording is damaged from byte 0 on (the checksum"), "{damaged}");
}
