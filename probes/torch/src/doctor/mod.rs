//! [`Doctor`]: attached to a training loop with two lines.

mod active;
mod builder;
mod losses;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use ampdoctor::observation::EndReason;
use tch::Tensor;
use tch::nn::VarStore;

pub use builder::DoctorBuilder;

use crate::loss::Loss;
use crate::report::RunReport;
use active::Active;

/// Watches a training run; see the crate's documentation for how to attach it.
///
/// It never changes the run: parameters, buffers, optimizer state and random numbers are the same, bit for bit, with and without
/// it. It never ends the run: what fails in it is said once on standard error and in the recording, and training goes on.
/// Dropping it ends the recording.
#[must_use = "a doctor that is dropped at once observes nothing"]
pub struct Doctor {
    active: Option<Active>,
}

impl Doctor {
    /// Attaches a doctor to all parameters and buffers of `vs`, with the default settings: the run directory is
    /// `$AMPDOCTOR_RUN`, or a new one under `ampdoctor-runs/`; full steps are spaced so that the probe takes at most 2 % of the time.
    ///
    /// Where it cannot (a read-only disk, another doctor on this thread), it says so on standard error and is inert.
    pub fn attach(vs: &VarStore) -> Self {
        Self::builder().attach(vs)
    }

    /// Attaches a doctor to plain tensors that are in no VarStore, with the default settings; see [`DoctorBuilder::attach_tensors`].
    pub fn attach_tensors(tensors: &[(&str, &Tensor)]) -> Self {
        Self::builder().attach_tensors(tensors)
    }

    /// Settings other than the default ones.
    pub fn builder() -> DoctorBuilder {
        DoctorBuilder::default()
    }

    /// Ends a step: everything observed since the last call belongs to it. Call it once an optimizer step, after the optimizer, with
    /// the loss as the loop has it (not the scaled one). Micro-batches of an accumulation belong to one step.
    ///
    /// The loss may be a tensor of one element, a number, or `()` where there is none. A tensor on a device is read at once in a step that is scanned, which waits for
    /// the device anyway; else a copy of it stays there, and is read with others (at most 16 steps or a second later).
    pub fn step(&mut self, loss: impl Loss) {
        let Some(active) = &mut self.active else { return };
        let outcome = catch_unwind(AssertUnwindSafe(|| active.step(&loss)));
        if outcome.is_err() {
            active.give_up("a panic while a step was recorded");
        }
    }

    /// Runs the model once more in FP32 on this batch, and records how like the gradient of each parameter is to FP32's: cosine, norm, and the share that was
    /// rounded to zero. True where there is a comparison; what went wrong is said on standard error and in the recording, and training goes on.
    ///
    /// `loss` is a closure that computes the loss as the loop does, its autocast included, without the loss scale:
    ///
    /// ```no_run
    /// # use ampdoctor_torch::{Doctor, GradScaler, autocast};
    /// # use tch::{Device, Kind, Tensor, nn::Module};
    /// # fn step(doctor: &mut Doctor, scaler: &mut GradScaler, net: &dyn Module, x: &Tensor, y: &Tensor, step: u64) {
    /// let loss = || autocast(Device::Cpu, Kind::Half, || net.forward(x).cross_entropy_for_logits(y));
    /// scaler.backward(&loss());
    /// if step % 100 == 0 {
    ///     doctor.shadow(loss);
    /// }
    /// # }
    /// ```
    ///
    /// * **In FP32** everything is: autocast is off whoever switches it on, FP16 and BF16 tensors are widened, casts to them are left out, and the weights are the FP32
    ///   copies of [`MasterWeights`](crate::MasterWeights), or where there are none the 16-bit weights widened.
    /// * **Where in the loop.** Best right after `backward`: then the gradient that is compared is the run's own, `.grad`, and the closure runs once. Anywhere else, with
    ///   several micro-batches in one step, and where the closure draws random numbers (dropout), `.grad` is not the gradient of this batch and these numbers; then
    ///   the closure runs a second time, as it is, for the mixed-precision side, and the recording says so. In both runs the random numbers are the same.
    /// * **Nothing of the run changes**: not a bit of a weight, a buffer (the running statistics of BatchNorm), a gradient or a random number. The closure works on stand-ins for
    ///   the model's tensors; one that would change a parameter in place, or that panics, gives no comparison. What it changes of yours outside the model is changed.
    /// * **What it costs**: a forward and a backward in FP32, at times another in mixed precision; it is in no budget, and the report says it apart. Until it returns it
    ///   holds an FP32 gradient of every parameter (4 bytes each), another 4 bytes for each 16-bit parameter without an FP32 copy, and the activations of one batch.
    pub fn shadow(&mut self, mut loss: impl FnMut() -> Tensor) -> bool {
        let Some(active) = &mut self.active else { return false };
        let outcome = catch_unwind(AssertUnwindSafe(|| active.shadow(&mut loss)));
        outcome.unwrap_or_else(|_| {
            active.give_up("a panic while a shadow was recorded");
            false
        })
    }

    /// Says the learning rate in force; tch has no way to ask an optimizer for it.
    pub fn lr(&mut self, lr: f64) {
        if let Some(active) = &mut self.active {
            active.lr(lr);
        }
    }

    /// Records a number of this step under a name, for instance `accuracy`.
    pub fn metric(&mut self, name: &str, value: f64) {
        if let Some(active) = &mut self.active {
            active.metric(name, value);
        }
    }

    /// Whether it observes: false where attaching failed or the probe has detached itself.
    pub fn is_attached(&self) -> bool {
        self.active.as_ref().is_some_and(Active::is_attached)
    }

    /// Where the recording lies, if there is one.
    pub fn recording(&self) -> Option<&Path> {
        self.active.as_ref().map(Active::recording)
    }

    pub(crate) fn restart_clock(&mut self) {
        if let Some(active) = &mut self.active {
            active.restart_clock();
        }
    }

    /// Ends the run and gives its report.
    pub fn finish(mut self) -> RunReport {
        self.active.take().map_or_else(RunReport::nothing, |active| active.finish(EndReason::Finished))
    }
}

impl Drop for Doctor {
    fn drop(&mut self) {
        let reason = if std::thread::panicking() { EndReason::Panicked } else { EndReason::Dropped };
        if let Some(active) = self.active.take() {
            // A failure to write the last record has been said on standard error.
            let _ = catch_unwind(AssertUnwindSafe(|| active.finish(reason)));
        }
    }
}
