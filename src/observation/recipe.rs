//! What the training loop did with gradients and parameters, as far as it could be seen.

use crate::scan::Dtype;

/// One thing that the training loop did, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct RecipeEvent {
    /// How many of the step's scaler events came before it.
    pub after: u32,
    /// What was done.
    pub act: Act,
}

/// What the training loop did.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// A backward pass began.
    Backward {
        /// Parameters that held a gradient already: of an earlier micro-batch, or left over.
        holding: u32,
        /// Of those, gradients that an optimizer had used, and that nobody cleared or changed since.
        used: u32,
        /// The multiplication that the loss came out of, where it was the last thing done to it and could be read.
        product: Option<Product>,
    },
    /// Gradients were multiplied by a number in place, as clipping by norm does, and unscaling by hand.
    Multiplied {
        /// The number.
        factor: f64,
        /// How many gradients.
        gradients: u32,
    },
    /// Gradients were clamped in place.
    Clamped {
        /// The largest magnitude left.
        limit: f64,
        /// How many gradients.
        gradients: u32,
    },
    /// Gradients were set to zero in place. Those that are taken away show at the next backward only.
    Cleared {
        /// How many gradients.
        gradients: u32,
    },
    /// An optimizer changed parameters.
    Stepped {
        /// How many parameters.
        parameters: u32,
        /// Of those, parameters whose gradient still held what an earlier step had used.
        stale: u32,
        /// Whether the operator divides by the size of the gradients, as Adam's and RMSprop's does.
        adaptive: bool,
    },
    /// The library's scaler withheld an optimizer's step, for its gradients are not finite.
    Withheld {
        /// Parameters of the optimizer that hold a gradient.
        parameters: u32,
        /// Of those, parameters whose gradient still held that of an earlier step.
        stale: u32,
    },
    /// A scaler of somebody else updated one scale twice, with nothing unscaled in between.
    UpdatedAgain,
    /// A scaler of somebody else unscaled gradients in FP16.
    HalfUnscaled {
        /// Parameters concerned; named where they are known, at most [`Act::MAX_NAMES`].
        parameters: Vec<String>,
    },
    /// The library's scaler refused a call and returned an error.
    Refused {
        /// Number of the optimizer, in order of first use; `None` where the call concerns none.
        optimizer: Option<u32>,
        /// Why.
        refusal: Refusal,
        /// Parameters concerned, at most [`Act::MAX_NAMES`].
        parameters: Vec<String>,
    },
}

impl Act {
    /// Names of parameters that one event carries.
    pub const MAX_NAMES: usize = 16;
}

/// A loss times a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// The loss before; may be non-finite.
    pub loss: f64,
    /// What it was multiplied by.
    pub factor: f64,
    /// The format in which the product was taken.
    pub dtype: Dtype,
}

/// Why the library's scaler refused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `unscale` a second time.
    UnscaledTwice,
    /// `unscale` after `step`.
    UnscaledAfterStep,
    /// `step` a second time.
    SteppedTwice,
    /// `step` where no parameter of the optimizer has a gradient.
    NoGradients,
    /// `unscale`, `step` or `update` before any loss was scaled.
    NothingScaled,
    /// `update` where nothing was unscaled since the last one.
    NothingChecked,
    /// `unscale` or `step` where gradients are FP16.
    HalfGradients,
}
