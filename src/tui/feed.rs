//! Reads a recording while it grows.

use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, test_kill_process};

use super::world::Batch;
use crate::observation::Record;
use crate::recording::{Follower, News};

/// Records taken at once, so that a long recording does not hold up the keys.
const AT_ONCE: usize = 256;

/// What is new in a recording, poll by poll.
pub struct Feed {
    follower: Follower,
    run: PathBuf,
    /// Recordings of earlier runs in the directory, by path; followed only once something else lies there.
    stale: HashMap<PathBuf, (u64, u64)>,
    pid: Option<u32>,
}

impl Feed {
    /// Follows the run at `run`, a directory or a recording; neither needs to exist yet.
    pub fn new(run: &Path) -> Self {
        Self { follower: Follower::new(run), run: run.into(), stale: HashMap::new(), pid: None }
    }

    /// As [`Feed::new`], and passes over recordings that are there now: a command is about to be started that makes a new one.
    pub fn of_a_new_run(run: &Path) -> Self {
        Self { stale: recordings(run), ..Self::new(run) }
    }

    /// Where the recording lies, once there is one.
    pub fn file(&self) -> Option<&Path> {
        self.follower.file()
    }

    /// What is new since the last call.
    pub fn poll(&mut self) -> Batch {
        if !self.stale.is_empty() {
            if recordings(&self.run).iter().all(|(path, identity)| self.stale.get(path) == Some(identity)) {
                return Batch::default();
            }
            self.stale.clear();
        }
        let mut batch = Batch { more: true, ..Batch::default() };
        while batch.more && batch.records.len() < AT_ONCE {
            self.next(&mut batch);
        }
        batch.problem = batch.problem.or_else(|| self.damage());
        batch.age = self.age().unwrap_or_default();
        batch.process_gone = self.pid.and_then(is_gone);
        batch
    }

    fn next(&mut self, batch: &mut Batch) {
        match self.follower.poll() {
            Ok(Some(News::Record(record))) => {
                if let Record::Run(run) = &record {
                    self.pid = Some(run.pid);
                }
                batch.records.push(record);
            }
            Ok(Some(News::Restarted)) => *batch = Batch { restarted: true, more: true, ..Batch::default() },
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
        let first = integrity.damage().first().map(|damage| format!("; first {damage}")).unwrap_or_default();
        Some(format!("the recording is damaged in {places} places, {bytes} bytes were skipped{first}"))
    }

    fn age(&self) -> Option<Duration> {
        let modified = std::fs::metadata(self.file()?).and_then(|m| m.modified()).ok()?;
        SystemTime::now().duration_since(modified).ok()
    }
}

/// Whether no process has this number here; `None` where the number is none.
fn is_gone(pid: u32) -> Option<bool> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    Some(test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

/// The recordings in a directory, with what tells one from another of the same name.
fn recordings(run: &Path) -> HashMap<PathBuf, (u64, u64)> {
    let entries = std::fs::read_dir(run).into_iter().flatten().flatten();
    let recordings = entries.filter(|entry| entry.path().extension().is_some_and(|e| e == "amprec"));
    let identity = |m: Metadata| (m.dev(), m.ino());
    recordings.filter_map(|entry| Some((entry.path(), identity(entry.metadata().ok()?)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::EndReason;
    use crate::recording::Recorder;
    use crate::tui::testing::{run_info, step};

    fn write(run: &Path, name: &str, steps: u64) {
        let mut recorder = Recorder::create(run, &run_info(name)).expect("a recording");
        for index in 0..steps {
            while !recorder.step(step(index)) {
                std::thread::yield_now();
            }
        }
        recorder.finish(EndReason::Finished).expect("written");
    }

    fn names(batch: &Batch) -> Vec<String> {
        let name = |record: &Record| if let Record::Run(run) = record { Some(run.name.clone()) } else { None };
        batch.records.iter().filter_map(name).collect()
    }

    #[test]
    fn a_recording_of_an_earlier_run_is_not_taken_for_the_new_one() {
        let dir = tempfile::tempdir().expect("a folder");
        write(dir.path(), "old", 1);
        let mut feed = Feed::of_a_new_run(dir.path());
        assert!(feed.poll().records.is_empty());
        write(dir.path(), "new", 1);
        assert_eq!(names(&feed.poll()), ["new"]);
    }

    #[test]
    fn a_long_recording_comes_in_parts_and_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut feed = Feed::new(dir.path());
        assert!(!feed.poll().more);
        write(dir.path(), "long", 600);
        let (mut sizes, mut steps) = (Vec::new(), 0);
        loop {
            let batch = feed.poll();
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
    fn what_is_no_recording_is_a_problem_and_no_failure() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("rank-0.amprec"), vec![b'x'; 200]).expect("written");
        let batch = Feed::new(dir.path()).poll();
        assert!(batch.records.is_empty() && batch.problem.is_some(), "{batch:?}");
    }
}
