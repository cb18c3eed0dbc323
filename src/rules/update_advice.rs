//! What rules on updates have in common: whose weights are stepped, how names are listed, and the line that steps FP32 masters instead.

use super::Remedy;
use super::text::number;
use crate::aggregate::{Aggregate, Change, Weight};
use crate::scan::Dtype;

/// Names that are spelled out before the rest is counted.
const NAMED: usize = 3;

/// The parameters whose FP16 or BF16 memory the optimizer stepped at the latest step.
pub(super) fn stepped_in_low_precision(aggregate: &Aggregate) -> Vec<(&Weight, &Change)> {
    aggregate.weights.stepped_now().filter(|(_, change)| is_low(change.dtype)).collect()
}

/// Whether an optimizer was seen to step, or nobody has looked yet.
pub(super) fn may_update(aggregate: &Aggregate) -> bool {
    aggregate.instrument.full_steps == 0 || aggregate.weights.stepped > 0
}

/// Whether the optimizer steps parameters of such a dtype, or nobody has looked yet.
pub(super) fn may_step(aggregate: &Aggregate, of: fn(Dtype) -> bool) -> bool {
    aggregate.instrument.full_steps == 0 || aggregate.weights.stepped_now().any(|(_, change)| of(change.dtype))
}

/// Whether a dtype is one whose steps lose small updates.
pub(super) fn is_low(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F16 | Dtype::Bf16)
}

/// `FP16`, `BF16`.
pub(super) fn format_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 => "FP16",
        Dtype::Bf16 => "BF16",
        Dtype::F32 => "FP32",
        Dtype::F64 => "FP64",
    }
}

/// What makes the optimizer step FP32 copies in this run; `then` ends the sentence.
pub(super) fn step_masters(aggregate: &Aggregate, then: &str) -> Remedy {
    let lr = aggregate.latest.as_ref().and_then(|s| s.lr).map_or("lr".to_string(), number);
    let text = format!(
        "Let the optimizer step FP32 copies: `let mut opt = MasterWeights::new(&vs)?.build(config, {lr})?`, where `config` is what you \
         build on `vs` now (`nn::AdamW {{ wd: .. }}`, `nn::sgd(..)`), with its settings. The rest of the loop stays as it is{then}"
    );
    let is_bf16 = stepped_in_low_precision(aggregate).first().is_some_and(|(_, change)| change.dtype == Dtype::Bf16);
    Remedy::from(text).set("precision", if is_bf16 { "bf16-masters" } else { "fp16-masters" })
}

/// Whether the optimizer divides by a root of squared gradients, as Adam and RMSprop do.
pub(super) fn uses_second_moment(aggregate: &Aggregate) -> bool {
    let mut updates =
        aggregate.latest_observations().filter(|(_, s)| s.site.probe == crate::observation::Probe::Update);
    updates.any(|(_, s)| divides(&s.site.operator))
}

/// Whether this operator is one of an optimizer that divides by a root of squared gradients.
pub(super) fn divides(operator: &str) -> bool {
    operator.contains("addcdiv") || operator.contains("adam")
}

/// A few of the names, the rest counted: `` `fc1.weight`, `fc2.weight` and 3 more ``.
pub(super) fn some_of(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(NAMED).map(|n| format!("`{n}`")).collect();
    match names.len().saturating_sub(NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
