//! The run in two lines.

use std::time::Duration;

use crate::aggregate::Aggregate;
use crate::observation::{EndReason, Sampling};

use super::Rates;

/// What the run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Nothing was recorded yet.
    Waiting,
    /// The recording holds nothing, and nobody writes it.
    Empty,
    /// Nothing of the recording can be read.
    Unreadable,
    /// Steps are coming in.
    Live,
    /// The recording did not end, and nothing came for this long.
    Stalled(Duration),
    /// The recording did not end, and its process is gone.
    Killed,
    /// The recording ended while it was watched.
    Ended(EndReason),
    /// The recording had ended before it was opened.
    Replay(EndReason),
}

impl RunState {
    /// Whether nothing more will come.
    pub fn is_over(self) -> bool {
        matches!(
            self,
            RunState::Empty | RunState::Unreadable | RunState::Killed | RunState::Ended(_) | RunState::Replay(_)
        )
    }

    /// Whether nothing can be said of the rank, and so not of its run.
    pub fn tells_nothing(self) -> bool {
        matches!(self, RunState::Empty | RunState::Unreadable)
    }
}

/// The run in two lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Name of the run, or of its directory while nothing was recorded.
    pub name: String,
    /// What it is doing.
    pub state: RunState,
    /// The latest step.
    pub step: Option<u64>,
    /// Speed over the latest steps.
    pub steps_per_second: Option<f64>,
    /// The latest loss; may be non-finite.
    pub loss: Option<f64>,
    /// The loss scale: after the latest update, else the one in force at the latest step.
    pub loss_scale: Option<f64>,
    /// Optimizer steps withheld.
    pub skipped: u64,
    /// Those of them before the first applied step: calibration.
    pub calibration_skips: u64,
    /// Share of the step time spent in the probe.
    pub probe_share: Option<f64>,
    /// Steps missing from the recording.
    pub dropped: u64,
    /// How steps are sampled.
    pub sampling: Option<Sampling>,
    /// Steps scanned in full, and all steps.
    pub scanned: (u64, u64),
    /// Something that the user must know: a damaged recording, a waiting start, a command that ended.
    pub notice: Option<String>,
    /// Whether a part of the recording could not be read.
    pub problem: bool,
}

impl Header {
    /// The header of an aggregate.
    pub fn new(name: String, state: RunState, aggregate: &Aggregate, rates: &Rates, notice: Option<String>) -> Self {
        let (latest, instrument) = (aggregate.latest.as_ref(), &aggregate.instrument);
        Self {
            name,
            state,
            step: latest.map(|step| step.index),
            steps_per_second: rates.steps_per_second(),
            loss: latest
                .and_then(|step| step.loss)
                .or_else(|| aggregate.timeline.points.iter().rev().find_map(|p| p.loss)),
            loss_scale: aggregate.scale_in_force(),
            skipped: aggregate.scaler.skipped,
            calibration_skips: aggregate.scaler.calibration_skips,
            probe_share: (instrument.step_ns > 0).then(|| instrument.probe_ns as f64 / instrument.step_ns as f64),
            dropped: aggregate
                .end
                .as_ref()
                .map_or(instrument.dropped_steps, |e| e.dropped_steps.max(instrument.dropped_steps)),
            sampling: aggregate.run.as_ref().map(|run| run.sampling),
            scanned: (instrument.full_steps, instrument.steps),
            notice,
            problem: false,
        }
    }
}
