//! The optimizer: what it does to each parameter, and what parameters and buffers hold after the step.

use ampdoctor::observation::Probe;
use ampdoctor::scan::Dtype;

use super::border::{RawOp, RawTensor, tensor};
use super::device_updates::DeviceChange;
use super::later::Number;
use super::params::{Param, Role};
use super::state::{State, is_in_place, is_unscale};
use super::trace::{Entry, Origin};
use super::updates::{Change, Update};

impl State {
    /// Optimizer operators, and whoever first looks at the gradients after backward. SGD in C++ steps `p.data()`, which is outside of
    /// autograd even where autograd records.
    pub(super) fn outside_of_autograd(&mut self, name: &str, op: &RawOp) {
        if self.gradients_pending && (is_unscale(name) || op.grad_mode == 0 && self.touches_gradients(op)) {
            self.scan_gradients();
        }
        if let Some(param) = self.changes_parameter(name, op) {
            if self.gradients_pending {
                self.scan_gradients();
            }
            self.update_starts(param, name, op);
        }
    }

    /// The parameter that an in-place operator is about to change.
    pub(super) fn changes_parameter(&self, name: &str, op: &RawOp) -> Option<usize> {
        if !is_in_place(name) {
            return None;
        }
        let param = op.tensors().first().and_then(|t| self.params.find(t.place()))?;
        // What is written back from a copy is no update: the copy was updated.
        let written_back = |p: &Param| p.role == Role::Mastered && name == "copy_";
        self.params.get(param).is_some_and(|p| p.parameter && !written_back(p)).then_some(param)
    }

    pub(super) fn update_starts(&mut self, param: usize, name: &str, op: &RawOp) {
        if self.updates.open_param().is_some_and(|open| open != param) {
            self.close_update();
        }
        self.updated = true;
        self.look_at_optimizer_state(param, name, op);
        let Some(described) = self.params.get(param).and_then(|p| tensor::describe(&p.tensor)) else { return };
        if described.is_on_device() {
            return self.device_update_starts(param, name, op, &described);
        }
        if let Some(now) = described.view() {
            let change = Change { param, name, op, now, rounds_to: self.params.rounds_to(param) };
            self.update_unconfirmed = self.updates.begin(&change) && !name.starts_with('_');
        }
    }

    fn device_update_starts(&mut self, param: usize, name: &str, op: &RawOp, now: &RawTensor) {
        let change = DeviceChange { param, name, op, now, rounds_to: self.params.rounds_to(param) };
        let begun = self.updates.on_device.begin(&change, &mut self.device);
        match self.asked(begun) {
            Some(first) => self.update_unconfirmed = first && !name.starts_with('_'),
            None => self.updates.abandon(),
        }
    }

    /// The parameter being changed is done: its value and its change are entries.
    pub(super) fn close_update(&mut self) {
        let Some(param) = self.updates.open_param().and_then(|i| self.params.get(i)) else { return };
        let Some(described) = tensor::describe(&param.tensor) else { return self.updates.abandon() };
        if described.is_on_device() {
            let update = self.updates.on_device.close(&described, &mut self.device);
            if let (Some(Some(update)), Some(dtype)) = (self.asked(update), described.dtype()) {
                self.add_update(update, dtype, described.version);
            }
            return self.updates.abandon();
        }
        let Some(view) = described.view() else { return self.updates.abandon() };
        let dtype = view.dtype;
        if let Some(update) = self.updates.close(&view) {
            self.add_update(update, dtype, described.version);
        }
    }

    pub(super) fn add_update(&mut self, update: Update, dtype: Dtype, version: u32) {
        let tells_intent = update.rounding.is_some_and(|r| r.stepped.is_some())
            || update.rounding_later.as_ref().is_some_and(|later| later.stepped.is_some());
        if matches!(dtype, Dtype::F16 | Dtype::Bf16) && !tells_intent {
            self.blind_spots.insert(unknown_intent(&update.operator));
        }
        let unlike_master = self.unlike_master(update.param);
        let Some(param) = self.params.get_mut(update.param) else { return };
        param.scanned_version = Some(version);
        let (layer, tensor) = (param.layer, param.tensor_name.to_string());
        let mut change = Entry::new(layer, Probe::Update, dtype, update.change);
        change.operator = update.operator;
        change.tensor = tensor.clone();
        change.origin = Origin::Next;
        change.rounding = update.rounding.map(Box::new);
        change.rounding_later = update.rounding_later;
        let mut value = Entry::new(layer, Probe::Param, dtype, update.value);
        value.tensor = tensor;
        if let Some(unlike) = unlike_master {
            value.note_unlike(unlike);
        }
        self.trace.push(change);
        self.trace.push(value);
    }

    /// Parameters and buffers whose content changed since they were last scanned.
    pub(super) fn scan_changed_params(&mut self) {
        for index in 0..self.params.len() {
            let Some(param) = self.params.get(index) else { continue };
            let version = tensor::version(&param.tensor);
            // Batch norm changes its running statistics without counting a version.
            let unchanged = param.parameter && param.scanned_version == Some(version);
            if unchanged && self.unlike_masters.get(&index).is_none_or(|&n| n == Number::Known(0.0)) {
                continue;
            }
            let Some(described) = tensor::describe(&param.tensor) else { continue };
            let probe = if param.parameter { Probe::Param } else { Probe::Buffer };
            let (layer, name) = (param.layer, param.tensor_name.to_string());
            // Counters of batches are no floating-point data.
            let Some(dtype) = described.dtype() else { continue };
            let Some(stats) = self.scan(&described) else { continue };
            let mut entry = Entry::new(layer, probe, dtype, stats);
            entry.tensor = name;
            entry.only_if_unlike = unchanged;
            if let Some(unlike) = self.unlike_master(index) {
                entry.note_unlike(unlike);
            }
            self.trace.push(entry);
            if let Some(param) = self.params.get_mut(index) {
                param.scanned_version = Some(version);
            }
        }
    }
}

/// What is said where parameters in half precision are changed by an operator whose intention the arguments do not tell.
fn unknown_intent(operator: &str) -> String {
    format!(
        "parameters in half precision are changed by `{operator}`, which does not tell what change was intended: whether their format loses updates is not \
         known. Where it writes back FP32 copies of your own, nothing is lost"
    )
}
