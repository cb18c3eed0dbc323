//! What a floating-point format keeps of a tensor, computed from its exponent histogram alone.
//!
//! * [`Format`]: where a format's numbers begin and end, and rounding to it;
//! * [`Zones`]: how many elements it would lose, hold in fading precision, hold well, or overflow;
//! * [`Lost`]: an estimate of what FP16 already rounded to zero, which leaves no trace in the tensor itself;
//! * [`Underflow`]: the predicted damage to the direction of a gradient, and [`predicted_error`] at any other scale;
//! * [`Outlook`]: the shares that fade, are lost or overflow at another scale; each is a [`Share`], told to half a point or by its bounds;
//! * [`ScaleWindow`]: the loss scales at which a gradient neither underflows nor overflows.

mod format;
mod lost;
mod underflow;
mod whatif;
mod window;
mod zones;

pub use format::{Format, exponent_of};
pub use lost::Lost;
pub use underflow::{Underflow, predicted_error};
pub use whatif::{Outlook, Share};
pub use window::ScaleWindow;
pub use zones::Zones;
