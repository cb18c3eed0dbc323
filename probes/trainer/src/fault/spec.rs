//! How a fault is written on the command line: `NAME[=STRENGTH][@STEP][:LAYER]`.

use std::str::FromStr;

use super::plant::Planted;
use super::{FAULTS, Fault, Plant, by_name};
use crate::model::{ModelKind, UnknownLayer};
use crate::options::Options;

/// A fault as it was typed.
#[derive(Clone)]
pub struct FaultSpec {
    /// The fault.
    pub fault: &'static dyn Fault,
    /// How strong it is.
    pub strength: Option<f64>,
    /// The first step that it disturbs, counted from 0.
    pub step: Option<u64>,
    /// The layer that it sits in.
    pub layer: Option<String>,
}

impl std::fmt::Debug for FaultSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={:?}@{:?}:{:?}", self.fault.name(), self.strength, self.step, self.layer)
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
    /// What stands behind the = is no strength.
    #[error("{strength:?} is no strength; write NAME=STRENGTH with a finite number above 0")]
    BadStrength {
        /// What was typed.
        strength: String,
    },
    /// The strength is beyond what means something.
    #[error("{strength} is too much for the fault {name:?}: its strength is {highest} at the most")]
    TooStrong {
        /// The fault.
        name: &'static str,
        /// What was typed.
        strength: String,
        /// The highest that means something.
        highest: String,
    },
    /// The fault has no strength.
    #[error("the fault {name:?} has no strength that could be set; write it without the =")]
    NoStrength {
        /// The fault.
        name: &'static str,
    },
    /// What stands behind the @ is no step.
    #[error("{step:?} is no step; write NAME@STEP with a whole number, counted from 0")]
    BadStep {
        /// What was typed.
        step: String,
    },
}

impl FromStr for FaultSpec {
    type Err = ParseFaultError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (head, layer) = split(text, ':');
        let (head, step) = split(head, '@');
        let (name, strength) = split(head, '=');
        let fault = by_name(name).ok_or_else(|| ParseFaultError::UnknownName { name: name.to_owned() })?;
        let strength = strength.map(|strength| parse_strength(fault, strength)).transpose()?;
        let step = step
            .map(|step| step.parse().map_err(|_| ParseFaultError::BadStep { step: step.to_owned() }))
            .transpose()?;
        Ok(Self { fault, strength, step, layer: layer.map(str::to_owned) })
    }
}

impl FaultSpec {
    /// The fault in a run: where no step is given from the first one on if it is a setting, else after a third of the run, when the model
    /// has learned something.
    pub fn plant(&self, options: &Options) -> Result<Plant, UnknownLayer> {
        let layer = match &self.layer {
            Some(layer) => Some(find_layer(options.model, layer)?),
            None => self.fault.needs_layer().then(|| options.model.middle_layer()),
        };
        let strength = self.strength.or(self.fault.default_strength()).unwrap_or(1.0);
        let default = if self.fault.is_setting() { 0 } else { options.steps / 3 };
        let planted = Planted { fault: self.fault, strength, at: self.step.unwrap_or(default), layer };
        Ok(Plant::new(planted, options.seed))
    }
}

fn parse_strength(fault: &dyn Fault, text: &str) -> Result<f64, ParseFaultError> {
    if fault.default_strength().is_none() {
        return Err(ParseFaultError::NoStrength { name: fault.name() });
    }
    let strength = text.parse::<f64>().ok().filter(|strength| strength.is_finite() && *strength > 0.0);
    let strength = strength.ok_or_else(|| ParseFaultError::BadStrength { strength: text.to_owned() })?;
    if strength > fault.highest_strength() {
        let (name, highest) = (fault.name(), fault.highest_strength().to_string());
        return Err(ParseFaultError::TooStrong { name, strength: text.to_owned(), highest });
    }
    Ok(strength)
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
    use clap::Parser;

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
    fn a_strength_stands_behind_the_name() {
        let strength = |text: &str| text.parse::<FaultSpec>().unwrap().strength;
        assert_eq!(
            (strength("lr-high"), strength("lr-high=30"), strength("bad-batches=0.05@9")),
            (None, Some(30.0), Some(0.05))
        );
    }

    #[test]
    fn a_setting_holds_from_the_start_and_other_faults_wait() {
        let begins = |text: &str| {
            let plant = text.parse::<FaultSpec>().unwrap().plant(&Options::parse_from(["t", "--steps", "30"])).unwrap();
            let active = |step| {
                plant.begin_step(step);
                plant.is_active()
            };
            (0..30).find(|&step| active(step))
        };
        assert_eq!((begins("scale-low"), begins("lr-high"), begins("scale-low@7")), (Some(0), Some(10), Some(7)));
    }

    #[test]
    fn mistakes_are_answered_with_what_there_is() {
        let error = |text: &str| text.parse::<FaultSpec>().unwrap_err().to_string();
        let unknown = error("undrflow");
        assert!(
            unknown.starts_with(
                "there is no fault named \"undrflow\"; there are underflow, overflow, inflated-gradient, nan"
            ),
            "{unknown}"
        );
        assert!(error("lr-high=0").contains("\"0\" is no strength"));
        assert!(error("nan=3").contains("has no strength"));
        assert!(error("bad-batches=2").contains("is 1 at the most"), "{}", error("bad-batches=2"));
        assert!(error("nan@soon").contains("\"soon\" is no step"));
        let spec: FaultSpec = "nan:fc9".parse().unwrap();
        let error = spec.plant(&Options::parse_from(["t"])).map(drop).unwrap_err().to_string();
        assert_eq!(error, "the model has no layer \"fc9\" (did you mean \"fc1\"?); its layers are fc1, fc2, fc3");
    }
}
