//! Loops that do not keep to the recipe: calls of the scaler that are forgotten, made twice, or made in the wrong order.

use ampdoctor_torch::{AmpOptimizer, GradScaler, ScalerError};
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Kind, Tensor, no_grad};

use super::Fault;
use crate::optimizer::OptimizerKind;
use crate::options::Options;
use crate::precision::Precision;
use crate::stepper::Stepper;

/// The scale of a loop that scales by hand.
const BY_HAND: f64 = 65536.0;

/// The norm that a loop clips to where none was asked for.
const CLIP: f64 = 1.0;

/// Learning rate of the two optimizers written by hand.
const LR: f64 = 0.05;

/// The mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenRecipe {
    /// `unscale` twice in a row.
    UnscaledTwice,
    /// Clipping before `unscale`.
    ClippedEarly,
    /// No `update`.
    NotUpdated,
    /// `update` twice.
    UpdatedTwice,
    /// `update` between `unscale` and `step`.
    UpdatedEarly,
    /// The optimizer's own step in place of the scaler's, after `unscale`.
    OwnStep,
    /// The optimizer's own step, and no `unscale`.
    ScaledStep,
    /// No `zero_grad`.
    NotCleared,
    /// The scale is set between micro-batches.
    MovingScale,
    /// `update` after each of two optimizers.
    SplitUpdate,
    /// A loss scaled by hand in FP16.
    HalfLoss,
    /// The doctor is given the scaled loss.
    ScaledLoss,
    /// A second optimizer, which the loss does not reach.
    Unreached,
    /// FP16 parameters with a scaler.
    HalfParameters,
}

impl Fault for BrokenRecipe {
    fn name(&self) -> &'static str {
        match self {
            Self::UnscaledTwice => "unscale-twice",
            Self::ClippedEarly => "clip-early",
            Self::NotUpdated => "no-update",
            Self::UpdatedTwice => "update-twice",
            Self::UpdatedEarly => "update-early",
            Self::OwnStep => "own-step",
            Self::ScaledStep => "scaled-step",
            Self::NotCleared => "no-zero-grad",
            Self::MovingScale => "moving-scale",
            Self::SplitUpdate => "split-update",
            Self::HalfLoss => "half-loss",
            Self::ScaledLoss => "scaled-loss",
            Self::Unreached => "unreached",
            Self::HalfParameters => "half-parameters",
        }
    }

    fn about(&self) -> &'static str {
        match self {
            Self::UnscaledTwice => "the gradients are unscaled a second time",
            Self::ClippedEarly => "the gradients are clipped before they are unscaled",
            Self::NotUpdated => "the scaler is not updated after its step",
            Self::UpdatedTwice => "the scaler is updated twice after its step",
            Self::UpdatedEarly => "the scaler is updated between unscale and step",
            Self::OwnStep => "gradients are unscaled, and the optimizer is stepped without asking the scaler",
            Self::ScaledStep => "the optimizer is stepped on gradients that still carry the scale",
            Self::NotCleared => "gradients are not cleared between two steps",
            Self::MovingScale => "the scale is doubled and halved between micro-batches",
            Self::SplitUpdate => "two optimizers share a backward pass, and the scaler is updated after each",
            Self::HalfLoss => "the loss is converted to FP16 and scaled by hand by 65536",
            Self::ScaledLoss => "the loss that is reported is the scaled one",
            Self::Unreached => "a second optimizer is stepped, whose parameters the loss does not reach",
            Self::HalfParameters => "parameters in FP16 are given to a scaler without FP32 copies",
        }
    }

    fn is_setting(&self) -> bool {
        matches!(self, Self::HalfLoss | Self::HalfParameters)
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        match self {
            Self::ClippedEarly => {
                options.clip.get_or_insert(CLIP);
                options.optimizer.get_or_insert(OptimizerKind::Sgd);
                // FP32 copies have no gradients before they are unscaled.
                return options.need_precision(Precision::Fp16).into_iter().collect();
            }
            Self::MovingScale => options.accumulate = options.accumulate.max(2),
            Self::HalfParameters => return options.need_precision(Precision::Fp16Pure).into_iter().collect(),
            Self::NotCleared => return Vec::new(),
            _ => {}
        }
        options.need_scaler()
    }

    fn breaks_recipe(&self) -> Option<BrokenRecipe> {
        Some(*self)
    }
}

impl BrokenRecipe {
    /// What is scaled, for a backward of the loop's own, where the loop does it by hand.
    pub fn scaled_by_hand(self, loss: &Tensor) -> Option<Tensor> {
        (self == Self::HalfLoss).then(|| loss.to_kind(Kind::Half) * BY_HAND)
    }

    /// The step that the mistake makes of a sound one; whether it was applied.
    pub fn step(
        self,
        scaler: &mut GradScaler,
        stepper: &mut dyn Stepper,
        clip: impl Fn(&mut dyn Stepper),
    ) -> Result<bool, ScalerError> {
        match self {
            Self::UnscaledTwice => {
                scaler.unscale(stepper)?;
                scaler.unscale(stepper)?;
            }
            Self::ClippedEarly => clip(stepper),
            Self::UpdatedEarly => {
                scaler.unscale(stepper)?;
                clip(stepper);
                scaler.update()?;
            }
            Self::OwnStep => {
                scaler.unscale(stepper)?;
                clip(stepper);
                stepper.try_apply()?;
                scaler.update()?;
                return Ok(true);
            }
            Self::ScaledStep => {
                stepper.prepare()?;
                stepper.try_apply()?;
                return Ok(true);
            }
            Self::SplitUpdate => return step_in_halves(scaler, stepper),
            Self::HalfLoss => return step_by_hand(stepper),
            Self::Unreached => step_unreached(scaler)?,
            _ => {}
        }
        let applied = scaler.step(stepper)?.applied();
        if self != Self::NotUpdated {
            scaler.update()?;
        }
        if self == Self::UpdatedTwice {
            scaler.update()?;
        }
        Ok(applied)
    }
}

/// Plain SGD on some of the parameters.
struct Part {
    parameters: Vec<Tensor>,
}

impl AmpOptimizer for Part {
    fn parameters(&self) -> Vec<Tensor> {
        self.parameters.iter().map(Tensor::shallow_clone).collect()
    }

    fn apply(&mut self) {
        no_grad(|| {
            for parameter in self.parameters.iter_mut().filter(|p| p.grad().defined()) {
                let step = parameter.grad() * -LR;
                let _ = parameter.g_add_(&step);
            }
        });
    }
}

fn step_in_halves(scaler: &mut GradScaler, stepper: &mut dyn Stepper) -> Result<bool, ScalerError> {
    let mut first = Part { parameters: stepper.parameters() };
    let mut second = Part { parameters: first.parameters.split_off(first.parameters.len() / 2) };
    let mut applied = true;
    for part in [&mut first, &mut second] {
        applied &= scaler.step(part)?.applied();
        scaler.update()?;
    }
    Ok(applied)
}

/// Divides by the scale and looks for infinities without a scaler.
fn step_by_hand(stepper: &mut dyn Stepper) -> Result<bool, ScalerError> {
    let mut finite = true;
    for parameter in stepper.parameters().iter().filter(|p| p.grad().defined()) {
        let _ = parameter.grad().g_div_scalar_(BY_HAND);
        finite &= bool::try_from(parameter.grad().isfinite().all())?;
    }
    if finite {
        stepper.try_apply()?;
    }
    Ok(finite)
}

/// A head that nothing computes with.
fn step_unreached(scaler: &mut GradScaler) -> Result<(), ScalerError> {
    let vs = nn::VarStore::new(Device::Cpu);
    let _head = nn::linear(vs.root() / "head", 4, 4, Default::default());
    let mut optimizer = nn::Sgd::default().build(&vs, LR)?;
    scaler.step(&mut optimizer).map(|_| ())
}
