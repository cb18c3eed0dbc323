//! Moving averages of parameters that the loop keeps in 16 bits: what each step was to move them by, and what it did.
//!
//! An average is known by how it is computed and by nothing else: what is written into a tensor is `a` times that tensor plus `b` times a parameter, with
//! a + b = 1 and b small. So `lerp_`, `mul_` with `add_`, `copy_` of a sum and what else people write are one thing. Only tensors in 16 bits are followed,
//! and what was computed from a parameter outside of autograd; an average in FP32 costs nothing and is not seen.
//!
//! What it was to move by is taken from the parameter itself, b * (parameter - average): what the loop computed on its way there may have been rounded already.

use std::collections::{HashMap, HashSet};

use ampdoctor::observation::{Probe, Rounding};
use ampdoctor::scan::{Dtype, TensorView, elements_like, fidelity, unmoved_energy};

use super::border::{RawOp, RawTensor, dense_memory, tensor};
use super::device::{Held, Reductions};
use super::layers::LayerId;
use super::state::{State, is_in_place};
use super::trace::{Entry, RoundingLater};
use crate::shim::ShimError;

/// The most that a step moves an average by, as a share of its distance from the parameter.
const LARGEST_STEP: f64 = 0.5;

/// How closely the two factors add up to 1, in terms of the smaller.
const TOLERANCE: f64 = 0.01;

/// Where a tensor begins: parts of one storage are tensors of their own.
type Place = (usize, usize);

/// A tensor in terms of others: `of_average` times what stood at `average`, plus `of_param` times a parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Form {
    average: Option<Place>,
    of_average: f64,
    param: Option<usize>,
    of_param: f64,
}

impl Form {
    fn times(self, factor: f64) -> Self {
        Self { of_average: self.of_average * factor, of_param: self.of_param * factor, ..self }
    }

    /// The sum; `None` where it is of two different tensors, or two parameters.
    fn plus(self, other: Self) -> Option<Self> {
        Some(Self {
            average: one_of(self.average, other.average)?,
            of_average: self.of_average + other.of_average,
            param: one_of(self.param, other.param)?,
            of_param: self.of_param + other.of_param,
        })
    }

    /// Parameter and decay, where this is what a moving average becomes in a step.
    fn moved(&self) -> Option<(usize, f64)> {
        let (towards, sum) = (self.of_param, self.of_average + self.of_param);
        let moves = self.average.is_some() && towards > 0.0 && towards <= LARGEST_STEP;
        let param = self.param.filter(|_| moves && (sum - 1.0).abs() <= TOLERANCE * towards)?;
        Some((param, 1.0 - towards))
    }

    /// Whether a parameter may still be added.
    fn may_become_one(&self) -> bool {
        (LARGEST_STEP..=1.0).contains(&self.of_average)
    }
}

/// The one that is there; `Some(None)` where neither is, `None` where they differ.
fn one_of<T: PartialEq>(a: Option<T>, b: Option<T>) -> Option<Option<T>> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => None,
        (a, b) => Some(a.or(b)),
    }
}

/// A tensor in 16 bits as it was before it went into anything; its memory is in [`Averages::before`], or on its device.
struct Begun {
    place: Place,
    dtype: Dtype,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    on_device: Option<Copied>,
}

/// A tensor on a device as it was, and what it is to move by.
struct Copied {
    before: Held,
    intended: Option<Held>,
}

/// What the format left of the step of an average.
enum Stepped {
    Now(Rounding),
    Later(RoundingLater),
}

/// An average between the operator that completes its step and that operator's end.
struct Moving {
    layer: LayerId,
    tensor: String,
    operator: String,
    decay: f64,
}

/// What is known of averages within a step.
#[derive(Default)]
pub(super) struct Averages {
    forms: HashMap<Place, Form>,
    /// The form of what the operator that runs now returns.
    result: Option<Form>,
    moving: Option<Moving>,
    /// The latest tensor that may turn out to be an average. One at a time is enough: loops move one after the other.
    begun: Option<Begun>,
    before: Vec<u8>,
    intended: Vec<f32>,
    weights: Vec<f32>,
    /// Averages whose step was seen: a sum that is copied back is not told twice.
    done: HashSet<Place>,
}

impl Averages {
    /// A step begins.
    pub(super) fn begin_step(&mut self) {
        self.forms.clear();
        self.done.clear();
        (self.result, self.moving, self.begun) = (None, None, None);
    }

    /// Copies a tensor that may be an average; false where its memory is not dense.
    fn keep(&mut self, t: &RawTensor, view: &TensorView<'_>) -> bool {
        self.begun = None;
        // SAFETY: the shim describes live memory, which no operator changes during a callback.
        let Some(memory) = (unsafe { dense_memory(view) }) else { return false };
        self.before.clear();
        self.before.extend_from_slice(memory);
        let (sizes, strides) = (view.sizes.to_vec(), view.strides.to_vec());
        self.begun = Some(Begun { place: place(t), dtype: view.dtype, sizes, strides, on_device: None });
        true
    }

    /// The same of a tensor on a device.
    fn keep_on_device(&mut self, t: &RawTensor, dtype: Dtype) -> Result<(), ShimError> {
        self.begun = None;
        let on_device = Some(Copied { before: Held::copy_of(t)?, intended: None });
        let (sizes, strides) = (t.sizes().to_vec(), t.strides().to_vec());
        self.begun = Some(Begun { place: place(t), dtype, sizes, strides, on_device });
        Ok(())
    }

    /// As [`Averages::intend`], on a device.
    fn intend_on_device(&mut self, weights: &RawTensor, towards: f64) -> Result<bool, ShimError> {
        let begun = self.begun.as_mut().filter(|begun| begun.sizes == weights.sizes());
        let Some(copied) = begun.and_then(|begun| begun.on_device.as_mut()) else { return Ok(false) };
        let mut intended = Held::zeros_like(weights)?;
        intended.add_move(&copied.before, weights, towards)?;
        copied.intended = Some(intended);
        Ok(true)
    }

    /// As [`Averages::stepped`], on a device.
    fn stepped_on_device(
        &self,
        after: &RawTensor,
        device: &mut Reductions,
    ) -> Result<Option<RoundingLater>, ShimError> {
        let Some(begun) = &self.begun else { return Ok(None) };
        let alike = Some(begun.dtype) == after.dtype() && begun.sizes == after.sizes();
        let Some(Copied { before, intended: Some(intended) }) = begun.on_device.as_ref().filter(|_| alike) else {
            return Ok(None);
        };
        let stepped = Some(device.fidelity(before, after, intended)?);
        Ok(Some(RoundingLater { stepped, tells_unmoved: true, ..RoundingLater::default() }))
    }

    /// Writes down what the tensor that was copied is to move by. False where the weights have another shape.
    fn intend(&mut self, weights: &TensorView<'_>, towards: f64) -> bool {
        let Some(begun) = self.begun.as_ref().filter(|begun| begun.sizes == weights.sizes) else { return false };
        let Begun { dtype, sizes, strides, .. } = begun;
        let average = TensorView { data: self.before.as_ptr(), dtype: *dtype, sizes, strides };
        // SAFETY: one view is of a live parameter, which no operator changes during a callback; the other of the copy, which holds the elements
        // of a dense tensor as they lay in its memory.
        let known = unsafe {
            elements_like(weights, &average, &mut self.weights) && elements_like(&average, &average, &mut self.intended)
        };
        if known {
            let pairs = self.intended.iter_mut().zip(&self.weights);
            pairs.for_each(|(held, weight)| *held = (towards * (f64::from(*weight) - f64::from(*held))) as f32);
        }
        known
    }

    /// What the format left of the step whose result this is; `None` where it is in another format, or lies otherwise in memory.
    fn stepped(&self, after: &TensorView<'_>) -> Option<Rounding> {
        let begun = self.begun.as_ref().filter(|begun| begun.on_device.is_none())?;
        let alike = begun.dtype == after.dtype && begun.sizes == after.sizes && begun.strides == after.strides;
        // SAFETY: the shim describes live memory, which no operator changes during a callback.
        let bytes = unsafe { dense_memory(after) }.filter(|bytes| alike && bytes.len() == self.before.len())?;
        let Self { before, intended, .. } = self;
        Some(Rounding {
            stepped: Some(fidelity(after.dtype, before, bytes, intended)),
            unmoved: Some(unmoved_energy(after.dtype, before, bytes, intended)),
            ..Rounding::default()
        })
    }
}

impl State {
    /// An operator outside of autograd begins, or one that works in place.
    pub(super) fn follow_average(&mut self, name: &str, op: &RawOp) {
        (self.averages.result, self.averages.moving) = (None, None);
        let Some(first) = op.tensors().first() else { return };
        if is_in_place(name) {
            return self.follow_change(first, name, op);
        }
        self.note_weight_on_device(name, op);
        if let Some(form) = self.form_of_result(name, op) {
            self.averages.result = Some(form);
            self.may_move(form, name, op);
        }
    }

    /// A tensor is about to be changed.
    fn follow_change(&mut self, changed: &RawTensor, name: &str, op: &RawOp) {
        let at = place(changed);
        let matters = is_low(changed) || name == "copy_" || self.averages.forms.contains_key(&at);
        if !matters || self.params.find(changed.place()).is_some() {
            return;
        }
        self.note_weight_on_device(name.trim_end_matches('_'), op);
        let form = self.form_of_result(name.trim_end_matches('_'), op);
        // What it was before, nobody knows any more.
        self.averages.forms.remove(&at);
        match form {
            Some(form) => {
                self.averages.result = Some(form);
                self.may_move(form, name, op);
            }
            None if self.averages.begun.as_ref().is_some_and(|begun| begun.place == at) => self.averages.begun = None,
            None => {}
        }
    }

    /// An operator gives `form`: the step of an average, or a part of one.
    fn may_move(&mut self, form: Form, name: &str, op: &RawOp) {
        let Some(average) = form.average.filter(|average| !self.averages.done.contains(average)) else { return };
        let moved = form.moved();
        if self.averages.begun.as_ref().is_none_or(|begun| begun.place != average) {
            let held = op.tensors().iter().find(|t| is_low(t) && place(t) == average);
            let Some(held) = held.filter(|_| moved.is_some() || form.may_become_one()) else { return };
            if !self.keep_average(held, moved.is_some()) {
                return;
            }
        }
        if let Some((param, decay)) = moved {
            self.begin_move(param, decay, name);
        }
    }

    /// Copies a tensor that may be an average, or `is` one; false where that is not possible.
    fn keep_average(&mut self, held: &RawTensor, is: bool) -> bool {
        if let Some(dtype) = held.dtype().filter(|_| held.is_on_device()) {
            let kept = self.averages.keep_on_device(held, dtype);
            return self.asked(kept).is_some();
        }
        match held.view() {
            Some(view) => self.averages.keep(held, &view),
            None if is => {
                self.blind_spots.insert(unreadable());
                false
            }
            None => false,
        }
    }

    /// What an average is to move by is the parameter's, not what the loop made of it on its way.
    fn begin_move(&mut self, param: usize, decay: f64, name: &str) {
        let Some(param) = self.params.get(param) else { return };
        let (layer, tensor) = (param.layer, param.tensor_name.to_string());
        let Some(weights) = tensor::describe(&param.tensor) else { return };
        let known = if weights.is_on_device() {
            let intended = self.averages.intend_on_device(&weights, 1.0 - decay);
            self.asked(intended).unwrap_or(false)
        } else {
            weights.view().is_some_and(|weights| self.averages.intend(&weights, 1.0 - decay))
        };
        if known {
            self.averages.moving = Some(Moving { layer, tensor, operator: name.to_owned(), decay });
        }
    }

    /// An operator outside of autograd has ended.
    pub(super) fn average_ends(&mut self, op: &RawOp) {
        let (result, moving) = (self.averages.result.take(), self.averages.moving.take());
        let Some(output) = op.tensors().first() else { return };
        let stepped = moving.as_ref().and_then(|_| self.stepped(output));
        if let (Some(moving), Some(stepped)) = (moving, stepped) {
            self.add_average(output, moving, stepped);
        } else if let Some(form) = result {
            self.averages.forms.insert(place(output), form);
        }
    }

    /// What the format left of the step whose result this is.
    fn stepped(&mut self, after: &RawTensor) -> Option<Stepped> {
        if after.is_on_device() {
            let stepped = self.averages.stepped_on_device(after, &mut self.device);
            return self.asked(stepped).flatten().map(Stepped::Later);
        }
        self.averages.stepped(&after.view()?).map(Stepped::Now)
    }

    /// The step of an average is complete.
    fn add_average(&mut self, after: &RawTensor, moving: Moving, stepped: Stepped) {
        self.averages.done.extend(self.averages.begun.take().map(|begun| begun.place));
        // From here on it is what it is.
        self.averages.forms.remove(&place(after));
        let (Some(dtype), Some(stats)) = (after.dtype(), self.scan(after)) else { return };
        let mut entry = Entry::new(moving.layer, Probe::Average, dtype, stats);
        entry.operator = moving.operator;
        entry.tensor = moving.tensor;
        entry.decay = Some(moving.decay);
        match stepped {
            Stepped::Now(rounding) => entry.rounding = Some(Box::new(rounding)),
            Stepped::Later(later) => entry.rounding_later = Some(Box::new(later)),
        }
        self.trace.push(entry);
    }

    /// How far an average moves must be known when it does: where a device has that number, the average is not followed.
    fn note_weight_on_device(&mut self, name: &str, op: &RawOp) {
        let [x, _, weight, ..] = op.tensors() else { return };
        if name == "lerp" && op.scalars().is_empty() && is_low(x) && weight.is_on_device() {
            self.blind_spots.insert(unknown_weight());
        }
    }

    /// What the operator gives, where all its operands are known.
    fn form_of_result(&self, name: &str, op: &RawOp) -> Option<Form> {
        let scalars = op.scalars();
        match (name, op.tensors(), scalars) {
            ("to" | "_to_copy" | "type_as" | "detach" | "alias" | "clone" | "contiguous", [x, ..], _) => self.form(x),
            ("copy", [_, x], _) => self.form(x),
            ("neg", [x], _) => Some(self.form(x)?.times(-1.0)),
            ("mul", [x], [factor]) => Some(self.form(x)?.times(*factor)),
            ("div", [x], [divisor]) => Some(self.form(x)?.times(1.0 / divisor)),
            ("add", [x, y], _) => self.form(x)?.plus(self.form(y)?.times(factor(scalars))),
            ("sub", [x, y], _) => self.form(x)?.plus(self.form(y)?.times(-factor(scalars))),
            ("lerp", [x, y, weight @ ..], _) => {
                let weight = scalars.first().copied().or_else(|| weight.first().and_then(RawTensor::number))?;
                self.form(x)?.times(1.0 - weight).plus(self.form(y)?.times(weight))
            }
            _ => None,
        }
    }

    /// A tensor in terms of parameters and averages.
    fn form(&self, t: &RawTensor) -> Option<Form> {
        if let Some(param) = self.params.find(t.place()) {
            return self.is_whole(param, t).then_some(Form { param: Some(param), of_param: 1.0, ..Form::default() });
        }
        let known = self.averages.forms.get(&place(t)).copied();
        known.or_else(|| is_low(t).then(|| Form { average: Some(place(t)), of_average: 1.0, ..Form::default() }))
    }

    /// Whether this is the parameter, and no part or transpose of it.
    fn is_whole(&self, param: usize, t: &RawTensor) -> bool {
        self.params.get(param).is_some_and(|p| p.tensor.size() == t.sizes() && p.tensor.stride() == t.strides())
    }
}

fn place(t: &RawTensor) -> Place {
    (t.storage, t.offset)
}

/// Whether this may be an average: in 16 bits, and no gradient flows through it.
fn is_low(t: &RawTensor) -> bool {
    t.storage != 0 && t.tracked == 0 && t.trainable == 0 && matches!(t.dtype(), Some(Dtype::F16 | Dtype::Bf16))
}

/// The factor that `add` and `sub` take last; 1 where it was left out.
fn factor(scalars: &[f64]) -> f64 {
    scalars.last().copied().unwrap_or(1.0)
}

fn unknown_weight() -> String {
    "a moving average in 16 bits is moved by a share that is a tensor on a device: whether its steps are rounded away is not known. Give `lerp_` the share as a \
     number"
        .into()
}

fn unreadable() -> String {
    "a moving average of parameters is held in 16 bits in memory that cannot be read: whether its steps are rounded away is not known. In FP32 they are \
     not"
        .into()
}
