//! The recording: an append-only file per rank, TFRecord frames around Protocol Buffers payloads.
//!
//! It is the only transport between the observed process and everybody else.

use std::path::{Path, PathBuf};

use crate::observation::{EndReason, Note, Record, RunInfo, ScalerConfig, Site, SiteId, Step};

/// Why a recording could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WriteError(pub String);

/// Why a recording could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ReadError(pub String);

/// Writes a recording from a thread of its own, behind a bounded queue; no method waits for the disk.
pub struct Recorder {}

impl Recorder {
    /// Creates `<run>/rank-<n>.amprec` and writes the run's first record.
    pub fn create(_run: &Path, _info: &RunInfo) -> Result<Self, WriteError> {
        Err(WriteError("not built yet".into()))
    }
    /// Where the recording lies.
    pub fn path(&self) -> &Path {
        Path::new("")
    }
    /// The number of a site; the same site always has the same number.
    pub fn intern(&mut self, _site: &Site) -> SiteId {
        SiteId(0)
    }
    /// Hands a step to the writer; false when the queue was full and the step was dropped (and counted).
    pub fn step(&mut self, _step: Step) -> bool {
        false
    }
    /// Hands the scaler's settings to the writer.
    pub fn scaler(&mut self, _config: ScalerConfig) {}
    /// Hands a note to the writer.
    pub fn note(&mut self, _note: Note) {}
    /// Steps dropped so far.
    pub fn dropped_steps(&self) -> u64 {
        0
    }
    /// Writes the last record, waits for the writer and returns the recording's path.
    pub fn finish(self, _reason: EndReason) -> Result<PathBuf, WriteError> {
        Err(WriteError("not built yet".into()))
    }
}

/// Push-based decoder: bytes in, records out.
pub struct Decoder {}

impl Decoder {
    /// Adds bytes that were read.
    pub fn push(&mut self, _bytes: &[u8]) {}
    /// The next whole record, or `None` until more bytes come.
    pub fn next_record(&mut self) -> Result<Option<Record>, ReadError> {
        Ok(None)
    }
}
