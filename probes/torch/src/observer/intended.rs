//! The change that an optimizer's operator computes, before the parameter's format rounds it.
//!
//! Recomputed in FP32 from the operator's arguments. Which operators the optimizers of LibTorch use: SGD `add_`, Adam and RMSprop `addcdiv_`,
//! AdamW `mul_` for the decay and then `addcdiv_`. The others are what people write by hand. `copy_` is not
//! among them: it may write back an FP32 copy of somebody's own, which has all that was intended, and then nothing is lost.

use ampdoctor::scan::{TensorView, elements_like};

use super::border::{RawOp, RawTensor};

/// The change intended so far for the parameter that is being changed, in the order in which its elements lie in memory.
#[derive(Default)]
pub(super) struct Intended {
    sum: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Intended {
    /// Forgets what was intended for another parameter, which had other `elements`.
    pub(super) fn begin(&mut self, elements: usize) {
        self.sum.clear();
        self.sum.resize(elements, 0.0);
    }

    /// What was intended so far.
    pub(super) fn sum(&self) -> &[f32] {
        &self.sum
    }

    /// Adds what the operator `name` is about to add to its first tensor. False where that cannot be told.
    pub(super) fn add(&mut self, name: &str, op: &RawOp) -> bool {
        let [param, operands @ ..] = op.tensors() else { return false };
        let Some(param) = param.view() else { return false };
        let scalars = op.scalars();
        match (name, operands, scalars) {
            ("add_", [other], _) => self.add_scaled(&param, other, alpha(scalars)),
            ("sub_", [other], _) => self.add_scaled(&param, other, -alpha(scalars)),
            ("add_", [], [other, rest @ ..]) => self.add_constant(*other * alpha(rest)),
            ("sub_", [], [other, rest @ ..]) => self.add_constant(-*other * alpha(rest)),
            ("addcdiv_", [a, b], _) => self.add_two(&param, a, b, alpha(scalars), |a, b| a / b),
            ("addcmul_", [a, b], _) => self.add_two(&param, a, b, alpha(scalars), |a, b| a * b),
            ("mul_", [], [factor]) => self.add_factor(&param, factor - 1.0),
            ("div_", [], [divisor]) => self.add_factor(&param, 1.0 / divisor - 1.0),
            ("mul_", [other], []) => self.add_factors(&param, other, |factor| factor - 1.0),
            ("div_", [other], []) => self.add_factors(&param, other, |divisor| 1.0 / divisor - 1.0),
            ("lerp_", [end], [weight]) => self.add_towards(&param, end, *weight),
            _ => false,
        }
    }

    fn add_scaled(&mut self, param: &TensorView<'_>, other: &RawTensor, factor: f64) -> bool {
        let known = read(other, param, &mut self.a);
        if known {
            add_each(&mut self.sum, self.a.iter().map(|x| factor * f64::from(*x)));
        }
        known
    }

    fn add_constant(&mut self, change: f64) -> bool {
        self.sum.iter_mut().for_each(|sum| *sum += change as f32);
        true
    }

    fn add_two(
        &mut self,
        param: &TensorView<'_>,
        a: &RawTensor,
        b: &RawTensor,
        factor: f64,
        combine: impl Fn(f64, f64) -> f64,
    ) -> bool {
        let known = read(a, param, &mut self.a) && read(b, param, &mut self.b);
        if known {
            let pairs = self.a.iter().zip(&self.b);
            add_each(&mut self.sum, pairs.map(|(a, b)| factor * combine(f64::from(*a), f64::from(*b))));
        }
        known
    }

    fn add_factor(&mut self, param: &TensorView<'_>, factor: f64) -> bool {
        let known = read_view(param, param, &mut self.a);
        if known {
            add_each(&mut self.sum, self.a.iter().map(|w| factor * f64::from(*w)));
        }
        known
    }

    fn add_factors(&mut self, param: &TensorView<'_>, other: &RawTensor, factor: impl Fn(f64) -> f64) -> bool {
        let known = read_view(param, param, &mut self.a) && read(other, param, &mut self.b);
        if known {
            let pairs = self.a.iter().zip(&self.b);
            add_each(&mut self.sum, pairs.map(|(w, x)| f64::from(*w) * factor(f64::from(*x))));
        }
        known
    }

    fn add_towards(&mut self, param: &TensorView<'_>, end: &RawTensor, weight: f64) -> bool {
        let known = read_view(param, param, &mut self.a) && read(end, param, &mut self.b);
        if known {
            let pairs = self.a.iter().zip(&self.b);
            add_each(&mut self.sum, pairs.map(|(w, end)| weight * (f64::from(*end) - f64::from(*w))));
        }
        known
    }
}

/// Whether an operator is the decay of the weights: the parameter times a number a little below 1.
pub(super) fn is_decay(name: &str, op: &RawOp) -> bool {
    name == "mul_" && op.tensors().len() == 1 && matches!(op.scalars(), [factor] if (0.5..1.0).contains(factor))
}

/// The factor that `add_`, `addcdiv_` and their like take last; 1 where it was left out.
fn alpha(scalars: &[f64]) -> f64 {
    scalars.last().copied().unwrap_or(1.0)
}

fn add_each(sum: &mut [f32], changes: impl Iterator<Item = f64>) {
    for (sum, change) in sum.iter_mut().zip(changes) {
        *sum += change as f32;
    }
}

fn read(tensor: &RawTensor, like: &TensorView<'_>, out: &mut Vec<f32>) -> bool {
    tensor.view().is_some_and(|view| read_view(&view, like, out))
}

fn read_view(view: &TensorView<'_>, like: &TensorView<'_>, out: &mut Vec<f32>) -> bool {
    // SAFETY: the shim describes live memory of tensors that outlive the operator's start.
    unsafe { elements_like(view, like, out) }
}
