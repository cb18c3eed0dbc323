//! What surrounds the steps: how a run began, what was said about the instrument, how it ended.

/// How steps are chosen for scanning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// Every `n`-th step is full, counted from step 0; others are light.
    Every(u64),
    /// Full steps are spaced so that the probe takes at most this share of the step time.
    Budget(f64),
    /// No step is scanned.
    Off,
}

/// A parameter or buffer of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Dotted path: `block.3.fc.weight`.
    pub name: String,
    /// Dtype name as LibTorch has it: `f32`, `f16`, `i64`.
    pub dtype: String,
    /// Shape.
    pub shape: Vec<i64>,
    /// Whether it is trained; false for buffers and frozen parameters.
    pub trainable: bool,
}

/// What ran, where, and how it is sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct RunInfo {
    /// Name of the run: the last part of its directory.
    pub name: String,
    /// The command line of the observed program.
    pub command: Vec<String>,
    /// Start, in milliseconds since the Unix epoch.
    pub started_unix_ms: u64,
    /// Process id of the observed program.
    pub pid: u32,
    /// Rank within a distributed run; 0 otherwise.
    pub rank: u32,
    /// How many ranks the run has, where that is known.
    pub world_size: Option<u32>,
    /// Who wrote the recording: `ampdoctor-torch 0.1.0`.
    pub producer: String,
    /// The framework observed: `LibTorch 2.13.0`.
    pub framework: String,
    /// The device of the parameters: `cpu`, `cuda:0`.
    pub device: String,
    /// Intra-op threads.
    pub threads: u32,
    /// How steps are sampled.
    pub sampling: Sampling,
    /// Parameters and buffers at the start, sorted by name.
    pub parameters: Vec<Parameter>,
}

/// What a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoteKind {
    /// Something could not be observed.
    BlindSpot,
    /// The probe failed and detached itself; training went on.
    Detached,
    /// Steps were dropped because the writer's queue was full.
    Dropped,
    /// Anything else worth knowing.
    Information,
}

/// Something about the instrument itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The step during which it was noticed.
    pub step: u64,
    /// What it is about.
    pub kind: NoteKind,
    /// One sentence for people.
    pub text: String,
}

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndReason {
    /// `doctor.finish()` was called.
    Finished,
    /// The doctor was dropped.
    Dropped,
    /// The doctor was dropped while a panic unwound.
    Panicked,
    /// The probe failed and detached itself.
    Detached,
}

/// How the run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Steps taken, dropped ones included.
    pub steps: u64,
    /// Steps that are missing from the recording.
    pub dropped_steps: u64,
    /// Why it ended.
    pub reason: EndReason,
}
