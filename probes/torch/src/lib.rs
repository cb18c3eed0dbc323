//! Attach ampdoctor to a `tch` training loop.
//!
//! * [`Doctor`]: watches the run;
//! * [`GradScaler`]: dynamic loss scaling with the semantics of `torch.amp.GradScaler`;
//! * [`autocast`]: mixed precision for a closure, on the CPU and on CUDA.

mod autocast;
mod doctor;
mod events;
mod loss;
mod observer;
mod report;
mod run_dir;
mod sampling;
mod scaler;
mod shim;

#[doc(hidden)]
pub mod sabotage;

pub use autocast::{AutocastError, autocast, autocast_if, f_autocast, is_autocast_enabled, no_autocast};
pub use doctor::{Doctor, DoctorBuilder};
pub use loss::Loss;
pub use report::RunReport;
pub use scaler::{AmpOptimizer, GradScaler, GradScalerBuilder, ScalerError, StepOutcome};
pub use shim::ShimError;
