//! What can go wrong with a recording, said so that the reader of the message knows what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::FORMAT_VERSION;

/// Why a recording could not be written. Training is never the poorer for it: the recorder goes quiet and remembers this.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The run directory or the file in it could not be created.
    #[error("cannot {what} ({source}); name a run directory that can be written: {}", path.display())]
    Create {
        /// What was tried: `create the run directory`.
        what: &'static str,
        /// What the system said.
        source: Arc<io::Error>,
        /// What could not be created.
        path: PathBuf,
    },
    /// The recording that lies there is being written by another process, or by another doctor of this one.
    #[error(
        "another process, or another doctor of this one, is recording the same rank in the same directory; give each process its RANK \
         (0, 1, ...), or set AMPDOCTOR_RUN to a directory of its own: {}", path.display()
    )]
    Busy {
        /// The recording.
        path: PathBuf,
    },
    /// Writing failed later on. What had been written before is whole and can be read.
    #[error(
        "writing the recording failed ({source}) after {written} bytes; what was written so far can be read; is the disk \
         full?: {}", path.display()
    )]
    Write {
        /// Bytes of whole frames written before.
        written: u64,
        /// What the system said.
        source: Arc<io::Error>,
        /// The recording.
        path: PathBuf,
    },
    /// The writer had not finished when the recorder stopped waiting for it.
    #[error(
        "the disk did not take the end of the recording within {seconds} s; what was written so far can be read; is the \
         file system hung?: {}", path.display()
    )]
    Stuck {
        /// How long the recorder waited.
        seconds: u64,
        /// The recording.
        path: PathBuf,
    },
    /// The writer's thread panicked: a fault of ampdoctor.
    #[error("the recorder's thread panicked, which is a fault of ampdoctor; what was written so far can be read: {}", path.display())]
    Panicked {
        /// The recording.
        path: PathBuf,
    },
}

/// Why bytes are no recording that can be read; the part of a [`ReadError`] that knows no path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes are something else.
    #[error(
        "this is no ampdoctor recording: {why}; a recording is called rank-<n>.amprec and lies in the run directory"
    )]
    NotOurs {
        /// What gave it away.
        why: String,
    },
    /// The recording was written by a later ampdoctor, in a format that this one would misread.
    #[error(
        "this recording has format version {version}, and this ampdoctor reads up to {FORMAT_VERSION}; update ampdoctor to \
         read it (it was written by {producer})"
    )]
    TooNew {
        /// The version that it has.
        version: u32,
        /// The program that wrote it.
        producer: String,
    },
    /// The bytes were a recording once, and no record of it can be read.
    #[error(
        "the recording is damaged from byte {offset} on ({flaw}), and no record in it can be read; if it was copied, copy it \
         again"
    )]
    Damaged {
        /// The first byte that makes no sense.
        offset: u64,
        /// What is wrong there.
        flaw: Flaw,
    },
}

/// Why a recording could not be read. Damage behind the first record is no error: see [`Integrity`](super::Integrity).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Nothing lies at the path.
    #[error("there is no such file or directory; give the run directory that the trainer was started with: {}", path.display())]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// The directory holds no recording.
    #[error("no recording in this directory: looked for rank-<n>.amprec, found {found}: {}", path.display())]
    NoRecording {
        /// What nearly matches, or that there is nothing.
        found: String,
        /// The directory.
        path: PathBuf,
    },
    /// A pipe, a socket or a device, which may never end.
    #[error("this is no file but {what}; a recording can be read again from its start: save it to a file first: {}", path.display())]
    NotAFile {
        /// What it is.
        what: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// The file is no recording, too new, or damaged from its start.
    #[error("{source}: {}", path.display())]
    Content {
        /// What is wrong with it.
        source: DecodeError,
        /// The file.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot read the recording ({source}): {}", path.display())]
    Io {
        /// What the system said.
        source: io::Error,
        /// The file or directory.
        path: PathBuf,
    },
}

impl ReadError {
    /// The file or directory.
    pub fn path(&self) -> &Path {
        match self {
            Self::Missing { path } | Self::NoRecording { path, .. } | Self::NotAFile { path, .. } => path,
            Self::Content { path, .. } | Self::Io { path, .. } => path,
        }
    }
}

/// What is wrong with a part of a recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// Where a frame must begin stand bytes that are no frame header.
    #[error("no frame begins here")]
    Header,
    /// The payload of a frame does not match its checksum.
    #[error("the checksum of a frame does not match its payload")]
    Checksum,
    /// The payload is whole, and is no Protocol Buffers message of the schema.
    #[error("the payload of a frame cannot be decoded ({0})")]
    Undecodable(String),
    /// The payload decodes and makes no sense.
    #[error("a record makes no sense: {0}")]
    Nonsense(String),
    /// A step refers to a site whose definition was never read; the step was kept without these observations.
    #[error("site {0} is used and was never defined; observations of it are left out")]
    UndefinedSite(u32),
}
