//! Attach ampdoctor to a `tch` training loop.
//!
//! * [`GradScaler`]: dynamic loss scaling with the semantics of `torch.amp.GradScaler`;
//! * [`autocast`]: mixed precision for a closure, on the CPU and on CUDA.

mod events;
mod shim;

pub use shim::ShimError;
