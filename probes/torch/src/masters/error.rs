//! What can go wrong with master weights: what happened, why it may have, what to do.

use std::path::PathBuf;

use tch::{Device, Kind, TchError};

use super::check::{self, Broken};
use crate::shim::ShimError;

/// Why [`MasterWeights`](super::MasterWeights) refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MastersError {
    /// No trainable parameter is FP16 or BF16.
    #[error(
        "none of the {parameters} trainable parameters of this VarStore is FP16 or BF16, so none needs a copy. Call vs.half() or vs.bfloat16() after the \
         model is built and before MasterWeights::new(&vs); a model that stays in FP32 under autocast is its own master"
    )]
    NothingInLowPrecision {
        /// Trainable parameters in all.
        parameters: usize,
    },
    /// A parameter is of a kind that FP32 does not hold.
    #[error(
        "{parameter} is {kind:?}: an FP32 copy would not hold it. Master weights are for models in FP16 or BF16, of which single \
         parameters may be FP32; convert it with to_kind, or leave it out of the VarStore"
    )]
    Kind {
        /// Its name.
        parameter: String,
        /// What it is.
        kind: Kind,
    },
    /// The optimizer steps the model's parameters.
    #[error(
        "the optimizer was built on the model: it steps {parameter} itself, in {kind:?}, where updates below a 2048th (BF16: a 256th) of a weight \
         vanish. Build it on the copies: nn::Adam::default().build(masters.vars(), lr)?"
    )]
    OptimizerOnModel {
        /// A parameter that it steps.
        parameter: String,
        /// What that is held in.
        kind: Kind,
    },
    /// The optimizer steps something that is no copy.
    #[error(
        "the optimizer steps a tensor of shape {shape:?} that is no copy of these master weights. It may have been built on another VarStore, or on \
         master weights made earlier. Build it on the copies: nn::Adam::default().build(masters.vars(), lr)?"
    )]
    OptimizerElsewhere {
        /// The shape of the first such tensor.
        shape: Vec<i64>,
    },
    /// Gradients are in the model that were not pulled.
    #[error(
        "{count} parameters of the model (first: {parameter}) hold gradients that were not pulled over, and this step would leave them out. A backward \
         pass may have come after unscale or pull_gradients. The order is backward (of every micro-batch), unscale or pull_gradients, clip, \
         step; call masters.zero_grad() to drop them"
    )]
    GradientsLeft {
        /// The first of them.
        parameter: String,
        /// How many.
        count: usize,
    },
    /// The model has left the copies' device.
    #[error(
        "{parameter} is on {model:?} and its copy on {copy:?}: the model was moved after the copies were made. Move it first, then make \
         MasterWeights and the optimizer, whose state would stay behind too; MasterWeights::save and load carry the copies over"
    )]
    DeviceMoved {
        /// Its name.
        parameter: String,
        /// Where the parameter is.
        model: Device,
        /// Where its copy is.
        copy: Device,
    },
    /// A check found copies that somebody broke.
    #[error("the master weights are broken: {}", check::list(.0))]
    Broken(Vec<Broken>),
    /// A file to load lacks a parameter, or has one too many.
    #[error(
        "the file does not hold the copies of this model: {what}. Build the model as it was when they were saved, or start from its weights \
         with refresh_from_model(): {}", .path.display()
    )]
    NotTheseCopies {
        /// What differs.
        what: String,
        /// Which file.
        path: PathBuf,
    },
    /// A file could not be read or written.
    #[error("the copies could not be {verb}: {source}. Check that the folder exists, may be used, and has room: {}", .path.display())]
    File {
        /// `read` or `written`.
        verb: &'static str,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Which file.
        path: PathBuf,
    },
    /// LibTorch refused.
    #[error("LibTorch refused: {0}")]
    Torch(#[from] TchError),
    /// LibTorch refused, in the shim.
    #[error("LibTorch refused: {0}")]
    Shim(#[from] ShimError),
}
