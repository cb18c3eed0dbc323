//! The trainer's side of the recording: hands steps to the writer's thread and never waits for it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::thinning::Limit;
use super::writer::{Batch, GATHER, QUEUE, Shared, Sink, Writer};
use super::{WriteError, files, signal};
use crate::observation::{
    End, EndReason, Note, NoteKind, Observation, Record, Rounding, RunInfo, ScalerConfig, ScalerEvent, Shadow,
    ShadowGradient, Site, SiteId, Step,
};

/// The size below which a recording stays where nobody said another: 100 tensors at each of 50,000 steps, and as many again before they are thinned.
pub const DEFAULT_LIMIT: u64 = 256 << 20;
/// Steps that are written at once, so that a viewer sees that the run has begun.
const FIRST_STEPS: u64 = 4;
/// Memory that the waiting steps may take: a full step of a thousand sites takes about half a megabyte.
const QUEUE_BYTES: usize = 64 << 20;
/// Notes and scaler settings that may wait while the queue is full; more are dropped, and counted in a note.
const PENDING: usize = 1024;
/// How long the end of a recording may take before the recorder stops waiting for the disk.
const PATIENCE: Duration = Duration::from_secs(30);

/// Writes a recording from a thread of its own, behind a bounded queue; no method but [`finish`](Self::finish) (and drop)
/// waits for the disk.
///
/// A step that finds the queue full is dropped and counted. Sites, scaler settings and notes are not: they wait here and
/// travel with the next step that is accepted. When writing fails, the recorder goes quiet and remembers why.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    shared: Arc<Shared>,
    /// `None` once the recording was closed.
    queue: Option<SyncSender<Batch>>,
    writer: Option<JoinHandle<()>>,
    /// Disconnects when the writer has returned.
    done: Receiver<()>,
    sites: HashMap<Site, SiteId>,
    pending: Vec<Record>,
    pending_notes: usize,
    lost_notes: u64,
    steps: u64,
    dropped: u64,
    last_step: u64,
    /// The process that has the writer's thread. A forked child has not, and the queue's lock may be held there by nobody.
    pid: u32,
    patience: Duration,
}

impl Recorder {
    /// Creates `<run>/rank-<n>.amprec`, the directory with it, and writes the run's first record before it returns. A recording
    /// that is there already is moved aside, to `rank-<n>.amprec.<k>`. It stays below [`DEFAULT_LIMIT`].
    ///
    /// # Errors
    /// When the file cannot be created or written, and when another process, or another recorder of this one, is writing it.
    pub fn create(run: &Path, info: &RunInfo) -> Result<Self, WriteError> {
        Self::create_within(run, info, Some(DEFAULT_LIMIT))
    }

    /// As [`create`](Self::create), and keeps the recording below `limit` bytes (at least [`LEAST_LIMIT`](super::LEAST_LIMIT)): near it, older steps are thinned evenly
    /// over the run, and steps with an event are kept. While it is thinned, up to half as much lies beside it. `None` lets it grow.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_within(run: &Path, info: &RunInfo, limit: Option<u64>) -> Result<Self, WriteError> {
        let (path, file) = files::create(run, info.rank)?;
        let limit = limit.map(|bytes| Limit::new(bytes, &path));
        Self::start(file, path, info, limit, GATHER)
    }

    fn start(
        sink: impl Sink,
        path: PathBuf,
        info: &RunInfo,
        limit: Option<Limit>,
        gather: Duration,
    ) -> Result<Self, WriteError> {
        let shared = Arc::new(Shared::default());
        let (queue, batches) = mpsc::sync_channel(QUEUE);
        let (alive, done) = mpsc::channel();
        let (at, with) = (path.clone(), shared.clone());
        let mut writer = Writer { sink, path: at, shared: with, written: 0, buffer: Vec::new(), limit, gather };
        let (begun, beginning) = mpsc::sync_channel(1);
        let first = Record::Run(info.clone());
        let thread = thread::Builder::new().name("ampdoctor-recorder".into()).spawn(move || {
            signal::block_file_size_signal();
            let written = writer.write(&[first]);
            let failed = written.is_err();
            // The other side waits for this.
            let _ = begun.send(written);
            if !failed {
                writer.run(batches);
            }
            drop(alive);
        });
        let thread = thread.map_err(|source| WriteError::Create {
            what: "start the recorder's thread",
            source: Arc::new(source),
            path: path.clone(),
        })?;
        beginning.recv().unwrap_or_else(|_| Err(WriteError::Panicked { path: path.clone() }))?;
        Ok(Self {
            path,
            shared,
            queue: Some(queue),
            writer: Some(thread),
            done,
            sites: HashMap::new(),
            pending: Vec::new(),
            pending_notes: 0,
            lost_notes: 0,
            steps: 0,
            dropped: 0,
            last_step: 0,
            pid: std::process::id(),
            patience: PATIENCE,
        })
    }

    /// Where the recording lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of a site; the same site always has the same number.
    pub fn intern(&mut self, site: &Site) -> SiteId {
        if let Some(id) = self.sites.get(site) {
            return *id;
        }
        let id = SiteId(u32::try_from(self.sites.len()).unwrap_or(u32::MAX));
        self.sites.insert(site.clone(), id);
        self.pending.push(Record::Site(id, site.clone()));
        id
    }

    /// Hands a step to the writer; false when it was dropped (and counted): the queue was full, or writing has failed. Sets the
    /// step's `cost.dropped_steps`.
    pub fn step(&mut self, mut step: Step) -> bool {
        self.steps += 1;
        self.last_step = step.index;
        step.cost.dropped_steps = self.dropped;
        let (size, urgent) = (memory(&step), is_urgent(&step));
        let accepted = self.fits(size) && self.send(Some(Record::Step(step)), size);
        if !accepted {
            self.count_dropped();
        } else if urgent {
            self.shared.hurry();
        }
        accepted
    }

    /// Hands a comparison with FP32 to the writer; false when there was no room for it, which a note then says.
    pub fn shadow(&mut self, shadow: Shadow) -> bool {
        let size = size_of::<Shadow>() + shadow.gradients.len() * size_of::<ShadowGradient>();
        let step = shadow.step;
        let accepted = self.fits(size) && self.send(Some(Record::Shadow(shadow)), size);
        if !accepted && self.failure().is_none() {
            let text = "The recorder's queue was full and a comparison with FP32 was dropped.".into();
            self.say(Record::Note(Note { step, kind: NoteKind::Dropped, text }));
        }
        accepted
    }

    fn fits(&self, size: usize) -> bool {
        self.shared.queued.load(Ordering::Relaxed) + size <= QUEUE_BYTES
    }

    /// Hands the scaler's settings to the writer.
    pub fn scaler(&mut self, config: ScalerConfig) {
        self.say(Record::Scaler(config));
    }

    /// Hands a note to the writer.
    pub fn note(&mut self, note: Note) {
        self.say(Record::Note(note));
    }

    /// Steps dropped so far.
    pub fn dropped_steps(&self) -> u64 {
        self.dropped
    }

    /// Why writing ended, if it did: nothing is recorded from then on.
    pub fn failure(&self) -> Option<&WriteError> {
        self.shared.failure.get()
    }

    /// Writes the last record, waits for the writer (at most 30 seconds) and returns the recording's path.
    ///
    /// # Errors
    /// When anything could not be written, now or earlier, and when the recording does not lie at its path any more.
    pub fn finish(mut self, reason: EndReason) -> Result<PathBuf, WriteError> {
        self.close(reason)?;
        Ok(self.path.clone())
    }

    /// A record that is not lost when the queue is full.
    fn say(&mut self, record: Record) {
        if self.pending_notes >= PENDING {
            self.lost_notes += 1;
            return;
        }
        self.pending_notes += 1;
        self.pending.push(record);
        if self.send(None, 0) {
            self.shared.hurry();
        }
    }

    /// Sends what is pending, and `last` behind it. What does not fit stays pending, but for `last`.
    fn send(&mut self, last: Option<Record>, size: usize) -> bool {
        let Some(queue) = self.queue.as_ref().filter(|_| std::process::id() == self.pid) else { return false };
        let mut records = std::mem::take(&mut self.pending);
        let pending = records.len();
        records.extend(last);
        let queued = self.shared.queued.fetch_add(size, Ordering::Relaxed) + size;
        let waiting = self.shared.waiting.fetch_add(1, Ordering::Relaxed) + 1;
        let refused = match queue.try_send(Batch { records, size }) {
            Ok(()) => {
                self.pending_notes = 0;
                if queued > QUEUE_BYTES / 2 || waiting > QUEUE / 2 {
                    self.shared.hurry();
                }
                return true;
            }
            Err(TrySendError::Full(batch)) => Some(batch.records),
            // Writing has failed: nothing waits for it.
            Err(TrySendError::Disconnected(_)) => None,
        };
        self.shared.queued.fetch_sub(size, Ordering::Relaxed);
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        self.pending = refused.unwrap_or_default();
        self.pending.truncate(pending);
        false
    }

    fn count_dropped(&mut self) {
        self.dropped += 1;
        if self.dropped == 1 && self.failure().is_none() {
            let text = "The recorder's queue was full and this step was dropped, perhaps with later ones: the disk is too slow \
                        for this sampling. Observe fewer steps, or record to a faster disk.";
            // It waits for the next step that is accepted; the queue is full now.
            self.pending.push(Record::Note(Note { step: self.last_step, kind: NoteKind::Dropped, text: text.into() }));
        }
    }

    fn close(&mut self, reason: EndReason) -> Result<(), WriteError> {
        let Some(queue) = self.queue.take() else { return Ok(()) };
        if std::process::id() != self.pid {
            // A forked child: the thread, and the recording, are its parent's.
            std::mem::forget(queue);
            std::mem::forget(self.writer.take());
            return Ok(());
        }
        let last = self.last_records(reason);
        *self.shared.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
        drop(queue);
        self.shared.hurry();
        if self.done.recv_timeout(self.patience) == Err(RecvTimeoutError::Timeout) {
            return Err(WriteError::Stuck { seconds: self.patience.as_secs(), path: self.path.clone() });
        }
        if self.writer.take().is_some_and(|thread| thread.join().is_err()) {
            return Err(WriteError::Panicked { path: self.path.clone() });
        }
        self.failure().cloned().map_or(Ok(()), Err)
    }

    fn last_records(&mut self, reason: EndReason) -> Vec<Record> {
        let mut records = std::mem::take(&mut self.pending);
        if self.lost_notes > 0 {
            let text = format!("{} notes were dropped while the recorder's queue was full.", self.lost_notes);
            records.push(Record::Note(Note { step: self.last_step, kind: NoteKind::Dropped, text }));
        }
        records.push(Record::End(End { steps: self.steps, dropped_steps: self.dropped, reason }));
        records
    }
}

impl Drop for Recorder {
    /// Ends the recording as one that was not finished, and waits for the writer. What went wrong was to be seen by
    /// [`failure`](Recorder::failure); it is not printed here.
    fn drop(&mut self) {
        let reason = if thread::panicking() { EndReason::Panicked } else { EndReason::Dropped };
        let _ = self.close(reason);
    }
}

/// Whether a process that ends at this step, as some do where they meet the like, should leave it behind: the first ones, and those that trained nothing.
fn is_urgent(step: &Step) -> bool {
    step.index < FIRST_STEPS || step.skipped() || step.loss.is_some_and(|loss| !loss.is_finite())
}

/// About how much memory a step takes in the queue, and never less than a half of what it takes in the file.
fn memory(step: &Step) -> usize {
    let counts: usize = step.observations.iter().map(|o| o.stats.exponents.parts().1.len()).sum();
    let roundings = step.observations.iter().filter(|o| o.rounding.is_some()).count();
    let names: usize = step.metrics.iter().map(|(name, _)| name.len()).sum();
    size_of::<Step>()
        + step.observations.len() * size_of::<Observation>()
        + counts * size_of::<u64>()
        + roundings * size_of::<Rounding>()
        + step.scaler.len() * size_of::<ScalerEvent>()
        + step.metrics.len() * size_of::<(String, f64)>()
        + names
}

#[cfg(test)]
mod tests;
