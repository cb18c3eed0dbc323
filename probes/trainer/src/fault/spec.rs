//! How a fault is written on the command line: `NAME[@STEP][:LAYER]`.

use std::str::FromStr;

use super::{FAULTS, Fault, Plant, by_name};
use crate::model::ModelKind;

/// A fault as it was typed.
#[derive(Clone)]
pub struct FaultSpec {
    /// The fault.
    pub fault: &'static dyn Fault,
    /// The first step that it disturbs, counted from 0.
    pub step: Option<u64>,
    /// The layer that it sits in.
    pub layer: Option<String>,
}

impl std::fmt::Debug for FaultSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{:?}:{:?}", self.fault.name(), self.step, self.layer)
    }
}

/// Why a fault could not be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseFaultError {
    /// No fault has this name.
    #[error("there is no fault named {name:?}; there are {}", names())]
    UnknownName {
        /// What was typed.
        name: String,
    },
    /// What stands behind the @ is no step.
    #[error("{step:?} is no step; write NAME@STEP with a whole number, counted from 0")]
    BadStep {
        /// What was typed.
        step: String,
    },
}

/// The model has no such layer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model has no layer {layer:?}; its layers are {}", .layers.join(", "))]
pub struct UnknownLayer {
    /// What was typed.
    pub layer: String,
    /// The layers that there are.
    pub layers: &'static [&'static str],
}

impl FromStr for FaultSpec {
    type Err = ParseFaultError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (head, layer) = split(text, ':');
        let (name, step) = split(head, '@');
        let fault = by_name(name).ok_or_else(|| ParseFaultError::UnknownName { name: name.to_owned() })?;
        let step = step
            .map(|step| step.parse().map_err(|_| ParseFaultError::BadStep { step: step.to_owned() }))
            .transpose()?;
        Ok(Self { fault, step, layer: layer.map(str::to_owned) })
    }
}

impl FaultSpec {
    /// The fault in a model: where no step is given after a third of the run, when the model has learned something.
    pub fn plant(&self, model: ModelKind, steps: u64) -> Result<Plant, UnknownLayer> {
        let layer = match &self.layer {
            Some(layer) => Some(find_layer(model, layer)?),
            None => self.fault.needs_layer().then(|| model.middle_layer()),
        };
        Ok(Plant::new(self.fault, self.step.unwrap_or(steps / 3), layer))
    }
}

fn find_layer(model: ModelKind, layer: &str) -> Result<&'static str, UnknownLayer> {
    let layers = model.layers();
    layers.iter().copied().find(|&name| name == layer).ok_or_else(|| UnknownLayer { layer: layer.to_owned(), layers })
}

fn split(text: &str, mark: char) -> (&str, Option<&str>) {
    text.split_once(mark).map_or((text, None), |(head, tail)| (head, Some(tail)))
}

fn names() -> String {
    FAULTS.iter().map(|fault| fault.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (String, Option<u64>, Option<String>) {
        let spec: FaultSpec = text.parse().unwrap();
        (spec.fault.name().to_owned(), spec.step, spec.layer)
    }

    #[test]
    fn step_and_layer_are_optional() {
        assert_eq!(parts("underflow"), ("underflow".into(), None, None));
        assert_eq!(parts("nan@7"), ("nan".into(), Some(7), None));
        assert_eq!(parts("overflow:conv1"), ("overflow".into(), None, Some("conv1".into())));
        assert_eq!(parts("overflow@12:block.3.fc"), ("overflow".into(), Some(12), Some("block.3.fc".into())));
    }

    #[test]
    fn mistakes_are_answered_with_what_there_is() {
        let error = |text: &str| text.parse::<FaultSpec>().unwrap_err().to_string();
        assert_eq!(error("undrflow"), "there is no fault named \"undrflow\"; there are underflow, overflow, nan");
        assert!(error("nan@soon").contains("\"soon\" is no step"));
        let spec: FaultSpec = "nan:fc9".parse().unwrap();
        let error = spec.plant(ModelKind::Mlp, 300).map(drop).unwrap_err().to_string();
        assert_eq!(error, "the model has no layer \"fc9\"; its layers are fc1, fc2, fc3");
    }
}
