//! Backward: the gradients of activations as hooks deliver them, casts before they round, and the gradients of parameters.

use ampdoctor::observation::Probe;
use ampdoctor::scan::Dtype;

use super::border::{RawOp, RawTensor, tensor};
use super::params::Role;
use super::state::State;
use super::trace::{Entry, Origin};

/// What is said of a TorchScript module that LibTorch has compiled.
const COMPILED: &str = "a TorchScript module runs as compiled graphs, and autograd does not follow the operators in them: their activations are seen, the gradients of these are not; the \
                        gradients and updates of its parameters are. `tch::jit::set_graph_executor_optimize(false)` before its first call shows all of it";

impl State {
    /// A backward pass begins.
    pub(super) fn backward_starts(&mut self) {
        self.note_backward();
        self.trace.backward_node_begins();
        self.gradients_pending = true;
    }

    /// A node of backward is a whole TorchScript graph.
    pub(super) fn compiled_graph(&mut self) {
        if self.full {
            self.blind_spots.insert(COMPILED.into());
        }
    }

    /// The gradient of an activation arrived.
    pub(super) fn gradient(&mut self, token: u64, gradient: &RawTensor) {
        let index = (token as u32).wrapping_sub(1) as usize;
        if !self.full || self.is_overrun() || (token >> 32) as u32 != self.serial || index >= self.trace.entries.len() {
            return;
        }
        let Some(scanned) = self.scan(gradient) else { return };
        let (via, origin) = self.trace.gradient_origin(index);
        let activation = &mut self.trace.entries[index];
        activation.reached = true;
        let dtype = gradient.dtype().unwrap_or(activation.dtype);
        let mut entry = Entry::new(activation.layer, Probe::ActivationGrad, dtype, scanned);
        entry.op = activation.op;
        entry.origin = origin;
        entry.via = via;
        self.trace.push(entry);
    }

    /// A node of backward that casts begins: what it is about to round to zero is still there.
    pub(super) fn backward_node(&mut self, op: &RawOp) {
        if !self.full {
            return;
        }
        let Some(id) = self.trace.operator_of_node(op.sequence) else { return };
        let Some((layer, true)) = self.trace.operator(id).map(|o| (o.layer, o.half_input)) else { return };
        for t in op.tensors() {
            if t.dtype() != Some(Dtype::F32) {
                continue;
            }
            if let Some(stats) = self.scan(t) {
                let mut entry = Entry::new(layer, Probe::CastGrad, Dtype::F32, stats);
                entry.op = Some(id);
                self.trace.push(entry);
            }
        }
    }

    /// Whether an operator takes a parameter, or a parameter's gradient.
    pub(super) fn touches_gradients(&self, op: &RawOp) -> bool {
        op.tensors().iter().any(|t| {
            t.storage != 0
                && (self.params.find(t.place()).is_some()
                    || self
                        .params
                        .iter()
                        .any(|p| tensor::gradient_content(&p.tensor).is_some_and(|g| g.storage == t.storage)))
        })
    }

    /// Scans the gradient of every parameter, as it is now.
    pub(super) fn scan_gradients(&mut self) {
        self.gradients_pending = false;
        for index in 0..self.params.len() {
            let Some(param) = self.params.get(index).filter(|p| p.parameter && p.role != Role::Master) else {
                continue;
            };
            let Some(gradient) = tensor::gradient(&param.tensor) else { continue };
            let (layer, name) = (param.layer, param.tensor_name.to_string());
            let Some(stats) = self.scan(&gradient) else { continue };
            let mut entry = Entry::new(layer, Probe::ParamGrad, gradient.dtype().unwrap_or(Dtype::F32), stats);
            entry.tensor = name;
            entry.origin = Origin::Layer;
            self.trace.push(entry);
        }
    }
}
