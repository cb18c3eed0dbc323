//! The state of a scaler as JSON under PyTorch's names, so that a checkpoint of either can be read by the other.

use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::builder::{valid_backoff_factor, valid_growth_factor, valid_growth_interval, valid_scale};
use super::policy::{Policy, ScaleState};
use super::{GradScaler, ScalerError};

/// What `torch.amp.GradScaler.state_dict()` holds, and the one thing it has not.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    scale: f64,
    growth_factor: f64,
    backoff_factor: f64,
    growth_interval: u64,
    #[serde(rename = "_growth_tracker")]
    growth_tracker: u64,
    /// Non-finite steps in a row; written only where hysteresis is in use.
    #[serde(rename = "_hysteresis_tracker", default, skip_serializing_if = "is_zero")]
    bad_steps: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl GradScaler {
    /// The state to save in a checkpoint: `scale`, `growth_factor`, `backoff_factor`, `growth_interval` and `_growth_tracker`, as PyTorch has
    /// it; empty for a disabled scaler. Save it after `update`: what happened since is not part of it.
    ///
    /// A scaler that is counting non-finite steps because of its hysteresis adds `_hysteresis_tracker`.
    pub fn state_dict(&self) -> Value {
        if !self.enabled {
            return Value::Object(Map::new());
        }
        let hysteresis_counts = self.policy.hysteresis > 1;
        let saved = Saved {
            scale: f64::from(self.state.scale),
            growth_factor: self.policy.growth_factor,
            backoff_factor: self.policy.backoff_factor,
            growth_interval: self.policy.growth_interval,
            growth_tracker: self.state.growth_tracker,
            bad_steps: if hysteresis_counts { self.state.bad_steps } else { 0 },
        };
        serde_json::to_value(saved).expect("finite numbers under string keys are always JSON")
    }

    /// Goes on from a saved state, whoever wrote it: this crate or PyTorch. A disabled scaler takes no notice.
    ///
    /// As in PyTorch the factors and the interval of the state replace those given at construction, so a static scale becomes
    /// what the state says. Floor, ceiling and hysteresis are not part of a state and stay; a scale outside the bounds is brought to the nearer one.
    /// A scale of 0 (PyTorch's can fall there) is refused unless there is a floor: it can never grow again.
    pub fn load_state_dict(&mut self, state: &Value) -> Result<(), ScalerError> {
        if !self.enabled {
            return Ok(());
        }
        if state.as_object().is_some_and(Map::is_empty) {
            return Err(ScalerError::EmptyState);
        }
        let saved = Saved::deserialize(state).map_err(ScalerError::MalformedState)?;
        let policy = self.policy_of(&saved)?;
        let scale =
            if saved.scale == 0.0 && policy.min_scale.is_some() { 0.0 } else { valid_scale("scale", saved.scale)? };
        self.policy = policy;
        self.set_state(ScaleState {
            scale: self.policy.bounded(scale),
            growth_tracker: saved.growth_tracker.min(self.policy.growth_interval - 1),
            bad_steps: saved.bad_steps.min(self.policy.hysteresis),
        })?;
        self.init_scale = self.state.scale;
        self.announced = None;
        Ok(())
    }

    /// Writes [`state_dict`](Self::state_dict) to a file: aside first, then renamed, so that a kill leaves the old file or the new one.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), ScalerError> {
        let path = path.as_ref();
        let text = format!("{:#}\n", self.state_dict());
        write_whole(path, &text).map_err(|source| ScalerError::File { verb: "written", source, path: path.to_owned() })
    }

    /// Reads a file that [`save`](Self::save) wrote, or a `json.dump` of PyTorch's `state_dict()`.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<(), ScalerError> {
        let path = path.as_ref();
        let bytes =
            fs::read(path).map_err(|source| ScalerError::File { verb: "read", source, path: path.to_owned() })?;
        let not_json = |source| ScalerError::NotJson { source, path: path.to_owned() };
        self.load_state_dict(&serde_json::from_slice(&bytes).map_err(not_json)?)
    }

    fn policy_of(&self, saved: &Saved) -> Result<Policy, ScalerError> {
        let is_static = saved.growth_factor == 1.0 && saved.backoff_factor == 1.0;
        let factor =
            |valid: fn(f64) -> Result<f64, ScalerError>, factor| if is_static { Ok(factor) } else { valid(factor) };
        Ok(Policy {
            growth_factor: factor(valid_growth_factor, saved.growth_factor)?,
            backoff_factor: factor(valid_backoff_factor, saved.backoff_factor)?,
            growth_interval: valid_growth_interval(saved.growth_interval)?,
            ..self.policy.clone()
        })
    }
}

fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".partial");
    fs::write(&aside, text)?;
    fs::rename(&aside, path)
}
