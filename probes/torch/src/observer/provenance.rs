//! How an activation was made: what went into its operator.

use std::sync::Arc;

use ampdoctor::scan::Dtype;
use smallvec::SmallVec;

use super::border::{RawOp, RawTensor};
use super::layers::LayerId;
use super::state::{State, is_in_place};

/// The floating-point tensors among an operator's arguments; few operators have more.
pub(super) type Inputs = SmallVec<[Input; 4]>;

/// A floating-point tensor that an operator takes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Input {
    /// An activation, by its entry.
    Entry(usize),
    /// A parameter.
    Param { layer: LayerId, tensor: Arc<str>, dtype: Dtype },
    /// What is not observed: a constant, a mask, what no gradient flows through.
    Unseen,
}

/// Operators that compute with the first number among their arguments, or along it.
const COMPUTES_WITH: [&str; 13] = [
    "add",
    "sub",
    "rsub",
    "mul",
    "div",
    "pow",
    "clamp",
    "clamp_min",
    "clamp_max",
    "softmax",
    "log_softmax",
    "_softmax",
    "_log_softmax",
];

/// The number that an operator computes with.
pub(super) fn argument(name: &str, op: &RawOp) -> Option<f64> {
    let name = if is_in_place(name) { name.trim_end_matches('_') } else { name };
    COMPUTES_WITH.contains(&name).then(|| op.scalars().first().copied()).flatten()
}

impl State {
    /// The floating-point tensors that an operator takes, in the order of its arguments.
    pub(super) fn inputs(&self, op: &RawOp) -> Inputs {
        op.tensors().iter().filter_map(|t| t.dtype().map(|dtype| self.input(t, dtype))).collect()
    }

    fn input(&self, t: &RawTensor, dtype: Dtype) -> Input {
        if let Some(param) = self.params.find(t.place()).and_then(|i| self.params.get(i)) {
            return Input::Param { layer: param.layer, tensor: param.tensor_name.clone(), dtype };
        }
        self.trace.scanned.get(&t.content()).map_or(Input::Unseen, |&entry| Input::Entry(entry))
    }
}
