//! What one step showed, in execution order, until it is turned into observations.

use std::collections::{HashMap, HashSet};

use ampdoctor::observation::{Observation, Probe, Provenance, Rounding, Site, SiteId};
use ampdoctor::scan::{Dtype, Stats};

use super::border::Content;
use super::layers::{LayerId, Layers};
use super::provenance::Input;

/// An operator of forward, by its place in the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpId(pub u32);

/// An operator of forward.
pub(super) struct Operator {
    /// Without its namespace: `linear`.
    pub name: String,
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
    pub inputs: Vec<Input>,
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
    pub stats: Stats,
    pub inherited: bool,
    /// The operator whose backward computed it.
    pub via: Option<OpId>,
    /// Activations: whether backward has reached it.
    pub reached: bool,
    /// Activations: the operators that took it as input.
    pub consumers: Vec<OpId>,
    /// Activations: whether its gradient was not finite.
    pub gradient_non_finite: bool,
    /// Updates and parameters: what low precision did to the step.
    pub rounding: Option<Box<Rounding>>,
    /// Of integers: elements that are not what they were.
    pub inexact: Option<u64>,
    /// Of a moving average: its decay.
    pub decay: Option<f64>,
}

impl Entry {
    /// An entry of `probe` with nothing else known.
    pub(super) fn new(layer: LayerId, probe: Probe, dtype: Dtype, stats: Stats) -> Self {
        Self {
            layer,
            op: None,
            operator: String::new(),
            tensor: String::new(),
            probe,
            dtype,
            stats,
            inherited: false,
            via: None,
            reached: false,
            consumers: Vec::new(),
            gradient_non_finite: false,
            rounding: None,
            inexact: None,
            decay: None,
        }
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
    /// Layers in which a value, or the gradient that reached it, was not finite.
    pub poisoned: HashSet<LayerId>,
    /// Nodes of backward that began, of all passes.
    pub epoch: u32,
    /// Backward passes: nodes with no operator of forward between them are one.
    pub passes: u32,
    /// Operators when the latest node began.
    operators_then: Option<usize>,
}

impl Trace {
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

    /// The gradient of activation `index` has come: where it was computed, and whether a NaN or an infinity in it is new.
    pub(super) fn gradient_origin(&self, index: usize) -> (Option<OpId>, bool) {
        let Some(activation) = self.entries.get(index) else { return (None, false) };
        let via = activation.consumers.first().copied();
        let poisoned = |op: &OpId| self.is_poisoned(*op);
        let inherited = activation.stats.non_finite() > 0 || activation.consumers.iter().any(poisoned);
        (via, inherited)
    }

    /// Whether an operator's output, or the gradient that reached its output, was not finite.
    fn is_poisoned(&self, op: OpId) -> bool {
        let output = self.operator(op).and_then(|o| o.output).and_then(|i| self.entries.get(i));
        output.is_some_and(|o| o.stats.non_finite() > 0 || o.gradient_non_finite)
    }

    /// Whether a tensor was not finite. The -inf in an activation alone is no sign of a fault: causal masks put it there.
    pub(super) fn has_fault(&self) -> bool {
        self.entries.iter().any(|e| match e.probe {
            Probe::Activation => e.stats.nan + e.stats.pos_inf > 0,
            _ => e.stats.non_finite() > 0,
        })
    }

    /// The entries that count, as observations, and their sites numbered by `intern`.
    ///
    /// An activation counts when backward reached it, or when there was no backward at all and it is not finite.
    pub(super) fn observations(self, layers: &Layers, mut intern: impl FnMut(&Site) -> SiteId) -> Vec<Observation> {
        let labels = self.labels();
        let reached = self.reached();
        let without_backward = self.epoch == 0;
        let site = |entry: &Entry| Site {
            layer: layers.name(entry.layer).to_owned(),
            operator: entry.op.map_or_else(|| entry.operator.clone(), |op| labels[op.0 as usize].clone()),
            tensor: entry.tensor.clone(),
            probe: entry.probe,
            dtype: entry.dtype,
        };
        let vias: Vec<Option<Site>> = self
            .entries
            .iter()
            .map(|entry| {
                let op = entry.via?;
                let operator = self.operator(op)?;
                let output = operator.output.and_then(|i| self.entries.get(i));
                Some(Site {
                    layer: layers.name(operator.layer).to_owned(),
                    operator: labels[op.0 as usize].clone(),
                    tensor: String::new(),
                    probe: Probe::Activation,
                    dtype: output.map_or(entry.dtype, |o| o.dtype),
                })
            })
            .collect();
        let mut observations = Vec::with_capacity(self.entries.len());
        let mut ids: Vec<Option<SiteId>> = vec![None; self.entries.len()];
        for ((index, entry), via) in self.entries.iter().enumerate().zip(vias) {
            let unreached = entry.probe == Probe::Activation && !reached[index];
            if unreached && !(without_backward && entry.stats.non_finite() > 0) {
                continue;
            }
            let id = intern(&site(entry));
            ids[index] = Some(id);
            observations.push(Observation {
                site: id,
                stats: entry.stats.clone(),
                inherited: entry.inherited,
                via: via.as_ref().map(&mut intern),
                rounding: entry.rounding.clone(),
                provenance: self.provenance(entry, layers, &ids, &mut intern),
            });
        }
        observations
    }

    /// How an activation or a moving average was made; `ids` has the sites of the entries before it that count.
    fn provenance(
        &self,
        entry: &Entry,
        layers: &Layers,
        ids: &[Option<SiteId>],
        mut intern: impl FnMut(&Site) -> SiteId,
    ) -> Option<Box<Provenance>> {
        let operator = entry.op.filter(|_| entry.probe == Probe::Activation).and_then(|op| self.operator(op));
        if operator.is_none() && entry.inexact.is_none() && entry.decay.is_none() {
            return None;
        }
        let mut input = |input: &Input| match input {
            Input::Entry(index) => ids.get(*index).copied().flatten(),
            Input::Param { .. } => input.param_site(layers).map(|site| intern(&site)),
            Input::Unseen => None,
        };
        let inputs = operator.map_or(Vec::new(), |o| o.inputs.iter().map(&mut input).collect());
        let argument = operator.and_then(|o| o.argument).or(entry.decay);
        Some(Box::new(Provenance { inputs, argument, inexact: entry.inexact }))
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

    /// Names of the operators, numbered where a layer uses one several times in a forward: `relu`, `relu#2`.
    ///
    /// Only operators that backward reached are counted, so that an evaluation between two steps shifts no number.
    fn labels(&self) -> Vec<String> {
        let mut seen: HashMap<(u32, LayerId, &str), u32> = HashMap::new();
        let counts = |op: &Operator| op.output.and_then(|i| self.entries.get(i)).is_some_and(|e| e.reached);
        self.operators
            .iter()
            .map(|op| {
                if !counts(op) {
                    return op.name.clone();
                }
                let times = seen.entry((op.epoch, op.layer, &op.name)).or_insert(0);
                *times += 1;
                label(&op.name, *times)
            })
            .collect()
    }
}

/// Uses of one operator in one layer that are told apart; later ones share the last name.
const MAX_USES: u32 = 32;

fn label(name: &str, times: u32) -> String {
    match times {
        1 => name.to_owned(),
        2..MAX_USES => format!("{name}#{times}"),
        _ => format!("{name}#{MAX_USES}+"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_use_of_an_operator_is_numbered_and_the_many_share_a_name() {
        assert_eq!(label("relu", 1), "relu");
        assert_eq!(label("relu", 2), "relu#2");
        assert_eq!(label("relu", 500), "relu#32+");
    }

    #[test]
    fn a_node_belongs_to_the_last_operator_that_began_before_it() {
        let operator = |sequence| Operator {
            name: "linear".into(),
            layer: super::super::layers::INPUT,
            sequence,
            half_input: false,
            epoch: 0,
            output: None,
            inputs: Vec::new(),
            argument: None,
        };
        let trace = Trace { operators: vec![operator(3), operator(8)], ..Trace::default() };
        assert_eq!(trace.operator_of_node(2), None);
        assert_eq!(trace.operator_of_node(5), Some(OpId(0)));
        assert_eq!(trace.operator_of_node(8), Some(OpId(1)));
    }
}
