//! What the observer knows during a step, and what each event does to it.

use std::collections::{BTreeSet, HashMap};

use ampdoctor::observation::{Probe, ScalerConfig, ScalerEvent};
use ampdoctor::scan::{Dtype, Stats, scan};

use super::border::{Content, RawOp, RawTensor, tensor};
use super::foreign::ForeignScaler;
use super::layers::{INPUT, LayerId, Layers};
use super::params::ParamTable;
use super::trace::{Entry, OpId, Operator, Trace};
use super::updates::{Update, Updates};

/// Operators of one step that are followed; a loop that never calls `doctor.step` must not fill the memory.
const MAX_OPERATORS: usize = 200_000;

/// What the product of loss and loss scale is called, which is no operator of the model.
const SCALE_LOSS: &str = "scale_loss";

/// What the run's input is called where an operator's name stands.
const DATA: &str = "data";

/// What data flow knows of a storage.
#[derive(Clone, Copy)]
struct Flow {
    layer: LayerId,
    non_finite: bool,
    /// Whether `non_finite` was seen, and not only passed on.
    scanned: bool,
}

/// An operator between its start and its end.
struct Running {
    layer: LayerId,
    non_finite: bool,
    op: Option<OpId>,
    inputs: Vec<Content>,
}

/// What the observer knows during a step.
#[derive(Default)]
pub(super) struct State {
    pub params: ParamTable,
    pub layers: Layers,
    pub trace: Trace,
    /// Whether tensors are scanned in this step.
    pub full: bool,
    /// Grows at every step; part of the hooks' tokens, so that a hook of an earlier step is told apart.
    pub serial: u32,
    pub updates: Updates,
    pub foreign: ForeignScaler,
    pub scaler_config: Option<ScalerConfig>,
    pub scaler_events: Vec<ScalerEvent>,
    /// The scale of our own scaler's latest backward.
    pub loss_scale: Option<f64>,
    /// Tensors of this step that could not be scanned.
    pub unscanned: u32,
    /// Why tensors could not be scanned, each said once.
    pub blind_spots: BTreeSet<String>,
    pub updated: bool,
    flow: HashMap<usize, Flow>,
    running: Option<Running>,
    /// Whether the operator that runs now opened an update that it must still confirm by returning.
    update_unconfirmed: bool,
    /// Whether gradients have arrived that were not scanned yet.
    gradients_pending: bool,
}

impl State {
    pub(super) fn new(params: ParamTable) -> Self {
        Self { params, ..Self::default() }
    }

    /// Forgets the step that was taken, and begins the next.
    pub(super) fn begin_step(&mut self, full: bool) {
        self.trace = Trace::default();
        self.flow.clear();
        self.running = None;
        self.updates.abandon();
        self.scaler_events.clear();
        self.loss_scale = None;
        self.foreign.begin_step();
        self.unscanned = 0;
        self.updated = false;
        self.gradients_pending = false;
        self.full = full;
        self.serial = self.serial.wrapping_add(1);
    }

    /// A top-level operator outside backward begins.
    pub(super) fn operator_starts(&mut self, op: &RawOp, own_scaler: bool) {
        self.running = None;
        self.update_unconfirmed = false;
        let name = if own_scaler && op.grad_mode != 0 { SCALE_LOSS } else { short_name(op.name()) };
        if !own_scaler {
            self.foreign.operator_starts(name, op);
        }
        if !self.full {
            self.updated |= op.grad_mode == 0 && self.changes_parameter(name, op).is_some();
            return;
        }
        if op.grad_mode == 0 || is_in_place(name) {
            self.outside_of_autograd(name, op);
        }
        if op.grad_mode != 0 && self.trace.operators.len() < MAX_OPERATORS {
            self.running = Some(self.follow(name, op));
        }
    }

    /// Optimizer operators, and whoever first looks at the gradients after backward. SGD in C++ steps `p.data()`, which is outside of
    /// autograd even where autograd records.
    fn outside_of_autograd(&mut self, name: &str, op: &RawOp) {
        if self.gradients_pending && (is_unscale(name) || op.grad_mode == 0 && self.touches_gradients(op)) {
            self.scan_gradients();
        }
        if let Some(param) = self.changes_parameter(name, op) {
            if self.gradients_pending {
                self.scan_gradients();
            }
            self.update_starts(param, name);
        }
    }

    /// The parameter that an in-place operator is about to change.
    fn changes_parameter(&self, name: &str, op: &RawOp) -> Option<usize> {
        if !is_in_place(name) {
            return None;
        }
        let param = op.tensors().first().and_then(|t| self.params.find(t.storage))?;
        self.params.get(param).is_some_and(|p| p.parameter).then_some(param)
    }

    /// Whether an operator takes a parameter, or a parameter's gradient.
    fn touches_gradients(&self, op: &RawOp) -> bool {
        op.tensors().iter().any(|t| {
            t.storage != 0
                && (self.params.find(t.storage).is_some()
                    || self.params.iter().any(|p| tensor::gradient(&p.tensor).is_some_and(|g| g.storage == t.storage)))
        })
    }

    fn update_starts(&mut self, param: usize, name: &str) {
        if self.updates.open_param().is_some_and(|open| open != param) {
            self.close_update();
        }
        self.updated = true;
        let Some(described) = self.params.get(param).and_then(|p| tensor::describe(&p.tensor)) else { return };
        if let Some(view) = described.view() {
            self.update_unconfirmed = self.updates.begin(param, name, &view) && !name.starts_with('_');
        }
    }

    /// The parameter being changed is done: its value and its change are entries.
    pub(super) fn close_update(&mut self) {
        let Some(param) = self.updates.open_param().and_then(|i| self.params.get(i)) else { return };
        let Some(described) = tensor::describe(&param.tensor) else { return self.updates.abandon() };
        let Some(view) = described.view() else { return self.updates.abandon() };
        let dtype = view.dtype;
        if let Some(update) = self.updates.close(&view) {
            self.add_update(update, dtype, described.version);
        }
    }

    fn add_update(&mut self, update: Update, dtype: Dtype, version: u32) {
        let Some(param) = self.params.get_mut(update.param) else { return };
        param.scanned_version = Some(version);
        let (layer, tensor) = (param.layer, param.tensor_name.clone());
        let inherited = update.value.non_finite() > 0;
        let mut change = Entry::new(layer, Probe::Update, dtype, update.change);
        change.operator = update.operator;
        change.tensor = tensor.clone();
        change.inherited = inherited;
        let mut value = Entry::new(layer, Probe::Param, dtype, update.value);
        value.tensor = tensor;
        self.trace.push(change);
        self.trace.push(value);
    }

    /// Finds an operator's layer and what flows into it.
    fn follow(&mut self, name: &str, op: &RawOp) -> Running {
        let mut layer: Option<LayerId> = None;
        let mut from_params: Option<LayerId> = None;
        let mut non_finite = false;
        let mut half_input = false;
        let mut inputs = Vec::with_capacity(op.tensors().len());
        for t in op.tensors() {
            half_input |= t.dtype() == Some(Dtype::F16);
            if t.storage == 0 || t.dtype().is_none() {
                continue;
            }
            if let Some(owner) = self.params.find(t.storage).and_then(|i| self.params.get(i)).map(|p| p.layer) {
                from_params = Some(from_params.map_or(owner, |l| self.layers.join(l, owner)));
            } else {
                let flow = self.flow_of(t);
                non_finite |= flow.non_finite;
                layer = Some(layer.map_or(flow.layer, |l| self.layers.join(l, flow.layer)));
            }
            inputs.push(t.content());
        }
        let layer = from_params.or(layer).unwrap_or(INPUT);
        if layer != INPUT {
            non_finite |= self.data_enters(op);
        }
        let id = OpId(self.trace.operators.len() as u32);
        self.trace.operators.push(Operator {
            name: name.to_owned(),
            layer,
            sequence: op.sequence,
            half_input,
            epoch: self.trace.epoch,
            output: None,
        });
        Running { layer, non_finite, op: Some(id), inputs }
    }

    /// What is known of an input; a tensor that no observed operator made is the run's input.
    fn flow_of(&mut self, t: &RawTensor) -> Flow {
        let unknown = Flow { layer: INPUT, non_finite: false, scanned: false };
        *self.flow.entry(t.storage).or_insert(unknown)
    }

    /// Data meets the model: scans what no parameter has touched yet. Returns whether any of it is not finite.
    fn data_enters(&mut self, op: &RawOp) -> bool {
        let mut non_finite = false;
        for t in op.tensors() {
            let known = self.flow.get(&t.storage).copied();
            let Some(flow) = known.filter(|f| f.layer == INPUT && !f.scanned) else { continue };
            let (Some(dtype), Some(stats)) = (t.dtype(), self.scan(t)) else { continue };
            let found = stats.non_finite() > 0;
            let mut entry = Entry::new(INPUT, Probe::Activation, dtype, stats);
            entry.operator = DATA.into();
            let index = self.trace.push(entry);
            self.trace.scanned.insert(t.content(), index);
            self.flow.insert(t.storage, Flow { non_finite: found, scanned: true, ..flow });
            non_finite |= found;
        }
        non_finite
    }

    /// A top-level operator outside backward ended; fills the hooks' tokens.
    pub(super) fn operator_ends(&mut self, op: &RawOp, tokens: &mut [u64]) {
        self.foreign.operator_ends();
        if self.update_unconfirmed && op.tensors().is_empty() {
            // The operator threw: it returned no tensor, and changed none.
            self.updates.abandon();
        }
        let Some(running) = self.running.take() else { return };
        let mut is_view = !op.tensors().is_empty();
        for (t, token) in op.tensors().iter().zip(tokens) {
            if t.storage == 0 || t.dtype().is_none() {
                continue;
            }
            let same_memory = running.inputs.contains(&t.content());
            is_view &= same_memory;
            if self.params.find(t.storage).is_some() {
                continue;
            }
            *token = self.output(t, &running, same_memory);
        }
        if let (false, Some(op)) = (is_view, running.op) {
            for content in running.inputs {
                self.trace.consume(content, op);
            }
        }
    }

    /// Follows one output; returns the token of its hook, or 0.
    fn output(&mut self, t: &RawTensor, running: &Running, same_memory: bool) -> u64 {
        let mut flow = Flow { layer: running.layer, non_finite: running.non_finite, scanned: false };
        let seen = same_memory || self.trace.scanned.contains_key(&t.content());
        let mut token = 0;
        if !seen && t.tracked != 0 && self.trace.passed.insert(t.content()) {
            if let Some(stats) = self.scan(t) {
                flow.non_finite = stats.non_finite() > 0;
                flow.scanned = true;
                token = self.add_activation(t, running, stats);
            }
        } else if let Some(known) = self.flow.get(&t.storage).filter(|_| seen) {
            flow.non_finite = known.non_finite;
            flow.scanned = known.scanned;
        }
        self.flow.insert(t.storage, flow);
        token
    }

    fn add_activation(&mut self, t: &RawTensor, running: &Running, stats: Stats) -> u64 {
        let mut entry = Entry::new(running.layer, Probe::Activation, t.dtype().unwrap_or(Dtype::F32), stats);
        entry.op = running.op;
        entry.inherited = running.non_finite;
        let index = self.trace.push(entry);
        self.trace.scanned.insert(t.content(), index);
        if let Some(operator) = running.op.and_then(|op| self.trace.operators.get_mut(op.0 as usize)) {
            operator.output.get_or_insert(index);
        }
        u64::from(self.serial) << 32 | (index as u64 + 1)
    }

    /// A backward pass begins.
    pub(super) fn backward_starts(&mut self) {
        self.trace.epoch += 1;
        self.gradients_pending = true;
    }

    /// The gradient of an activation arrived.
    pub(super) fn gradient(&mut self, token: u64, gradient: &RawTensor) {
        let index = (token as u32).wrapping_sub(1) as usize;
        if !self.full || (token >> 32) as u32 != self.serial || index >= self.trace.entries.len() {
            return;
        }
        let Some(stats) = self.scan(gradient) else { return };
        let (via, inherited) = self.trace.gradient_origin(index);
        let activation = &mut self.trace.entries[index];
        activation.reached = true;
        activation.gradient_non_finite |= stats.non_finite() > 0;
        let dtype = gradient.dtype().unwrap_or(activation.dtype);
        let mut entry = Entry::new(activation.layer, Probe::ActivationGrad, dtype, stats);
        entry.op = activation.op;
        entry.inherited = inherited;
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

    /// Scans the gradient of every parameter, as it is now.
    pub(super) fn scan_gradients(&mut self) {
        self.gradients_pending = false;
        for index in 0..self.params.len() {
            let Some(param) = self.params.get(index).filter(|p| p.parameter) else { continue };
            let Some(gradient) = tensor::gradient(&param.tensor) else { continue };
            let (layer, name) = (param.layer, param.tensor_name.clone());
            let Some(stats) = self.scan(&gradient) else { continue };
            let mut entry = Entry::new(layer, Probe::ParamGrad, gradient.dtype().unwrap_or(Dtype::F32), stats);
            entry.tensor = name;
            entry.inherited = self.layer_gradient_non_finite(layer);
            self.trace.push(entry);
        }
    }

    /// Whether a gradient that reached an output of this layer, or a value there, was not finite.
    fn layer_gradient_non_finite(&self, layer: LayerId) -> bool {
        self.trace.entries.iter().any(|e| {
            e.layer == layer
                && e.probe == Probe::Activation
                && e.reached
                && (e.gradient_non_finite || e.stats.non_finite() > 0 || e.inherited)
        })
    }

    /// The end of a step: what is still to be looked at.
    pub(super) fn finish_step(&mut self) {
        if !self.full {
            return;
        }
        self.close_update();
        if self.gradients_pending {
            self.scan_gradients();
        }
        self.scan_changed_params();
    }

    /// Parameters and buffers whose content changed since they were last scanned.
    fn scan_changed_params(&mut self) {
        for index in 0..self.params.len() {
            let Some(param) = self.params.get(index) else { continue };
            let version = tensor::version(&param.tensor);
            // Batch norm changes its running statistics without counting a version.
            if param.parameter && param.scanned_version == Some(version) {
                continue;
            }
            let Some(described) = tensor::describe(&param.tensor) else { continue };
            let probe = if param.parameter { Probe::Param } else { Probe::Buffer };
            let (layer, name) = (param.layer, param.tensor_name.clone());
            // Counters of batches are no floating-point data.
            let Some(dtype) = described.dtype() else { continue };
            let Some(stats) = self.scan(&described) else { continue };
            let mut entry = Entry::new(layer, probe, dtype, stats);
            entry.tensor = name;
            self.trace.push(entry);
            if let Some(param) = self.params.get_mut(index) {
                param.scanned_version = Some(version);
            }
        }
    }

    /// Scans a tensor, or counts it among those that could not be.
    fn scan(&mut self, t: &RawTensor) -> Option<Stats> {
        let Some(view) = t.view() else {
            self.unscanned += 1;
            self.blind_spots.insert(
                "some tensors cannot be read (sparse, quantised, nested or without memory of their own): \
                 they are not in the statistics"
                    .into(),
            );
            return None;
        };
        // SAFETY: the shim describes live memory of a tensor that outlives this call.
        Some(unsafe { scan(&view) })
    }
}

/// An operator's name without its namespace: `aten::linear` is `linear`.
fn short_name(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

/// Whether an operator changes its first tensor.
fn is_in_place(name: &str) -> bool {
    name.ends_with('_') && !name.ends_with("__")
}

fn is_unscale(name: &str) -> bool {
    name == "_amp_foreach_non_finite_check_and_unscale_"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_namespace() {
        assert_eq!(short_name("aten::linear"), "linear");
        assert_eq!(short_name("ToCopyBackward0"), "ToCopyBackward0");
    }

    #[test]
    fn in_place_operators_end_in_one_underscore() {
        assert!(is_in_place("addcdiv_"));
        assert!(!is_in_place("add"));
        assert!(!is_in_place("__and__"));
    }
}
