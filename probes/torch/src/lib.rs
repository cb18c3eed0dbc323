//! Attach ampdoctor to a `tch` training loop.
//!
//! * [`GradScaler`]: dynamic loss scaling with the semantics of `torch.amp.GradScaler`;
//! * [`autocast`]: mixed precision for a closure, on the CPU and on CUDA.

mod autocast;
mod events;
mod scaler;
mod shim;

pub use autocast::{AutocastError, autocast, autocast_if, f_autocast, is_autocast_enabled, no_autocast};
pub use scaler::{AmpOptimizer, GradScaler, GradScalerBuilder, ScalerError, StepOutcome};
pub use shim::ShimError;
