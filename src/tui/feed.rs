//! Reads the recordings of a run while they grow, one of each rank.

use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, test_kill_process};

use super::world::Batch;
use crate::observation::Record;
use crate::recording::{Follower, News, ReadError, is_at_rest, rank_files};

/// Records taken at once, of all ranks together, so that long recordings do not hold up the keys.
const AT_ONCE: usize = 256;
/// How often it is looked for further ranks, once there is one: a directory may lie on a slow file system.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A recorder writes its first record at once; after this long a file without one has none to come.
const FIRST_RECORD: Duration = Duration::from_secs(10);

/// What is new in the recordings of a run, poll by poll.
pub struct Feed {
    run: PathBuf,
    ranks: Vec<Tail>,
    /// Recordings of earlier runs in the directory, by path; followed only once something else lies there.
    stale: HashMap<PathBuf, (u64, u64)>,
    looked_at: Option<Instant>,
    /// Why the directory cannot be listed.
    refused: Option<ReadError>,
}

impl Feed {
    /// Follows the run at `run`, a directory or a recording; neither needs to exist yet.
    pub fn new(run: &Path) -> Self {
        Self { run: run.into(), ranks: Vec::new(), stale: HashMap::new(), looked_at: None, refused: None }
    }

    /// As [`Feed::new`], and passes over recordings that are there now: a command is about to be started that makes new ones.
    pub fn of_a_new_run(run: &Path) -> Self {
        Self { stale: recordings(run), ..Self::new(run) }
    }

    /// Where the recordings lie, by rank, as far as there are any.
    pub fn files(&self) -> Vec<&Path> {
        self.ranks.iter().filter_map(|rank| rank.follower.file()).collect()
    }

    /// What is new since the last call, by rank.
    pub fn poll(&mut self) -> Vec<Batch> {
        self.look_for_ranks();
        let at_once = (AT_ONCE / self.ranks.len().max(1)).max(1);
        let mut batches: Vec<Batch> = self.ranks.iter_mut().map(|rank| rank.poll(at_once)).collect();
        if batches.is_empty() {
            let problem =
                |error: &ReadError| Batch { problem: Some(error.to_string()), unreadable: true, ..Batch::default() };
            batches.extend(self.refused.as_ref().map(problem));
        }
        batches
    }

    /// Follows the ranks that are there and not followed yet.
    fn look_for_ranks(&mut self) {
        let due = self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_AGAIN);
        if !self.ranks.is_empty() && !due {
            return;
        }
        self.looked_at = Some(Instant::now());
        match rank_files(&self.run) {
            Ok(files) => files.into_iter().for_each(|file| self.follow(file)),
            // Not there yet; or gone, and what was read of it stays.
            Err(ReadError::Missing { .. } | ReadError::NoRecording { .. }) => self.refused = None,
            Err(error) => self.refused = Some(error),
        }
    }

    fn follow(&mut self, file: PathBuf) {
        if self.ranks.iter().any(|rank| rank.path == file) {
            return;
        }
        if let Some(old) = self.stale.get(&file) {
            if std::fs::metadata(&file).is_ok_and(|now| identity(&now) == *old) {
                return;
            }
            self.stale.remove(&file);
        }
        self.refused = None;
        let (number, follower) = (number(&file), Follower::new(&file));
        self.ranks.push(Tail { number, follower, path: file, pid: None, abandoned: None });
        self.ranks.sort_by_key(|rank| rank.number);
    }
}

/// The rank that a recording is named after; 0 for one with a name of its own.
fn number(file: &Path) -> u32 {
    let stem = file.file_stem().and_then(|stem| stem.to_str());
    stem.and_then(|stem| stem.strip_prefix("rank-")?.parse().ok()).unwrap_or(0)
}

/// The recording of one rank.
struct Tail {
    number: u32,
    path: PathBuf,
    follower: Follower,
    pid: Option<u32>,
    /// How long the file was when it was found to be abandoned.
    abandoned: Option<u64>,
}

impl Tail {
    fn poll(&mut self, at_once: usize) -> Batch {
        let rank = self.number;
        let mut batch = Batch { rank, more: true, ..Batch::default() };
        self.read(&mut batch, at_once);
        batch.process_gone = self.pid.and_then(is_gone);
        if batch.process_gone == Some(true) && !batch.more && !batch.unreadable {
            // It may have written its end between the last look and its own.
            batch.more = true;
            self.read(&mut batch, at_once);
        }
        batch.problem = batch.problem.or_else(|| self.damage());
        batch.age = self.age().unwrap_or_default();
        batch.abandoned = self.pid.is_none() && !batch.more && !batch.unreadable && self.is_abandoned(batch.age);
        batch
    }

    /// Whether a recording without a record will stay so: nothing came for a while, and nobody writes it. That is asked once, for to ask takes the lock for a
    /// moment.
    fn is_abandoned(&mut self, age: Duration) -> bool {
        let length = std::fs::metadata(&self.path).map(|meta| meta.len()).ok();
        if length.is_none() || self.abandoned != length {
            self.abandoned = length.filter(|_| age > FIRST_RECORD && is_at_rest(&self.path));
        }
        self.abandoned.is_some()
    }

    fn read(&mut self, batch: &mut Batch, at_once: usize) {
        while batch.more && batch.records.len() < at_once {
            self.next(batch);
        }
    }

    fn next(&mut self, batch: &mut Batch) {
        match self.follower.poll() {
            Ok(Some(News::Record(record))) => {
                if let Record::Run(run) = &record {
                    self.pid = Some(run.pid);
                }
                batch.records.push(record);
            }
            Ok(Some(news @ (News::Restarted | News::Rewritten))) => {
                let rewritten = news == News::Rewritten;
                *batch = Batch { rank: self.number, restarted: true, rewritten, more: true, ..Batch::default() };
            }
            Ok(None) => batch.more = false,
            Err(error) => {
                batch.problem = Some(error.to_string());
                batch.unreadable = true;
                batch.more = false;
            }
        }
    }

    fn damage(&self) -> Option<String> {
        let integrity = self.follower.integrity().filter(|i| i.damage_count > 0)?;
        let (places, bytes) = (integrity.damage_count, integrity.damaged_bytes);
        let places = format!("{places} place{}", if places == 1 { "" } else { "s" });
        let first = integrity.damage().first().map(|damage| format!("; first {damage}")).unwrap_or_default();
        Some(format!("the recording is damaged in {places}, {bytes} bytes were skipped{first}"))
    }

    fn age(&self) -> Option<Duration> {
        let modified = std::fs::metadata(self.follower.file()?).and_then(|m| m.modified()).ok()?;
        SystemTime::now().duration_since(modified).ok()
    }
}

/// Whether no process has this number here; `None` where the number is none.
pub fn is_gone(pid: u32) -> Option<bool> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    Some(test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

/// The recordings in a directory, with what tells one from another of the same name.
fn recordings(run: &Path) -> HashMap<PathBuf, (u64, u64)> {
    let entries = std::fs::read_dir(run).into_iter().flatten().flatten();
    let recordings = entries.filter(|entry| entry.path().extension().is_some_and(|e| e == "amprec"));
    recordings.filter_map(|entry| Some((entry.path(), identity(&entry.metadata().ok()?)))).collect()
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::EndReason;
    use crate::observation::RunInfo;
    use crate::recording::{LEAST_LIMIT, Recorder};
    use crate::tui::state::{Ranks, Run, RunState, Source};
    use crate::tui::testing::{run_info, step};

    fn write(run: &Path, name: &str, rank: u32, steps: u64) {
        write_as(run, &RunInfo { rank, ..run_info(name) }, steps);
    }

    fn write_as(run: &Path, info: &RunInfo, steps: u64) {
        let mut recorder = Recorder::create(run, info).expect("a recording");
        for index in 0..steps {
            while !recorder.step(step(index)) {
                std::thread::yield_now();
            }
        }
        recorder.finish(EndReason::Finished).expect("written");
    }

    fn names(batches: &[Batch]) -> Vec<(u32, String)> {
        let name = |record: &Record| if let Record::Run(run) = record { Some(run.name.clone()) } else { None };
        batches.iter().flat_map(|b| b.records.iter().filter_map(name).map(|name| (b.rank, name))).collect()
    }

    #[test]
    fn a_recording_of_an_earlier_run_is_not_taken_for_the_new_one() {
        let dir = tempfile::tempdir().expect("a folder");
        write(dir.path(), "old", 0, 1);
        write(dir.path(), "old", 3, 1);
        let mut feed = Feed::of_a_new_run(dir.path());
        assert!(feed.poll().is_empty());
        write(dir.path(), "new", 0, 1);
        assert_eq!(names(&feed.poll()), [(0, "new".to_owned())], "and rank 3 stays the old one");
    }

    #[test]
    fn every_rank_is_followed_by_its_number() {
        let dir = tempfile::tempdir().expect("a folder");
        for rank in [10, 2] {
            write(dir.path(), "r", rank, 3);
        }
        let mut feed = Feed::new(dir.path());
        assert_eq!(names(&feed.poll()), [(2, "r".to_owned()), (10, "r".to_owned())]);
        write(dir.path(), "late", 4, 1);
        feed.looked_at = None;
        assert_eq!(names(&feed.poll()), [(4, "late".to_owned())]);
        assert_eq!(feed.files().len(), 3);
    }

    #[test]
    fn one_recording_is_followed_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        for rank in [0, 1] {
            write(dir.path(), "r", rank, 3);
        }
        let mut feed = Feed::new(&dir.path().join("rank-1.amprec"));
        assert_eq!(names(&feed.poll()), [(1, "r".to_owned())]);
    }

    #[test]
    fn a_long_recording_comes_in_parts_and_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut feed = Feed::new(dir.path());
        assert!(feed.poll().is_empty());
        write(dir.path(), "long", 0, 600);
        let (mut sizes, mut steps) = (Vec::new(), 0);
        loop {
            let batch = feed.poll().remove(0);
            sizes.push(batch.records.len());
            steps += batch.records.iter().filter(|r| matches!(r, Record::Step(_))).count();
            if !batch.more {
                break;
            }
        }
        assert!(sizes.iter().all(|&n| n <= AT_ONCE) && sizes.len() > 2, "{sizes:?}");
        assert_eq!(steps, 600);
    }

    #[test]
    fn a_recording_from_the_future_is_new_and_not_stale() {
        let dir = tempfile::tempdir().expect("a folder");
        write_as(dir.path(), &run_info("r"), 3);
        let file = std::fs::File::options().write(true).open(dir.path().join("rank-0.amprec")).expect("recorded");
        file.set_modified(SystemTime::now() + Duration::from_secs(3600)).expect("made of the future");
        assert_eq!(Feed::new(dir.path()).poll().remove(0).age, Duration::ZERO);
    }

    #[test]
    fn a_recording_that_is_thinned_is_read_anew_and_is_no_other_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut feed = Feed::new(dir.path());
        let mut recorder = Recorder::create_within(dir.path(), &run_info("r"), Some(LEAST_LIMIT)).expect("a recording");
        let (mut seen, mut rewritten) = (0, 0);
        for index in 0..2000 {
            while !recorder.step(step(index)) {
                std::thread::yield_now();
            }
            for batch in feed.poll() {
                assert_eq!(batch.restarted, batch.rewritten);
                rewritten += u32::from(batch.rewritten);
                seen = batch
                    .records
                    .iter()
                    .fold(seen, |seen, r| if let Record::Step(s) = r { seen.max(s.index) } else { seen });
            }
        }
        assert!(rewritten > 0 && seen > 1000, "{rewritten} times, to step {seen}");
    }

    /// What the run seemed to do after each look at an old recording whose process is gone, until all of it was read.
    fn states_of_an_old_recording(write: impl FnOnce(&Path)) -> Vec<RunState> {
        let dir = tempfile::tempdir().expect("a folder");
        write(dir.path());
        let file = std::fs::File::options().write(true).open(dir.path().join("rank-0.amprec")).expect("recorded");
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).expect("made old");
        let (mut feed, mut ranks) = (Feed::new(dir.path()), Ranks::new(Run::new(Source::default())));
        let mut states = Vec::new();
        loop {
            let batch = feed.poll().remove(0);
            let more = batch.more;
            ranks.take(batch, Duration::ZERO);
            states.extend(ranks.states(Duration::ZERO));
            if !more {
                return states;
            }
        }
    }

    /// No process has this number.
    const GONE: u32 = i32::MAX as u32;

    #[test]
    fn an_end_that_was_not_read_yet_is_no_kill() {
        let states = states_of_an_old_recording(|run| {
            write_as(run, &RunInfo { pid: GONE, ..run_info("r") }, 600);
        });
        let (last, before) = states.split_last().expect("states");
        assert_eq!(*last, RunState::Ended(EndReason::Finished));
        assert!(before.len() > 1 && before.iter().all(|state| *state == RunState::Live), "{before:?}");
    }

    #[test]
    fn a_recording_that_was_read_whole_and_has_no_end_is_a_kill() {
        let states = states_of_an_old_recording(|run| {
            write_as(run, &RunInfo { pid: GONE, ..run_info("r") }, 600);
            let file = std::fs::File::options().write(true).open(run.join("rank-0.amprec")).expect("recorded");
            file.set_len(file.metadata().expect("its size").len() - 1).expect("its end is cut off");
        });
        let (last, before) = states.split_last().expect("states");
        assert_eq!(*last, RunState::Killed);
        assert!(before.len() > 1 && before.iter().all(|state| *state == RunState::Live), "{before:?}");
    }

    #[test]
    fn an_empty_recording_that_nobody_writes_is_over_and_one_that_was_just_made_is_waited_for() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("rank-0.amprec");
        let state = || {
            let mut ranks = Ranks::new(Run::new(Source::default()));
            for batch in Feed::new(dir.path()).poll() {
                ranks.take(batch, Duration::ZERO);
            }
            ranks.states(Duration::ZERO)
        };
        for content in ["", "abc"] {
            std::fs::write(&path, content).expect("written");
            assert_eq!(state(), [RunState::Waiting], "{content}");
            let file = std::fs::File::options().write(true).open(&path).expect("there");
            file.set_modified(SystemTime::now() - Duration::from_secs(60)).expect("made old");
            assert_eq!(state(), [RunState::Empty], "{content}");
            file.lock().expect("its writer holds it");
            assert_eq!(state(), [RunState::Waiting], "{content}");
        }
    }

    #[test]
    fn what_is_no_recording_is_a_problem_and_no_failure() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("rank-0.amprec"), vec![b'x'; 200]).expect("written");
        let batches = Feed::new(dir.path()).poll();
        assert!(batches[0].records.is_empty() && batches[0].problem.is_some(), "{batches:?}");
    }
}
