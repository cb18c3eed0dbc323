//! Reading a run: every recording of a run directory, each through its own diagnosis.

use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::number::{bytes, percent};
use super::{Rank, Run};
use crate::recording::Decoder;
use crate::rules::Diagnosis;

/// What was wrong with a recording. Everything before that place was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What was wrong, for people.
    pub what: String,
    /// Bytes that were read whole.
    pub read_bytes: u64,
    /// Bytes that were not.
    pub unread_bytes: u64,
}

/// Why nothing of a run could be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadRunError {
    /// The path is not there.
    #[error("there is nothing at this path; a run is a directory that holds rank-0.amprec: {}", .0.display())]
    Missing(PathBuf),
    /// The directory holds no recording.
    #[error(
        "this directory holds no recording (rank-0.amprec). If the run has just begun, wait for its first step; if it has \
         ended, the doctor was not attached or AMPDOCTOR_RUN was not set: {}",
        .0.display()
    )]
    NoRecording(PathBuf),
    /// The file is no recording, or broken from its first record on.
    #[error("{what}: {}", path.display())]
    NotARecording {
        /// What was wrong.
        what: String,
        /// The file.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("could not read the recording: {source}. Check its permissions: {}", path.display())]
    Io {
        /// What it said.
        source: std::io::Error,
        /// The file.
        path: PathBuf,
    },
}

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
    /// What was wrong with it.
    pub damage: Option<Damage>,
    /// What the rules say of it.
    pub diagnosis: Diagnosis,
}

impl RankRecording {
    /// The rank, to be reported.
    pub fn rank(&self) -> Rank<'_> {
        let file = self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        Rank { file, damage: self.damage.as_ref(), ..Rank::of(&self.diagnosis) }
    }
}

/// All recordings of a run, read; by rank.
pub struct RunRecording {
    /// The ranks; never empty.
    pub ranks: Vec<RankRecording>,
    /// Recordings of which nothing could be read, beside others that could.
    pub unreadable: Vec<ReadRunError>,
}

impl RunRecording {
    /// The run, to be reported.
    pub fn run(&self) -> Run<'_> {
        Run { ranks: self.ranks.iter().map(RankRecording::rank).collect() }
    }
}

/// The recordings of a run, by rank. `path` is a run directory or one recording.
pub fn rank_files(path: &Path) -> Result<Vec<PathBuf>, ReadRunError> {
    let io = |source: std::io::Error| match source.kind() {
        ErrorKind::NotFound => ReadRunError::Missing(path.into()),
        _ => ReadRunError::Io { source, path: path.into() },
    };
    if !std::fs::metadata(path).map_err(io)?.is_dir() {
        return Ok(vec![path.into()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        let file = entry.map_err(io)?.path();
        if let Some(rank) = rank_of(&file) {
            files.push((rank, file));
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(ReadRunError::NoRecording(path.into()));
    }
    Ok(files.into_iter().map(|(_, file)| file).collect())
}

fn rank_of(file: &Path) -> Option<u32> {
    file.file_name()?.to_str()?.strip_prefix("rank-")?.strip_suffix(".amprec")?.parse().ok()
}

/// Reads a run: a directory with one recording per rank, or one recording.
///
/// `progress` is told after every piece how far reading has come. A damaged recording is read up to its damage.
///
/// # Errors
/// Where nothing of any recording could be read.
pub fn read_run(path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<RunRecording, ReadRunError> {
    let files = rank_files(path)?;
    let total_bytes = files.iter().filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum();
    let mut done = 0;
    let mut run = RunRecording { ranks: Vec::new(), unreadable: Vec::new() };
    for file in files {
        let mut advance = |n: u64| {
            done += n;
            progress(Progress { read_bytes: done, total_bytes });
        };
        match read_rank(file, &mut advance) {
            Ok(rank) => run.ranks.push(rank),
            Err(error) => run.unreadable.push(error),
        }
    }
    match run.unreadable.is_empty() || !run.ranks.is_empty() {
        true => Ok(run),
        false => Err(run.unreadable.swap_remove(0)),
    }
}

/// Bytes read at once.
const PIECE: usize = 1 << 20;

fn read_rank(path: PathBuf, advance: &mut dyn FnMut(u64)) -> Result<RankRecording, ReadRunError> {
    match decode(&path, advance) {
        Ok((diagnosis, damage)) if diagnosis.aggregate().run.is_some() => Ok(RankRecording { path, damage, diagnosis }),
        Ok((_, damage)) => {
            let what = damage.map_or_else(|| "the file is empty: its run never began to record".into(), |d| d.what);
            Err(ReadRunError::NotARecording { what, path })
        }
        Err(source) => Err(ReadRunError::Io { source, path }),
    }
}

fn decode(path: &Path, advance: &mut dyn FnMut(u64)) -> std::io::Result<(Diagnosis, Option<Damage>)> {
    let mut file = File::open(path)?;
    let mut piece = vec![0; PIECE];
    let mut diagnosis = Diagnosis::new();
    let mut decoder = Decoder {};
    loop {
        let n = match file.read(&mut piece) {
            Ok(0) => return Ok((diagnosis, None)),
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        decoder.push(&piece[..n]);
        loop {
            match decoder.next_record() {
                Ok(Some(record)) => diagnosis.apply(record),
                Ok(None) => break,
                Err(error) => {
                    let damage = Damage { what: error.to_string(), read_bytes: 0, unread_bytes: 0 };
                    return Ok((diagnosis, Some(damage)));
                }
            }
        }
        advance(n as u64);
    }
}
