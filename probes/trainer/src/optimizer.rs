//! The optimizers, and a learning rate for each at which the models learn.

use anyhow::Result;
use clap::ValueEnum;
use tch::nn::{self, OptimizerConfig};

/// Which optimizer steps the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OptimizerKind {
    /// SGD with momentum 0.9.
    Sgd,
    /// Adam with the usual moments.
    Adam,
    /// AdamW with weight decay 0.01.
    Adamw,
}

impl OptimizerKind {
    /// The learning rate when none is given.
    pub fn default_lr(self) -> f64 {
        match self {
            Self::Sgd => 0.05,
            Self::Adam | Self::Adamw => 3e-3,
        }
    }

    /// Builds the optimizer for the parameters of `vs`.
    pub fn build(self, vs: &nn::VarStore, lr: f64) -> Result<nn::Optimizer> {
        Ok(match self {
            Self::Sgd => nn::Sgd { momentum: 0.9, ..Default::default() }.build(vs, lr)?,
            Self::Adam => nn::Adam::default().build(vs, lr)?,
            Self::Adamw => nn::AdamW::default().build(vs, lr)?,
        })
    }
}
