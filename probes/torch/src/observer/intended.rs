//! The change that an optimizer's operator computes, before the parameter's format rounds it.
//!
//! Recomputed in FP32 from the operator's arguments. Which operators the optimizers of LibTorch use: SGD `add_`, Adam and RMSprop `addcdiv_`,
//! AdamW `mul_` for the decay and then `addcdiv_`. The others are what people write by hand. `copy_` is not
//! among them: it may write back an FP32 copy of somebody's own, which has all that was intended, and then nothing is lost.

use ampdoctor::scan::{TensorView, elements_like};

use super::border::{RawOp, RawTensor};

/// How an operator is meant to change its first tensor.
#[derive(Clone, Copy)]
pub(super) enum Intention<'a> {
    /// By a tensor times a factor.
    Adds(&'a RawTensor, f64),
    /// By a number.
    AddsNumber(f64),
    /// By a quotient times a factor.
    AddsQuotient(&'a RawTensor, &'a RawTensor, f64),
    /// By a product times a factor.
    AddsProduct(&'a RawTensor, &'a RawTensor, f64),
    /// By itself times a factor.
    Scales(f64),
    /// It is multiplied by a tensor.
    Multiplies(&'a RawTensor),
    /// It is divided by a tensor.
    Divides(&'a RawTensor),
    /// It goes a share of the way to a tensor.
    Towards(&'a RawTensor, f64),
}

/// What the operator `name` is about to do to its first tensor; `None` where its arguments do not tell.
pub(super) fn intention<'a>(name: &str, op: &'a RawOp) -> Option<Intention<'a>> {
    let [_, operands @ ..] = op.tensors() else { return None };
    let scalars = op.scalars();
    Some(match (name, operands, scalars) {
        ("add_", [other], _) => Intention::Adds(other, alpha(scalars)),
        ("sub_", [other], _) => Intention::Adds(other, -alpha(scalars)),
        ("add_", [], [other, rest @ ..]) => Intention::AddsNumber(*other * alpha(rest)),
        ("sub_", [], [other, rest @ ..]) => Intention::AddsNumber(-*other * alpha(rest)),
        ("addcdiv_", [a, b], _) => Intention::AddsQuotient(a, b, alpha(scalars)),
        ("addcmul_", [a, b], _) => Intention::AddsProduct(a, b, alpha(scalars)),
        ("mul_", [], [factor]) => Intention::Scales(factor - 1.0),
        ("div_", [], [divisor]) => Intention::Scales(1.0 / divisor - 1.0),
        ("mul_", [other], []) => Intention::Multiplies(other),
        ("div_", [other], []) => Intention::Divides(other),
        ("lerp_", [end], [weight]) => Intention::Towards(end, *weight),
        _ => return None,
    })
}

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
        let Some(param) = op.tensors().first().and_then(RawTensor::view) else { return false };
        match intention(name, op) {
            Some(Intention::Adds(other, factor)) => self.add_scaled(&param, other, factor),
            Some(Intention::AddsNumber(number)) => self.add_constant(number),
            Some(Intention::AddsQuotient(a, b, factor)) => self.add_two(&param, a, b, factor, |a, b| a / b),
            Some(Intention::AddsProduct(a, b, factor)) => self.add_two(&param, a, b, factor, |a, b| a * b),
            Some(Intention::Scales(factor)) => self.add_factor(&param, factor),
            Some(Intention::Multiplies(other)) => self.add_factors(&param, other, |factor| factor - 1.0),
            Some(Intention::Divides(other)) => self.add_factors(&param, other, |divisor| 1.0 / divisor - 1.0),
            Some(Intention::Towards(end, share)) => self.add_towards(&param, end, share),
            None => false,
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
