//! Tensors that are trained, or that train along, and belong to no VarStore that is observed.
//!
//! A variable that was made in this step is in the table only after it; so who is a stranger is decided at the end of the step. An optimizer may change a parameter through an
//! alias that requires no gradient (SGD in C++ steps `p.data()`): that is known by the storage in which forward met the parameter.

use std::collections::HashSet;

use super::border::{Place, RawOp, RawTensor};
use super::params::ParamTable;
use super::state::is_in_place;

/// Who was met in this step.
#[derive(Default)]
pub(super) struct Strangers {
    met: Vec<Stranger>,
    told: [bool; 2],
    /// Storages of this step's parameters that are not in the table. The shim keeps their addresses from being used again in the step.
    leaves: HashSet<usize>,
}

struct Stranger {
    at: Place,
    kind: Kind,
    text: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Parameter,
    Statistics,
}

/// Operators that set a tensor anew, as an initialisation does, or a copy of a model that follows another; no optimizer steps with them.
const OVERWRITES: [&str; 6] = ["copy_", "fill_", "zero_", "normal_", "uniform_", "set_"];

/// Strangers of one step that are remembered, of each kind: the first that stays is told, and no other.
const MOST: usize = 64;

impl Strangers {
    /// An operator begins, in a step that is scanned.
    pub(super) fn look_at(&mut self, name: &str, op: &RawOp, params: &ParamTable) {
        let found = match name {
            "batch_norm" => statistics(op).map(|t| (Kind::Statistics, t)),
            _ if is_in_place(name) && !OVERWRITES.contains(&name) => self.stepped(op).map(|t| (Kind::Parameter, t)),
            _ => None,
        };
        let Some((kind, t)) = found.filter(|(kind, _)| !self.told[*kind as usize] && self.met.len() < MOST) else {
            return;
        };
        if params.find(t.place()).is_none() {
            let shape = t.sizes();
            let text = match kind {
                Kind::Parameter => format!(
                    "a tensor of shape {shape:?} that requires a gradient is changed by `{name}`, and the doctor was not attached to it: its gradient and its \
                     updates are not seen. `Doctor::builder().attach_all(&[&a, &b])` attaches several VarStores, `Doctor::attach_tensors` tensors that are in none"
                ),
                Kind::Statistics => format!(
                    "the running statistics of a batch norm, of shape {shape:?}, are in no VarStore that the doctor was attached to (those of a TorchScript module never \
                     are): they are not seen"
                ),
            };
            self.met.push(Stranger { at: t.place(), kind, text });
        }
    }

    /// Whether an operator reads a parameter that is not in the table; its address must then not be used again in this step.
    pub(super) fn reads_one(&mut self, op: &RawOp, params: &ParamTable) -> bool {
        let strange = |t: &&RawTensor| is_leaf(t) && params.find(t.place()).is_none();
        let storages = op.tensors().iter().filter(strange).map(|t| t.storage);
        let before = self.leaves.len();
        self.leaves.extend(storages.take(MOST.saturating_sub(before)));
        self.leaves.len() > before
    }

    /// A parameter that an operator is about to change, itself or by an alias.
    fn stepped<'a>(&self, op: &'a RawOp) -> Option<&'a RawTensor> {
        let t = op.tensors().first().filter(|t| t.storage != 0 && t.dtype().is_some())?;
        let itself = op.grad_mode == 0 && is_leaf(t);
        let alias = t.trainable == 0 && self.leaves.contains(&t.storage);
        (itself || alias).then_some(t)
    }

    /// At the end of a step, when the VarStores have been read again: what is said of those that are in none, once of each kind.
    pub(super) fn who_stayed(&mut self, params: &ParamTable) -> Vec<String> {
        self.leaves.clear();
        let mut said = Vec::new();
        for stranger in std::mem::take(&mut self.met) {
            let told = &mut self.told[stranger.kind as usize];
            if !*told && params.find(stranger.at).is_none() {
                *told = true;
                said.push(stranger.text);
            }
        }
        said
    }
}

/// Whether it is a parameter, by what autograd says of it.
fn is_leaf(t: &RawTensor) -> bool {
    t.storage != 0 && t.trainable != 0 && t.tracked == 0 && t.dtype().is_some()
}

/// The running mean that a batch norm was given, where it was given all that it can be: input, weight, bias, mean and variance.
fn statistics(op: &RawOp) -> Option<&RawTensor> {
    let [_, _, _, mean, _] = op.tensors() else { return None };
    Some(mean).filter(|mean| mean.storage != 0)
}
