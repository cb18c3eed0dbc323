//! What the observer knows during a step, and what each event does to it.

use std::collections::{BTreeSet, HashMap};

use ampdoctor::observation::{ScalerConfig, ScalerEvent};
use ampdoctor::scan::scan;
use smallvec::SmallVec;

use super::averages::Averages;
use super::border::{Content, RawOp, RawTensor, tensor};
use super::device::{Reductions, Ticket};
use super::foreign::ForeignScaler;
use super::integers::Inexact;
use super::later::{Count, Fault, Number, Scanned};
use super::layers::{LayerId, Layers};
use super::names::Names;
use super::params::ParamTable;
use super::recipe::Recipe;
use super::strangers::Strangers;
use super::trace::{OpId, Trace};
use super::updates::Updates;
use crate::shim::ShimError;

/// Tensors of one step that are kept; a loop that never calls `doctor.step` must not fill the memory. A step of 100 layers and 16
/// micro-batches has some 60,000.
const MAX_TENSORS: usize = 100_000;

/// Operators of one step that are followed, for a loop that never reaches backward.
const MAX_OPERATORS: usize = 200_000;

/// What is said when they are reached.
const OVERRUN: &str = "more tensors came since the last doctor.step() than one step is given; nothing more is watched until it is called. \
                       Call it once an optimizer step";

/// What the product of loss and loss scale is called, and the layer that it stands under.
pub(super) use ampdoctor::observation::{SCALE_LOSS, SCALER};

/// What the run's input is called where an operator's name stands.
pub(super) const DATA: &str = "data";

/// What data flow knows of a storage.
#[derive(Clone, Copy)]
pub(super) struct Flow {
    pub layer: LayerId,
    pub fault: Fault,
    /// Whether `fault` was seen, and not only passed on.
    pub scanned: bool,
    /// The operator that made it.
    pub made_by: Option<OpId>,
    /// Of integers that were cast, and of what was computed from them: elements that are not what they were.
    pub inexact: Option<Count>,
}

/// What is left of integers that an operator casts.
pub(super) enum Integers {
    Counted(Inexact),
    Later(Ticket),
}

/// An operator between its start and its end.
pub(super) struct Running {
    pub layer: LayerId,
    pub fault: Fault,
    pub op: Option<OpId>,
    pub inputs: SmallVec<[Content; 4]>,
    /// Of a cast of integers: what of them is left.
    pub integers: Option<Integers>,
    /// Of what was computed from integers that were cast: elements of theirs that are not what they were.
    pub inexact: Option<Count>,
}

/// What the shim is to do with an operator that begins.
#[derive(Clone, Copy, Default)]
pub(super) struct Wanted {
    /// Whether its end is to be reported.
    pub end: bool,
    /// Whether the addresses of the parameters among its arguments must not be used again in this step.
    pub remember: bool,
}

/// What the observer knows during a step.
#[derive(Default)]
pub(super) struct State {
    pub params: ParamTable,
    pub layers: Layers,
    /// Names of operators.
    pub names: Names,
    pub trace: Trace,
    /// What is computed on devices, and not yet here.
    pub device: Reductions,
    /// Whether tensors are scanned in this step.
    pub full: bool,
    /// Whether operators are reported in this step, scanned or not.
    pub watched: bool,
    /// Grows at every step; part of the hooks' tokens, so that a hook of an earlier step is told apart.
    pub serial: u32,
    pub updates: Updates,
    pub averages: Averages,
    pub foreign: ForeignScaler,
    pub recipe: Recipe,
    pub scaler_config: Option<ScalerConfig>,
    pub scaler_events: Vec<ScalerEvent>,
    /// The scale of our own scaler's latest backward.
    pub loss_scale: Option<f64>,
    /// The scale that our own scaler's next backward will carry, as far as it was told.
    pub scale_in_force: Option<f64>,
    /// Tensors of this step that could not be scanned.
    pub unscanned: u32,
    /// Why tensors could not be scanned, each said once.
    pub blind_spots: BTreeSet<String>,
    pub updated: bool,
    pub flow: HashMap<usize, Flow>,
    pub running: Option<Running>,
    /// Whether the operator that runs now opened an update that it must still confirm by returning.
    pub update_unconfirmed: bool,
    /// Whether gradients have arrived that were not scanned yet.
    pub gradients_pending: bool,
    /// Whether forward has read a parameter that has an FP32 copy, and they were compared.
    pub masters_compared: bool,
    /// Of the parameters that were compared: elements that are not what the copy rounds to.
    pub unlike_masters: HashMap<usize, Number>,
    pub strangers: Strangers,
}

impl State {
    pub(super) fn new(params: ParamTable) -> Self {
        Self { params, ..Self::default() }
    }

    /// Forgets the step that was taken, and begins the next.
    pub(super) fn begin_step(&mut self, full: bool, watched: bool) {
        self.trace.begin_step();
        self.device.begin_step();
        self.flow.clear();
        self.running = None;
        self.updates.abandon();
        self.averages.begin_step();
        self.scaler_events.clear();
        self.loss_scale = None;
        self.foreign.begin_step();
        self.recipe.begin_step();
        self.unscanned = 0;
        self.updated = false;
        self.gradients_pending = false;
        self.masters_compared = false;
        self.unlike_masters.clear();
        self.blind_spots.clear();
        self.full = full;
        self.watched = watched;
        self.serial = self.serial.wrapping_add(1);
    }

    /// A top-level operator outside backward begins.
    ///
    /// Returns what the shim is to do.
    pub(super) fn operator_starts(&mut self, op: &RawOp, own_scaler: bool) -> Wanted {
        self.running = None;
        self.update_unconfirmed = false;
        let name = if own_scaler && op.grad_mode != 0 { SCALE_LOSS } else { short_name(op.name()) };
        self.follow_recipe(name, op, own_scaler);
        if !own_scaler {
            let owner = if is_unscale(name) { self.owner_of(op.tensors()) } else { None };
            if self.foreign.operator_starts(name, op, owner, &mut self.device) {
                self.note_updated_again();
            }
        }
        if !self.full {
            self.updated |= op.grad_mode == 0 && self.changes_parameter(name, op).is_some();
            return Wanted { end: self.foreign.is_running(), remember: false };
        }
        if self.is_overrun() {
            return Wanted::default();
        }
        self.strangers.look_at(name, op, &self.params);
        if op.grad_mode == 0 || is_in_place(name) {
            self.outside_of_autograd(name, op);
            self.follow_average(name, op);
        }
        let mut wanted = Wanted { end: true, remember: false };
        if op.grad_mode != 0 {
            self.find_first_parameters(op);
            wanted.remember = self.strangers.reads_one(op, &self.params);
            self.running = Some(self.follow(name, op));
        }
        wanted
    }

    /// A model that is built after the doctor was attached is there when its first operator runs; without this the first step would show nothing of it. Later
    /// ones are found at the step's end: what is known by its place in the table must not move within a step.
    fn find_first_parameters(&mut self, op: &RawOp) {
        let leaf = |t: &RawTensor| t.trainable != 0 && t.tracked == 0;
        if self.params.is_empty() && op.tensors().iter().any(leaf) {
            let Self { params, layers, .. } = self;
            params.refresh(layers);
        }
    }

    /// Whether this step has more tensors than are kept; said once.
    pub(super) fn is_overrun(&mut self) -> bool {
        let overrun = self.trace.entries.len() >= MAX_TENSORS || self.trace.operators.len() >= MAX_OPERATORS;
        if overrun && self.blind_spots.insert(OVERRUN.into()) {
            eprintln!("ampdoctor: {OVERRUN}");
        }
        overrun
    }

    /// A top-level operator outside backward ended; fills the hooks' tokens.
    pub(super) fn operator_ends(&mut self, op: &RawOp, tokens: &mut [u64]) {
        self.foreign.operator_ends(&mut self.device);
        self.average_ends(op);
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
            if self.params.find(t.place()).is_some() {
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

    /// The end of a step: what is still to be looked at.
    pub(super) fn finish_step(&mut self) {
        if self.full {
            self.close_update();
            if self.gradients_pending && !self.is_overrun() {
                self.scan_gradients();
            }
            self.scan_changed_params();
        }
        if let Err(error) = self.device.fetch() {
            self.blind_spots.insert(format!("what was computed on a device could not be fetched: {error}"));
        }
        tensor::release_copies();
        self.unscanned += self.trace.resolve(&self.device);
        self.foreign.resolve(&self.device);
        if let Some(error) = self.foreign.failure.take() {
            self.blind_spots.insert(format!("a scaler's tensors could not be looked at on their device: {error}"));
        }
    }

    /// What was asked of a device; where it refused, that is told.
    pub(super) fn asked<T>(&mut self, answer: Result<T, ShimError>) -> Option<T> {
        answer
            .map_err(|error| {
                self.blind_spots.insert(format!("some tensors could not be looked at on their device: {error}"))
            })
            .ok()
    }

    /// The number in a floating-point tensor of one element; `None` for any other, and where its memory cannot be read.
    pub(super) fn number(&mut self, t: &RawTensor) -> Option<Number> {
        if !t.is_on_device() {
            return t.number().map(Number::Known);
        }
        if t.count() != 1 || t.dtype().is_none() {
            return None;
        }
        let ticket = self.device.number(t);
        self.asked(ticket).map(Number::Later)
    }

    /// Scans a tensor, or counts it among those that could not be.
    pub(super) fn scan(&mut self, t: &RawTensor) -> Option<Scanned> {
        if t.is_on_device() && t.dtype().is_some() {
            let ticket = self.device.statistics(t);
            let ticket = self.asked(ticket);
            self.unscanned += u32::from(ticket.is_none());
            return ticket.map(Scanned::Later);
        }
        let Some(view) = t.view() else {
            self.unscanned += 1;
            self.blind_spots.insert(
                "some tensors cannot be read (sparse in rows or blocks, quantised, nested or without memory of their own): \
                 they are not in the statistics"
                    .into(),
            );
            return None;
        };
        // SAFETY: the shim describes live memory of a tensor that outlives this call.
        Some(Scanned::Now(unsafe { scan(&view) }))
    }
}

/// An operator's name without its namespace: `aten::linear` is `linear`.
fn short_name(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

/// Whether an operator changes its first tensor.
pub(super) fn is_in_place(name: &str) -> bool {
    name.ends_with('_') && !name.ends_with("__")
}

pub(super) fn is_unscale(name: &str) -> bool {
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
