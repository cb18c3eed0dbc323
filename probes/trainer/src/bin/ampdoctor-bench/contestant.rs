//! Who is compared: the step alone, and under the doctor's settings.

use std::path::Path;

use ampdoctor_torch::Doctor;
use anyhow::{Result, ensure};
use clap::ValueEnum;
use tch::nn;

use crate::models::Shape;

/// Steps before the clock runs: the caches warm.
const WARM_UP: usize = 3;
/// Under a budget the first full step, by far the dearest, is waited off as well.
const BUDGET_WARM_UP: usize = 40;

/// What watches the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Contestant {
    /// Nothing: what all others are compared with.
    None,
    /// Nothing again.
    Control,
    /// A doctor that records no tensor.
    Off,
    /// A doctor under the default budget.
    Default,
    /// A doctor that scans every step.
    Full,
}

impl Contestant {
    /// Those that are compared with [`Self::None`].
    pub(crate) const COMPARED: [Self; 4] = [Self::Control, Self::Off, Self::Default, Self::Full];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Control => "none again",
            Self::Off => "off",
            Self::Default => "default",
            Self::Full => "full",
        }
    }

    /// The ratio of processor time to reach.
    pub(crate) fn target(self, shape: &Shape) -> Option<f64> {
        match self {
            Self::None | Self::Control => None,
            Self::Off => Some(1.00),
            Self::Default => Some(1.02),
            Self::Full => Some(shape.full_target),
        }
    }

    /// Steps before it is timed.
    pub(crate) fn warm_up(self) -> usize {
        if self == Self::Default { BUDGET_WARM_UP } else { WARM_UP }
    }

    pub(crate) fn attach(self, vs: &nn::VarStore, run: &Path) -> Result<Option<Doctor>> {
        let builder = Doctor::builder().run(run);
        let doctor = match self {
            Self::None | Self::Control => return Ok(None),
            Self::Off => builder.off(),
            Self::Default => builder,
            Self::Full => builder.every(1),
        }
        .attach(vs);
        ensure!(doctor.is_attached(), "the doctor could not attach, so there is nothing to measure");
        Ok(Some(doctor))
    }
}
