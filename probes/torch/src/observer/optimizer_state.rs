//! The optimizer's own tensors (moments, momentum), as they go into the update of a parameter: written down only where they are not finite.
//!
//! The optimizer keeps them to itself; but the operator that changes the parameter is given them.

use ampdoctor::observation::Probe;
use ampdoctor::scan::summary;

use super::border::{RawOp, RawTensor, tensor};
use super::state::State;
use super::trace::Entry;

impl State {
    /// What goes into the update of a parameter besides itself and its gradient.
    pub(super) fn look_at_optimizer_state(&mut self, param: usize, name: &str, op: &RawOp) {
        let Some(param) = self.params.get(param) else { return };
        let (layer, label) = (param.layer, param.tensor_name.to_string());
        let gradient = tensor::gradient(&param.tensor).map_or(0, |gradient| gradient.storage);
        for operand in op.tensors().iter().skip(1) {
            let is_known = operand.storage == gradient || self.params.find(operand.place()).is_some();
            // On a device it takes a scan to tell, and the end of the step to drop what is finite.
            if is_known || operand.dtype().is_none() || !operand.is_on_device() && is_finite(operand) {
                continue;
            }
            let (Some(dtype), Some(scanned)) = (operand.dtype(), self.scan(operand)) else { continue };
            let mut entry = Entry::new(layer, Probe::OptimizerState, dtype, scanned);
            entry.operator = name.to_owned();
            entry.tensor = label.clone();
            self.trace.push(entry);
        }
    }
}

/// Whether every element is finite, at the speed of reading; also true of what is no floating-point data.
fn is_finite(t: &RawTensor) -> bool {
    // SAFETY: the shim describes live memory, which no operator changes during a callback.
    t.view().is_none_or(|view| unsafe { summary(&view) }.is_finite())
}
