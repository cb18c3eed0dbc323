//! What the loop does with gradients and parameters, as far as the operators show it: the events of the recipe.
//!
//! Everything here is done in scanned and in light steps alike, and reads no tensor but a loss of one element. Per step and parameter it costs two looks at
//! which memory the gradient is: one when backward begins, one when the parameter is stepped.

use std::collections::HashMap;

use ampdoctor::observation::{Act, Product, RecipeEvent, Refusal, ScalerEvent};
use ampdoctor::scan::Dtype;
use tch::Tensor;

use super::border::{Content, RawOp, RawTensor, tensor};
use super::device::Reductions;
use super::later::Number;
use super::state::{SCALE_LOSS, State, is_in_place, is_unscale};

/// Events of one step that are kept, for a loop that never calls `doctor.step`.
const MAX_EVENTS: usize = 4096;

/// An event, before it is known whether the step's scaler events are the library's scaler's or a foreign one's.
struct Pending {
    after_own: u32,
    after_foreign: u32,
    act: Act,
    /// Numbers of it that are to be fetched.
    later: Option<Later>,
}

/// Numbers of an event that were not known when it happened.
enum Later {
    /// What the scaled loss was made of.
    Product(Factors),
    /// What gradients were multiplied by, or divided: the number, and the tensor that holds it.
    Factor { number: Number, content: Content, divides: bool },
}

/// A loss times a number.
#[derive(Clone, Copy)]
struct Factors {
    loss: Number,
    factor: Number,
    dtype: Dtype,
}

impl Factors {
    fn product(self, device: &Reductions) -> Option<Product> {
        let (loss, factor) = (self.loss.value(device)?, self.factor.value(device)?);
        Some(Product { loss, factor, dtype: self.dtype })
    }
}

impl Pending {
    /// The event, with what was fetched; `None` where it is nothing without that.
    fn act(mut self, device: &Reductions) -> Option<Act> {
        match (&mut self.act, self.later) {
            (_, None) => {}
            (Act::Backward { product, .. }, Some(Later::Product(factors))) => *product = factors.product(device),
            (Act::Multiplied { factor, .. }, Some(Later::Factor { number, divides, .. })) => {
                let number = number.value(device)?;
                *factor = if divides { 1.0 / number } else { number };
            }
            _ => return None,
        }
        Some(self.act)
    }
}

/// What is followed from operator to operator.
#[derive(Default)]
pub(super) struct Recipe {
    events: Vec<Pending>,
    /// Whether the latest callback came out of backward.
    in_backward: bool,
    /// The latest product that a loss may have come out of.
    product: Option<Factors>,
    /// The parameter whose gradient lives in a storage.
    gradients: HashMap<usize, usize>,
    /// Whether `gradients` holds what there is since the last backward.
    gradients_known: bool,
    /// The parameter that was changed last.
    stepped: Option<usize>,
    /// The scale of the latest loss that the library's scaler scaled, until an optimizer was stepped.
    scaled: Option<f64>,
}

impl Recipe {
    /// Whether a call was refused in this step.
    pub(super) fn was_refused(&self) -> bool {
        self.events.iter().any(|event| matches!(event.act, Act::Refused { .. }))
    }

    /// The step's events; `position` says where a number of raw scaler events ends up among those of the step.
    pub(super) fn take(&mut self, own: bool, device: &Reductions, position: impl Fn(u32) -> u32) -> Vec<RecipeEvent> {
        let event = |pending: Pending| {
            let after = position(if own { pending.after_own } else { pending.after_foreign });
            Some(RecipeEvent { after, act: pending.act(device)? })
        };
        std::mem::take(&mut self.events).into_iter().filter_map(event).collect()
    }

    /// A step begins; what spans steps stays.
    pub(super) fn begin_step(&mut self) {
        self.events.clear();
        self.stepped = None;
    }
}

impl State {
    /// An operator outside backward begins.
    pub(super) fn follow_recipe(&mut self, name: &str, op: &RawOp, own_scaler: bool) {
        self.recipe.in_backward = false;
        if matches!(name, "mul" | "mul_" | SCALE_LOSS) {
            self.note_product(op);
        }
        if own_scaler {
            return;
        }
        if is_unscale(name) {
            self.note_half_unscaled(op);
        } else if is_in_place(name) {
            self.note_in_place(name, op);
        }
    }

    /// A node of backward begins; the first one tells what backward begins with.
    pub(super) fn note_backward(&mut self) {
        if std::mem::replace(&mut self.recipe.in_backward, true) {
            return;
        }
        let (mut holding, mut used) = (0, 0);
        for param in self.params.iter_mut().filter(|p| p.parameter) {
            let gradient = tensor::gradient_content(&param.tensor);
            holding += u32::from(gradient.is_some());
            // What was carried once has been added to, and is no longer the memory it was: it stays until it is cleared.
            param.carried = gradient.is_some() && (param.carried || gradient == param.used);
            used += u32::from(param.carried);
        }
        self.recipe.gradients_known = false;
        let product = self.recipe.product.take();
        let later = product.map(Later::Product);
        self.push_pending(Act::Backward { holding, used, product: None }, later);
    }

    /// The library's scaler did something. A scale that changes while gradients are being collected is looked into even where nothing else is observed.
    pub(super) fn note_scaler_event(&mut self, event: &ScalerEvent) {
        match *event {
            ScalerEvent::Scaled { scale } => {
                let changed = self.recipe.scaled.replace(scale).is_some_and(|before| before != scale);
                if changed && !self.watched {
                    self.recipe.in_backward = false;
                    self.note_backward();
                }
            }
            ScalerEvent::Stepped { .. } => self.recipe.scaled = None,
            // FP32 copies have got their gradients just before.
            ScalerEvent::Unscaled { .. } => self.recipe.gradients_known = false,
            ScalerEvent::Updated { .. } => {}
        }
    }

    /// The library's scaler refused a call.
    pub(super) fn note_refusal(&mut self, optimizer: Option<u32>, refusal: Refusal, parameters: &[Tensor]) {
        let name = |parameter: &Tensor| {
            let known = self.params.find(tensor::place(parameter)).and_then(|i| self.params.get(i));
            known.map_or_else(|| format!("a parameter of shape {:?}", parameter.size()), |p| p.name.clone())
        };
        let parameters = parameters.iter().take(Act::MAX_NAMES).map(name).collect();
        self.push_act(Act::Refused { optimizer, refusal, parameters });
    }

    /// The library's scaler withholds the step of these parameters. Their gradients are used up all the same: what is added to them is added to infinities.
    pub(super) fn note_withheld(&mut self, parameters: &[Tensor]) {
        if !self.watched {
            return;
        }
        let (mut held, mut stale) = (0, 0);
        for parameter in parameters {
            let Some(param) = self.params.find(tensor::place(parameter)).and_then(|i| self.params.get_mut(i)) else {
                continue;
            };
            param.used = tensor::gradient_content(&param.tensor);
            held += u32::from(param.used.is_some());
            stale += u32::from(std::mem::take(&mut param.carried) && param.used.is_some());
        }
        self.push_act(Act::Withheld { parameters: held, stale });
    }

    /// A scaler of somebody else updated its scale a second time.
    pub(super) fn note_updated_again(&mut self) {
        self.push_act(Act::UpdatedAgain);
    }

    /// The parameter that holds the first of these gradients: what tells the optimizers of a foreign scaler apart.
    pub(super) fn owner_of(&mut self, gradients: &[RawTensor]) -> Option<usize> {
        self.know_gradients();
        gradients.first().and_then(|t| self.recipe.gradients.get(&t.storage).copied())
    }

    fn push_act(&mut self, act: Act) {
        self.push_pending(act, None);
    }

    fn push_pending(&mut self, act: Act, later: Option<Later>) {
        if self.recipe.events.len() < MAX_EVENTS {
            let (after_own, after_foreign) = (self.scaler_events.len() as u32, self.foreign.acts());
            self.recipe.events.push(Pending { after_own, after_foreign, act, later });
        }
    }

    /// A loss of one element times a number.
    fn note_product(&mut self, op: &RawOp) {
        let (loss, factor) = match op.tensors() {
            [loss] => (loss, None),
            [a, b] if a.tracked != 0 => (a, Some(b)),
            [a, b] => (b, Some(a)),
            _ => return,
        };
        if loss.tracked == 0 || loss.count() != 1 {
            return;
        }
        let factor = match factor {
            Some(factor) => self.number(factor),
            None => op.scalars().first().copied().map(Number::Known),
        };
        if let (Some(factor), Some(dtype)) = (factor, loss.dtype())
            && let Some(loss) = self.number(loss)
        {
            self.recipe.product = Some(Factors { loss, factor, dtype });
        }
    }

    fn note_half_unscaled(&mut self, op: &RawOp) {
        let half = |t: &&RawTensor| t.dtype() == Some(Dtype::F16);
        if !op.tensors().iter().any(|t| half(&t)) {
            return;
        }
        self.know_gradients();
        let name = |t: &RawTensor| self.recipe.gradients.get(&t.storage).and_then(|&i| self.params.get(i));
        let named = op.tensors().iter().filter(half).filter_map(name).map(|p| p.name.clone());
        let parameters = named.take(Act::MAX_NAMES).collect();
        self.push_act(Act::HalfUnscaled { parameters });
    }

    /// An operator is about to change its first tensor, or a list of them.
    fn note_in_place(&mut self, name: &str, op: &RawOp) {
        // What begins with an underscore takes lists: of parameters, or of gradients.
        let targets = if name.starts_with('_') { op.tensors() } else { op.tensors().get(..1).unwrap_or_default() };
        let mut gradients = 0;
        for target in targets.iter().filter(|t| t.storage != 0) {
            match self.params.find(target.place()) {
                Some(_) if self.changes_parameter(name, op).is_none() => return,
                Some(param) if takes_gradient(name) => self.note_parameter(param, name),
                Some(_) => {}
                None => gradients += u32::from(self.note_gradient(target.storage, name)),
            }
        }
        // The gradients among the arguments of an operator on a list of parameters are only read.
        if gradients > 0 && !targets.iter().any(|t| self.params.find(t.place()).is_some()) {
            self.note_changed_gradients(name, op, gradients);
        }
    }

    /// Whether this storage is a gradient's; one that is cleared is forgotten.
    fn note_gradient(&mut self, storage: usize, name: &str) -> bool {
        self.know_gradients();
        let known = self.recipe.gradients.get(&storage).copied();
        let Some(param) = known.and_then(|i| self.params.get_mut(i)) else { return false };
        // A gradient that was taken away since leaves an address that something else may have by now.
        if tensor::gradient_content(&param.tensor).is_none_or(|g| g.storage != storage) {
            return false;
        }
        if clears(name) {
            (param.used, param.carried) = (None, false);
        }
        true
    }

    fn note_changed_gradients(&mut self, name: &str, op: &RawOp, gradients: u32) {
        let mut later = None;
        let act = match name.trim_start_matches("_foreach_") {
            "mul_" | "div_" => {
                let divides = name.ends_with("div_");
                let holder = if op.scalars().is_empty() { op.tensors().last() } else { None };
                let number = match holder {
                    Some(holder) => self.number(holder),
                    None => op.scalars().first().copied().map(Number::Known),
                };
                let Some(number) = number else { return };
                let factor = match number {
                    Number::Known(divisor) if divides => 1.0 / divisor,
                    Number::Known(factor) => factor,
                    Number::Later(_) => f64::NAN,
                };
                let waits = matches!(number, Number::Later(_));
                later = holder.filter(|_| waits).map(|t| Later::Factor { number, content: t.content(), divides });
                Some(Act::Multiplied { factor, gradients })
            }
            "clamp_" | "clamp_max_" | "clamp_min_" => {
                let limit = op.scalars().iter().fold(0.0, |most: f64, bound| most.max(bound.abs()));
                Some(Act::Clamped { limit, gradients })
            }
            _ if clears(name) => Some(Act::Cleared { gradients }),
            _ => None,
        };
        let Some(act) = act else { return };
        let here = (self.scaler_events.len() as u32, self.foreign.acts());
        let last = self.recipe.events.last_mut().filter(|last| (last.after_own, last.after_foreign) == here);
        if !last.is_some_and(|last| last.joins(&act, later.as_ref())) {
            self.push_pending(act, later);
        }
    }

    fn note_parameter(&mut self, index: usize, name: &str) {
        let again = self.recipe.stepped.replace(index) == Some(index);
        let here = (self.scaler_events.len() as u32, self.foreign.acts());
        let goes_on = self.recipe.events.last().is_some_and(|last| {
            matches!(last.act, Act::Stepped { .. }) && (last.after_own, last.after_foreign) == here
        });
        let Some(param) = self.params.get_mut(index) else { return };
        let was_stale = std::mem::take(&mut param.carried);
        param.used = tensor::gradient_content(&param.tensor);
        if !goes_on {
            self.push_act(Act::Stepped { parameters: 0, stale: 0, adaptive: false });
        }
        if let Some(Act::Stepped { parameters, stale, adaptive }) = self.recipe.events.last_mut().map(|e| &mut e.act) {
            *parameters += u32::from(!again || !goes_on);
            *stale += u32::from(was_stale);
            *adaptive |= name.contains("addcdiv") || name.contains("adam");
        }
    }

    /// Which memory is whose gradient, looked up once after each backward.
    fn know_gradients(&mut self) {
        if std::mem::replace(&mut self.recipe.gradients_known, true) {
            return;
        }
        self.recipe.gradients.clear();
        for index in 0..self.params.len() {
            let Some(param) = self.params.get(index).filter(|p| p.parameter) else { continue };
            if let Some(gradient) = tensor::gradient_content(&param.tensor).filter(|g| g.storage != 0) {
                self.recipe.gradients.insert(gradient.storage, index);
            }
        }
    }
}

impl Pending {
    /// Adds `next` to this event where it is the same thing done to more gradients.
    fn joins(&mut self, next: &Act, later: Option<&Later>) -> bool {
        match (&mut self.act, &self.later, next, later) {
            (last, None, next, None) => joins(last, next),
            (
                Act::Multiplied { gradients, .. },
                Some(Later::Factor { content, divides, .. }),
                Act::Multiplied { gradients: more, .. },
                Some(Later::Factor { content: same, divides: alike, .. }),
            ) if content == same && divides == alike => {
                *gradients += more;
                true
            }
            _ => false,
        }
    }
}

/// Whether an in-place operator on a parameter is one that an optimizer's step ends with: what clamps, scales or copies a parameter uses no gradient.
fn takes_gradient(name: &str) -> bool {
    ["add", "sub", "adam", "sgd", "adagrad"].iter().any(|part| name.contains(part))
}

/// Whether an operator sets its tensors to a value, whatever they held.
fn clears(name: &str) -> bool {
    matches!(name, "zero_" | "fill_" | "_foreach_zero_")
}

/// Adds `next` to `last` where it is the same thing done to more gradients.
fn joins(last: &mut Act, next: &Act) -> bool {
    match (last, next) {
        (Act::Multiplied { factor, gradients }, Act::Multiplied { factor: same, gradients: more })
            if factor == same =>
        {
            *gradients += more;
            true
        }
        (Act::Clamped { limit, gradients }, Act::Clamped { limit: same, gradients: more }) if limit == same => {
            *gradients += more;
            true
        }
        (Act::Cleared { gradients }, Act::Cleared { gradients: more }) => {
            *gradients += more;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_done_to_the_next_gradient_is_one_event() {
        let mut last = Act::Multiplied { factor: 0.5, gradients: 1 };
        assert!(joins(&mut last, &Act::Multiplied { factor: 0.5, gradients: 1 }));
        assert!(!joins(&mut last, &Act::Multiplied { factor: 0.25, gradients: 1 }));
        assert!(!joins(&mut last, &Act::Cleared { gradients: 1 }));
        assert_eq!(last, Act::Multiplied { factor: 0.5, gradients: 2 });
    }

    #[test]
    fn only_operators_that_forget_what_was_there_clear_a_gradient() {
        assert!(clears("zero_") && clears("_foreach_zero_"));
        assert!(!clears("mul_") && !clears("zeros_like"));
    }

    #[test]
    fn clamping_copying_and_decaying_a_parameter_is_no_step() {
        assert!(["add_", "addcdiv_", "_foreach_addcdiv_", "sub_", "_fused_adamw_"].into_iter().all(takes_gradient));
        assert!(!["clamp_", "copy_", "mul_", "zero_", "normal_"].into_iter().any(takes_gradient));
    }
}
