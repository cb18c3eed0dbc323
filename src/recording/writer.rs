//! The recorder's thread: takes batches from the queue, encodes them and writes those that have gathered with one call.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::thinning::Limit;
use super::{WriteError, encode_frame};
use crate::observation::Record;

/// A buffer that grew beyond this for one large step is given back.
const BUFFER_KEPT: usize = 1 << 20;
/// Batches that may wait for the writer, and as many may be in its hands. It is woken when half of them wait: at a thousand steps a second it and the disk may
/// then stall for an eighth of one.
pub(super) const QUEUE: usize = 256;
/// How long batches gather: the trainer wakes a thread once in this time and not at each of its steps. What a process that is killed loses, and what a viewer
/// lags behind.
pub(super) const GATHER: Duration = Duration::from_millis(250);

/// Where frames go: a file, or what a test puts in its place.
pub(super) trait Sink: Write + Send + 'static {
    /// Makes the system write what it holds, so that an error it kept for later (a quota on a network disk) is known.
    fn sync(&mut self) -> io::Result<()>;

    /// Whether the path still names what was written; what goes wrong in asking is a no.
    fn lies_at(&self, path: &Path) -> bool;

    /// Thins what was written, a piece at a time, where it comes near its limit; its size, where that is another now. Only a file can be thinned.
    fn thin(&mut self, _: &mut Limit, _written: u64, _appended: u64) -> io::Result<Option<u64>> {
        Ok(None)
    }
}

impl Sink for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    #[cfg(unix)]
    fn lies_at(&self, path: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let (there, ours) = (std::fs::metadata(path).map(identity), self.metadata().map(identity));
        matches!((there, ours), (Ok(there), Ok(ours)) if there == ours)
    }

    #[cfg(not(unix))]
    fn lies_at(&self, path: &Path) -> bool {
        path.exists()
    }

    fn thin(&mut self, limit: &mut Limit, written: u64, appended: u64) -> io::Result<Option<u64>> {
        let Some(replacement) = limit.thin(self, written, appended)? else { return Ok(None) };
        *self = replacement.file;
        Ok(Some(replacement.bytes))
    }
}

/// What goes through the queue: written in order and never in parts, so that a reader sees all of it at once.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) records: Vec<Record>,
    /// Bytes of memory that its step takes in the queue.
    pub(super) size: usize,
}

/// What the two sides of the queue share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Bytes of memory that the steps in the queue take.
    pub(super) queued: AtomicUsize,
    /// Batches in the queue.
    pub(super) waiting: AtomicUsize,
    /// Whether what gathers is to be written at once.
    pub(super) hurried: Mutex<bool>,
    hurry: Condvar,
    /// Why writing ended, if it did.
    pub(super) failure: OnceLock<WriteError>,
    /// The last records, left here before the queue is closed: there may be no room in it.
    pub(super) last: Mutex<Vec<Record>>,
}

impl Shared {
    /// Has what gathers written at once.
    pub(super) fn hurry(&self) {
        *self.hurried.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.hurry.notify_one();
    }

    /// Waits for batches to gather.
    fn gather(&self, at_most: Duration) {
        let hurried = self.hurried.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.hurry.wait_timeout_while(hurried, at_most, |hurried| !*hurried);
        let (mut hurried, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *hurried = false;
    }
}

/// The writer's side.
pub(super) struct Writer<S> {
    pub(super) sink: S,
    pub(super) path: PathBuf,
    pub(super) shared: Arc<Shared>,
    pub(super) written: u64,
    pub(super) buffer: Vec<u8>,
    /// What the recording is to stay below; `None` where it may grow.
    pub(super) limit: Option<Limit>,
    /// How long batches gather.
    pub(super) gather: Duration,
}

impl<S: Sink> Writer<S> {
    /// Writes until the queue is closed or writing fails. When this returns the receiver is gone, and so the other side finds
    /// the queue closed: it never waits for a writer that has given up.
    pub(super) fn run(mut self, queue: Receiver<Batch>) {
        if let Err(error) = self.drain(&queue) {
            // Set once, here: nobody else writes to it.
            let _ = self.shared.failure.set(error);
        }
    }

    fn drain(&mut self, queue: &Receiver<Batch>) -> Result<(), WriteError> {
        while let Ok(first) = queue.recv() {
            // It is not the queue that is waited at: each batch would wake this thread.
            self.shared.gather(self.gather);
            self.write_gathered(first, queue)?;
        }
        let last = std::mem::take(&mut *self.shared.last.lock().unwrap_or_else(PoisonError::into_inner));
        self.write(&last)?;
        let synced = self.sink.sync();
        synced.map_err(|error| self.failure(error))?;
        if self.sink.lies_at(&self.path) { Ok(()) } else { Err(self.gone()) }
    }

    /// Writes a batch and those that wait behind it.
    fn write_gathered(&mut self, first: Batch, queue: &Receiver<Batch>) -> Result<(), WriteError> {
        let mut size = 0;
        for batch in std::iter::once(first).chain(queue.try_iter().take(QUEUE)) {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            size += batch.size;
            self.encode(&batch.records);
            if self.buffer.len() >= self.limit.as_ref().map_or(BUFFER_KEPT, |limit| limit.piece().min(BUFFER_KEPT)) {
                self.write_out()?;
                self.shared.queued.fetch_sub(std::mem::take(&mut size), Ordering::Relaxed);
            }
        }
        self.write_out()?;
        self.shared.queued.fetch_sub(size, Ordering::Relaxed);
        Ok(())
    }

    /// Writes records with one call.
    pub(super) fn write(&mut self, records: &[Record]) -> Result<(), WriteError> {
        self.encode(records);
        self.write_out()
    }

    fn encode(&mut self, records: &[Record]) {
        for record in records {
            let began = self.buffer.len();
            encode_frame(record, &mut self.buffer);
            if let Some(limit) = &mut self.limit {
                limit.add(record, self.buffer.get(began..).unwrap_or_default());
            }
        }
    }

    /// Writes what was encoded.
    fn write_out(&mut self) -> Result<(), WriteError> {
        if let Err(error) = self.sink.write_all(&self.buffer) {
            return Err(self.failure(error));
        }
        let appended = self.buffer.len() as u64;
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_KEPT);
        self.written += appended;
        self.thin(appended)
    }

    /// A recording that cannot be thinned goes on as it is, and says so.
    fn thin(&mut self, appended: u64) -> Result<(), WriteError> {
        let Some(limit) = &mut self.limit else { return Ok(()) };
        match self.sink.thin(limit, self.written, appended) {
            Ok(replaced) => {
                self.written = replaced.unwrap_or(self.written);
                Ok(())
            }
            Err(error) => {
                let note = limit.refusal(&error);
                self.limit = None;
                self.write(&[note])
            }
        }
    }

    fn gone(&self) -> WriteError {
        let source = io::Error::other(
            "while it was written it was deleted or moved, or another process recorded the same rank in the same directory",
        );
        WriteError::Create { what: "keep the recording", source: Arc::new(source), path: self.path.clone() }
    }

    fn failure(&self, source: io::Error) -> WriteError {
        WriteError::Write { written: self.written, source: Arc::new(source), path: self.path.clone() }
    }
}
