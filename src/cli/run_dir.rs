//! The run directory of a command that is to be started.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, bail};

use super::child;
use crate::recording::{RUNS, WriteError, new_run_dir, rank_files, runs_before, runs_within, set_aside};

/// The run directory of a command, and the earlier recordings that made room in it.
#[derive(Debug)]
pub(super) struct RunDir {
    /// Absolute, for the command may change its working directory.
    pub path: PathBuf,
    /// Where each earlier recording lay, and where it lies now.
    aside: Vec<(PathBuf, PathBuf)>,
    /// What lies there before the command is started.
    before: Vec<PathBuf>,
}

impl RunDir {
    /// Makes the run directory for `command`: the given one, or a new one under `ampdoctor-runs`. A command that cannot be started
    /// gets none, and moves nothing.
    pub fn for_command(given: Option<PathBuf>, command: &[OsString]) -> anyhow::Result<Self> {
        child::find(command)?;
        let (dir, aside) = match given {
            Some(dir) => {
                let aside = make_room(&dir)?;
                (dir, aside)
            }
            None => {
                let dir = new_run_dir(Path::new(RUNS), &program_of(command), SystemTime::now());
                (dir.with_context(|| cannot_create(Path::new(RUNS)))?, Vec::new())
            }
        };
        let path = std::path::absolute(&dir)
            .with_context(|| format!("could not find the run directory's full path: {}", dir.display()))?;
        let before = names(&path);
        Ok(Self { path, aside, before })
    }

    /// All that the command recorded: the run in the directory, those that it moved aside by beginning another, and those of doctors that found their rank
    /// taken, each a directory or a recording.
    pub fn recorded(&self) -> Vec<PathBuf> {
        let run = rank_files(&self.path).is_ok().then(|| self.path.clone());
        let others = runs_before(&self.path).into_iter().chain(runs_within(&self.path));
        run.into_iter().chain(others.filter(|path| !self.before.contains(path))).collect()
    }

    /// Nothing was recorded: an earlier recording moves back, and a directory that nothing was written into is removed, as is its
    /// parent if it is ours and empty.
    pub fn nothing_recorded(&self) {
        let back = self.aside.iter().filter(|(was, is)| !was.exists() && fs::rename(is, was).is_ok()).count();
        if back > 0 {
            eprintln!(
                "ampdoctor: nothing was recorded, and the earlier recording lies where it lay: {}",
                self.path.display()
            );
        }
        // An error means that something lies in it, which is then kept.
        if fs::remove_dir(&self.path).is_ok()
            && let Some(parent) = self.path.parent().filter(|parent| parent.ends_with(RUNS))
        {
            let _ = fs::remove_dir(parent);
        }
    }
}

/// Makes the given directory, where an earlier run makes room, and returns what was moved to where.
fn make_room(dir: &Path) -> anyhow::Result<Vec<(PathBuf, PathBuf)>> {
    fs::create_dir_all(dir).with_context(|| cannot_create(dir))?;
    let before = names(dir);
    let moved = match set_aside(dir) {
        Err(WriteError::Busy { path }) => bail!(
            "another run is being recorded in that directory; name another one with --run DIR, or wait until it has ended: {}",
            path.display()
        ),
        moved => moved?,
    };
    if moved == 0 {
        return Ok(Vec::new());
    }
    eprintln!("ampdoctor: the earlier recording in {} was moved aside, to rank-*.amprec.<number>", dir.display());
    let new = names(dir).into_iter().filter(|path| !before.contains(path));
    // `rank-0.amprec.3` was `rank-0.amprec`.
    Ok(new.map(|path| (path.with_extension(""), path)).filter(|(was, _)| before.contains(was)).collect())
}

fn names(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
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
        let run = RunDir::for_command(Some(dir.path().into()), &["sh".into()]).unwrap();
        assert!(!dir.path().join("rank-0.amprec").exists());
        assert_eq!(fs::read_to_string(dir.path().join("rank-0.amprec.1")).unwrap(), "x");
        run.nothing_recorded();
        assert_eq!(names(dir.path()), [dir.path().join("rank-0.amprec")]);
    }

    #[test]
    fn what_a_command_recorded_is_not_what_lay_there_before() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).and_then(|()| fs::write(path, "x")).unwrap();
        };
        ["rank-0.amprec", "process-7/rank-0.amprec"].into_iter().for_each(write);
        let run = RunDir::for_command(Some(dir.path().into()), &["sh".into()]).unwrap();
        assert!(run.recorded().is_empty(), "{:?}", run.recorded());
        let new = ["process-7-2/rank-0.amprec", "rank-0.amprec", "rank-0.amprec.2", "rank-0.amprec.thinned"];
        new.into_iter().for_each(write);
        let expected = ["", "rank-0.amprec.2", "process-7-2"].map(|name| dir.path().join(name));
        assert_eq!(run.recorded(), expected);
    }

    #[test]
    fn a_command_that_is_not_there_moves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("rank-0.amprec"), "x").unwrap();
        for (command, hint) in
            [("no-such-trainer", "say ./no-such-trainer"), ("./none", "was it built?"), ("", "after `--`")]
        {
            let error = RunDir::for_command(Some(dir.path().into()), &[command.into()]).unwrap_err();
            assert!(error.to_string().contains(hint), "{error}");
        }
        assert_eq!(names(dir.path()), [dir.path().join("rank-0.amprec")]);
    }
}
