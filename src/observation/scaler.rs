//! What a loss scaler is and does.

/// The settings of a loss scaler.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalerConfig {
    /// The scale it started with.
    pub init_scale: f64,
    /// Factor at growth; 1 for a static scale.
    pub growth_factor: f64,
    /// Factor at a non-finite gradient; 1 for a static scale.
    pub backoff_factor: f64,
    /// Clean steps between growths.
    pub growth_interval: u64,
    /// The scale never falls below this, where set.
    pub min_scale: Option<f64>,
    /// The scale never rises above this, where set.
    pub max_scale: Option<f64>,
    /// Non-finite steps in a row before the scale falls; 1 as in PyTorch.
    pub hysteresis: u64,
    /// Seen through ATen's `_amp_*` operators only: somebody else's scaler.
    pub foreign: bool,
}

impl ScalerConfig {
    /// Whether the scale never moves.
    pub fn is_static(&self) -> bool {
        self.growth_factor == 1.0 && self.backoff_factor == 1.0
    }
}

/// One thing that a loss scaler did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalerEvent {
    /// A loss was multiplied by `scale`, to be propagated backward: several within one step are several micro-batches or losses.
    Scaled {
        /// The scale in force during this backward.
        scale: f64,
    },
    /// Gradients of one optimizer were divided by `scale`.
    Unscaled {
        /// Number of the optimizer, in order of first use.
        optimizer: u32,
        /// The scale they were divided by.
        scale: f64,
        /// Whether one of them was not finite.
        found_inf: bool,
    },
    /// An optimizer step was applied or withheld.
    Stepped {
        /// Number of the optimizer, in order of first use.
        optimizer: u32,
        /// Whether the parameters were changed.
        applied: bool,
    },
    /// The scale was updated at the end of the step.
    Updated {
        /// The scale before.
        from: f64,
        /// The scale after.
        to: f64,
        /// Clean steps since the last change, after the update.
        growth_tracker: u64,
    },
}
