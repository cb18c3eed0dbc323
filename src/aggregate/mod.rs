//! A run in bounded memory, whatever its length.

mod site;
mod timeline;

pub use site::{Sample, SiteSummary};
pub use timeline::{Timeline, TimelinePoint};

use crate::observation::{End, Note, Record, RunInfo, ScalerConfig, ScalerEvent, Step, Tier};

/// Everything that rules, reports and the dashboard know of a run.
#[derive(Clone, Debug, Default)]
pub struct Aggregate {
    /// How the run began; `None` until its first record was read.
    pub run: Option<RunInfo>,
    /// The scaler's settings, where there is a scaler.
    pub scaler_config: Option<ScalerConfig>,
    /// A summary per site; the index is the [`crate::observation::SiteId`].
    pub sites: Vec<SiteSummary>,
    /// Loss, loss scale and skips over the whole run, thinned as it grows.
    pub timeline: Timeline,
    /// Counts of what the scaler did.
    pub scaler: ScalerSummary,
    /// What was sampled and what was lost.
    pub instrument: Instrument,
    /// The latest step, whole.
    pub latest: Option<Step>,
    /// How the run ended; `None` while it runs, and for ever if it was killed.
    pub end: Option<End>,
}

/// What the scaler did in the whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScalerSummary {
    /// Optimizer steps that were applied.
    pub applied: u64,
    /// Optimizer steps that were withheld.
    pub skipped: u64,
    /// Times the scale rose.
    pub growths: u64,
    /// Times the scale fell.
    pub backoffs: u64,
    /// Skips before the first applied step: calibration.
    pub calibration_skips: u64,
}

/// What was sampled and what was lost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Instrument {
    /// Steps seen in the recording.
    pub steps: u64,
    /// Steps of which every tensor was scanned.
    pub full_steps: u64,
    /// Steps of which nothing was scanned.
    pub light_steps: u64,
    /// Steps missing from the recording.
    pub dropped_steps: u64,
    /// Time of all steps, in nanoseconds.
    pub step_ns: u64,
    /// Part of it spent in the probe, in nanoseconds.
    pub probe_ns: u64,
    /// Tensors that could not be scanned.
    pub unscanned: u64,
    /// Notes, oldest first; at most [`Instrument::MAX_NOTES`] are kept, the rest counted.
    pub notes: Vec<Note>,
    /// Notes that were not kept.
    pub notes_dropped: u64,
}

impl Instrument {
    /// Notes that are kept.
    pub const MAX_NOTES: usize = 100;
}

impl Aggregate {
    /// Adds one record.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Run(run) => self.run = Some(run),
            Record::Site(_, site) => self.sites.push(SiteSummary::new(site)),
            Record::Scaler(config) => self.scaler_config = Some(config),
            Record::Step(step) => self.apply_step(step),
            Record::Note(note) => self.apply_note(note),
            Record::End(end) => self.end = Some(end),
        }
    }

    fn apply_note(&mut self, note: Note) {
        if self.instrument.notes.len() < Instrument::MAX_NOTES {
            self.instrument.notes.push(note);
        } else {
            self.instrument.notes_dropped += 1;
        }
    }

    fn apply_step(&mut self, step: Step) {
        self.count_step(&step);
        for event in &step.scaler {
            self.count_event(event);
        }
        for observation in &step.observations {
            if let Some(summary) = self.sites.get_mut(observation.site.0 as usize) {
                summary.push(&step, observation);
            }
        }
        self.timeline.push(&step);
        self.latest = Some(step);
    }

    fn count_step(&mut self, step: &Step) {
        let instrument = &mut self.instrument;
        instrument.steps += 1;
        match step.tier {
            Tier::Full => instrument.full_steps += 1,
            Tier::Light | Tier::Off => instrument.light_steps += 1,
        }
        instrument.dropped_steps = step.cost.dropped_steps;
        instrument.step_ns += step.cost.step_ns;
        instrument.probe_ns += step.cost.probe_ns;
        instrument.unscanned += u64::from(step.cost.unscanned);
    }

    fn count_event(&mut self, event: &ScalerEvent) {
        let scaler = &mut self.scaler;
        match *event {
            ScalerEvent::Stepped { applied: true, .. } => scaler.applied += 1,
            ScalerEvent::Stepped { applied: false, .. } => {
                scaler.skipped += 1;
                scaler.calibration_skips += u64::from(scaler.applied == 0);
            }
            ScalerEvent::Updated { from, to, .. } => {
                scaler.growths += u64::from(to > from);
                scaler.backoffs += u64::from(to < from);
            }
            ScalerEvent::Scaled { .. } | ScalerEvent::Unscaled { .. } => {}
        }
    }
}
