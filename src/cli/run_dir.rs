//! The run directory of a command that is to be started.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};

use crate::recording::rank_files;

/// Where runs are kept whose directory was not given.
const DEFAULT_PARENT: &str = "ampdoctor-runs";

/// Makes the run directory for `command`: the given one, or a new one under `ampdoctor-runs`. The path is absolute, for the
/// command may change its working directory.
pub(super) fn for_command(given: Option<PathBuf>, command: &[OsString]) -> anyhow::Result<PathBuf> {
    let dir = match given {
        Some(dir) => given_dir(dir)?,
        None => new_dir(Path::new(DEFAULT_PARENT), &base_name(command))?,
    };
    std::path::absolute(&dir)
        .with_context(|| format!("could not find the run directory's full path: {}", dir.display()))
}

/// Removes a run directory that nothing was written into, and its parent if it is ours and empty.
pub(super) fn remove_if_empty(dir: &Path) {
    // An error means that something lies in it, which is then kept.
    if fs::remove_dir(dir).is_ok()
        && let Some(parent) = dir.parent().filter(|parent| parent.ends_with(DEFAULT_PARENT))
    {
        let _ = fs::remove_dir(parent);
    }
}

fn given_dir(dir: PathBuf) -> anyhow::Result<PathBuf> {
    if dir.is_dir() && rank_files(&dir).is_ok() {
        bail!(
            "this directory already holds a recording, and the new run would be mixed with it. Give another directory, or \
             remove this one: {}",
            dir.display()
        );
    }
    fs::create_dir_all(&dir).with_context(|| cannot_create(&dir))?;
    Ok(dir)
}

/// Creates `parent/base`, or `parent/base-2` and so on where that is taken.
fn new_dir(parent: &Path, base: &str) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(parent).with_context(|| cannot_create(parent))?;
    for n in 1.. {
        let dir = parent.join(if n == 1 { base.to_string() } else { format!("{base}-{n}") });
        match fs::create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| cannot_create(&dir)),
        }
    }
    unreachable!("there is always another number")
}

fn cannot_create(dir: &Path) -> String {
    format!("could not create the run directory {}; give one that can be written with --run DIR", dir.display())
}

fn base_name(command: &[OsString]) -> String {
    let program = command.first().map(Path::new).and_then(Path::file_stem).map(|stem| stem.to_string_lossy());
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    format!("{}-{}", time_stamp(seconds), program.as_deref().unwrap_or("run"))
}

/// Seconds since the Unix epoch as UTC: `20261129-185717`.
fn time_stamp(seconds: u64) -> String {
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// The Gregorian date of a day counted from 1970-01-01, by walking years and months.
fn date(mut days: u64) -> (u64, usize, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let months = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while month < 11 && days >= months[month] {
        days -= months[month];
        month += 1;
    }
    (year, month + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stamps_are_utc() {
        let cases = [
            (0, "19700101-000000"),
            (951_782_400, "20000229-000000"),
            (1_709_251_199, "20240229-235959"),
            (1_709_251_200, "20240301-000000"),
            (1_798_761_599, "20261231-235959"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(time_stamp(seconds), expected);
        }
    }

    #[test]
    fn two_runs_of_one_second_get_two_directories() {
        let parent = tempfile::tempdir().unwrap();
        let first = new_dir(parent.path(), "x").unwrap();
        let second = new_dir(parent.path(), "x").unwrap();
        assert_eq!((first, second), (parent.path().join("x"), parent.path().join("x-2")));
    }

    #[test]
    fn a_run_is_not_mixed_into_another() {
        let dir = tempfile::tempdir().unwrap();
        assert!(given_dir(dir.path().into()).is_ok());
        fs::write(dir.path().join("rank-0.amprec"), "x").unwrap();
        assert!(given_dir(dir.path().into()).is_err());
    }
}
