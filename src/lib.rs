//! ampdoctor watches a mixed-precision training run and says whether it is numerically healthy, and if not, which layer,
//! since which step, why, and what to change.
//!
//! The modules stand in the order of the data, and each imports only from those above it:
//!
//! * [`scan`]: one pass over a tensor's memory gives its statistics and exact exponent histogram;
//! * [`numerics`]: what a floating-point format would keep of a histogram;
//! * [`observation`]: the vocabulary of a run: sites, steps, scaler events;
//! * [`recording`]: the append-only file between the observed process and everybody else;
//! * [`aggregate`]: a run in bounded memory;
//! * [`rules`]: pure functions of the aggregate, and the findings they make;
//! * [`report`]: the findings as documents;
//! * `tui`, `cli` (feature `cli`): the findings on a terminal.
//!
//! Nothing here knows LibTorch; the probe for it is the crate `ampdoctor-torch`.

// Tests share fixtures with those under `tests/`, which know the crate by its name.
#[cfg(test)]
extern crate self as ampdoctor;

pub mod aggregate;
pub mod numerics;
pub mod observation;
pub mod recording;
pub mod report;
pub mod rules;
pub mod scan;

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
pub mod tui;
