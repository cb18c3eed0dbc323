//! Attach ampdoctor to a `tch` training loop.
//!
//! * [`Doctor`]: watches the run;
//! * [`GradScaler`]: dynamic loss scaling with the semantics of `torch.amp.GradScaler`;
//! * [`MasterWeights`]: FP32 copies of an FP16 or BF16 model's parameters, which the optimizer steps;
//! * [`autocast`]: mixed precision for a closure, on the CPU and on CUDA.
//!
//! ```no_run
//! use ampdoctor_torch::{Doctor, GradScaler, autocast};
//! use tch::nn::{self, Module, OptimizerConfig};
//! use tch::{Device, Kind, Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let vs = nn::VarStore::new(Device::Cpu);
//! let net = nn::linear(&vs.root() / "fc", 16, 4, Default::default());
//! let mut opt = nn::Adam::default().build(&vs, 1e-3)?;
//!
//! let mut doctor = Doctor::attach(&vs); // line one
//! let mut scaler = GradScaler::default();
//! for _ in 0..100 {
//!     let x = Tensor::randn([64, 16], (Kind::Float, Device::Cpu));
//!     let y = x.narrow(1, 0, 4).argmax(1, false);
//!     let loss = autocast(Device::Cpu, Kind::Half, || net.forward(&x).cross_entropy_for_logits(&y));
//!     opt.zero_grad();
//!     scaler.backward(&loss);
//!     scaler.unscale(&mut opt)?;
//!     opt.clip_grad_norm(1.0);
//!     scaler.step(&mut opt)?;
//!     scaler.update()?;
//!     doctor.step(&loss); // line two
//! }
//! let report = doctor.finish(); // or let it drop
//! # Ok(())
//! # }
//! ```
//!
//! A loop without a scaler (`opt.backward_step(&loss)`) works the same. Several VarStores are attached by [`DoctorBuilder::attach_all`], tensors that are in none by
//! [`Doctor::attach_tensors`]. The recording goes to `$AMPDOCTOR_RUN`, or to a new directory under
//! `ampdoctor-runs/`; look at it with `ampdoctor watch`, judge it with `ampdoctor check`. [`Doctor::builder`] sets how closely it watches;
//! where it does not, `$AMPDOCTOR_SAMPLING` may: `every:1`, `budget:0.05` or `off`. `AMPDOCTOR=off` leaves the doctor out altogether.

mod autocast;
mod doctor;
mod environment;
mod events;
mod launcher;
mod loss;
mod masters;
mod observer;
mod report;
mod run_dir;
mod sampling;
mod scaler;
mod shadow;
mod shim;

#[doc(hidden)]
pub mod sabotage;

pub use autocast::{AutocastError, autocast, autocast_if, f_autocast, is_autocast_enabled, no_autocast};
pub use doctor::{Doctor, DoctorBuilder};
pub use loss::Loss;
pub use masters::{Broken, MasterOptimizer, MasterWeights, MasteredOptimizer, MastersError};
pub use report::RunReport;
pub use scaler::{AmpOptimizer, GradScaler, GradScalerBuilder, ScalerError, StepOutcome};
pub use shim::ShimError;
