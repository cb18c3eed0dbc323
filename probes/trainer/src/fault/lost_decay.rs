//! A weight decay that is smaller than the parameters can tell.

use super::Fault;
use crate::optimizer::OptimizerKind;
use crate::options::Options;
use crate::precision::Precision;

pub(super) struct LostDecay;

impl Fault for LostDecay {
    fn name(&self) -> &'static str {
        "lost-decay"
    }

    fn about(&self) -> &'static str {
        "AdamW steps parameters in BF16, which round its decay of 3e-5 of a weight away"
    }

    fn is_setting(&self) -> bool {
        true
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        let precision = options.need_precision(Precision::Bf16Pure);
        precision.into_iter().chain(options.need_optimizer(OptimizerKind::Adamw)).collect()
    }
}
