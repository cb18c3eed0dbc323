//! In what a run held its gradients, and which of them FP16 would have to carry.

use crate::aggregate::{Aggregate, FEWEST_ELEMENTS, SiteSummary};
use crate::observation::{Probe, Site};
use crate::scan::Dtype;

/// In what a run held its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// In FP16: what lay below 2^-25, at the loss scale in force, was gone before it could be seen.
    Fp16,
    /// In BF16: nothing was lost.
    Bf16,
    /// In FP32: nothing was lost.
    Fp32,
}

/// Operators that autocast runs in FP32, so that the gradient of their output is FP32 too; as CUDA's does it.
const RUN_IN_FP32: [&str; 34] = [
    "softmax",
    "_softmax",
    "log_softmax",
    "_log_softmax",
    "nll_loss",
    "nll_loss_nd",
    "nll_loss_forward",
    "nll_loss2d",
    "cross_entropy",
    "cross_entropy_loss",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "batch_norm",
    "norm",
    "linalg_vector_norm",
    "exp",
    "log",
    "log10",
    "log2",
    "log1p",
    "pow",
    "sum",
    "prod",
    "cumsum",
    "softplus",
    "rsqrt",
    "reciprocal",
];

/// Whether autocast would run the operator of this tensor in FP32.
pub(super) fn is_left_in_fp32(site: &Site) -> bool {
    let operator = site.operator.split('#').next().unwrap_or("");
    RUN_IN_FP32.contains(&operator)
}

impl Held {
    /// How the gradients of this run were held: in FP16 where any activation's was, else in BF16 where any was.
    pub fn of(aggregate: &Aggregate) -> Self {
        let any = |dtype| aggregate.sites.iter().any(|s| s.site.probe.is_gradient() && s.site.dtype == dtype);
        match (any(Dtype::F16), any(Dtype::Bf16)) {
            (true, _) => Self::Fp16,
            (false, true) => Self::Bf16,
            (false, false) => Self::Fp32,
        }
    }

    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
            Self::Fp32 => "fp32",
        }
    }

    /// Whether FP16 carries this gradient, or would: those held in 16 bits, those cast to them, and those of parameters, which autocast computes in
    /// 16 bits. In a run in FP32, all but those of operators that autocast leaves in FP32 and of a few numbers, as a loss.
    pub(in crate::rules) fn carries(self, aggregate: &Aggregate, summary: &SiteSummary) -> bool {
        let site = &summary.site;
        match (self, site.probe) {
            (_, Probe::CastGrad) => true,
            (Self::Fp16, probe) => probe.is_gradient() && aggregate.went_through_fp16(site),
            (_, Probe::ParamGrad) => true,
            (Self::Bf16, Probe::ActivationGrad) => site.dtype == Dtype::Bf16,
            (Self::Fp32, Probe::ActivationGrad) => {
                summary.count / summary.samples.max(1) >= FEWEST_ELEMENTS && !is_left_in_fp32(site)
            }
            _ => false,
        }
    }
}
