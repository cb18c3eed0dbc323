//! The thinned copy of a recording, written a piece at a time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use super::super::writer::Sink;
use super::super::{encode_frame, files, frame, lock};
use super::frames::{self, Kind, StepBytes};
use super::plan::{Fate, Plan, Sizes};
use super::{Bits, Replacement};
use crate::observation::{Record, Thinned};
use crate::recording::decode::{Decoded, Sites, decode_payload};

/// Bytes read, and written, at a time.
const CHUNK: usize = 256 << 10;

/// A thinned copy that is being written.
#[derive(Debug)]
pub(super) struct Copy {
    path: PathBuf,
    from: BufReader<File>,
    to: File,
    plan: Plan,
    /// Bytes of the recording before which it is thinned.
    older: u64,
    /// Bytes of it that were read.
    read: u64,
    /// Steps of it that were met.
    steps: usize,
    /// Whether what was thinned was told: it stands before the first step that stays as it is.
    told: bool,
    lost: Thinned,
    kept: Bits,
    sizes: Sizes,
    out: Vec<u8>,
    written: u64,
    payload: Vec<u8>,
    syncing: Option<JoinHandle<io::Result<()>>>,
}

/// A copy that took the recording's place.
pub(super) struct Done {
    pub(super) replacement: Replacement,
    pub(super) plan: Plan,
    pub(super) sizes: Sizes,
    pub(super) kept: Bits,
}

impl Copy {
    /// Begins a copy of the recording at `path`, which is `file`, thinned before byte `older`.
    pub(super) fn begin(path: &Path, file: &File, plan: Plan, older: u64) -> io::Result<Self> {
        let from = File::open(path)?;
        if !file.lies_at(path) {
            return Err(io::Error::other("another file lies in its place"));
        }
        let copy = files::thinned_path(path);
        let _ = fs::remove_file(&copy);
        let to = OpenOptions::new().append(true).create_new(true).open(&copy)?;
        lock::claim(&to);
        Ok(Self {
            path: copy,
            from: BufReader::with_capacity(CHUNK, from),
            to,
            plan,
            older,
            read: 0,
            steps: 0,
            told: false,
            lost: Thinned::default(),
            kept: Bits::default(),
            sizes: Sizes::default(),
            out: Vec::new(),
            written: 0,
            payload: Vec::new(),
            syncing: None,
        })
    }

    /// Goes on by about so many bytes of the recording, which has `written`; true once all of it was copied.
    pub(super) fn go_on(&mut self, bytes: u64, written: u64, kept: &Bits, limit: u64) -> io::Result<bool> {
        let until = written.min(self.read.saturating_add(bytes));
        while self.read < until {
            self.frame(kept, limit)?;
            if self.out.len() >= CHUNK {
                self.flush()?;
            }
        }
        if self.read < written {
            return Ok(false);
        }
        self.tell(limit);
        self.flush()?;
        Ok(true)
    }

    fn frame(&mut self, kept: &Bits, limit: u64) -> io::Result<()> {
        let mut header = [0; frame::HEADER];
        self.from.read_exact(&mut header)?;
        let length = frame::payload_length(header).ok_or_else(|| io::Error::other("it is damaged"))?;
        self.payload.resize(length + frame::TRAILER, 0);
        self.from.read_exact(&mut self.payload)?;
        let is_older = self.read < self.older;
        self.read += (frame::HEADER + length + frame::TRAILER) as u64;
        let payload = std::mem::take(&mut self.payload);
        let (body, _) = payload.split_at(length);
        match frames::kind(body) {
            Kind::Step(step) => {
                let has_event = kept.get(self.steps);
                self.steps += 1;
                if !is_older {
                    self.tell_before(step.index, limit);
                }
                let fate = if is_older { self.plan.fate(step.index, has_event) } else { Fate::Stays };
                if is_older {
                    self.lost.until = step.index.saturating_add(1);
                }
                self.step(&step, has_event, fate, &header, &payload);
            }
            Kind::Thinned => self.remember(body),
            Kind::Other => {
                self.sizes.other += (header.len() + payload.len()) as u64;
                self.out.extend(header);
                self.out.extend(&payload);
            }
        }
        self.payload = payload;
        Ok(())
    }

    fn step(&mut self, step: &StepBytes<'_>, has_event: bool, fate: Fate, header: &[u8], payload: &[u8]) {
        let began = self.out.len();
        match fate {
            Fate::Goes => {
                self.lost.removed += 1;
                self.lost.lightened += u64::from(step.is_full && !has_event);
                self.lost.lightened_events += u64::from(step.is_full && has_event);
                self.lost.removed_step_ns += step.step_ns;
                self.lost.removed_probe_ns += step.probe_ns;
                return;
            }
            Fate::KeepsNoScan if step.is_full => {
                let count = if has_event { &mut self.lost.lightened_events } else { &mut self.lost.lightened };
                *count += 1;
                step.append_light(&mut self.out);
            }
            Fate::KeepsNoScan | Fate::Stays => {
                self.out.extend(header);
                self.out.extend(payload);
            }
        }
        let scanned = if fate == Fate::Stays { step.scanned } else { 0 };
        let light = (self.out.len() - began) as u64 - scanned;
        self.kept.push(has_event);
        self.sizes.add(step.index, has_event, scanned, light);
    }

    /// What was thinned at an earlier time is gone for good, and told with what goes now.
    fn remember(&mut self, payload: &[u8]) {
        if let Ok(Decoded::Record(Record::Thinned(earlier), _)) = decode_payload(payload, &mut Sites::default()) {
            self.lost.merge(&earlier);
        }
    }

    /// The step before an event was copied as one without: it has one.
    pub(super) fn promote(&mut self, steps: usize, index: u64, scanned: u64, light: u64) {
        if self.steps == steps {
            self.kept.set_last();
            self.sizes.promote(index, scanned, light);
        }
    }

    fn tell_before(&mut self, step: u64, limit: u64) {
        if !self.told {
            self.lost.until = step;
            self.tell(limit);
        }
    }

    fn tell(&mut self, limit: u64) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        self.lost.limit_bytes = limit;
        self.lost.stride = 1u64 << self.plan.scanned.min(63);
        let began = self.out.len();
        encode_frame(&Record::Thinned(self.lost.clone()), &mut self.out);
        self.sizes.other += (self.out.len() - began) as u64;
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.write_all(&self.out)?;
        self.written += self.out.len() as u64;
        self.out.clear();
        Ok(())
    }

    /// Whether all but the latest of it is on the disk: a rename must not outlive the bytes, should the power fail. It is seen to by a thread of its own, for it can take long, and
    /// steps go on; only where there is no room any more it is waited for.
    pub(super) fn is_on_disk(&mut self, wait: bool) -> io::Result<bool> {
        let syncing = match self.syncing.take() {
            Some(syncing) => syncing,
            None => {
                let file = self.to.try_clone()?;
                thread::Builder::new().name("ampdoctor-sync".into()).spawn(move || file.sync_data())?
            }
        };
        if !wait && !syncing.is_finished() {
            self.syncing = Some(syncing);
            return Ok(false);
        }
        syncing
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that waits for the disk panicked")))
            .map(|()| true)
    }

    /// Puts the copy in the recording's place; `None` where something else lies there by now.
    pub(super) fn finish(self, file: &File, path: &Path) -> io::Result<Option<Done>> {
        if !file.lies_at(path) {
            self.abandon();
            return Ok(None);
        }
        if let Err(error) = fs::rename(&self.path, path) {
            self.abandon();
            return Err(error);
        }
        let Self { to, plan, sizes, kept, written, .. } = self;
        Ok(Some(Done { replacement: Replacement { file: to, bytes: written }, plan, sizes, kept }))
    }

    /// Removes it.
    pub(super) fn abandon(self) {
        let _ = fs::remove_file(&self.path);
    }
}
