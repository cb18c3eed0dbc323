//! The run directory of a command that is to be started.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context;

use crate::recording::{RUNS, new_run_dir, set_aside};

/// Makes the run directory for `command`: the given one, or a new one under `ampdoctor-runs`. The path is absolute, for the
/// command may change its working directory.
pub(super) fn for_command(given: Option<PathBuf>, command: &[OsString]) -> anyhow::Result<PathBuf> {
    let dir = match given {
        Some(dir) => given_dir(dir)?,
        None => new_run_dir(Path::new(RUNS), &program_of(command), SystemTime::now())
            .with_context(|| cannot_create(Path::new(RUNS)))?,
    };
    std::path::absolute(&dir)
        .with_context(|| format!("could not find the run directory's full path: {}", dir.display()))
}

/// Removes a run directory that nothing was written into, and its parent if it is ours and empty.
pub(super) fn remove_if_empty(dir: &Path) {
    // An error means that something lies in it, which is then kept.
    if fs::remove_dir(dir).is_ok()
        && let Some(parent) = dir.parent().filter(|parent| parent.ends_with(RUNS))
    {
        let _ = fs::remove_dir(parent);
    }
}

/// The given directory, where an earlier run makes room.
fn given_dir(dir: PathBuf) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(&dir).with_context(|| cannot_create(&dir))?;
    if set_aside(&dir)? > 0 {
        eprintln!("ampdoctor: the earlier recording in {} was moved aside, to rank-*.amprec.<number>", dir.display());
    }
    Ok(dir)
}

fn cannot_create(dir: &Path) -> String {
    format!("could not create the run directory {}; give one that can be written with --run DIR", dir.display())
}

/// What the command is called in the directory's name.
fn program_of(command: &[OsString]) -> String {
    let stem = command.first().map(Path::new).and_then(Path::file_stem);
    stem.map_or_else(|| "run".into(), |stem| stem.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_not_mixed_into_an_earlier_one() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("rank-0.amprec"), "x").unwrap();
        assert!(given_dir(dir.path().into()).is_ok());
        assert!(!dir.path().join("rank-0.amprec").exists());
        assert_eq!(fs::read_to_string(dir.path().join("rank-0.amprec.1")).unwrap(), "x");
    }
}
