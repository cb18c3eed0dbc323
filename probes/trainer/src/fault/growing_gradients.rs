//! Gradients that grow under a loss scale that cannot give way.

use super::Fault;
use crate::options::Options;

pub(super) struct GrowingGradients;

impl Fault for GrowingGradients {
    fn name(&self) -> &'static str {
        "growing-gradients"
    }

    fn about(&self) -> &'static str {
        "gradients grow by an octave in eight steps (STRENGTH 0.125 octaves a step) under a static loss scale of 2^14"
    }

    fn default_strength(&self) -> Option<f64> {
        Some(0.125)
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        let overridden = options.static_scale.is_some_and(|scale| scale != 16_384.0);
        options.static_scale = Some(16_384.0);
        let flags = options.need_scaler().into_iter();
        flags.chain(overridden.then(|| "--static-scale 16384".to_owned())).collect()
    }

    fn gradient_factor(&self, strength: f64, steps: u64) -> f64 {
        (strength * steps as f64).exp2()
    }
}
