//! Where a run is recorded, and what the environment says of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use ampdoctor::recording::{RUNS, new_run_dir};

/// `AMPDOCTOR_RUN`, or a new directory under `ampdoctor-runs/` named after the time and the program.
pub(crate) fn default_dir() -> Result<PathBuf, String> {
    match named() {
        Some(dir) => Ok(dir),
        None => new_run_dir(Path::new(RUNS), &program(), SystemTime::now()).map_err(|error| {
            format!("could not create a run directory in {RUNS}: {error}; set AMPDOCTOR_RUN to one that can be written")
        }),
    }
}

/// The run directories of this process's living doctors.
static CLAIMED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A run directory that no other doctor of this process records in, until this is dropped.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// `dir`, or where a living doctor of this process has it already, `dir-2`, `dir-3` and so on: two models trained on two threads are two runs, and
    /// a recording that is moved aside while it is written is lost.
    pub(crate) fn claim(dir: PathBuf) -> Self {
        let dir = std::path::absolute(&dir).unwrap_or(dir);
        let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
        let mut path = dir.clone();
        let mut n = 2;
        while !claimed.insert(path.clone()) {
            let mut name = dir.file_name().unwrap_or_default().to_owned();
            name.push(format!("-{n}"));
            path = dir.with_file_name(name);
            n += 1;
        }
        if path != dir {
            eprintln!(
                "ampdoctor: another doctor of this process records in {}; this one records in {}",
                dir.display(),
                path.display()
            );
        }
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        CLAIMED.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.path);
    }
}

/// Whether the environment names a run directory.
pub(crate) fn is_named() -> bool {
    named().is_some()
}

fn named() -> Option<PathBuf> {
    std::env::var_os("AMPDOCTOR_RUN").filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

fn program() -> String {
    let exe = std::env::current_exe().ok();
    exe.and_then(|path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()))
        .unwrap_or_else(|| "run".into())
}

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_living_doctors_of_a_process_never_share_a_directory() {
        let dir = || RunDir::claim("claimed/run".into());
        let (first, second, third) = (dir(), dir(), dir());
        let ends = [&first, &second, &third].map(|claim| claim.path().file_name().map(|name| name.to_owned()));
        assert_eq!(ends, ["run", "run-2", "run-3"].map(|name| Some(name.into())));
        drop(second);
        assert_eq!(dir().path().file_name(), Some("run-2".as_ref()), "a doctor that has ended makes room");
    }
}
