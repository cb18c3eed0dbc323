//! What a shadow has to know of the run.

use ampdoctor::observation::ScalerEvent;

use super::params::Role;
use super::state::State;
use crate::shadow::{Held, Original};

impl State {
    /// Parameters and buffers, each with its FP32 copy where there is one; the copies themselves are no part of the model.
    pub(super) fn originals(&self) -> Vec<Original> {
        let known = self.params.iter().enumerate().filter(|(_, param)| param.role != Role::Master);
        known
            .map(|(index, param)| Original {
                layer: self.layers.name(param.layer).to_owned(),
                name: param.tensor_name.to_string(),
                tensor: param.tensor.shallow_clone(),
                parameter: param.parameter,
                master: self.params.master_of(index).and_then(|m| self.params.get(m)).map(|m| m.tensor.shallow_clone()),
            })
            .collect()
    }

    /// What is known of the gradients that the parameters hold now, in step `step` of the run.
    ///
    /// Our own scaler tells of each backward at every step. Where there is none the observer counts them, at the steps that it watches in full.
    pub(super) fn held(&self, step: u64) -> Held {
        let has = |wanted: fn(&ScalerEvent) -> bool| self.scaler_events.iter().filter(|event| wanted(event)).count();
        let backward = has(|event| matches!(event, ScalerEvent::Scaled { .. }));
        let done = has(|event| !matches!(event, ScalerEvent::Scaled { .. })) > 0;
        if let Some(scale) = self.scale_in_force {
            return Held { is_own: backward == 1 && !done, scale: Some(scale), scale_is_known: true };
        }
        let unscaled = self.foreign.acted();
        Held {
            is_own: self.full && self.trace.passes == 1 && !self.updated && !unscaled,
            scale: self.foreign.in_force,
            // After a whole step a scaler would have been seen, if only in the step that was watched.
            scale_is_known: step > 0,
        }
    }
}
