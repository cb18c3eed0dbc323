//! What one step did to all parameters taken together.

use super::Change;
use crate::aggregate::losses::median;
use crate::observation::Step;
use crate::scan::{Dtype, Fidelity};

/// What one step did to the weights as a whole. Ratios and norms are over the weight matrices: biases, gains and gates begin at values that
/// say nothing of their scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WeightStep {
    /// The step.
    pub step: u64,
    /// The learning rate, where it is known.
    pub lr: Option<f64>,
    /// Whether a scaler withheld the step: then what changed the weights was not the optimizer.
    pub withheld: bool,
    /// Root mean square of all updates; 0 where there is none.
    pub update_rms: f64,
    /// Root mean square of the gradient, divided by the loss scale, over what was updated.
    pub gradient_rms: Option<f64>,
    /// Median over the matrices of rms(update) / rms(weight), as [`Change::ratio`] has it.
    pub median_ratio: Option<f64>,
    /// Norm of all updates over the norm of all weights; `None` where the weights are all zero.
    pub energy_ratio: Option<f64>,
    /// Norm of the gradient, divided by the loss scale.
    pub gradient_norm: Option<f64>,
    /// The highest `energy_ratio` that the run had kept for three steps before this one; 0 at first.
    pub highest_before: f64,
    /// What FP16 and BF16 parameters kept of the updates that the optimizer gave to them; of all parameters.
    pub stepped: Fidelity,
    /// What they kept of the weight decay.
    pub decay: Fidelity,
    /// What the model's weights would have kept of the updates that their FP32 copies got.
    pub without_masters: Fidelity,
}

/// All parameters of one step, while it is being added up.
#[derive(Default)]
pub(super) struct Sum {
    pub(super) parameters: u64,
    ratios: Vec<f64>,
    elements: u64,
    updates: f64,
    weights: f64,
    gradients: f64,
    gradients_seen: bool,
    fidelity: WeightStep,
}

impl Sum {
    pub(super) fn add(&mut self, is_matrix: bool, change: &Change) {
        self.parameters += 1;
        if change.dtype == Dtype::F16 || change.dtype == Dtype::Bf16 {
            change.rounding.stepped.iter().for_each(|f| self.fidelity.stepped.merge(f));
            change.rounding.decay.iter().for_each(|f| self.fidelity.decay.merge(f));
        }
        change.rounding.without_masters.iter().for_each(|f| self.fidelity.without_masters.merge(f));
        if is_matrix {
            let energy = |rms: f64| rms * rms * change.elements as f64;
            self.ratios.extend(change.ratio());
            self.elements += change.elements;
            self.updates += energy(change.update_rms);
            self.weights += change.weight_rms.map_or(0.0, energy);
            self.gradients += change.gradient_rms.map_or(0.0, energy);
            self.gradients_seen |= change.gradient_rms.is_some();
        }
    }

    pub(super) fn finish(self, step: &Step, highest_before: f64) -> WeightStep {
        let rms = |energy: f64| (energy / self.elements.max(1) as f64).sqrt();
        WeightStep {
            step: step.index,
            lr: step.lr,
            withheld: step.skipped(),
            update_rms: rms(self.updates),
            gradient_rms: self.gradients_seen.then(|| rms(self.gradients)),
            median_ratio: median(self.ratios.into_iter()),
            energy_ratio: (self.weights > 0.0).then(|| (self.updates / self.weights).sqrt()),
            gradient_norm: self.gradients_seen.then(|| self.gradients.sqrt()),
            highest_before,
            ..self.fidelity
        }
    }
}
