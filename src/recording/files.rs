//! Where recordings lie: `<run directory>/rank-<n>.amprec`, and what an older one of the same rank is moved to.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::writer::Sink;
use super::{ReadError, WriteError, lock};

/// The recording of one rank in a run directory: `rank-<n>.amprec`.
pub fn recording_path(run: &Path, rank: u32) -> PathBuf {
    run.join(format!("rank-{rank}.amprec"))
}

/// The rank that a file name stands for, or `None` when it is no recording's: neither `rank-0.amprec.1` nor `rank-00.amprec`.
pub fn rank_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let rank: u32 = name.strip_prefix("rank-")?.strip_suffix(".amprec")?.parse().ok()?;
    (name == format!("rank-{rank}.amprec")).then_some(rank)
}

/// The recordings in a run directory, by rising rank.
pub(super) fn in_directory(directory: &Path) -> Result<Vec<(u32, PathBuf)>, ReadError> {
    let io = |source| ReadError::Io { source, path: directory.into() };
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(io)? {
        let path = entry.map_err(io)?.path();
        found.extend(rank_of(&path).map(|rank| (rank, path)));
    }
    found.sort();
    Ok(found)
}

/// What stands in a directory without a recording, in words: what nearly matches, else the first names.
pub(super) fn near_matches(directory: &Path) -> String {
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let mut names: Vec<(bool, String)> = entries.map(|entry| describe(&entry)).collect();
    names.sort();
    let shown: Vec<&str> = names.iter().take(SHOWN).map(|(_, name)| name.as_str()).collect();
    match (names.len(), shown.join(", ")) {
        (0, _) => "nothing, it is empty; the trainer may not have started yet".into(),
        (n, list) if n > SHOWN => format!("{list} and {} more", n - SHOWN),
        (_, list) => list,
    }
}

/// Names that an error message lists.
const SHOWN: usize = 5;

/// A name, and whether it is far from a recording's (so that near ones sort first).
fn describe(entry: &fs::DirEntry) -> (bool, String) {
    let name = entry.file_name().to_string_lossy().into_owned();
    let path = entry.path();
    if path.is_dir() {
        let holds_recording = in_directory(&path).is_ok_and(|found| !found.is_empty());
        return (
            !holds_recording,
            if holds_recording { format!("{name}/ (a run directory)") } else { format!("{name}/") },
        );
    }
    (!name.contains(".amprec") && !name.starts_with("rank-"), name)
}

/// Creates the recording of `rank`. One that is there already is never written to: it is moved to `rank-<n>.amprec.<k>`, with
/// the lowest `k` above all others, which no reader takes for a rank. One that is being written is left where it lies.
pub(super) fn create(run: &Path, rank: u32) -> Result<(PathBuf, File), WriteError> {
    fs::create_dir_all(run).map_err(refuse("create the run directory", run))?;
    let path = recording_path(run, rank);
    loop {
        // O_APPEND: whatever else writes to the file, no frame is ever laid over another.
        match OpenOptions::new().append(true).create_new(true).open(&path) {
            // Another process may have found it before it was claimed, and moved it aside.
            Ok(file) if lock::claim(&file) && file.lies_at(&path) => {
                // What a process that was killed had not done with; no reader looks at it.
                let _ = fs::remove_file(thinned_path(&path));
                return Ok((path, file));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => move_aside(run, &path)?,
            Err(error) => return Err(refuse("create the recording", &path)(error)),
        }
    }
}

/// Where the thinned copy of a recording is written.
pub(super) fn thinned_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".thinned");
    path.with_file_name(name)
}

/// Moves a recording to the next free name that no reader takes for a rank; not one that is being written.
pub(super) fn move_aside(run: &Path, path: &Path) -> Result<(), WriteError> {
    // Held until it is moved, so that no other process moves it too.
    let Some(old) = at_rest(path)? else { return Ok(()) };
    if !old.lies_at(path) {
        return Ok(());
    }
    let aside = free_name(run, path).map_err(refuse("list the run directory", run))?;
    fs::rename(path, aside).map_err(refuse("move an older recording aside", path))
}

/// Whether nobody writes to a recording.
pub(super) fn is_at_rest(path: &Path) -> Result<(), WriteError> {
    at_rest(path).map(drop)
}

/// The recording at a path, claimed; `None` where there is none any more.
fn at_rest(path: &Path) -> Result<Option<File>, WriteError> {
    match File::open(path) {
        Ok(file) if lock::claim(&file) => Ok(Some(file)),
        Ok(_) => Err(WriteError::Busy { path: path.into() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(refuse("look at the recording that lies there", path)(error)),
    }
}

/// Recordings that were moved aside in a run directory, by rank, the oldest of each first.
pub(super) fn aside(run: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(run).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<(u32, u64, PathBuf)> = paths.filter_map(aside_of).collect();
    found.sort();
    found.into_iter().map(|(_, _, path)| path).collect()
}

/// `rank-3.amprec.2`: rank 3, the second that was moved aside.
fn aside_of(path: PathBuf) -> Option<(u32, u64, PathBuf)> {
    let number = path.extension()?.to_str()?.parse().ok()?;
    Some((rank_of(&path.with_extension(""))?, number, path))
}

/// The recordings in a run directory, for somebody who is about to write there.
pub(super) fn recordings(run: &Path) -> Result<Vec<PathBuf>, WriteError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(run).map_err(refuse("list the run directory", run))? {
        let path = entry.map_err(refuse("list the run directory", run))?.path();
        found.extend(rank_of(&path).map(|_| path));
    }
    Ok(found)
}

fn refuse(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WriteError + use<> {
    let path = path.to_path_buf();
    move |source| WriteError::Create { what, source: Arc::new(source), path }
}

fn free_name(run: &Path, path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned() + ".";
    let mut last = 0u64;
    for entry in fs::read_dir(run)? {
        let entry = entry?.file_name();
        let number = entry.to_str().and_then(|n| n.strip_prefix(&name)).and_then(|k| k.parse().ok());
        last = last.max(number.unwrap_or(0));
    }
    Ok(run.join(format!("{name}{}", last + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_name_is_a_rank() {
        assert_eq!(rank_of(Path::new("run/rank-12.amprec")), Some(12));
        for other in
            ["rank-0.amprec.1", "rank-00.amprec", "rank-.amprec", "rank--1.amprec", "rank-+1.amprec", "x.amprec"]
        {
            assert_eq!(rank_of(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn a_recording_that_is_being_written_is_left_where_it_lies() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, file) = create(dir.path(), 0).expect("a recording");
        assert!(matches!(create(dir.path(), 0), Err(WriteError::Busy { path: busy }) if busy == path));
        assert!(file.lies_at(&path));
        create(dir.path(), 1).expect("another rank is another file");
        drop(file);
        create(dir.path(), 0).expect("it is not written any more");
        assert!(dir.path().join("rank-0.amprec.1").exists());
    }

    #[test]
    fn an_older_recording_is_moved_aside_and_never_lost() {
        let dir = tempfile::tempdir().expect("a folder");
        let run = dir.path().join("deep/run");
        for text in ["first", "second", "third"] {
            let (path, _file) = create(&run, 0).expect("a recording");
            fs::write(path, text).expect("written");
        }
        let text = |name: &str| fs::read_to_string(run.join(name)).expect("there");
        assert_eq!(
            [text("rank-0.amprec.1"), text("rank-0.amprec.2"), text("rank-0.amprec")],
            ["first", "second", "third"]
        );
        assert_eq!(in_directory(&run).expect("readable"), [(0, run.join("rank-0.amprec"))]);
        assert_eq!(aside(&run), ["rank-0.amprec.1", "rank-0.amprec.2"].map(|name| run.join(name)));
    }
}
