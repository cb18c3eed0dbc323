//! Forward: which layer an operator belongs to, what flows into it, and what comes out.

use ampdoctor::observation::Probe;
use ampdoctor::scan::Dtype;
use smallvec::SmallVec;

use super::border::{RawOp, RawTensor};
use super::integers::{Inexact, reach, repeated};
use super::later::{Count, Fault, Scanned};
use super::layers::{INPUT, LayerId};
use super::params::Role;
use super::provenance::argument;
use super::state::{DATA, Flow, Integers, Running, SCALE_LOSS, SCALER, State};
use super::trace::{Entry, OpId, Operator, Origin};

/// Operators that give their input in another format.
const CASTS: [&str; 3] = ["to", "_to_copy", "type_as"];

/// Operators that add up many elements.
const REDUCTIONS: [&str; 6] = ["sum", "mean", "cumsum", "prod", "norm", "linalg_vector_norm"];

impl State {
    /// Finds an operator's layer and what flows into it.
    pub(super) fn follow(&mut self, name: &str, op: &RawOp) -> Running {
        let mut layer: Option<LayerId> = None;
        let mut from_params: Option<LayerId> = None;
        let mut fault = Fault::NONE;
        let mut half_input = false;
        let mut inexact = None;
        let mut inputs = SmallVec::new();
        for t in op.tensors() {
            half_input |= t.dtype() == Some(Dtype::F16);
            if t.storage == 0 || t.dtype().is_none() {
                continue;
            }
            if let Some(owner) = self.params.find(t.place()).and_then(|i| self.params.get(i)) {
                let (owner, role) = (owner.layer, owner.role);
                if role == Role::Mastered {
                    self.compare_masters();
                }
                from_params = Some(from_params.map_or(owner, |l| self.layers.join(l, owner)));
            } else {
                let flow = self.flow_of(t);
                fault = self.trace.faults.either(fault, flow.fault);
                inexact = self.trace.counts.largest(inexact, flow.inexact);
                layer = Some(layer.map_or(flow.layer, |l| self.layers.join(l, flow.layer)));
            }
            inputs.push(t.content());
        }
        let layer = match name {
            SCALE_LOSS => self.layers.intern(SCALER),
            _ => from_params.or(layer).unwrap_or(INPUT),
        };
        if layer != INPUT {
            let of_data = self.data_enters(op);
            fault = self.trace.faults.either(fault, of_data);
        }
        let id = OpId(self.trace.operators.len() as u32);
        self.trace.operators.push(Operator {
            name: self.names.intern(name),
            layer,
            sequence: op.sequence,
            half_input,
            epoch: self.trace.epoch,
            output: None,
            inputs: self.inputs(op),
            argument: argument(name, op),
        });
        Running { layer, fault, op: Some(id), inputs, integers: self.cast_of_integers(name, layer, op), inexact }
    }

    /// What is left of integers that are cast before any parameter has touched them: counts, positions, numbers of tokens.
    fn cast_of_integers(&mut self, name: &str, layer: LayerId, op: &RawOp) -> Option<Integers> {
        let [source] = op.tensors() else { return None };
        if layer != INPUT || !CASTS.contains(&name) || source.tracked != 0 {
            return None;
        }
        if !source.is_on_device() {
            return Inexact::of(source).map(Integers::Counted);
        }
        if !source.is_integral() && source.dtype() != Some(Dtype::F32) || source.count() == 0 {
            return None;
        }
        let ticket = self.device.integers(source);
        self.asked(ticket).map(Integers::Later)
    }

    /// What is known of an input; a tensor that no observed operator made is the run's input.
    pub(super) fn flow_of(&mut self, t: &RawTensor) -> Flow {
        let unknown = Flow { layer: INPUT, fault: Fault::NONE, scanned: false, made_by: None, inexact: None };
        *self.flow.entry(t.storage).or_insert(unknown)
    }

    /// What is read here for the first time and was not scanned where it was made: data that meets the model, and what layers computed that autograd does not
    /// follow, because they are frozen or part of a compiled graph. Returns whether any of it is not finite.
    pub(super) fn data_enters(&mut self, op: &RawOp) -> Fault {
        let mut fault = Fault::NONE;
        for t in op.tensors() {
            let Some(flow) = self.flow.get(&t.storage).copied().filter(|f| !f.scanned) else { continue };
            // Labels may lie where data lay that is gone; they are nothing that is scanned.
            let Some(dtype) = t.dtype() else { continue };
            if self.trace.passed.contains(&t.content()) {
                continue;
            }
            let Some(scanned) = self.scan(t) else { continue };
            let index = self.trace.entries.len();
            let entry = if flow.layer == INPUT {
                let mut entry = Entry::new(INPUT, Probe::Activation, dtype, scanned);
                entry.operator = self.data_name(flow, dtype).to_owned();
                let made_inexact = self.made_inexact(t, &entry, index);
                entry.inexact = self.trace.counts.first_above_zero(flow.inexact, made_inexact);
                entry
            } else {
                self.unfollowed(flow, dtype, scanned)
            };
            self.trace.push(entry);
            self.trace.scanned.insert(t.content(), index);
            self.name_output(flow.made_by, index);
            let found = self.trace.faults.of_entry(index);
            self.flow.insert(t.storage, Flow { fault: found, scanned: true, ..flow });
            fault = self.trace.faults.either(fault, found);
        }
        fault
    }

    /// Integers that were made in a format which cannot hold them.
    fn made_inexact(&mut self, t: &RawTensor, entry: &Entry, index: usize) -> Option<Count> {
        if !t.is_on_device() {
            return repeated(t, &entry.stats).map(Count::Known);
        }
        let reach = reach(entry.dtype).filter(|_| t.count() > 1)?;
        let ticket = self.device.neighbours(t, reach);
        self.asked(ticket).map(|ticket| self.trace.counts.of_neighbours(ticket, index))
    }

    /// Elements that a cast of integers left other than they were.
    fn cast_inexact(&mut self, running: &Running, t: &RawTensor) -> Option<Count> {
        let dtype = t.dtype()?;
        match running.integers.as_ref()? {
            Integers::Counted(integers) => integers.within(dtype).map(Count::Known),
            Integers::Later(ticket) => reach(dtype).map(|_| self.trace.counts.of_cast(*ticket, dtype)),
        }
    }

    /// What a layer computed that autograd does not follow.
    fn unfollowed(&self, flow: Flow, dtype: Dtype, scanned: Scanned) -> Entry {
        let mut entry = Entry::new(flow.layer, Probe::Activation, dtype, scanned);
        let maker = flow.made_by.and_then(|op| self.trace.operator(op));
        entry.operator = maker.map_or(DATA, |op| self.names.get(op.name)).to_owned();
        entry.origin = Origin::Inputs(flow.fault);
        entry
    }

    /// An operator's first observed output.
    fn name_output(&mut self, op: Option<OpId>, entry: usize) {
        if let Some(operator) = op.and_then(|op| self.trace.operators.get_mut(op.0 as usize)) {
            operator.output.get_or_insert(entry);
        }
    }

    /// What data is called that meets the model: that, or the reduction in 16 bits that made it, which may have done it harm.
    fn data_name(&self, flow: Flow, dtype: Dtype) -> &str {
        let maker = flow.made_by.and_then(|op| self.trace.operator(op)).map(|op| self.names.get(op.name));
        let in_16_bits = matches!(dtype, Dtype::F16 | Dtype::Bf16);
        maker.filter(|name| in_16_bits && REDUCTIONS.contains(name)).unwrap_or(DATA)
    }

    /// Follows one output; returns the token of its hook, or 0.
    pub(super) fn output(&mut self, t: &RawTensor, running: &Running, same_memory: bool) -> u64 {
        let of_cast = self.cast_inexact(running, t);
        let inexact = self.trace.counts.first(of_cast, running.inexact);
        let (layer, fault) = (running.layer, running.fault);
        let mut flow = Flow { layer, fault, scanned: false, made_by: running.op, inexact };
        let seen = same_memory || self.trace.scanned.contains_key(&t.content());
        let mut token = 0;
        if !seen && t.tracked != 0 && self.trace.passed.insert(t.content()) {
            if let Some(scanned) = self.scan(t) {
                flow.fault = self.trace.faults.of_entry(self.trace.entries.len());
                flow.scanned = true;
                token = self.add_activation(t, running, scanned);
            }
        } else if let Some(known) = self.flow.get(&t.storage).filter(|_| seen) {
            flow.fault = known.fault;
            flow.scanned = known.scanned;
            (flow.made_by, flow.inexact) = (known.made_by, self.trace.counts.first(known.inexact, flow.inexact));
        }
        self.flow.insert(t.storage, flow);
        token
    }

    pub(super) fn add_activation(&mut self, t: &RawTensor, running: &Running, scanned: Scanned) -> u64 {
        let mut entry = Entry::new(running.layer, Probe::Activation, t.dtype().unwrap_or(Dtype::F32), scanned);
        entry.op = running.op;
        entry.origin = Origin::Inputs(running.fault);
        let index = self.trace.push(entry);
        self.trace.scanned.insert(t.content(), index);
        self.name_output(running.op, index);
        u64::from(self.serial) << 32 | (index as u64 + 1)
    }
}
