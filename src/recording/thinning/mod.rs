//! Keeps a recording below its size: older steps are thinned, evenly over the run, and steps with an event stay.
//!
//! ```text
//!   before   [Run, sites][ older steps, some with an event  | the latest eighth ]
//!   after    [Run, sites][ every n-th, all with an event | what was thinned ][ the latest eighth ]
//! ```
//!
//! Near the limit a thinned copy is begun beside the recording, and written a piece at a time while steps go on being appended to the recording itself. Once it has caught up, it takes
//! the recording's place by a rename: who opens the path finds one or the other, whole; who has the old one open reads it to its end, and then finds another in its place. A process that
//! dies before leaves the recording, and a copy that nobody takes for one.

mod copy;
mod eventful;
mod frames;
mod plan;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::observation::{Note, NoteKind, Record};
use copy::Copy;
use eventful::{Eventful, Keep};
use frames::Kind;
use plan::{Plan, Sizes};

use super::frame;

/// The least limit: below, a recording is little more than its head.
pub const LEAST_LIMIT: u64 = 64 << 10;

/// Eighths of the limit: where a copy is begun, what it is to take, and the latest part that stays as it is. While the copy is written, the recording grows by less than
/// one more.
const BEGIN: u64 = 7;
const TARGET: u64 = 4;
const LATEST: u64 = 1;
/// The copy goes on by this many times as many bytes as were appended.
const PACE: u64 = 16;
/// And by no less than this at a time, for a start.
const PIECE: u64 = 256 << 10;
/// What is appended at once is at most this part of the limit, but for a single step that is larger; the copy is hurried when only one more fits.
const PIECES: u64 = 64;

/// The limit of a recording, and what is known of the steps in it.
#[derive(Debug)]
pub(super) struct Limit {
    bytes: u64,
    path: PathBuf,
    eventful: Eventful,
    /// By step of the file: whether it has an event.
    kept: Bits,
    sizes: Sizes,
    /// The step added last: it may turn out to be the one before an event.
    last: Option<Last>,
    plan: Plan,
    copy: Option<Copy>,
    /// Where the next copy is begun.
    begin_at: u64,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    index: u64,
    scanned: u64,
    light: u64,
    kept: bool,
}

/// A thinned copy that took the recording's place.
pub(super) struct Replacement {
    /// The copy, open at its end.
    pub(super) file: File,
    /// Its size.
    pub(super) bytes: u64,
}

impl Limit {
    /// A limit of so many bytes for the recording at `path`, of which nothing was written yet.
    pub(super) fn new(bytes: u64, path: &Path) -> Self {
        let bytes = bytes.max(LEAST_LIMIT);
        Self {
            bytes,
            path: path.into(),
            eventful: Eventful::default(),
            kept: Bits::default(),
            sizes: Sizes::default(),
            last: None,
            plan: Plan::default(),
            copy: None,
            begin_at: bytes / 8 * BEGIN,
        }
    }

    /// A record with the frame that it is written as.
    pub(super) fn add(&mut self, record: &Record, frame: &[u8]) {
        let payload = frame.get(frame::HEADER..frame.len().saturating_sub(frame::TRAILER)).unwrap_or_default();
        // What the copy takes for a step is one here.
        let (Record::Step(step), Kind::Step(bytes)) = (record, frames::kind(payload)) else {
            self.eventful.hear(record);
            self.sizes.other += frame.len() as u64;
            return;
        };
        let Keep { this, before } = self.eventful.judge(step);
        if let Some(last) = self.last.filter(|last| before && !last.kept) {
            self.kept.set_last();
            self.sizes.promote(last.index, last.scanned, last.light);
            if let Some(copy) = &mut self.copy {
                copy.promote(self.kept.len, last.index, last.scanned, last.light);
            }
        }
        let (scanned, light) = (bytes.scanned, (frame.len() as u64).saturating_sub(bytes.scanned));
        self.kept.push(this);
        self.sizes.add(step.index, this, scanned, light);
        self.last = Some(Last { index: step.index, scanned, light, kept: this });
    }

    /// After `appended` bytes, with which the recording has `written`: begins a copy where it is time, goes on with one, and puts it in the recording's place when it
    /// has caught up.
    ///
    /// # Errors
    /// Where the copy cannot be written. The recording is as it was.
    pub(super) fn thin(&mut self, file: &File, written: u64, appended: u64) -> io::Result<Option<Replacement>> {
        if self.copy.is_none() && written >= self.begin_at {
            let plan = Plan::for_target(&self.sizes, self.bytes / 8 * TARGET, self.plan);
            self.copy = Some(Copy::begin(&self.path, file, plan, written - (self.bytes / 8 * LATEST).min(written))?);
        }
        let Some(copy) = &mut self.copy else { return Ok(None) };
        let is_urgent = written.saturating_add(appended) >= self.bytes - self.bytes / PIECES;
        let is_copied = copy.go_on((PACE * appended).max(PIECE), written, &self.kept, self.bytes)?;
        if !is_copied || !copy.is_on_disk(is_urgent)? {
            return Ok(None);
        }
        let Some(done) = self.copy.take().map(|copy| copy.finish(file, &self.path)).transpose()?.flatten() else {
            return Ok(None);
        };
        (self.plan, self.sizes, self.kept) = (done.plan, done.sizes, done.kept);
        // A head that fills the limit alone cannot be thinned, and is not copied again and again.
        self.begin_at = (self.bytes / 8 * BEGIN).max(done.replacement.bytes + self.bytes / 4);
        Ok(Some(done.replacement))
    }

    /// Bytes that may be appended at once, so that there is a time to thin before the limit is reached.
    pub(super) fn piece(&self) -> usize {
        usize::try_from(self.bytes / PIECES).unwrap_or(usize::MAX)
    }

    /// What there is to say where it could not be thinned.
    pub(super) fn refusal(&self, error: &io::Error) -> Record {
        let text = format!(
            "The recording could not be thinned, so that it may grow beyond {} bytes: {error}. Half as much must fit beside it while a thinned copy is written.",
            self.bytes
        );
        Record::Note(Note { step: self.last.map_or(0, |last| last.index), kind: NoteKind::Information, text })
    }
}

impl Drop for Limit {
    /// A copy that did not take the recording's place is nobody's.
    fn drop(&mut self) {
        if let Some(copy) = self.copy.take() {
            copy.abandon();
        }
    }
}

/// A bit for each step of the file, in its order.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    fn push(&mut self, bit: bool) {
        if self.len.is_multiple_of(64) {
            self.words.push(0);
        }
        if let Some(word) = self.words.last_mut() {
            *word |= u64::from(bit) << (self.len % 64);
        }
        self.len += 1;
    }

    fn set_last(&mut self) {
        if let Some(word) = self.words.last_mut() {
            *word |= 1 << ((self.len - 1) % 64);
        }
    }

    fn get(&self, at: usize) -> bool {
        self.words.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }
}
