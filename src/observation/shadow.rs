//! The gradient of one batch beside the one that FP32 gives for it.

use super::SiteId;
use crate::scan::Likeness;

/// One parameter's gradient beside FP32's.
#[derive(Clone, Debug, PartialEq)]
pub struct ShadowGradient {
    /// The gradient: a site of probe `ParamGrad`.
    pub site: SiteId,
    /// How like it is.
    pub likeness: Likeness,
}

/// One run of the model in FP32 on a batch that was trained on in mixed precision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shadow {
    /// The step whose weights and batch were used.
    pub step: u64,
    /// The loss scale that the mixed-precision gradient carried; `None` without one.
    pub loss_scale: Option<f64>,
    /// The loss in FP32; may be non-finite. `None` where the closure failed.
    pub loss: Option<f64>,
    /// Whether the mixed-precision gradient was computed anew for the comparison, from the same weights and random numbers, because the run's own could not
    /// be used.
    pub recomputed: bool,
    /// Wall time, in nanoseconds.
    pub time_ns: u64,
    /// Each gradient that one of the two sides has, by the parameter's name.
    pub gradients: Vec<ShadowGradient>,
    /// Why there is no comparison, where there is none.
    pub failure: Option<String>,
}
