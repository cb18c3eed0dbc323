//! A loss scaler where nothing is held in FP16.

use super::Fault;
use crate::options::Options;
use crate::precision::Precision;

pub(super) struct NeedlessScaler;

impl Fault for NeedlessScaler {
    fn name(&self) -> &'static str {
        "needless-scaler"
    }

    fn about(&self) -> &'static str {
        "a loss scaler over BF16, which has the range of FP32"
    }

    fn is_setting(&self) -> bool {
        true
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        if options.precision.scales_loss() {
            options.need_precision(Precision::Bf16).into_iter().collect()
        } else {
            Vec::new()
        }
    }

    fn adds_scaler(&self) -> bool {
        true
    }
}
