//! Tensors that are trained, or that train along, and belong to no VarStore that is observed.
//!
//! A variable that was made in this step is in the table only after it; so who is a stranger is decided at the end of the step.

use super::border::{Place, RawOp, RawTensor};
use super::params::ParamTable;
use super::state::is_in_place;

/// Who was met in this step.
#[derive(Default)]
pub(super) struct Strangers {
    met: Vec<Stranger>,
    told: [bool; 2],
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

/// Strangers of one step that are remembered: the first that stays is told, and no other.
const MOST: usize = 64;

impl Strangers {
    /// An operator begins, in a step that is scanned.
    pub(super) fn look_at(&mut self, name: &str, op: &RawOp, params: &ParamTable) {
        let found = match name {
            "batch_norm" => statistics(op).map(|t| (Kind::Statistics, t)),
            _ if op.grad_mode == 0 && is_in_place(name) && !OVERWRITES.contains(&name) => {
                stepped(op).map(|t| (Kind::Parameter, t))
            }
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

    /// At the end of a step, when the VarStores have been read again: what is said of those that are in none, once of each kind.
    pub(super) fn who_stayed(&mut self, params: &ParamTable) -> Vec<String> {
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

/// A parameter that an operator is about to change.
fn stepped(op: &RawOp) -> Option<&RawTensor> {
    op.tensors().first().filter(|t| t.storage != 0 && t.trainable != 0 && t.tracked == 0 && t.dtype().is_some())
}

/// The running mean that a batch norm was given, where it was given all that it can be: input, weight, bias, mean and variance.
fn statistics(op: &RawOp) -> Option<&RawTensor> {
    let [_, _, _, mean, _] = op.tensors() else { return None };
    Some(mean).filter(|mean| mean.storage != 0)
}
