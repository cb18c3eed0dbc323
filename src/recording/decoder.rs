//! Push-based decoder: bytes in, records out. It knows no file, and so serves files, growing files and tests alike.

use std::collections::HashSet;

use super::decode::{Decoded, Refusal, Sites, decode_payload};
use super::error::{DecodeError, Flaw};
use super::frame::{self, Body, HEADER};
use super::{Damage, Integrity};
use crate::observation::Record;

/// A file in which no record stands within this many bytes is no recording, whatever follows. The first record names every
/// parameter of the model, and may take a megabyte.
const PATIENCE: u64 = 16 << 20;

/// A recorder never appends to a recording that lies there already; a `cat` of two does.
const SECOND_RUN: &str = "a second run begins here; it is left out, with all that follows";

/// Damage at the end of a growing file is looked at again up to this many bytes.
const REWIND: u64 = 1 << 20;

/// Push-based decoder: bytes in, records out, in bounded memory (one frame and what was pushed last).
///
/// ```text
///                   checksum right                whole, checksum right
///   .-> [Header] -----------------> [Payload] ------------------------> a record, or a flaw of this frame alone
///   |      | checksum wrong            | checksum wrong                    |
///   |      '--------> [Searching] <----'                                   |
///   |                     | the next 12 bytes that are a header            |
///   '---------------------+------------------------------------------------'
/// ```
///
/// In each state it waits for more bytes when there are too few. Damage is no error: it is skipped, counted and told by
/// [`integrity`](Self::integrity), and nothing behind it that can be read is lost. Errors are final: bytes that are no
/// recording, a format that is too new, and damage that left no record at all.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that are done with.
    done: usize,
    /// Offset in the recording of `buffer[done]`.
    offset: u64,
    searching: Option<Search>,
    /// The first bytes are no header, and no hole either.
    foreign_start: bool,
    sites: Sites,
    undefined: HashSet<u32>,
    integrity: Integrity,
    /// A second run has begun: nothing from there on is of this one.
    second_run: bool,
    failed: Option<DecodeError>,
}

/// A damage whose end was not met yet.
#[derive(Debug)]
struct Search {
    from: u64,
    what: Flaw,
}

impl Decoder {
    /// A decoder at the start of a recording.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes that were read. Take out the records with [`next_record`](Self::next_record) before pushing more: what is
    /// pushed is kept until then.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.done);
        self.done = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole record, or `None` until more bytes come.
    ///
    /// # Errors
    /// When the bytes are no recording, or one that is too new; then always again.
    pub fn next_record(&mut self) -> Result<Option<Record>, DecodeError> {
        while self.failed.is_none() {
            if self.second_run {
                self.leave_out();
                break;
            }
            if self.searching.is_some() && !self.search() {
                break;
            }
            let Some(header) = self.pending().first_chunk() else { break };
            let Some(length) = frame::payload_length(*header) else {
                self.foreign_start |= self.offset == 0 && *header != [0; HEADER];
                self.begin_search(Flaw::Header);
                continue;
            };
            match self.payload(length) {
                Some(Some(record)) => return Ok(Some(record)),
                Some(None) => {}
                None => break,
            }
        }
        self.integrity.tail_bytes = self.pending().len() as u64;
        self.failed.clone().map_or(Ok(None), Err)
    }

    /// Says that no more bytes will come. Bytes that wait for the rest of a frame are searched once more: where a part of the
    /// file was lost, whole frames may stand in what seems to be one unfinished frame. Call
    /// [`next_record`](Self::next_record) again when this returns true.
    ///
    /// # Errors
    /// When bytes were pushed and none of them is part of a recording.
    pub fn finish(&mut self) -> Result<bool, DecodeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let more = self.searching.is_none() && self.frame_in_tail();
        if more {
            self.searching = Some(Search { from: self.offset, what: Flaw::Header });
            self.skip(1);
        } else if let Some(search) = self.searching.take() {
            self.skip(self.pending().len());
            self.close(search);
        }
        self.integrity.tail_bytes = self.pending().len() as u64;
        if more || self.integrity.records > 0 {
            return Ok(more);
        }
        match self.integrity.damage().first() {
            Some(damage) => Err(no_record(damage)),
            // The upper half of a length is zero in every recording; a few bytes of text are not the start of one.
            None if self.pending().iter().skip(4).take(4).any(|&b| b != 0) => {
                Err(not_ours("it is a few bytes of something else"))
            }
            None => Ok(false),
        }
    }

    /// Goes back to the start of damage that reaches to the end of what was pushed, and forgets the bytes from there on: the
    /// offset to push again from. On a network disk a reader can see a growing file's size before its bytes, and zeros in their
    /// place; a later look finds the frame. `None` when there is no such damage, or so much that reading it again costs too much.
    pub(super) fn rewind(&mut self) -> Option<u64> {
        let Search { from, what } = self.searching.take()?;
        if self.offset - from > REWIND {
            self.searching = Some(Search { from, what });
            return None;
        }
        self.buffer.clear();
        self.done = 0;
        self.offset = from;
        Some(from)
    }

    /// What to say of bytes that begin like no recording and have none in them so far.
    pub(super) fn foreign(&self) -> Option<DecodeError> {
        (self.foreign_start && self.integrity.records == 0).then(|| not_ours("it does not begin with a frame"))
    }

    /// How the recording looks so far: its end, its damage, what is left over.
    pub fn integrity(&self) -> &Integrity {
        &self.integrity
    }

    fn pending(&self) -> &[u8] {
        self.buffer.get(self.done..).unwrap_or_default()
    }

    fn skip(&mut self, n: usize) {
        self.done += n;
        self.offset += n as u64;
    }

    /// State Searching: whether a header was found; the damage ends there.
    fn search(&mut self) -> bool {
        let found = headers(self.pending()).next();
        let skipped = found.unwrap_or(self.pending().len().saturating_sub(HEADER - 1));
        self.skip(skipped);
        if found.is_some() {
            if let Some(search) = self.searching.take() {
                self.close(search);
            }
        } else if self.integrity.records == 0 && self.offset > PATIENCE {
            self.failed = Some(not_ours("no record stands in its first 16 MiB"));
        }
        found.is_some()
    }

    /// State Payload: `None` when bytes are lacking, else the record if there is one.
    fn payload(&mut self, length: usize) -> Option<Option<Record>> {
        // The buffer is lent to the body while the sites learn from it.
        let buffer = std::mem::take(&mut self.buffer);
        let outcome = match frame::body(buffer.get(self.done..).unwrap_or_default(), length) {
            Body::Partial => None,
            Body::Damaged => Some(None),
            Body::Whole(payload) => Some(Some(decode_payload(payload, &mut self.sites))),
        };
        self.buffer = buffer;
        match outcome? {
            None => {
                self.begin_search(Flaw::Checksum);
                Some(None)
            }
            Some(decoded) => Some(self.accept(decoded, HEADER + length + frame::TRAILER)),
        }
    }

    fn accept(&mut self, decoded: Result<Decoded, Refusal>, bytes: usize) -> Option<Record> {
        let offset = self.offset;
        self.skip(bytes);
        let bytes = bytes as u64;
        let first = offset == 0;
        let begun = self.integrity.records > 0;
        let mut flaw = |what| self.integrity.add(Damage { offset, bytes, what });
        match decoded {
            Err(Refusal::Recording(error)) => self.failed = Some(error),
            Ok(Decoded::Record(Record::Run(_), _)) if begun => {
                flaw(Flaw::Nonsense(SECOND_RUN.into()));
                self.second_run = true;
            }
            Ok(Decoded::Record(record, lost)) if !first || matches!(record, Record::Run(_)) => {
                let unheard = lost.sites.into_iter().filter(|site| self.undefined.insert(*site));
                unheard.for_each(|site| flaw(Flaw::UndefinedSite(site)));
                self.integrity.lost_observations += lost.observations;
                self.count(&record);
                return Some(record);
            }
            Ok(_) | Err(Refusal::Frame(Flaw::Undecodable(_))) if first => {
                self.failed = Some(not_ours("its first record does not describe a run"));
            }
            Ok(Decoded::Unknown) => self.integrity.unknown_records += 1,
            Ok(Decoded::Record(..) | Decoded::Repeated) => {}
            Err(Refusal::Frame(what)) => flaw(what),
        }
        None
    }

    /// What follows the begin of a second run. Its sites have other meanings, and its steps begin at 0 again.
    fn leave_out(&mut self) {
        let bytes = self.pending().len();
        self.skip(bytes);
        self.integrity.extend_damage(bytes as u64);
    }

    fn count(&mut self, record: &Record) {
        self.integrity.records += 1;
        match record {
            Record::Step(step) => self.integrity.last_step = Some(step.index),
            Record::End(end) => self.integrity.end = Some(end.clone()),
            _ => {}
        }
    }

    /// The header here is not one, or its frame is not what it announces: look for the next from the following byte on, so
    /// that a frame that begins too early, because bytes before it were lost, is found too.
    fn begin_search(&mut self, what: Flaw) {
        self.searching = Some(Search { from: self.offset, what });
        self.skip(1);
    }

    fn close(&mut self, Search { from, what }: Search) {
        self.integrity.add(Damage { offset: from, bytes: self.offset - from, what });
    }

    fn frame_in_tail(&self) -> bool {
        let tail = self.pending().get(1..).unwrap_or_default();
        headers(tail).any(|at| {
            let frame = tail.get(at..).unwrap_or_default();
            let length = frame.first_chunk().and_then(|h| frame::payload_length(*h));
            length.is_some_and(|n| matches!(frame::body(frame, n), Body::Whole(_)))
        })
    }
}

/// What to call a file that had damage and no record.
fn no_record(damage: &Damage) -> DecodeError {
    match &damage.what {
        Flaw::Header if damage.offset == 0 => not_ours("it does not begin with a frame, and holds none"),
        flaw => DecodeError::Damaged { offset: damage.offset, flaw: flaw.clone() },
    }
}

fn not_ours(why: &str) -> DecodeError {
    DecodeError::NotOurs { why: why.into() }
}

/// Where headers stand in `bytes`.
fn headers(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    bytes
        .windows(HEADER)
        .enumerate()
        .filter(|(_, window)| window.first_chunk().is_some_and(|h| frame::payload_length(*h).is_some()))
        .map(|(at, _)| at)
}
