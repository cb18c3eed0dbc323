//! A recording that is still being written, or not even there yet.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::reader::{open_file, refused};
use super::{Decoder, Integrity, ReadError, files};
use crate::observation::{Record, RunInfo};

/// Bytes read at a time.
const CHUNK: usize = 64 << 10;

/// What a [`Follower`] brings.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// The next record.
    Record(Record),
    /// The recording was truncated, or another run took its place: forget what came before; its records follow.
    Restarted,
    /// Another file of the same run took the place: the recording was thinned, so that it stays below its size. Forget what came before; its records follow anew, without
    /// those that were left out.
    Rewritten,
}

/// Follows a recording while it grows. It never waits: the caller polls, and sleeps when there is nothing new.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    open: Option<Open>,
    chunk: Vec<u8>,
}

#[derive(Debug)]
struct Open {
    path: PathBuf,
    file: File,
    read: u64,
    decoder: Decoder,
    /// Its first record.
    run: Option<RunInfo>,
    /// A record that was read before it was asked for.
    ahead: Option<Record>,
}

impl Follower {
    /// Follows the recording at `path`: a file, or a run directory, of which it follows the lowest rank that it finds first.
    /// Neither needs to exist yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.into(), open: None, chunk: vec![0; CHUNK] }
    }

    /// The next record, or `None` when there is nothing new now.
    ///
    /// # Errors
    /// When the file is no recording or too new (then at each poll until another takes its place), and when the system refuses
    /// to read it. That it does not exist (yet, or any more) is no error.
    pub fn poll(&mut self) -> Result<Option<News>, ReadError> {
        let Some(open) = &mut self.open else {
            self.open = open_first(&self.path)?;
            return if self.open.is_some() { self.poll() } else { Ok(None) };
        };
        let record = open.next_record(&mut self.chunk);
        if let Ok(Some(record)) = record {
            return Ok(Some(News::Record(record)));
        }
        if open.is_replaced()? {
            let (path, before) = (open.path.clone(), open.run.take());
            self.open = Open::new(&path)?;
            let run = self.open.as_mut().and_then(|open| open.look_ahead(&mut self.chunk));
            let is_the_same = run.is_some() && run == before.as_ref();
            return Ok(Some(if is_the_same { News::Rewritten } else { News::Restarted }));
        }
        record.map(|_| None)
    }

    /// The file that is followed, once there is one.
    pub fn file(&self) -> Option<&Path> {
        self.open.as_ref().map(|open| open.path.as_path())
    }

    /// Whether the end record was read: nothing more will come unless another run takes the place of this one.
    pub fn ended(&self) -> bool {
        self.integrity().is_some_and(|integrity| integrity.end.is_some())
    }

    /// How the recording looks so far, once there is one.
    pub fn integrity(&self) -> Option<&Integrity> {
        self.open.as_ref().map(|open| open.decoder.integrity())
    }
}

fn open_first(path: &Path) -> Result<Option<Open>, ReadError> {
    if !path.is_dir() {
        return Open::new(path);
    }
    files::in_directory(path)?.first().map_or(Ok(None), |(_, file)| Open::new(file))
}

impl Open {
    /// `None` when there is no file.
    fn new(path: &Path) -> Result<Option<Self>, ReadError> {
        match open_file(path) {
            Ok(file) => {
                Ok(Some(Self { path: path.into(), file, read: 0, decoder: Decoder::new(), run: None, ahead: None }))
            }
            Err(ReadError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Its first record, where it describes a run. What is wrong with it is told when it is asked for.
    fn look_ahead(&mut self, chunk: &mut [u8]) -> Option<&RunInfo> {
        self.ahead = self.next_record(chunk).ok().flatten();
        self.run.as_ref()
    }

    fn next_record(&mut self, chunk: &mut [u8]) -> Result<Option<Record>, ReadError> {
        if let Some(record) = self.ahead.take() {
            return Ok(Some(record));
        }
        loop {
            let content = |source| ReadError::Content { source, path: self.path.clone() };
            if let Some(record) = self.decoder.next_record().map_err(content)? {
                if let Record::Run(run) = &record {
                    self.run = Some(run.clone());
                }
                return Ok(Some(record));
            }
            match self.file.read(chunk) {
                Ok(0) => return self.at_end().map(|()| None),
                Ok(n) => {
                    self.read += n as u64;
                    self.decoder.push(chunk.get(..n).unwrap_or_default());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ReadError::Io { source, path: self.path.clone() }),
            }
        }
    }

    /// There is nothing more to read now. What seems damaged may be bytes that the file system has not brought yet.
    fn at_end(&mut self) -> Result<(), ReadError> {
        if let Some(offset) = self.decoder.rewind() {
            let sought = self.file.seek(SeekFrom::Start(offset));
            self.read = sought.map_err(|source| ReadError::Io { source, path: self.path.clone() })?;
        }
        match self.decoder.foreign() {
            Some(source) => Err(ReadError::Content { source, path: self.path.clone() }),
            None => Ok(()),
        }
    }

    /// Whether the path now names another file, or this one is shorter than what was read of it.
    fn is_replaced(&self) -> Result<bool, ReadError> {
        let now = match std::fs::metadata(&self.path) {
            Ok(now) => now,
            // Moved away, and nothing in its place yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(refused(error, &self.path)),
        };
        let ours = self.file.metadata().map_err(|error| refused(error, &self.path))?;
        Ok(now.len() < self.read || !same_file(&now, &ours))
    }
}

#[cfg(unix)]
fn same_file(a: &Metadata, b: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn same_file(a: &Metadata, b: &Metadata) -> bool {
    a.created().ok() == b.created().ok()
}
