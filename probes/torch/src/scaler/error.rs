//! What can go wrong with a scaler: what happened, why it may have, what to do.

use std::path::PathBuf;

use tch::{Kind, TchError};

use crate::masters::MastersError;
use crate::shim::ShimError;

/// Why a [`GradScaler`](super::GradScaler) refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScalerError {
    /// `unscale` twice on one optimizer without `update` between.
    #[error(
        "unscale was already called on optimizer {optimizer} since the last update: its gradients would be divided by the scale twice. \
         Call unscale once per optimizer and step, after the last micro-batch of an accumulation, and update() at the end of \
         every step. (Two optimizers over one VarStore are one optimizer here: their gradients are the same tensors)"
    )]
    AlreadyUnscaled {
        /// Number of the optimizer, in order of first use.
        optimizer: u32,
    },
    /// `unscale` after `step` without `update` between.
    #[error(
        "unscale was called on optimizer {optimizer} after step: its gradients are unscaled and used up. \
         The order is backward, unscale, clip, step, update; call update() before the next step begins"
    )]
    UnscaledAfterStep {
        /// Number of the optimizer, in order of first use.
        optimizer: u32,
    },
    /// `step` twice on one optimizer without `update` between.
    #[error(
        "step was already called on optimizer {optimizer} since the last update: the same gradients would be applied twice. \
         Call update() once after all optimizers have stepped. \
         (Two optimizers over one VarStore are one optimizer here: their gradients are the same tensors)"
    )]
    AlreadyStepped {
        /// Number of the optimizer, in order of first use.
        optimizer: u32,
    },
    /// `step` on an optimizer none of whose parameters has a gradient.
    #[error(
        "no inf checks were recorded for optimizer {optimizer}: none of its parameters has a gradient ({parameters}). The loss may not \
         depend on them, backward may not have been called, or they may be frozen or behind a no_grad or detach. \
         Call scaler.backward on a loss that reaches them before step, or leave this optimizer out of the step"
    )]
    NoGradients {
        /// Number of the optimizer, in order of first use.
        optimizer: u32,
        /// Its parameters, named where [`GradScaler::name_parameters`](super::GradScaler::name_parameters) was told the names.
        parameters: String,
    },
    /// `update` in a step in which no optimizer's gradients were checked.
    #[error(
        "no inf checks were recorded prior to update: neither unscale nor step has met a gradient since the last update, so nothing is \
         known by which the scale could move. Call scaler.step on each optimizer before update, or leave update out of this step; \
         update_to sets a scale without a check"
    )]
    NothingChecked,
    /// `unscale`, `step` or `update` before anything was scaled.
    #[error(
        "attempted {call} but no loss was ever scaled. The script may call loss.backward() instead of scaler.backward(&loss); \
         gradients that carry no scale must not be divided by one"
    )]
    NothingScaled {
        /// The call that came too early.
        call: &'static str,
    },
    /// A gradient is FP16.
    #[error(
        "attempting to unscale FP16 gradients ({parameters}). The parameters themselves are FP16: dividing their gradients by the \
         scale in FP16 loses what the scale has saved, and updates below a 2048th of a weight vanish. Use master weights, FP32 copies that the optimizer steps: \
         `let mut opt = MasterWeights::new(&vs)?.build(nn::Adam::default(), lr)?;` in place of \
         `let mut opt = nn::Adam::default().build(&vs, lr)?;`, the loop stays as it is. Or leave the VarStore in FP32 (no vs.half()) and \
         run the forward pass under autocast(device, Kind::Half, || ...)"
    )]
    HalfGradients {
        /// The parameters concerned, named where the names are known.
        parameters: String,
    },
    /// A loss that cannot be scaled.
    #[error(
        "a loss of {0:?} cannot be scaled: only floating-point tensors have gradients. Scale the loss itself, not a count or a label"
    )]
    LossKind(Kind),
    /// A setting that makes no scaler.
    #[error("{setting} = {value} makes no loss scaler: {reason}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The value given.
        value: f64,
        /// What it must be, and why.
        reason: &'static str,
    },
    /// The state is that of a disabled scaler.
    #[error(
        "the state to load is empty, as a disabled scaler saves it. \
         Start with a fresh scale instead of loading, or save the state from a scaler that is enabled"
    )]
    EmptyState,
    /// The state is not one of a scaler.
    #[error(
        "the state to load is not that of a GradScaler ({0}). It needs scale, growth_factor, backoff_factor, growth_interval and _growth_tracker, as PyTorch writes them"
    )]
    MalformedState(#[source] serde_json::Error),
    /// A file to load is not JSON.
    #[error(
        "the file is no JSON ({source}), so it holds no state of a scaler. It may have been cut short, or written by torch.save; from Python \
         write it by json.dump(scaler.state_dict(), file): {}", .path.display()
    )]
    NotJson {
        /// Where it ceases to be JSON.
        source: serde_json::Error,
        /// Which file.
        path: PathBuf,
    },
    /// A file could not be read or written.
    #[error("the state of the scaler could not be {verb}: {source}. Check that the folder exists and may be used: {}", .path.display())]
    File {
        /// `read` or `written`.
        verb: &'static str,
        /// Why.
        source: std::io::Error,
        /// Which file.
        path: PathBuf,
    },
    /// The optimizer steps master weights, and they refused.
    #[error(transparent)]
    Masters(#[from] MastersError),
    /// LibTorch refused.
    #[error("LibTorch refused: {0}")]
    Torch(#[from] TchError),
    /// LibTorch refused, in the shim.
    #[error("LibTorch refused: {0}")]
    Shim(#[from] ShimError),
}
