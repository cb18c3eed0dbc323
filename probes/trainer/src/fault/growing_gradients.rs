//! Gradients that grow under a loss scale that cannot give way.

use super::Fault;
use crate::optimizer::OptimizerKind;
use crate::options::Options;

pub(super) struct GrowingGradients;

impl Fault for GrowingGradients {
    fn name(&self) -> &'static str {
        "growing-gradients"
    }

    fn about(&self) -> &'static str {
        "gradients grow by an octave in eight steps (STRENGTH 0.125 octaves a step), and the learning rate falls as they grow, under a static loss scale of 2^14"
    }

    fn default_strength(&self) -> Option<f64> {
        Some(0.125)
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        let overridden = options.static_scale.is_some_and(|scale| scale != 16_384.0);
        options.static_scale = Some(16_384.0);
        let flags = options.need_scaler().into_iter().chain(options.need_optimizer(OptimizerKind::Sgd));
        flags.chain(overridden.then(|| "--static-scale 16384".to_owned())).collect()
    }

    fn gradient_factor(&self, strength: f64, steps: u64) -> f64 {
        (strength * steps as f64).exp2()
    }

    /// The steps of plain SGD stay what they were: it is the range of FP16 that is in danger, and not the training.
    fn lr_factor_after(&self, strength: f64, steps: u64) -> f64 {
        1.0 / self.gradient_factor(strength, steps)
    }
}
