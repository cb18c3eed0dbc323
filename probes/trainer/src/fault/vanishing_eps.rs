//! Adam on parameters in FP16, where its epsilon is zero.

use super::Fault;
use crate::optimizer::OptimizerKind;
use crate::options::Options;
use crate::precision::Precision;

pub(super) struct VanishingEps;

impl Fault for VanishingEps {
    fn name(&self) -> &'static str {
        "vanishing-eps"
    }

    fn about(&self) -> &'static str {
        "Adam steps parameters in FP16, where its epsilon of 1e-8 is 0: the weights are NaN after the first step"
    }

    fn is_setting(&self) -> bool {
        true
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        let precision = options.need_precision(Precision::Fp16Pure);
        precision.into_iter().chain(options.need_optimizer(OptimizerKind::Adam)).collect()
    }
}
