//! The optimizers, and a learning rate for each at which the models learn.

use clap::ValueEnum;
use tch::nn::{self, OptimizerConfig};
use tch::{COptimizer, TchError};

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
}

/// An optimizer with what can be set of it.
#[derive(Clone, Copy, Debug)]
pub struct OptimizerSettings {
    /// Which one.
    pub kind: OptimizerKind,
    /// What Adam adds to the root of its second moment; tch's default where it is `None`. SGD has none.
    pub eps: Option<f64>,
}

/// Built on the model's store or on that of its FP32 copies.
impl OptimizerConfig for OptimizerSettings {
    fn build_copt(&self, lr: f64) -> Result<COptimizer, TchError> {
        match self.kind {
            OptimizerKind::Sgd => nn::Sgd { momentum: 0.9, ..Default::default() }.build_copt(lr),
            OptimizerKind::Adam => {
                let adam = nn::Adam::default();
                nn::Adam { eps: self.eps.unwrap_or(adam.eps), ..adam }.build_copt(lr)
            }
            OptimizerKind::Adamw => {
                let adamw = nn::AdamW::default();
                nn::AdamW { eps: self.eps.unwrap_or(adamw.eps), ..adamw }.build_copt(lr)
            }
        }
    }
}
