//! What of the model was seen: of each trainable parameter its gradient and its update, of each layer its activation and the gradient of it.

use std::collections::{BTreeMap, BTreeSet};

use super::Aggregate;
use crate::observation::{NoteKind, Probe, Site};

/// What of the model was seen over the whole run. Made of the parameters that the run named at its start and of those that came later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Trainable parameters by name: those that the run began with, unless they were frozen and stayed so, and those that came later.
    pub parameters: BTreeMap<String, SeenParameter>,
    /// The layers of these parameters.
    pub layers: BTreeMap<String, SeenLayer>,
    /// Whether the scaler withheld every optimizer step of the run.
    pub withheld: bool,
}

/// What was seen of a parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenParameter {
    /// Its gradient.
    pub gradient: bool,
    /// How the optimizer changed it.
    pub update: bool,
}

/// What was seen of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenLayer {
    /// What an operator of it computed.
    pub activation: bool,
    /// The gradient that backward brought to it.
    pub gradient: bool,
}

impl SeenParameter {
    /// Whether all was seen that there is.
    pub fn whole(self) -> bool {
        self.gradient && self.update
    }
}

impl SeenLayer {
    /// Whether all was seen that there is.
    pub fn whole(self) -> bool {
        self.activation && self.gradient
    }
}

impl Coverage {
    /// What of the model was seen; `None` where no backward pass was scanned, and so nothing could be.
    pub fn of(aggregate: &Aggregate) -> Option<Self> {
        if aggregate.instrument.backward_steps == 0 {
            return None;
        }
        let scaler = &aggregate.scaler;
        let mut coverage = Self { withheld: scaler.skipped > 0 && scaler.applied == 0, ..Self::default() };
        let mut frozen = BTreeSet::new();
        for parameter in aggregate.run.iter().flat_map(|run| &run.parameters) {
            if parameter.trainable {
                coverage.parameters.insert(parameter.name.clone(), SeenParameter::default());
            } else {
                frozen.insert(parameter.name.as_str());
            }
        }
        let seen = || aggregate.sites.iter().filter(|summary| summary.samples > 0).map(|summary| &summary.site);
        for name in seen().filter_map(|site| came_later(site, &frozen)) {
            coverage.parameters.entry(name).or_default();
        }
        seen().for_each(|site| coverage.see_parameter(site));
        let layers = coverage.parameters.keys().map(|name| layer_of(name).to_owned());
        coverage.layers = layers.map(|layer| (layer, SeenLayer::default())).collect();
        seen().for_each(|site| coverage.see_layer(site));
        Some(coverage)
    }

    fn see_parameter(&mut self, site: &Site) {
        let Some(parameter) = self.parameters.get_mut(&site.label()) else { return };
        parameter.gradient |= site.probe == Probe::ParamGrad;
        parameter.update |= site.probe == Probe::Update;
    }

    fn see_layer(&mut self, site: &Site) {
        let Some(layer) = self.layers.get_mut(&site.layer) else { return };
        layer.activation |= site.probe == Probe::Activation;
        layer.gradient |= site.probe == Probe::ActivationGrad;
    }

    /// Parameters that were seen whole.
    pub fn seen_parameters(&self) -> usize {
        self.parameters.values().filter(|seen| seen.whole()).count()
    }

    /// Layers that were seen whole.
    pub fn seen_layers(&self) -> usize {
        self.layers.values().filter(|seen| seen.whole()).count()
    }

    /// Whether nothing is missing.
    pub fn whole(&self) -> bool {
        self.seen_parameters() == self.parameters.len() && self.seen_layers() == self.layers.len()
    }

    /// How much was seen, in numbers: `gradient and update of 38 of 38 trainable parameters, activation and its gradient of 20 of 20 layers`. `None` where the
    /// run has no trainable parameter that is known of.
    pub fn seen(&self) -> Option<String> {
        let (parameters, layers) = (self.parameters.len(), self.layers.len());
        (parameters > 0).then(|| {
            format!(
                "gradient and update of {} of {parameters} trainable parameters, activation and its gradient of {} of {layers} layers",
                self.seen_parameters(),
                self.seen_layers()
            )
        })
    }

    /// What is missing, a sentence each, in a fixed order.
    pub fn missing(&self) -> Vec<String> {
        let parameters = |what: fn(&SeenParameter) -> bool| names(&self.parameters, what);
        let layers = |what: fn(&SeenLayer) -> bool| names(&self.layers, what);
        let said = [
            (
                parameters(|seen| !seen.gradient),
                "no gradient was seen of",
                "backward gave none in the scanned steps, as where a parameter has no part in the loss or is frozen, or it could not be read",
            ),
            (
                parameters(|seen| seen.gradient && !seen.update),
                "no update was seen of",
                match self.withheld {
                    true => "the scaler skipped every optimizer step",
                    false => {
                        "nothing changed it in place in the scanned steps: no optimizer has it, its steps were skipped, or another tensor took its place"
                    }
                },
            ),
            (
                layers(|seen| !seen.activation),
                "no activation was seen of",
                "no operator that autograd records took a parameter of it in the scanned steps",
            ),
            (
                layers(|seen| seen.activation && !seen.gradient),
                "no activation gradient was seen of",
                "backward did not reach what it computed in the scanned steps",
            ),
        ];
        said.into_iter().filter_map(|(names, what, why)| sentence(&names, what, why)).collect()
    }
}

impl Aggregate {
    /// Why something could not be observed, each reason once, in the order in which it was met.
    pub fn blind_spots(&self) -> impl Iterator<Item = &str> {
        self.instrument.notes.iter().filter(|note| note.kind == NoteKind::BlindSpot).map(|note| note.text.as_str())
    }
}

/// The name of a parameter that the run began without, or that was unfrozen.
fn came_later(site: &Site, frozen: &BTreeSet<&str>) -> Option<String> {
    let name = site.label();
    let later = match site.probe {
        Probe::Param => !frozen.contains(name.as_str()),
        Probe::ParamGrad => frozen.contains(name.as_str()),
        _ => false,
    };
    later.then_some(name)
}

fn layer_of(parameter: &str) -> &str {
    parameter.rsplit_once('.').map_or("", |(layer, _)| layer)
}

fn names<T>(of: &BTreeMap<String, T>, wanted: fn(&T) -> bool) -> Vec<&str> {
    of.iter().filter(|(_, seen)| wanted(seen)).map(|(name, _)| name.as_str()).collect()
}

/// Names that a sentence lists; of more the number is told.
const MOST_NAMES: usize = 4;

fn sentence(names: &[&str], what: &str, why: &str) -> Option<String> {
    let quoted = |name: &&str| if name.is_empty() { "the root".to_owned() } else { format!("`{name}`") };
    let listed: Vec<String> = names.iter().take(MOST_NAMES).map(quoted).collect();
    let more = match names.len().saturating_sub(MOST_NAMES) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    (!names.is_empty()).then(|| format!("{what} {}{more}: {why}", listed.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::scenario::{Scenario, StepBuilder, normal};
    use crate::observation::{Parameter, Record, ScalerEvent};
    use crate::scan::Dtype::F32;

    /// A run that began with these parameters, trainable or not, and one step.
    fn run(parameters: &[(&str, bool)], build: impl FnOnce(&mut StepBuilder<'_>)) -> Aggregate {
        let mut scenario = Scenario::new();
        scenario.step(build);
        let mut aggregate = Aggregate::default();
        for record in scenario.records() {
            let mut record = record.clone();
            if let Record::Run(run) = &mut record {
                let described = |&(name, trainable): &(&str, bool)| Parameter {
                    name: name.to_owned(),
                    dtype: "f32".into(),
                    shape: vec![4],
                    trainable,
                };
                run.parameters = parameters.iter().map(described).collect();
            }
            aggregate.apply(record);
        }
        aggregate
    }

    fn see_all(step: &mut StepBuilder<'_>, layer: &str) {
        let values = normal(64, 1.0, 1);
        step.activation(layer, "linear", F32, &values).gradient(layer, "linear", F32, &values);
        step.param_grad(layer, "weight", F32, &values).update(layer, "add_", "weight", &values);
        step.param(layer, "weight", F32, &values);
    }

    #[test]
    fn what_was_seen_whole_leaves_nothing_to_say() {
        let coverage = Coverage::of(&run(&[("fc.weight", true)], |s| see_all(s, "fc"))).expect("a backward pass");
        assert!(coverage.whole() && coverage.missing().is_empty(), "{coverage:?}");
        assert_eq!((coverage.parameters.len(), coverage.layers.len()), (1, 1));
    }

    #[test]
    fn a_parameter_without_gradient_is_named_with_its_layer_and_a_frozen_one_is_not() {
        let parameters = [("fc.weight", true), ("unused.weight", true), ("frozen.weight", false)];
        let coverage = Coverage::of(&run(&parameters, |s| see_all(s, "fc"))).expect("a backward pass");
        let missing = coverage.missing();
        assert_eq!(missing.len(), 2, "{missing:?}");
        assert!(missing[0].starts_with("no gradient was seen of `unused.weight`:"), "{}", missing[0]);
        assert!(missing[1].starts_with("no activation was seen of `unused`:"), "{}", missing[1]);
    }

    #[test]
    fn a_parameter_that_came_later_or_was_unfrozen_counts() {
        let aggregate = run(&[("unfrozen.weight", false)], |s| {
            see_all(s, "late");
            see_all(s, "unfrozen");
        });
        let coverage = Coverage::of(&aggregate).expect("a backward pass");
        let names: Vec<_> = coverage.parameters.keys().map(String::as_str).collect();
        assert_eq!((names, coverage.whole()), (vec!["late.weight", "unfrozen.weight"], true));
    }

    #[test]
    fn a_run_without_a_scanned_backward_pass_has_no_coverage() {
        let values = normal(64, 1.0, 1);
        assert_eq!(
            Coverage::of(&run(&[("fc.weight", true)], |s| {
                s.activation("fc", "linear", F32, &values);
            })),
            None
        );
    }

    #[test]
    fn where_every_step_was_skipped_that_is_why_no_update_was_seen() {
        let said = |applied: &[bool]| {
            let aggregate = run(&[("fc.weight", true)], |s| {
                let values = normal(64, 1.0, 1);
                s.activation("fc", "linear", F32, &values).gradient("fc", "linear", F32, &values);
                s.param_grad("fc", "weight", F32, &values);
                applied.iter().for_each(|&applied| {
                    s.event(ScalerEvent::Stepped { optimizer: 0, applied });
                });
            });
            Coverage::of(&aggregate).expect("a backward pass").missing()
        };
        assert_eq!(said(&[false]), ["no update was seen of `fc.weight`: the scaler skipped every optimizer step"]);
        assert!(said(&[true])[0].contains("no optimizer has it") && said(&[])[0].contains("no optimizer has it"));
    }

    #[test]
    fn many_names_are_counted() {
        let said = sentence(&["a", "b", "c", "d", "e", "f"], "nothing of", "because");
        assert_eq!(said.as_deref(), Some("nothing of `a`, `b`, `c`, `d` and 2 more: because"));
        assert_eq!(sentence(&[""], "nothing of", "because").as_deref(), Some("nothing of the root: because"));
        assert_eq!(sentence(&[], "nothing of", "because"), None);
    }
}
