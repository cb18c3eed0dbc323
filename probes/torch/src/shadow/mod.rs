//! The FP32 shadow: a batch that is trained on in mixed precision, once more in FP32, and how like the two gradients are.
//!
//! ```text
//! closure, FP32:   parameters -> FP32 copies, or the parameters widened     buffers -> copies     autocast: vetoed     => FP32's gradient
//! the run's own gradient is this batch's, and alone?  yes: .grad
//!                                                     no:  closure once more, as it is, on stand-ins of the run's own dtypes
//! ```
//!
//! Nothing of the run is swapped and put back: the closure's operators are given *stand-ins* for the model's tensors (`shim/shadow.cpp`), and
//! gradients are asked of these. The run's weights, buffers, gradients, version counters and graphs are never touched, so there is nothing to be restored but the
//! state of the thread: random numbers, autocast, grad mode. Guards do that, however the closure ends.

mod compare;
mod stand_ins;
mod thread;

use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::{Device, Tensor};

pub(crate) use compare::Pair;
use stand_ins::{Mode, StandIns};
use thread::{Autocast, GradMode, On, Random};
pub(crate) use thread::{in_fp32, is_on};

/// A parameter or buffer of the model.
pub(crate) struct Original {
    /// Dotted path of its layer, and its own name there.
    pub layer: String,
    pub name: String,
    /// A handle of the run's.
    pub tensor: Tensor,
    /// False for a buffer.
    pub parameter: bool,
    /// Its FP32 copy, where master weights are kept.
    pub master: Option<Tensor>,
}

/// What the run knows of the gradients that the parameters hold now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Held {
    /// Whether they are those of the latest backward alone, and still carry its scale.
    pub is_own: bool,
    /// The loss scale in force; `None` where no scaler is known.
    pub scale: Option<f64>,
    /// Whether it is known that there is none.
    pub scale_is_known: bool,
}

/// What a shadow found.
pub(crate) struct Outcome {
    /// In FP32.
    pub loss: f64,
    /// What the mixed-precision gradient carried.
    pub loss_scale: Option<f64>,
    pub recomputed: bool,
    /// Those that one side has, at least.
    pub pairs: Vec<Pair>,
}

/// Runs the closure in FP32 and compares.
///
/// # Errors
/// Why there is nothing to compare: the closure panicked, its loss is none, it read no parameter.
pub(crate) fn run(originals: &[Original], held: Held, closure: &mut dyn FnMut() -> Tensor) -> Result<Outcome, String> {
    if is_on() {
        return Err("a shadow was asked for inside the closure of another one".into());
    }
    let _on = On::new();
    let _grad_mode = GradMode::enable();
    let random = Random::save(&devices(originals))?;
    let (loss, exact) = {
        let _autocast = Autocast::off().map_err(|e| e.to_string())?;
        let _fp32 = thread::Fp32::veto();
        gradients(originals, Mode::Fp32, 1.0, closure)?
    };
    let deterministic = !random.has_moved()?;
    let own: Vec<Option<Tensor>> = originals.iter().map(own_gradient).collect();
    if held.is_own && deterministic && own.iter().any(Option::is_some) {
        return compare::outcome(originals, loss, held.scale, false, &exact, &own);
    }
    if !held.scale_is_known && held.scale.is_none() {
        return Err("the loss scale of this run is not known yet, so the mixed-precision gradient cannot be computed anew. Call `doctor.shadow` right \
                    after backward, or from the second step on"
            .into());
    }
    random.restore()?;
    let (_, mixed) = gradients(originals, Mode::AsItIs, held.scale.unwrap_or(1.0), closure)?;
    compare::outcome(originals, loss, held.scale, true, &exact, &mixed)
}

/// The loss, and its gradient times `scale` for each original; `None` where there is none.
fn gradients(
    originals: &[Original],
    mode: Mode,
    scale: f64,
    closure: &mut dyn FnMut() -> Tensor,
) -> Result<(f64, Vec<Option<Tensor>>), String> {
    let stand_ins = StandIns::new(originals, mode)?;
    let loss = {
        let entered = stand_ins.enter()?;
        let loss = catch_unwind(AssertUnwindSafe(closure));
        let reads = entered.leave();
        let loss = loss.map_err(|panic| format!("the closure panicked: {}", panic_text(panic.as_ref())))?;
        if reads == 0 {
            return Err("the closure read none of the model's parameters. It has to compute the loss anew, from the model that the doctor is attached to: \
                        `doctor.shadow(|| net.forward(&x).cross_entropy_for_logits(&y))`"
                .into());
        }
        loss
    };
    let gradients = stand_ins.gradients(&loss, scale)?;
    let value = loss.f_double_value(&[]).map_err(|e| compare::first_line(&e))?;
    Ok((value, gradients))
}

fn own_gradient(original: &Original) -> Option<Tensor> {
    let gradient = original.tensor.grad();
    (original.parameter && gradient.defined()).then_some(gradient)
}

/// The CPU, and each CUDA device that holds some of the model.
fn devices(originals: &[Original]) -> Vec<Device> {
    let mut devices = vec![Device::Cpu];
    for device in originals.iter().map(|original| original.tensor.device()) {
        if matches!(device, Device::Cuda(_)) && !devices.contains(&device) {
            devices.push(device);
        }
    }
    devices
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.map_or_else(|| "without a message".into(), |text| compare::first_paragraph(&text))
}
