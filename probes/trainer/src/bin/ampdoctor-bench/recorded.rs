//! What a doctor's recording says of its cost, and how large it is.

use std::path::Path;

use ampdoctor::observation::Record;
use ampdoctor::recording::{encode_frame, read_run};
use anyhow::Result;
use serde::{Deserialize, Serialize};

/// What is in a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recorded {
    /// Nanoseconds that the doctor says it took, after the steps that warm up.
    pub(crate) probe_ns: u64,
    /// Nanoseconds of the same steps without it.
    pub(crate) work_ns: u64,
    pub(crate) steps: usize,
    pub(crate) observations: usize,
    /// Bytes of the observations alone.
    pub(crate) bytes: usize,
    /// What the steps take beside them.
    pub(crate) beside: usize,
    /// What stands there once: the run and its sites.
    pub(crate) once: usize,
}

impl Recorded {
    /// Reads a recording whose first steps warm up.
    pub(crate) fn read(path: &Path, warm_up: usize) -> Result<Self> {
        let mut recorded = Self::default();
        for record in read_run(path)? {
            recorded.add(record?, warm_up as u64);
        }
        Ok(recorded)
    }

    fn add(&mut self, record: Record, warm_up: u64) {
        let whole = bytes_of(&record);
        let Record::Step(mut step) = record else {
            self.once += whole;
            return;
        };
        if step.index >= warm_up {
            self.probe_ns += step.cost.probe_ns;
            self.work_ns += step.cost.step_ns.saturating_sub(step.cost.probe_ns);
        }
        self.steps += 1;
        self.observations += step.observations.len();
        step.observations.clear();
        let beside = bytes_of(&Record::Step(step));
        self.beside += beside;
        self.bytes += whole - beside;
    }

    /// The ratio of the step under the doctor to the step alone, as the doctor has it.
    pub(crate) fn ratio(&self) -> f64 {
        1.0 + self.probe_ns as f64 / self.work_ns.max(1) as f64
    }
}

/// What a record takes in the file, its frame included.
fn bytes_of(record: &Record) -> usize {
    let mut frame = Vec::new();
    encode_frame(record, &mut frame);
    frame.len()
}
