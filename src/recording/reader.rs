//! A recording that lies there, read from its start to its end.

use std::fs::{File, FileType};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{Decoder, Integrity, ReadError, files};
use crate::observation::Record;

/// Bytes read at a time.
const CHUNK: usize = 64 << 10;

/// The recordings of a run: one file per rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    path: PathBuf,
    ranks: Vec<PathBuf>,
}

impl Recording {
    /// Finds the recordings at `path`: a run directory (`rank-<n>.amprec` in it, by rising rank) or one file of any name. Reads
    /// the first record of each.
    ///
    /// # Errors
    /// When there is none, and when one of them is no recording, too new, damaged from its start, or cannot be read. A file
    /// that is empty, or cut within its first record, is a recording without records.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let ranks = rank_files(path)?;
        for file in &ranks {
            Records::open(file)?.next().transpose()?;
        }
        Ok(Self { path: path.into(), ranks })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files, by rising rank; at least one.
    pub fn files(&self) -> &[PathBuf] {
        &self.ranks
    }

    /// The records of the lowest rank.
    ///
    /// # Errors
    /// When its file cannot be opened any more.
    pub fn records(&self) -> Result<Records, ReadError> {
        Records::open(self.ranks.first().unwrap_or(&self.path))
    }
}

/// The records of the lowest rank at `path`, a run directory or a file: `Recording::open(path)?.records()`.
///
/// # Errors
/// As [`Recording::open`].
pub fn read_run(path: &Path) -> Result<Records, ReadError> {
    Recording::open(path)?.records()
}

/// The recordings at `path`, by rising rank: those of a run directory, or the one file. None of them is opened.
///
/// # Errors
/// When there is nothing at the path, or no recording in the directory.
pub fn rank_files(path: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let metadata = std::fs::metadata(path).map_err(|error| refused(error, path))?;
    if !metadata.is_dir() {
        return Ok(vec![path.into()]);
    }
    let found = files::in_directory(path)?;
    if found.is_empty() {
        return Err(ReadError::NoRecording { found: files::near_matches(path), path: path.into() });
    }
    Ok(found.into_iter().map(|(_, file)| file).collect())
}

/// Opens a file. What is none is refused before it is opened, for opening a pipe waits for somebody who writes into it.
pub(super) fn open_file(path: &Path) -> Result<File, ReadError> {
    let kind = std::fs::metadata(path).map_err(|error| refused(error, path))?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        return Err(ReadError::NotAFile { what: name_of(kind), path: path.into() });
    }
    File::open(path).map_err(|error| refused(error, path))
}

#[cfg(unix)]
fn name_of(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match kind {
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(not(unix))]
fn name_of(_: FileType) -> &'static str {
    "a device"
}

pub(super) fn refused(source: io::Error, path: &Path) -> ReadError {
    match source.kind() {
        io::ErrorKind::NotFound => ReadError::Missing { path: path.into() },
        _ => ReadError::Io { source, path: path.into() },
    }
}

/// The records of one file, in order, in bounded memory. Ends after an error.
#[derive(Debug)]
pub struct Records {
    path: PathBuf,
    file: Option<File>,
    decoder: Decoder,
    chunk: Vec<u8>,
    bytes_read: u64,
}

impl Records {
    /// The records of the file at `path`.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let file = open_file(path)?;
        Ok(Self { path: path.into(), file: Some(file), decoder: Decoder::new(), chunk: vec![0; CHUNK], bytes_read: 0 })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file that were read so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// How much of the recording was there to be read; complete once the iterator has ended.
    pub fn integrity(&self) -> &Integrity {
        self.decoder.integrity()
    }

    fn advance(&mut self) -> Result<Option<Record>, ReadError> {
        let content = |source| ReadError::Content { source, path: self.path.clone() };
        loop {
            if let Some(record) = self.decoder.next_record().map_err(content)? {
                return Ok(Some(record));
            }
            let Some(file) = &mut self.file else { return Ok(None) };
            match file.read(&mut self.chunk) {
                Ok(0) if self.decoder.finish().map_err(content)? => {}
                Ok(0) => return Ok(None),
                Ok(n) => {
                    self.bytes_read += n as u64;
                    self.decoder.push(self.chunk.get(..n).unwrap_or_default());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ReadError::Io { source, path: self.path.clone() }),
            }
        }
    }
}

impl Iterator for Records {
    type Item = Result<Record, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.file.as_ref()?;
        let next = self.advance().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.file = None;
        }
        next
    }
}
