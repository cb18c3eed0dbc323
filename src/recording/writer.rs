//! The recorder's thread: takes batches from the queue, encodes them and writes each with one call.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::thinning::Limit;
use super::{WriteError, encode_frame};
use crate::observation::Record;

/// A buffer that grew beyond this for one large step is given back.
const BUFFER_KEPT: usize = 1 << 20;

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

/// What goes through the queue: written in order, with one call, so that a reader sees all of it at once.
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
    /// Why writing ended, if it did.
    pub(super) failure: OnceLock<WriteError>,
    /// The last records, left here before the queue is closed: there may be no room in it.
    pub(super) last: Mutex<Vec<Record>>,
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
        for batch in queue {
            self.write(&batch.records)?;
            self.shared.queued.fetch_sub(batch.size, Ordering::Relaxed);
        }
        let last = std::mem::take(&mut *self.shared.last.lock().unwrap_or_else(PoisonError::into_inner));
        self.write(&last)?;
        let synced = self.sink.sync();
        synced.map_err(|error| self.failure(error))?;
        if self.sink.lies_at(&self.path) { Ok(()) } else { Err(self.gone()) }
    }

    /// Writes records with one call.
    pub(super) fn write(&mut self, records: &[Record]) -> Result<(), WriteError> {
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_KEPT);
        for record in records {
            let began = self.buffer.len();
            encode_frame(record, &mut self.buffer);
            if let Some(limit) = &mut self.limit {
                limit.add(record, self.buffer.get(began..).unwrap_or_default());
            }
        }
        if let Err(error) = self.sink.write_all(&self.buffer) {
            return Err(self.failure(error));
        }
        self.written += self.buffer.len() as u64;
        self.thin()
    }

    /// A recording that cannot be thinned goes on as it is, and says so.
    fn thin(&mut self) -> Result<(), WriteError> {
        let Some(limit) = &mut self.limit else { return Ok(()) };
        match self.sink.thin(limit, self.written, self.buffer.len() as u64) {
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
