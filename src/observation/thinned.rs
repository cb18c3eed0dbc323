//! What a recording has lost so that it stays below its size.

/// What was left out of a recording's older part so that it stays below its size. Steps with an event are whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thinned {
    /// The size below which the recording stays, in bytes.
    pub limit_bytes: u64,
    /// Steps from this one on are as they were recorded.
    pub until: u64,
    /// Of the scanned steps before, those whose number is divisible by this have kept what was scanned.
    pub stride: u64,
    /// Scanned steps before, without an event, that have lost what was scanned: those of which nothing is left, too. The others have kept loss, loss scale and what the loop did.
    pub lightened: u64,
    /// Steps before, without an event, of which nothing is left.
    pub removed: u64,
    /// Steps with an event that have only kept that, because there were too many of them.
    pub lightened_events: u64,
    /// The wall time of the steps of which nothing is left, in nanoseconds.
    pub removed_step_ns: u64,
    /// The part of it that was spent in the probe, in nanoseconds.
    pub removed_probe_ns: u64,
}

impl Thinned {
    /// Adds what went at an earlier time; where it ends, and at which stride, is told by the later one.
    pub fn merge(&mut self, earlier: &Self) {
        self.lightened += earlier.lightened;
        self.removed += earlier.removed;
        self.lightened_events += earlier.lightened_events;
        self.removed_step_ns += earlier.removed_step_ns;
        self.removed_probe_ns += earlier.removed_probe_ns;
    }
}
