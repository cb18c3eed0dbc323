//! Moving averages of the weights: one whose steps are rounded away, and two that are well.

use tch::Kind;

use super::Fault;
use crate::average::Averaging;
use crate::precision::Precision;

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Average {
    /// In 16 bits, with a decay of which they see nothing.
    Lost,
    /// In FP32, with the same decay.
    Kept,
    /// In 16 bits, with a decay that they can tell.
    Quick,
}

impl Fault for Average {
    fn name(&self) -> &'static str {
        match self {
            Self::Lost => "lost-average",
            Self::Kept => "average",
            Self::Quick => "quick-average",
        }
    }

    fn about(&self) -> &'static str {
        match self {
            Self::Lost => "a moving average of the weights, decay 0.999, is kept in 16 bits: it stays where it began",
            Self::Kept => "no fault: a moving average of the weights, decay 0.999, is kept in FP32",
            Self::Quick => {
                "no fault: a moving average of the weights is kept in 16 bits, its decay of 0.9 lets it move"
            }
        }
    }

    fn is_setting(&self) -> bool {
        true
    }

    fn averages(&self, precision: Precision) -> Option<Averaging> {
        let kind = if *self == Self::Kept { Kind::Float } else { precision.low_kind() };
        Some(Averaging { kind, decay: if *self == Self::Quick { 0.9 } else { 0.999 } })
    }
}
