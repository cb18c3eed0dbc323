//! Recordings that were cut, flipped, shortened in the middle, or never were recordings.

use ampdoctor::observation::{Note, NoteKind, Record};
use ampdoctor::recording::{DecodeError, Flaw, encode_frame};
use proptest::prelude::*;

use crate::sample::{decode, encode, records};

#[test]
fn cut_at_any_byte_it_reads_to_its_last_whole_frame() {
    let all = records();
    let (bytes, ends) = encode(&all);
    for cut in 0..bytes.len() {
        let (read, integrity) = decode([&bytes[..cut]]);
        let whole = ends.iter().filter(|&&end| end <= cut).count();
        assert_eq!(read, all[..whole], "cut at {cut}");
        let integrity = integrity.unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        assert_eq!(integrity.damage_count, 0, "a cut is no damage: {cut}");
        let start = ends[..whole].last().copied().unwrap_or(0);
        assert_eq!(integrity.tail_bytes as usize, cut - start, "cut at {cut}");
        assert!(integrity.is_cut());
    }
    let (read, integrity) = decode([&bytes[..]]);
    assert_eq!(read, all);
    assert!(integrity.expect("readable").is_whole());
}

#[test]
fn a_flipped_byte_costs_the_frame_it_is_in_and_no_other() {
    let all = records();
    let (bytes, ends) = encode(&all);
    for at in 0..bytes.len() {
        for mask in [0x01, 0x80, 0xff] {
            let mut flipped = bytes.clone();
            flipped[at] ^= mask;
            let (read, integrity) = decode([&flipped[..]]);
            let hit = ends.iter().filter(|&&end| end <= at).count();
            let integrity = integrity.unwrap_or_else(|error| panic!("byte {at}: {error}"));
            let start = ends[..hit].last().copied().unwrap_or(0);
            let damage = &integrity.damage()[0];
            assert_eq!((damage.offset as usize, damage.bytes as usize), (start, ends[hit] - start), "byte {at}");
            let expected: Vec<_> = all.iter().enumerate().filter(|(i, _)| *i != hit).map(|(_, r)| r.clone()).collect();
            assert_eq!(without_lost_sites(read), without_lost_sites(expected), "byte {at}");
        }
    }
}

/// Where the definition of a site was lost, its observations are too; the rest of the step must be there.
fn without_lost_sites(records: Vec<Record>) -> Vec<Record> {
    let defined: Vec<_> =
        records.iter().filter_map(|r| if let Record::Site(id, _) = r { Some(*id) } else { None }).collect();
    let keep = |record| match record {
        Record::Step(mut step) => {
            step.observations.retain(|o| defined.contains(&o.site));
            Record::Step(step)
        }
        Record::Shadow(mut shadow) => {
            shadow.gradients.retain(|g| defined.contains(&g.site));
            Record::Shadow(shadow)
        }
        other => other,
    };
    records.into_iter().map(keep).collect()
}

#[test]
fn a_lost_site_is_told_once_and_the_loss_of_its_steps_is_kept() {
    let all = records();
    let (mut bytes, ends) = encode(&all);
    bytes[ends[0] + 14] ^= 1;
    let (read, integrity) = decode([&bytes[..]]);
    let losses: Vec<_> =
        read.iter().filter_map(|r| if let Record::Step(s) = r { Some(s.loss) } else { None }).collect();
    assert_eq!(losses, [Some(2.5), Some(1.25), None]);
    let integrity = integrity.expect("readable");
    let observed = |records: &[Record]| -> usize {
        let of = |record: &Record| match record {
            Record::Step(step) => step.observations.len(),
            Record::Shadow(shadow) => shadow.gradients.len(),
            _ => 0,
        };
        records.iter().map(of).sum()
    };
    let lost = observed(&all) - observed(&read);
    assert!(lost > 0);
    assert_eq!(integrity.lost_observations, lost as u64, "each is counted");
    let flaws: Vec<_> = integrity.damage().iter().map(|d| d.what.clone()).collect();
    assert_eq!(flaws, [Flaw::Checksum, Flaw::UndefinedSite(0)]);
}

#[test]
fn a_second_run_in_the_same_file_is_left_out_and_told() {
    let all = records();
    let (bytes, _) = encode(&all);
    let both = [&bytes[..], &bytes].concat();
    for chunk in [7, 100, both.len()] {
        let (read, integrity) = decode(both.chunks(chunk));
        assert_eq!(read, all, "the first run, and nothing of the second");
        let integrity = integrity.expect("readable");
        let damage = &integrity.damage()[0];
        assert_eq!((damage.offset, damage.bytes), (bytes.len() as u64, bytes.len() as u64));
        assert_eq!((integrity.damage_count, integrity.damaged_bytes, integrity.tail_bytes), (1, damage.bytes, 0));
        assert!(damage.to_string().contains("a second run begins here"), "{damage}");
    }
}

#[test]
fn bytes_lost_in_the_middle_cost_only_the_frames_they_were_of() {
    let all = records();
    let (bytes, ends) = encode(&all);
    // The last: so much of the last frame but one that the last whole one lies in what seems to be its unfinished payload.
    for (from, to) in [(ends[2] + 3, ends[2] + 4), (ends[2] + 20, ends[3] + 5), (ends[6] + 20, ends[6] + 60)] {
        assert!(to < bytes.len());
        let (read, integrity) = decode([&bytes[..from], &bytes[to..]]);
        let hit = |i: usize| ends[i] > from && (i == 0 || ends[i - 1] < to);
        let expected: Vec<_> = all.iter().enumerate().filter(|(i, _)| !hit(*i)).map(|(_, r)| r.clone()).collect();
        assert_eq!(read, expected, "bytes {from} to {to} lost");
        assert_eq!(integrity.expect("readable").damage_count, 1);
    }
}

#[test]
fn bytes_put_in_between_cost_nothing() {
    let all = records();
    let (bytes, ends) = encode(&all);
    let junk = [0u8; 100];
    let (read, integrity) = decode([&bytes[..ends[3]], &junk, &bytes[ends[3]..]]);
    assert_eq!(read, all);
    let integrity = integrity.expect("readable");
    assert_eq!((integrity.damage_count, integrity.damaged_bytes), (1, 100));
    assert_eq!(integrity.damage()[0].to_string(), format!("100 bytes at byte {}: no frame begins here", ends[3]));
}

proptest! {
    /// Up to four places behind the first frame, each losing up to 99 bytes and gaining up to 59 others.
    #[test]
    fn a_frame_that_no_damage_touches_is_always_read(
        places in prop::collection::vec((0.0..1.0f64, 0usize..100, prop::collection::vec(any::<u8>(), 0..60)), 1..5),
        chunk in 1usize..500,
    ) {
        let notes = (0..40).map(|step| Note { step, kind: NoteKind::Information, text: "note ".repeat(step as usize % 7) });
        let all: Vec<Record> = records()[..1].iter().cloned().chain(notes.map(Record::Note)).collect();
        let (mut bytes, ends) = encode(&all);
        let mut touched = vec![false; all.len()];
        let mut edits: Vec<_> = places
            .into_iter()
            .map(|(at, lost, junk)| {
                let from = ends[0] + ((bytes.len() - ends[0]) as f64 * at) as usize;
                (from, (from + lost).min(bytes.len()), junk)
            })
            .collect();
        edits.sort();
        // From the last to the first, each up to the one behind it: so offsets stay those of the whole recording.
        let mut limit = bytes.len();
        for (from, to, junk) in edits.into_iter().rev() {
            let to = to.min(limit);
            (1..all.len()).for_each(|i| touched[i] |= from < ends[i] && (ends[i - 1] < to || ends[i - 1] < from));
            bytes.splice(from..to, junk);
            limit = from;
        }
        let (read, integrity) = decode(bytes.chunks(chunk));
        prop_assert!(integrity.is_ok());
        let whole = all.iter().zip(&touched).filter(|(_, touched)| !**touched).map(|(record, _)| record);
        prop_assert!(whole.clone().all(|record| read.contains(record)), "a whole frame was not read");
        let mut rest = all.iter();
        prop_assert!(read.iter().all(|record| rest.any(|known| known == record)), "a record that was never written");
    }
}

#[test]
fn a_thousand_damages_are_counted_and_a_few_kept() {
    let (mut bytes, _) = encode(&records()[..1]);
    for _ in 0..1000 {
        let start = bytes.len();
        encode_frame(&records()[4], &mut bytes);
        bytes[start + 15] ^= 1;
    }
    let (_, integrity) = decode(bytes.chunks(1000));
    let integrity = integrity.expect("readable");
    // Flipped notes in a row are one damage: there is no readable frame between them.
    assert_eq!(integrity.damage_count, 1000);
    assert_eq!(integrity.damage().len(), 64);
}

#[test]
fn other_files_are_not_ours() {
    let text = b"step,loss\n0,2.5\n1,1.25\n";
    let image = [&b"\x89PNG\r\n\x1a\n"[..], &[7; 4000]].concat();
    // Frame and payload of a TensorFlow event: field 1 is a double, field 3 its version.
    let events = tfrecord(b"\x09\x00\x00\x00\x80\x1f\x2d\xd9\x41\x1a\x0dbrain.Event:2");
    let example = tfrecord(b"\x0a\x07\x0a\x05\x0a\x01x\x12\x00");
    for other in [&text[..], b"hello", &image, &[0; 64], &events, &example] {
        let (read, integrity) = decode([other]);
        assert_eq!(read, []);
        assert!(matches!(integrity, Err(DecodeError::NotOurs { .. })), "{other:?}: {integrity:?}");
    }
}

#[test]
fn a_huge_foreign_file_is_given_up_early() {
    let chunk = vec![b'x'; 1 << 20];
    let (_, integrity) = decode(std::iter::repeat_n(&chunk[..], 20));
    assert!(matches!(integrity, Err(DecodeError::NotOurs { .. })));
}

#[test]
fn a_recording_of_the_future_says_update_and_not_damaged() {
    // Record { run: Run { format: "ampdoctor", version: 3, producer: "probe 9.0" } }
    let payload = b"\x0a\x18\x0a\x09ampdoctor\x10\x03\x42\x09probe 9.0";
    let (_, integrity) = decode([&tfrecord(payload)[..]]);
    let error = integrity.expect_err("too new");
    assert_eq!(error, DecodeError::TooNew { version: 3, producer: "probe 9.0".into() });
    assert!(error.to_string().contains("update ampdoctor"), "{error}");
}

#[test]
fn fields_and_kinds_of_record_that_come_later_are_ignored() {
    let (mut bytes, ends) = encode(&records());
    let end = bytes.split_off(ends[7]);
    // Record { 15: "?" }, a kind that is not known; Record { note: { step: 7, kind: 4, text: "n", 15: "?" } }, an unknown field.
    bytes.extend(tfrecord(b"\x7a\x01?"));
    bytes.extend(tfrecord(b"\x2a\x0a\x08\x07\x10\x04\x1a\x01n\x7a\x01?"));
    bytes.extend(end);
    let (read, integrity) = decode([&bytes[..]]);
    let integrity = integrity.expect("readable");
    assert!(integrity.is_whole());
    assert_eq!((integrity.unknown_records, read.len()), (1, records().len() + 1));
    assert!(matches!(&read[8], Record::Note(note) if note.step == 7 && note.text == "n"));
}

#[test]
fn a_record_that_makes_no_sense_is_a_flaw_and_never_a_panic() {
    // Step { index: 1, tier: 3, observations: [ { site: 0, stats } ] } behind a run and a site.
    let stats = |inner: &[u8]| {
        let observation = [&b"\x12"[..], &[inner.len() as u8], inner].concat();
        let step = [&b"\x08\x01\x18\x03\x22"[..], &[observation.len() as u8], &observation].concat();
        [&b"\x22"[..], &[step.len() as u8], &step].concat()
    };
    let cases: [(&str, Vec<u8>); 10] = [
        ("99 is no probe", b"\x12\x06\x08\x05\x28\x63\x30\x01".to_vec()),
        ("0 is no dtype", b"\x12\x04\x08\x05\x28\x01".to_vec()),
        ("is not below", b"\x12\x0a\x08\xff\xff\xff\xff\x0f\x28\x01\x30\x01".to_vec()),
        ("site 0 is defined twice", b"\x12\x04\x28\x01\x30\x01".to_vec()),
        ("77 is no tier", b"\x22\x02\x18\x4d".to_vec()),
        ("do not add up to 5", stats(b"\x08\x05\x10\x04")),
        ("outside -1074 to 1023", stats(b"\x08\x01\x50\x80\x10\x5a\x01\x01")),
        ("a sum of 0 * 2^-65537", stats(b"\x08\x01\x10\x01\x42\x04\x10\x81\x80\x08")),
        ("magnitudes from 0 to 0 of 1 non-zero", stats(b"\x08\x01\x5a\x01\x01")),
        ("0 is no reason to end", b"\x32\x00".to_vec()),
    ];
    for (expected, payload) in cases {
        let (mut bytes, _) = encode(&records()[..2]);
        bytes.extend(tfrecord(&payload));
        let (read, integrity) = decode([&bytes[..]]);
        assert_eq!(read, records()[..2]);
        let damage = integrity.expect("readable").damage().to_vec();
        assert_eq!(damage.len(), 1, "{expected}");
        assert!(damage[0].to_string().contains(expected), "{} should contain {expected}", damage[0]);
    }
}

/// A frame around any payload.
fn tfrecord(payload: &[u8]) -> Vec<u8> {
    let masked = |bytes: &[u8]| crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let length = (payload.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), payload, &masked(payload)].concat()
}
