//! Reading a run for people: with progress where it takes long, and with what was wrong told.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::terminal::{Terminal, say_on_stderr};
use crate::recording::{ReadError, rank_files, runs_within};
use crate::report::nearest;
use crate::report::{Progress, RankRecording, RunRecording, read_run_under};
use crate::rules::Policy;
use crate::tui::process_is_gone;

/// Reading that is done sooner shows no progress.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two lines of progress.
const REFRESH: Duration = Duration::from_millis(200);

/// Damaged places that are told one by one; all are counted in the report.
const SHOWN_DAMAGES: usize = 5;

/// Reads a run, shows progress on a terminal, and tells of damaged recordings, and of runs within it that are not read.
pub(super) fn load(path: &Path, policy: &Policy, terminal: &Terminal) -> Result<RunRecording, ReadError> {
    let recording = load_alone(path, policy, terminal)?;
    for other in runs_within(path) {
        terminal.warn(&format!(
            "another process recorded the same rank at the same time, as a run of its own, which is not looked at here: {}",
            other.display()
        ));
    }
    Ok(recording)
}

/// As [`load`], where the runs within it are known.
pub(super) fn load_alone(path: &Path, policy: &Policy, terminal: &Terminal) -> Result<RunRecording, ReadError> {
    let mut meter = Meter::new(terminal.shows_progress());
    let recording = read_run_under(policy, path, &mut |progress| meter.update(progress));
    meter.clear();
    let mut recording = recording?;
    for rank in &mut recording.ranks {
        rank.process_ended = has_lost_its_process(rank);
    }
    for rank in &recording.ranks {
        for damage in rank.integrity.damage().iter().take(SHOWN_DAMAGES) {
            terminal.warn(&format!("damaged, {damage}: {}", rank.path.display()));
        }
        if let Some(error) = &rank.stopped {
            terminal.warn(&format!("read in part only: {error}"));
        }
    }
    for error in &recording.unreadable {
        terminal.warn(&error.to_string());
    }
    Ok(recording)
}

/// A recording without an end that did not grow for so long, and whose process is not here, is no longer written. `watch` waits as long.
const SILENCE: Duration = Duration::from_secs(10);
const SILENT_STEPS: u32 = 8;

/// Whether the process of a recording that has no end is gone, as far as this machine knows.
fn has_lost_its_process(rank: &RankRecording) -> bool {
    let aggregate = rank.diagnosis.aggregate();
    let Some(pid) = aggregate.run.as_ref().map(|run| run.pid).filter(|_| aggregate.end.is_none()) else { return false };
    let modified = rank.path.metadata().and_then(|meta| meta.modified()).ok();
    let idle = modified.and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default();
    let instrument = &aggregate.instrument;
    let step = Duration::from_nanos(instrument.step_ns / instrument.steps.max(1));
    idle > SILENCE.max(step.saturating_mul(SILENT_STEPS)) && process_is_gone(pid) == Some(true)
}

/// The error of a run that could not be read, with the run that may have been meant.
pub(super) fn with_hint(error: ReadError) -> anyhow::Error {
    let hint = match &error {
        ReadError::Missing { path } => sibling(path).map(|name| format!("Did you mean {name}?")),
        ReadError::NoRecording { path, .. } => newest_run_in(path).map(|run| format!("The newest run in it is {run}.")),
        _ => None,
    };
    match hint {
        Some(hint) => anyhow::anyhow!("{error}\n{hint}"),
        None => error.into(),
    }
}

fn sibling(path: &Path) -> Option<String> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let entries = std::fs::read_dir(parent.unwrap_or(Path::new("."))).ok()?;
    let names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let typed = path.file_name()?.to_str()?;
    // Its own name is there where it is a link that leads nowhere.
    let name = nearest(typed, names.iter().map(String::as_str).filter(|&name| name != typed))?;
    Some(parent.map_or_else(|| name.into(), |parent| parent.join(name).display().to_string()))
}

fn newest_run_in(dir: &Path) -> Option<String> {
    let runs = std::fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    let runs = runs.filter(|path| path.is_dir() && rank_files(path).is_ok());
    let newest = runs.max_by_key(|path| (path.metadata().and_then(|meta| meta.modified()).ok(), path.clone()))?;
    Some(newest.display().to_string())
}

/// One line on standard error that is overwritten.
struct Meter {
    visible: bool,
    began: Instant,
    drawn: Option<Instant>,
}

impl Meter {
    fn new(visible: bool) -> Self {
        Self { visible, began: Instant::now(), drawn: None }
    }

    fn update(&mut self, progress: Progress) {
        let now = Instant::now();
        let waited = now.duration_since(self.began) >= PATIENCE;
        let due = self.drawn.is_none_or(|drawn| now.duration_since(drawn) >= REFRESH);
        if self.visible && waited && due {
            say_on_stderr(&format!("\r\x1b[Kreading the recording: {progress}"));
            self.drawn = Some(now);
        }
    }

    fn clear(&self) {
        if self.drawn.is_some() {
            say_on_stderr("\r\x1b[K");
        }
    }
}
