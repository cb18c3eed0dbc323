//! Run directories: where a new one is made, and how an old one makes room.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::{WriteError, files};

/// The folder that new run directories are made in, where none was given.
pub const RUNS: &str = "ampdoctor-runs";

/// Creates a run directory for `program` in `parent`, named after the time `now` (UTC): `20261129-185717-train`, or with `-2` and so on
/// behind where that is taken.
///
/// # Errors
/// Where a folder cannot be created.
pub fn new_run_dir(parent: &Path, program: &str, now: SystemTime) -> io::Result<PathBuf> {
    fs::create_dir_all(parent)?;
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    new_folder(parent, &format!("{}-{program}", time_stamp(seconds)))
}

/// Makes a folder of this name, or with `-2` and so on behind where that is taken.
fn new_folder(parent: &Path, name: &str) -> io::Result<PathBuf> {
    let mut n = 1;
    loop {
        let dir = parent.join(if n == 1 { name.to_owned() } else { format!("{name}-{n}") });
        match fs::create_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => n += 1,
            made => return made.map(|()| dir),
        }
    }
}

/// Creates a run directory within `run`, for a process that finds its rank there taken by another: `process-4711`, or with `-2` and so on behind where
/// that is taken.
///
/// # Errors
/// Where it cannot be created.
pub fn own_run_dir(run: &Path, pid: u32) -> io::Result<PathBuf> {
    new_folder(run, &format!("{OWN}{pid}"))
}

/// The run directories that processes of the same rank made within `run`, by name.
pub fn runs_within(run: &Path) -> Vec<PathBuf> {
    let is_own = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(OWN));
    let within = fs::read_dir(run).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        within.filter(|path| is_own(path) && files::in_directory(path).is_ok_and(|ranks| !ranks.is_empty())).collect();
    found.sort();
    found
}

/// Recordings of earlier runs that lie in `run` under `rank-<n>.amprec.<k>`, by rank, the oldest of each first.
pub fn runs_before(run: &Path) -> Vec<PathBuf> {
    files::aside(run)
}

/// What the run directory of a process within another begins with.
const OWN: &str = "process-";

/// Whether a recording is there and no process writes it, as far as its file system knows of locks.
pub fn is_at_rest(recording: &Path) -> bool {
    recording.is_file() && files::is_at_rest(recording).is_ok()
}

/// Moves the recordings of all ranks in `run` aside, to `rank-<n>.amprec.<k>`, so that a new run is not mixed with the old one.
/// Returns how many were moved; none where there is no such directory.
///
/// # Errors
/// Where the directory cannot be read, a recording not renamed, or one is being written.
pub fn set_aside(run: &Path) -> Result<usize, WriteError> {
    if !run.is_dir() {
        return Ok(0);
    }
    let old = files::recordings(run)?;
    // All or none: half an old run is none.
    old.iter().try_for_each(|path| files::is_at_rest(path))?;
    for path in &old {
        files::move_aside(run, path)?;
    }
    Ok(old.len())
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
        let parent = tempfile::tempdir().expect("a folder");
        let made = || new_run_dir(&parent.path().join("runs"), "x", UNIX_EPOCH).expect("a run directory");
        let expected = ["19700101-000000-x", "19700101-000000-x-2"].map(|name| parent.path().join("runs").join(name));
        assert_eq!([made(), made()], expected);
    }

    #[test]
    fn a_clock_that_was_set_back_overwrites_no_run() {
        let parent = tempfile::tempdir().expect("a folder");
        let hour = std::time::Duration::from_secs(3600);
        let made = |now| new_run_dir(parent.path(), "x", now).expect("a run directory");
        let before_1970 = UNIX_EPOCH - hour;
        let dirs = [made(UNIX_EPOCH + hour), made(UNIX_EPOCH), made(before_1970), made(UNIX_EPOCH + hour)];
        let expected = ["19700101-010000-x", "19700101-000000-x", "19700101-000000-x-2", "19700101-010000-x-2"];
        assert_eq!(dirs, expected.map(|name| parent.path().join(name)));
    }

    #[test]
    fn a_process_that_finds_its_rank_taken_has_a_run_of_its_own() {
        let run = tempfile::tempdir().expect("a folder");
        assert!(runs_within(run.path()).is_empty());
        let made = [(); 2].map(|()| own_run_dir(run.path(), 4711).expect("made"));
        assert_eq!(made, ["process-4711", "process-4711-2"].map(|name| run.path().join(name)));
        fs::write(made[1].join("rank-0.amprec"), "x").expect("written");
        assert_eq!(runs_within(run.path()), made[1..], "one without a recording is none");
    }

    #[test]
    fn every_rank_of_an_old_run_makes_room_and_none_is_lost() {
        let run = tempfile::tempdir().expect("a folder");
        for rank in ["rank-0.amprec", "rank-1.amprec"] {
            fs::write(run.path().join(rank), rank).expect("written");
        }
        assert_eq!(set_aside(run.path()).expect("moved"), 2);
        assert_eq!(set_aside(run.path()).expect("nothing to move"), 0);
        assert_eq!(fs::read_to_string(run.path().join("rank-1.amprec.1")).expect("kept"), "rank-1.amprec");
    }
}
