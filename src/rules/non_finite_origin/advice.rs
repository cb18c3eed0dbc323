//! What usually helps with an operator that made something that is not finite.

use super::super::Remedy;
use super::super::range::{Reach, keep_in_range};
use super::super::text::{base_name, layer_name};
use crate::aggregate::{Aggregate, Origin};
use crate::observation::Site;
use crate::scan::Dtype;

/// Where it was made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    Backward,
}

/// What usually helps with this operator.
pub(super) fn advice_for(aggregate: &Aggregate, site: &Site, origin: &Origin, pass: Pass) -> Remedy {
    let layer = layer_name(site);
    let text = match base_name(&site.operator) {
        "log" | "log2" | "log10" | "log1p" => {
            format!(
                "`{}` of layer `{layer}` was given zero or less: clamp its input to 1e-6 or more, or use a fused form (log_softmax, cross-entropy on logits).",
                site.operator
            )
        }
        "div" | "reciprocal" | "rsqrt" | "sqrt" | "pow" | "norm" | "linalg_vector_norm" | "std" | "var" => format!(
            "`{}` of layer `{layer}` met a zero or a negative number: add an epsilon to its input, in FP16 one above 2^-24 = 6e-8.",
            site.operator
        ),
        "softmax" | "_softmax" | "log_softmax" | "_log_softmax" => {
            format!(
                "`{}` of layer `{layer}` was given a row without a finite element; look at the mask and at the scores before it.",
                site.operator
            )
        }
        _ if origin.inf > 0 && pass == Pass::Forward => return keep_in_range(aggregate, site),
        _ if origin.inf > 0 && site.dtype == Dtype::F16 => {
            let reach = Reach::of_origin(aggregate, origin);
            let text = format!(
                "Take the factor out of `{}` of layer `{layer}` that blows up what passes backward, or {}.",
                site.operator,
                reach.clause(aggregate)
            );
            return reach.set(text.into(), aggregate);
        }
        _ => format!(
            "Look at `{}` of layer `{layer}` and its inputs at step {}; keep the layer in FP32 to see whether range is the cause.",
            site.operator, origin.step
        ),
    };
    text.into()
}
