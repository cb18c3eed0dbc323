//! What usually helps with an operator that made something that is not finite.

use super::super::Remedy;
use super::super::graph::Graph;
use super::super::range::{Naming, keep_in_range, without_factor};
use super::super::text::{base_name, layer_name, sentence};
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
        _ if origin.inf > 0 && pass == Pass::Forward => return keep_in_range(aggregate, &Graph::of(aggregate), site),
        _ if origin.inf > 0 && site.dtype == Dtype::F16 => {
            let change = without_factor(aggregate, origin, Naming::Operator);
            return change.reworded(|change| sentence(change) + ".");
        }
        // A parameter: no operator of its own made it.
        "" => format!(
            "Look at what layer `{layer}` computes with `{}`, and its inputs at step {}; keep the layer in FP32 to see whether range is the cause.",
            site.tensor, origin.step
        ),
        _ => format!(
            "Look at `{}` of layer `{layer}` and its inputs at step {}; keep the layer in FP32 to see whether range is the cause.",
            site.operator, origin.step
        ),
    };
    text.into()
}
