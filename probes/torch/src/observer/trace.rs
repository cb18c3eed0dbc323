//! What one step showed, in execution order, until it is turned into observations.

use std::collections::{HashMap, HashSet};

use ampdoctor::observation::{Observation, Probe, Provenance, Rounding, Site, SiteId};
use ampdoctor::scan::{Dtype, Stats};
use smallvec::SmallVec;

use super::border::Content;
use super::device::{Reductions, StatsTicket, Ticket};
use super::later::{Count, Counts, Fault, Faults, Number, Scanned, value};
use super::layers::{LayerId, Layers};
use super::names::{NameId, Names};
use super::provenance::{Input, Inputs};
use super::sites::Sites;

/// An operator of forward, by its place in the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpId(pub u32);

/// An operator of forward.
pub(super) struct Operator {
    /// Without its namespace: `linear`.
    pub name: NameId,
    pub layer: LayerId,
    /// Autograd's sequence number when it began; its nodes have this number or a later one.
    pub sequence: i64,
    /// Whether a half-precision tensor was among its inputs.
    pub half_input: bool,
    /// How many backward passes had begun before it.
    pub epoch: u32,
    /// Its first observed output.
    pub output: Option<usize>,
    /// The floating-point tensors among its arguments.
    pub inputs: Inputs,
    /// The number that it computes with.
    pub argument: Option<f64>,
}

/// A tensor that was scanned.
pub(super) struct Entry {
    pub layer: LayerId,
    /// Operator of forward that the tensor belongs to.
    pub op: Option<OpId>,
    /// Name where there is no operator of forward: an optimizer's operator, or empty.
    pub operator: String,
    pub tensor: String,
    pub probe: Probe,
    pub dtype: Dtype,
    /// Of nothing, until what is on a device has been fetched.
    pub stats: Stats,
    /// Where they are to be fetched from.
    later: Option<StatsTicket>,
    /// Where a NaN or an infinity in it may have come from.
    pub origin: Origin,
    /// Whether it came from there: known at the end of the step.
    inherited: bool,
    /// Whether it turned out not to be worth telling: known at the end of the step.
    dropped: bool,
    /// The operator whose backward computed it.
    pub via: Option<OpId>,
    /// Activations: whether backward has reached it.
    pub reached: bool,
    /// Activations: the operators that took it as input.
    pub consumers: SmallVec<[OpId; 4]>,
    /// Activations: whether its gradient was not finite; known at the end of the step.
    gradient_non_finite: bool,
    /// Updates and parameters: what low precision did to the step.
    pub rounding: Option<Box<Rounding>>,
    /// The part of it that is to be fetched.
    pub rounding_later: Option<Box<RoundingLater>>,
    /// Whether there is something to tell only where it is not what its FP32 copy rounds to.
    pub only_if_unlike: bool,
    /// Of integers: elements that are not what they were.
    pub inexact: Option<Count>,
    /// Of a moving average: its decay.
    pub decay: Option<f64>,
}

impl Entry {
    /// An entry of `probe` with nothing else known.
    pub(super) fn new(layer: LayerId, probe: Probe, dtype: Dtype, scanned: Scanned) -> Self {
        let (stats, later) = match scanned {
            Scanned::Now(stats) => (stats, None),
            Scanned::Later(ticket) => (Stats::default(), Some(ticket)),
        };
        Self {
            layer,
            op: None,
            operator: String::new(),
            tensor: String::new(),
            probe,
            dtype,
            stats,
            later,
            origin: Origin::Here,
            inherited: false,
            dropped: false,
            via: None,
            reached: false,
            consumers: SmallVec::new(),
            gradient_non_finite: false,
            rounding: None,
            rounding_later: None,
            only_if_unlike: false,
            inexact: None,
            decay: None,
        }
    }

    /// Notes how many of its elements are not what its FP32 copy rounds to.
    pub(super) fn note_unlike(&mut self, unlike: Number) {
        match unlike {
            Number::Known(n) => self.rounding.get_or_insert_default().unlike_master = Some(n as u64),
            Number::Later(ticket) => self.rounding_later.get_or_insert_default().unlike_master = Some(ticket),
        }
    }

    /// Puts down what was fetched, and decides whether the entry is worth telling; false where its numbers are missing.
    fn fill(&mut self, device: &Reductions) -> bool {
        let mut whole = true;
        if let Some(ticket) = self.later.take() {
            let stats = device.stats(&ticket);
            whole &= stats.is_some();
            self.stats = stats.unwrap_or_default();
        }
        if let Some(later) = self.rounding_later.take() {
            let mut rounding = self.rounding.take().map(|rounding| *rounding).unwrap_or_default();
            whole &= later.resolve(device, &mut rounding);
            self.rounding = (rounding != Rounding::default()).then(|| Box::new(rounding));
        }
        let unlike = || self.rounding.as_ref().and_then(|rounding| rounding.unlike_master).unwrap_or(0);
        // The optimizer's own tensors are told only where they are not finite.
        let finite_state = self.probe == Probe::OptimizerState && !self.is_non_finite();
        self.dropped = !whole || finite_state || self.only_if_unlike && unlike() == 0;
        whole
    }

    fn is_non_finite(&self) -> bool {
        self.stats.non_finite() > 0
    }
}

/// Where a NaN or an infinity in a tensor may have come from.
#[derive(Clone, Copy)]
pub(super) enum Origin {
    /// From nowhere else.
    Here,
    /// What went into its operator.
    Inputs(Fault),
    /// It is the gradient of this activation, which so many operators had taken when it came.
    Backward { activation: usize, consumers: usize },
    /// Anything in its layer.
    Layer,
    /// What the tensor of the next entry holds.
    Next,
}

/// What low precision did to a step, as far as it is to be fetched.
#[derive(Default)]
pub(super) struct RoundingLater {
    pub stepped: Option<Ticket>,
    pub without_masters: Option<Ticket>,
    pub decay: Option<Ticket>,
    pub unlike_master: Option<Ticket>,
    /// Whether the energy of what did not move is told.
    pub tells_unmoved: bool,
}

impl RoundingLater {
    /// Puts down what was fetched; false where something is missing.
    fn resolve(&self, device: &Reductions, rounding: &mut Rounding) -> bool {
        let mut whole = true;
        let mut fetch = |ticket: Option<Ticket>| {
            let found = ticket.map(|ticket| device.fidelity_at(ticket));
            whole &= !matches!(found, Some(None));
            found.flatten()
        };
        if let Some((stepped, unmoved)) = fetch(self.stepped) {
            rounding.stepped = Some(stepped);
            rounding.unmoved = unmoved.filter(|_| self.tells_unmoved);
        }
        rounding.without_masters = fetch(self.without_masters).map(|(f, _)| f).or(rounding.without_masters);
        rounding.decay = fetch(self.decay).map(|(f, _)| f).or(rounding.decay);
        if let Some(ticket) = self.unlike_master {
            let unlike = device.one(ticket);
            whole &= unlike.is_some();
            rounding.unlike_master = unlike.map(|n| n as u64);
        }
        whole
    }
}

/// Consumers of one activation that are remembered.
const MAX_CONSUMERS: usize = 8;

/// What one step showed.
#[derive(Default)]
pub(super) struct Trace {
    pub operators: Vec<Operator>,
    pub entries: Vec<Entry>,
    /// The entry that holds the scan of some memory, at one version of its content.
    pub scanned: HashMap<Content, usize>,
    /// Memory that was looked at and is not scanned again: a parameter's, or what could not be read.
    pub passed: HashSet<Content>,
    /// What flowed from one operator to the next, and may not have been finite.
    pub faults: Faults,
    /// What became of integers on their way.
    pub counts: Counts,
    /// The counts, once they are known.
    known_counts: Vec<Option<u64>>,
    /// Nodes of backward that began, of all passes.
    pub epoch: u32,
    /// Backward passes: nodes with no operator of forward between them are one.
    pub passes: u32,
    /// Operators when the latest node began.
    operators_then: Option<usize>,
}

impl Trace {
    /// Forgets the step, and keeps its memory for the next: not more than twice what this one took.
    pub(super) fn begin_step(&mut self) {
        let Self { operators, entries, scanned, passed, faults, counts, known_counts, epoch, passes, operators_then } =
            self;
        operators.shrink_to(2 * operators.len());
        entries.shrink_to(2 * entries.len());
        scanned.shrink_to(2 * scanned.len());
        passed.shrink_to(2 * passed.len());
        operators.clear();
        entries.clear();
        scanned.clear();
        passed.clear();
        *faults = Faults::default();
        *counts = Counts::default();
        known_counts.clear();
        (*epoch, *passes, *operators_then) = (0, 0, None);
    }

    pub(super) fn push(&mut self, entry: Entry) -> usize {
        self.entries.push(entry);
        self.entries.len() - 1
    }

    /// A node of backward begins.
    pub(super) fn backward_node_begins(&mut self) {
        self.epoch += 1;
        let operators = Some(self.operators.len());
        self.passes += u32::from(self.operators_then != operators);
        self.operators_then = operators;
    }

    /// Notes that `op` took this memory as input.
    pub(super) fn consume(&mut self, content: Content, op: OpId) {
        let Some(entry) = self.scanned.get(&content).and_then(|&i| self.entries.get_mut(i)) else { return };
        if entry.consumers.len() < MAX_CONSUMERS && !entry.consumers.contains(&op) {
            entry.consumers.push(op);
        }
    }

    /// The operator of forward whose node has this sequence number.
    pub(super) fn operator_of_node(&self, sequence: i64) -> Option<OpId> {
        let after = self.operators.partition_point(|op| op.sequence <= sequence);
        after.checked_sub(1).map(|i| OpId(i as u32))
    }

    pub(super) fn operator(&self, id: OpId) -> Option<&Operator> {
        self.operators.get(id.0 as usize)
    }

    /// The gradient of activation `index` has come: where it was computed, and what a NaN or an infinity in it may have come from.
    pub(super) fn gradient_origin(&self, index: usize) -> (Option<OpId>, Origin) {
        let Some(activation) = self.entries.get(index) else { return (None, Origin::Here) };
        let consumers = activation.consumers.len();
        (activation.consumers.first().copied(), Origin::Backward { activation: index, consumers })
    }

    /// Everything was fetched that is fetched: what was waiting for it is put down, in the order in which it happened. Returns how many tensors' numbers are
    /// missing.
    pub(super) fn resolve(&mut self, device: &Reductions) -> u32 {
        let missing = self.entries.iter_mut().map(|entry| u32::from(!entry.fill(device))).sum();
        let faults = self.faults.resolve(|index| self.entries.get(index).is_some_and(Entry::is_non_finite));
        let of_entry = |index: usize| self.entries.get(index).map(|entry| (entry.dtype, entry.stats.clone()));
        self.known_counts = self.counts.resolve(device, of_entry);
        // Layers in which a value, or the gradient that reached it, was not finite.
        let mut poisoned = HashSet::new();
        for index in 0..self.entries.len() {
            let (layer, inherited) = match self.entries[index].origin {
                Origin::Here => continue,
                Origin::Inputs(fault) => (None, faults[fault]),
                Origin::Backward { activation, consumers } => {
                    let inherited = self.has_poisoned(activation, consumers);
                    (self.poisons(activation, index), inherited)
                }
                Origin::Layer => (None, poisoned.contains(&self.entries[index].layer)),
                Origin::Next => (None, self.entries.get(index + 1).is_some_and(Entry::is_non_finite)),
            };
            poisoned.extend(layer);
            self.entries[index].inherited = inherited;
        }
        missing
    }

    /// Whether an activation, or the output or its gradient of one of the first operators that took it, was not finite.
    fn has_poisoned(&self, activation: usize, consumers: usize) -> bool {
        let Some(activation) = self.entries.get(activation) else { return false };
        let poisoned = |op: &OpId| {
            let output = self.operator(*op).and_then(|o| o.output).and_then(|i| self.entries.get(i));
            output.is_some_and(|o| o.is_non_finite() || o.gradient_non_finite)
        };
        activation.is_non_finite() || activation.consumers.iter().take(consumers).any(poisoned)
    }

    /// The layer of an activation whose gradient is entry `index`, where the two poison it.
    fn poisons(&mut self, activation: usize, index: usize) -> Option<LayerId> {
        let non_finite = self.entries.get(index).is_some_and(Entry::is_non_finite);
        let activation = self.entries.get_mut(activation)?;
        activation.gradient_non_finite |= non_finite;
        let poisons = activation.gradient_non_finite || activation.is_non_finite() || activation.inherited;
        poisons.then_some(activation.layer)
    }

    /// Whether a tensor was not finite. The -inf in an activation or a buffer alone is no sign of a fault: causal masks put it there, and lie there.
    pub(super) fn has_fault(&self) -> bool {
        self.entries.iter().filter(|e| !e.dropped).any(|e| match e.probe {
            Probe::Activation | Probe::Buffer => e.stats.nan + e.stats.pos_inf > 0,
            _ => e.stats.non_finite() > 0,
        })
    }

    /// The entries that count, as observations, and their sites numbered by `intern`. The statistics leave the entries.
    ///
    /// An activation counts when backward reached it, or when there was no backward at all and it is not finite.
    pub(super) fn observations(
        &mut self,
        layers: &Layers,
        names: &Names,
        intern: impl FnMut(&Site) -> SiteId,
    ) -> Vec<Observation> {
        let uses = self.uses();
        let reached = self.reached();
        let without_backward = self.epoch == 0;
        let mut sites = Sites::new(layers, names, intern);
        let mut observations = Vec::with_capacity(self.entries.len());
        let mut ids: Vec<Option<SiteId>> = vec![None; self.entries.len()];
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            let unreached = entry.probe == Probe::Activation && !reached[index];
            if entry.dropped || unreached && !(without_backward && entry.is_non_finite()) {
                continue;
            }
            let site = self.site(entry, &uses, &mut sites);
            ids[index] = Some(site);
            let via = self.via(entry, &uses, &mut sites);
            let provenance = self.provenance(entry, &ids, &mut sites);
            let entry = &mut self.entries[index];
            let mut stats = std::mem::take(&mut entry.stats);
            if entry.dtype != Dtype::F64 {
                stats.round_sums();
            }
            observations.push(Observation {
                site,
                stats,
                inherited: entry.inherited,
                via,
                rounding: entry.rounding.take(),
                provenance,
            });
        }
        observations
    }

    fn site(&self, entry: &Entry, uses: &[u32], sites: &mut Sites<impl FnMut(&Site) -> SiteId>) -> SiteId {
        let Entry { layer, probe, dtype, .. } = *entry;
        match entry.op.and_then(|op| Some((self.operator(op)?, uses[op.0 as usize]))) {
            Some((operator, uses)) => sites.of_operator(layer, operator.name, uses, probe, dtype),
            None => sites.of(layer, &entry.operator, &entry.tensor, probe, dtype),
        }
    }

    /// The site of the operator whose backward computed an entry.
    fn via(&self, entry: &Entry, uses: &[u32], sites: &mut Sites<impl FnMut(&Site) -> SiteId>) -> Option<SiteId> {
        let op = entry.via?;
        let operator = self.operator(op)?;
        let output = operator.output.and_then(|i| self.entries.get(i));
        let dtype = output.map_or(entry.dtype, |o| o.dtype);
        Some(sites.of_operator(operator.layer, operator.name, uses[op.0 as usize], Probe::Activation, dtype))
    }

    /// How an activation or a moving average was made; `ids` has the sites of the entries before it that count.
    fn provenance(
        &self,
        entry: &Entry,
        ids: &[Option<SiteId>],
        sites: &mut Sites<impl FnMut(&Site) -> SiteId>,
    ) -> Option<Box<Provenance>> {
        let operator = entry.op.filter(|_| entry.probe == Probe::Activation).and_then(|op| self.operator(op));
        let inexact = value(entry.inexact, &self.known_counts);
        if operator.is_none() && inexact.is_none() && entry.decay.is_none() {
            return None;
        }
        let mut input = |input: &Input| match input {
            Input::Entry(index) => ids.get(*index).copied().flatten(),
            Input::Param { layer, tensor, dtype } => Some(sites.of(*layer, "", tensor, Probe::Param, *dtype)),
            Input::Unseen => None,
        };
        let inputs = operator.map_or(Vec::new(), |o| o.inputs.iter().map(&mut input).collect());
        let argument = operator.and_then(|o| o.argument).or(entry.decay);
        Some(Box::new(Provenance { inputs, argument, inexact }))
    }

    /// Of each entry whether backward reached it, or what was computed from it: of the run's data, and of what autograd does not follow.
    fn reached(&self) -> Vec<bool> {
        let mut reached: Vec<bool> = self.entries.iter().map(|entry| entry.reached).collect();
        let output = |op: &OpId| self.operator(*op).and_then(|o| o.output);
        // What was computed from an entry is an entry behind it.
        for (index, entry) in self.entries.iter().enumerate().rev() {
            let reads_on = entry.op.is_none() && !reached[index];
            reached[index] |= reads_on && entry.consumers.iter().filter_map(output).any(|i| reached[i]);
        }
        reached
    }

    /// How often each operator's layer has used its kind in this forward, itself included: the `2` of `relu#2`. Without number (0) where that is not told.
    ///
    /// Only operators that backward reached are counted, so that an evaluation between two steps shifts no number.
    fn uses(&self) -> Vec<u32> {
        let mut seen: HashMap<(u32, LayerId, NameId), u32> = HashMap::new();
        let counts = |op: &Operator| op.output.and_then(|i| self.entries.get(i)).is_some_and(|e| e.reached);
        let mut uses = |op: &Operator| {
            let times = seen.entry((op.epoch, op.layer, op.name)).or_insert(0);
            *times += 1;
            *times
        };
        self.operators.iter().map(|op| if counts(op) { uses(op) } else { 0 }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_belongs_to_the_last_operator_that_began_before_it() {
        let operator = |sequence| Operator {
            name: NameId(0),
            layer: super::super::layers::INPUT,
            sequence,
            half_input: false,
            epoch: 0,
            output: None,
            inputs: Inputs::new(),
            argument: None,
        };
        let trace = Trace { operators: vec![operator(3), operator(8)], ..Trace::default() };
        assert_eq!(trace.operator_of_node(2), None);
        assert_eq!(trace.operator_of_node(5), Some(OpId(0)));
        assert_eq!(trace.operator_of_node(8), Some(OpId(1)));
    }
}
