//! Reading a run: every recording of a run directory, each through its own diagnosis.

use std::fmt;
use std::path::{Path, PathBuf};

use super::number::{bytes, percent};
use super::{Rank, Run};
use crate::recording::{Integrity, ReadError, Records, rank_files};
use crate::rules::{Diagnosis, Policy};

/// How far reading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read, over all recordings of the run.
    pub read_bytes: u64,
    /// Bytes that they hold.
    pub total_bytes: u64,
}

impl fmt::Display for Progress {
    /// `42 % of 1.3 GB`; a file that grows while it is read stays at 100 %.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = self.read_bytes as f64 / self.total_bytes.max(1) as f64;
        write!(f, "{} of {}", percent(share.min(1.0)), bytes(self.total_bytes))
    }
}

/// One recording, read.
pub struct RankRecording {
    /// The file.
    pub path: PathBuf,
    /// How much of it was there to be read.
    pub integrity: Integrity,
    /// Why reading stopped before the end of the file; what came before was kept.
    pub stopped: Option<ReadError>,
    /// Whether the process that recorded it is known to have ended: reading alone does not tell.
    pub process_ended: bool,
    /// What the rules say of it.
    pub diagnosis: Diagnosis,
}

impl RankRecording {
    /// The rank, to be reported.
    pub fn rank(&self) -> Rank<'_> {
        let file = self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let (integrity, stopped) = (Some(&self.integrity), self.stopped.as_ref());
        let process_ended = self.process_ended;
        Rank { file, integrity, stopped, process_ended, ..Rank::of(&self.diagnosis) }
    }
}

/// All recordings of a run, read; by rank.
pub struct RunRecording {
    /// The ranks; never empty.
    pub ranks: Vec<RankRecording>,
    /// Why nothing could be read of other recordings of the run.
    pub unreadable: Vec<ReadError>,
    /// Whether a run directory was read, and so every rank that recorded there.
    pub is_whole: bool,
}

impl RunRecording {
    /// The run, to be reported.
    pub fn run(&self) -> Run<'_> {
        let ranks: Vec<Rank<'_>> = self.ranks.iter().map(RankRecording::rank).collect();
        match ranks.as_slice() {
            [alone] if !self.is_whole => Run::single(*alone),
            _ => Run::of(ranks, &self.unreadable),
        }
    }
}

/// Reads a run: a directory with one recording per rank, or one recording.
///
/// `progress` is told again and again how far reading has come. A damaged recording is read as far as it can be.
///
/// # Errors
/// Where nothing of any recording could be read. An empty file is a recording, of nothing.
pub fn read_run(path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<RunRecording, ReadError> {
    read_run_under(&Policy::default(), path, progress)
}

/// As [`read_run`], under what somebody decided about the rules.
///
/// # Errors
/// As [`read_run`].
pub fn read_run_under(
    policy: &Policy,
    path: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<RunRecording, ReadError> {
    let files = rank_files(path)?;
    let size = |file: &PathBuf| file.metadata().map_or(0, |meta| meta.len());
    let total_bytes = files.iter().map(size).sum();
    let mut run = RunRecording { ranks: Vec::new(), unreadable: Vec::new(), is_whole: path.is_dir() };
    let mut before = 0;
    for file in files {
        let bytes = size(&file);
        match read_rank(file, policy, &mut |read| progress(Progress { read_bytes: before + read, total_bytes })) {
            Ok(rank) => run.ranks.push(rank),
            Err(error) => run.unreadable.push(error),
        }
        before += bytes;
    }
    match run.ranks.is_empty() {
        true => Err(run.unreadable.swap_remove(0)),
        false => Ok(run),
    }
}

/// Reads one recording. An error behind its first record ends it there; before, there is nothing to keep.
fn read_rank(path: PathBuf, policy: &Policy, progress: &mut dyn FnMut(u64)) -> Result<RankRecording, ReadError> {
    let mut records = Records::open(&path)?;
    let mut diagnosis = Diagnosis::under(policy.clone());
    let mut stopped = None;
    let mut told = 0;
    while let Some(record) = records.next() {
        match record {
            Ok(record) => diagnosis.apply(record),
            Err(error) if diagnosis.aggregate().run.is_none() => return Err(error),
            Err(error) => stopped = Some(error),
        }
        if records.bytes_read() > told {
            told = records.bytes_read();
            progress(told);
        }
    }
    let integrity = records.integrity().clone();
    Ok(RankRecording { path, integrity, stopped, process_ended: false, diagnosis })
}
