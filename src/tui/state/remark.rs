//! What one rank does and the others do not, in words.

/// Something that one rank does and the others do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remark {
    /// Its recording stopped at this step, without an end, while others went on.
    Stopped(u64),
    /// It ended in order at this step, and others went on.
    Ended(u64),
    /// Its recording was over before another one began: it is left from an earlier run, and not compared.
    EarlierRun,
    /// The same, but it began so shortly before the others that it may be of this run and have died early: the recordings do not tell.
    EarlierRunOrDied,
    /// Its loss scale is another, from about this step on.
    Scale(u64),
    /// It skips other steps, from about this step on.
    Skips(u64),
    /// A forward value was not finite here, first at this step, and on the others later or never.
    NonFinite(u64),
    /// The norm of its gradient is far from those of the others, from about this step on.
    Gradient(u64),
}

impl Remark {
    /// Since when; 0 of a rank that is left from an earlier run.
    pub fn step(self) -> u64 {
        match self {
            Remark::EarlierRun | Remark::EarlierRunOrDied => 0,
            Remark::Stopped(step)
            | Remark::Ended(step)
            | Remark::Scale(step)
            | Remark::Skips(step)
            | Remark::NonFinite(step)
            | Remark::Gradient(step) => step,
        }
    }

    /// In words, to stand behind the number of a rank.
    pub fn words(self) -> String {
        match self {
            Remark::Stopped(step) => format!("stopped at step {step}"),
            Remark::Ended(step) => format!("ended at step {step}, others went on"),
            Remark::EarlierRun => "left from an earlier run".into(),
            Remark::EarlierRunOrDied => "left from an earlier run, or died early: not known".into(),
            Remark::Scale(step) => format!("other loss scale from step {step}"),
            Remark::Skips(step) => format!("other skips from step {step}"),
            Remark::NonFinite(step) => format!("not finite at step {step}, alone or first"),
            Remark::Gradient(step) => format!("gradient far from the others' from step {step}"),
        }
    }
}
