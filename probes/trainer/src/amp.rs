//! Precision and loss scaling of a run.

use std::fmt;

use ampdoctor_torch::{GradScaler, autocast};
use anyhow::Result;
use clap::ValueEnum;
use tch::{Device, Kind, Tensor, nn};

use crate::options::Options;

/// The precision of the forward pass; the parameters are FP32 in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// No autocast.
    Fp32,
    /// Autocast to BF16, no loss scaling.
    Bf16,
    /// Autocast to FP16, with loss scaling.
    Fp16,
}

impl Precision {
    /// Runs a forward pass in this precision.
    pub fn run<T>(self, forward: impl FnOnce() -> T) -> T {
        match self {
            Self::Fp32 => forward(),
            Self::Bf16 => autocast(Device::Cpu, Kind::BFloat16, forward),
            Self::Fp16 => autocast(Device::Cpu, Kind::Half, forward),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fp32 => "fp32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        })
    }
}

/// How the loss becomes a step of the optimizer.
pub struct Scaling {
    scaler: Option<GradScaler>,
    held: Option<f64>,
}

impl Scaling {
    /// A scaler for FP16, with the settings of the command line; none otherwise.
    pub fn new(options: &Options) -> Result<Self> {
        if options.precision != Precision::Fp16 {
            return Ok(Self { scaler: None, held: None });
        }
        let scaler = match options.static_scale {
            Some(scale) => GradScaler::builder().static_scale(scale),
            None => {
                GradScaler::builder().init_scale(options.init_scale).growth_interval(u64::from(options.growth_interval))
            }
        };
        Ok(Self { scaler: Some(scaler.build()?), held: options.static_scale })
    }

    /// From now on, holds this loss scale; nothing happens without a scaler, or when it is held already.
    pub fn hold(&mut self, scale: f64) -> Result<()> {
        if self.scaler.is_some() && self.held != Some(scale) {
            self.scaler = Some(GradScaler::builder().static_scale(scale).build()?);
            self.held = Some(scale);
        }
        Ok(())
    }

    /// Backward and one step of the optimizer; whether it was applied.
    pub fn step(&mut self, optimizer: &mut nn::Optimizer, loss: &Tensor) -> Result<bool> {
        let Some(scaler) = &mut self.scaler else {
            optimizer.backward_step(loss);
            return Ok(true);
        };
        optimizer.zero_grad();
        scaler.f_backward(loss)?;
        let outcome = scaler.step(optimizer)?;
        scaler.update()?;
        Ok(outcome.applied())
    }

    /// The loss scale now.
    pub fn scale(&self) -> Option<f64> {
        self.scaler.as_ref().map(GradScaler::get_scale)
    }
}
