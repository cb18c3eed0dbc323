//! What `Doctor::finish` gives.

use std::path::{Path, PathBuf};

use ampdoctor::recording::{ReadError, WriteError, read_run};
use ampdoctor::rules::Diagnosis;

/// How a run ended for the doctor, and the way to its diagnosis.
#[derive(Debug)]
pub struct RunReport {
    path: Option<PathBuf>,
    steps: u64,
    dropped_steps: u64,
    failure: Option<WriteError>,
}

impl RunReport {
    pub(crate) fn new(path: PathBuf, steps: u64, dropped_steps: u64) -> Self {
        Self { path: Some(path), steps, dropped_steps, failure: None }
    }

    pub(crate) fn incomplete(steps: u64, dropped_steps: u64, failure: WriteError) -> Self {
        Self { path: None, steps, dropped_steps, failure: Some(failure) }
    }

    /// The report of a doctor that never observed.
    pub(crate) fn nothing() -> Self {
        Self { path: None, steps: 0, dropped_steps: 0, failure: None }
    }

    /// Where the recording lies; `None` where nothing could be recorded.
    pub fn recording(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Steps that are missing from the recording because the disk was too slow.
    pub fn dropped_steps(&self) -> u64 {
        self.dropped_steps
    }

    /// Why the recording is incomplete, where it is.
    pub fn failure(&self) -> Option<&WriteError> {
        self.failure.as_ref()
    }

    /// Reads the recording and diagnoses the run, as `ampdoctor check` does. `None` where nothing was recorded.
    ///
    /// # Errors
    /// Where the recording cannot be read any more.
    pub fn diagnose(&self) -> Result<Option<Diagnosis>, ReadError> {
        let Some(path) = &self.path else { return Ok(None) };
        let mut diagnosis = Diagnosis::new();
        for record in read_run(path)? {
            diagnosis.apply(record?);
        }
        Ok(Some(diagnosis))
    }
}
