//! ## What it finds
//!
//! Updates so small beside the weights that nothing is learnt, while there is still everything to learn.
//!
//! ## Why it matters
//!
//! The loss stays where it began, and nothing is NaN. A common reason under FP16 is clipping the gradient's norm before it is unscaled: the norm that
//! is clipped is 65536 times too large, so what is left after unscaling is 65536 times too small. SGD stands still; Adam hides it.
//!
//! ## How it decides
//!
//! **Warning**: at five scanned steps in a row, from the tenth on, the median over the weight matrices of rms(update) / rms(weight) was below 1e-6,
//! and the loss is above 0.9 of its first value. Healthy runs have 2e-5 to 8e-3, and 3e-7 once they have converged, hence the condition on the loss;
//! runs clipped before unscaling have 2e-7 to 7e-7. A matrix whose gradient is zero counts as not moved, even if weight decay or momentum moves it.
//!
//! A ratio that falls little by little is a schedule, and one that rises is a warm-up: it must have dropped to a thirtieth within a step, or never
//! have been higher, and it must not have doubled since. Where the learning rate is known and fell as far, it is a schedule too.
//!
//! ## What to do
//!
//! Under a loss scaler, unscale before clipping: `scaler.unscale(&mut opt)?; opt.clip_grad_norm(1.0); scaler.step(&mut opt)?`. Otherwise raise the
//! learning rate: `opt.set_lr(lr)`. Where the gradient is exactly zero, look for what shuts it off, such as dead ReLU units or a `detach`.
//!
//! ## When it stays silent
//!
//! * On a loss that has come down by a tenth, and without a loss.
//! * In a warm-up, at the end of a schedule, on steps that a scaler skips.
//! * Where gradients underflow: `gradient-underflow`, `no-loss-scale` or `static-scale-wrong` names the cause, and this finding is listed under it.
//!   So too where forward is not finite, where weights are ruined, and after updates that kept above 0.05 of the weights (rule `exploding-updates`).
//! * Where FP16 or BF16 parameters are stepped: that is for `dead-updates`.

use super::text::{counted, measured, number, scale, share};
use super::update_advice::{may_update, stepped_in_low_precision};
use super::{
    Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict, non_finite_origin, underflow,
};
use crate::aggregate::{Aggregate, WeightStep, median};
use crate::observation::Probe;

const NAME: &str = "stalled-updates";
/// Ratio below which nothing moves.
const STALLED: Threshold = Threshold::new(
    NAME,
    "stalled",
    1e-6,
    "rms of the update over rms of the weights",
    "Healthy runs have 2e-5 to 8e-3, and 3e-7 only where they have converged; runs clipped before unscaling have 2e-7 to 7e-7.",
);
/// Scanned steps in a row.
const SAMPLES: Threshold = Threshold::new(
    NAME,
    "samples",
    5.0,
    "scanned steps in a row",
    "One small batch is no trend; with the condition on the loss three gave no false alarm on 28 healthy runs.",
);
/// Scanned steps before anything is said.
const SETTLED: Threshold = Threshold::new(
    NAME,
    "settled",
    10.0,
    "scanned steps",
    "Warm-ups and gates that start at zero move nothing in the first steps.",
);
/// Share of the first loss that must be left.
const UNLEARNT: Threshold = Threshold::new(
    NAME,
    "unlearnt",
    0.9,
    "share of the first loss",
    "Without this condition 2 to 6 of 28 healthy runs raised an alarm, with it none.",
);
/// Factor by which it must have dropped at once where it was higher before.
const DROP: Threshold = Threshold::new(
    NAME,
    "drop",
    30.0,
    "factor",
    "A schedule comes down little by little; clipping before unscaling drops by the loss scale at once.",
);
/// Factor by which it grows in a warm-up.
const GROWTH: Threshold =
    Threshold::new(NAME, "growth", 2.0, "factor", "A warm-up doubles over a few steps, a stall does not.");
/// An ordinary ratio, for the factor that is named.
const USUAL: f64 = 1e-3;
/// Ratio after which units are dead because they exploded.
const EXPLODED: Threshold = Threshold::new(
    NAME,
    "exploded",
    0.05,
    "norm of the update over norm of the weights",
    "Units that are dead because they exploded are the matter of rule exploding-updates.",
);
/// Part of the matrices whose gradient is zero where something shuts it off.
const MOST: Threshold = Threshold::new(
    NAME,
    "most",
    0.5,
    "share of matrices",
    "Matrices whose gradient is exactly zero, where something shuts it off.",
);

/// See the page of the rule.
pub struct StalledUpdates;

static INFO: RuleInfo = RuleInfo {
    code: "AMP406",
    name: NAME,
    severity: Severity::Warning,
    summary: "Updates are so small beside the weights that nothing is learnt, and the loss stays where it began.",
    source: include_str!("stalled_updates.rs"),
};

impl Rule for StalledUpdates {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Scans { steps: SETTLED.default as u64, applies: may_update }
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[STALLED, SAMPLES, SETTLED, UNLEARNT, DROP, GROWTH, EXPLODED, MOST]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        firing(aggregate, limits).map(|f| Verdict::Firing(Box::new(f))).into_iter().collect()
    }
}

fn firing(aggregate: &Aggregate, limits: &Limits) -> Option<Firing> {
    let stalled = stalled(aggregate, limits)?;
    let (first, last) = (stalled.first()?, stalled.last()?);
    let ratio = median(stalled.iter().filter_map(|s| s.median_ratio))?;
    let (initial, now) = (aggregate.losses.initial()?, aggregate.losses.present()?);
    let mut evidence = vec![
        measured("update_over_weights", ratio),
        counted("scanned_steps_in_a_row", stalled.len() as u64),
        measured("loss_at_first", initial),
        measured("loss", now),
    ];
    evidence.extend(last.lr.map(|lr| measured("lr", lr)));
    evidence.extend(last.gradient_norm.map(|g| measured("gradient_norm", g)));
    Some(Firing {
        severity: Severity::Warning,
        layer: String::new(),
        operator: String::new(),
        probe: Some(Probe::Update),
        since: first.step,
        strength: -ratio.max(f64::MIN_POSITIVE).log10(),
        evidence,
        explanation: format!(
            "For {} scanned steps the median weight matrix has moved by {} of itself a step (rms over rms; healthy runs have 2e-5 and more), and the loss is {}, of \
             {} at first. {}",
            stalled.len(),
            number(ratio),
            number(now),
            number(initial),
            gradient(aggregate, last, limits),
        ),
        remedy: remedy(aggregate, last, ratio, limits),
    })
}

/// The latest steps in a row at which the weights stood still for no good reason.
fn stalled<'a>(aggregate: &'a Aggregate, limits: &Limits) -> Option<Vec<&'a WeightStep>> {
    let weights = &aggregate.weights;
    let is_now = weights.steps.back()?.step == aggregate.latest.as_ref()?.index;
    let is_still = |s: &&WeightStep| s.median_ratio.is_some_and(|r| r < limits.of(&STALLED));
    let mut still: Vec<_> = weights.steps.iter().rev().take_while(is_still).collect();
    still.reverse();
    let unlearnt = aggregate.losses.has_fallen_to(limits.of(&UNLEARNT)) == Some(false);
    let is_soon = weights.stepped < limits.count(&SETTLED) || (still.len() as u64) < limits.count(&SAMPLES);
    if !is_now || is_soon || !unlearnt || is_explained(aggregate, limits) {
        return None;
    }
    let first = still[0];
    let came_down = match weights.steps.iter().rev().nth(still.len()) {
        Some(before) => came_down(before, first, limits),
        // How it came to this is forgotten, and had it dropped at once, that was told then.
        None => first.highest_before > limits.of(&DROP) * limits.of(&STALLED),
    };
    (!is_schedule(&still, limits) && !came_down && first.highest_before < limits.of(&EXPLODED)).then_some(still)
}

/// Whether the ratio, or the learning rate, has risen all the while.
fn is_schedule(still: &[&WeightStep], limits: &Limits) -> bool {
    let part = (still.len() / 3).max(1);
    let mean = |steps: &[&WeightStep]| steps.iter().filter_map(|s| s.median_ratio).sum::<f64>() / steps.len() as f64;
    let (first, last) = (&still[..part], &still[still.len() - part..]);
    let lr_rises = matches!((first[0].lr, last[part - 1].lr), (Some(from), Some(to)) if to > from);
    lr_rises || mean(last) > limits.of(&GROWTH) * mean(first)
}

/// Whether it came down to this as a schedule has it: little by little, or with the learning rate.
fn came_down(before: &WeightStep, first: &WeightStep, limits: &Limits) -> bool {
    let (Some(from), Some(to)) = (before.median_ratio, first.median_ratio) else { return false };
    let lr_fell = matches!((before.lr, first.lr), (Some(from), Some(to)) if to < from);
    lr_fell || from < limits.of(&DROP) * to
}

fn is_explained(aggregate: &Aggregate, limits: &Limits) -> bool {
    let is_ruined =
        !aggregate.non_finite.latest.forward_is_clean() || non_finite_origin::has_ruined_parameter(aggregate);
    is_ruined || underflow::is_fault(aggregate, limits) || !stepped_in_low_precision(aggregate).is_empty()
}

/// Part of the matrices whose gradient is exactly zero.
fn without_gradient(aggregate: &Aggregate) -> f64 {
    let matrices: Vec<_> = aggregate.weights.stepped_now().filter(|(w, _)| w.is_matrix).collect();
    let zero = matrices.iter().filter(|(_, c)| c.gradient_rms == Some(0.0)).count();
    zero as f64 / matrices.len().max(1) as f64
}

/// The first activation that is zero in every element.
fn dead_activation(aggregate: &Aggregate) -> Option<String> {
    let mut outputs = aggregate.latest_observations().filter(|(_, s)| s.site.probe == Probe::Activation);
    outputs.find(|(o, _)| o.stats.count > 0 && o.stats.zeros == o.stats.count).map(|(_, s)| s.site.label())
}

fn gradient(aggregate: &Aggregate, step: &WeightStep, limits: &Limits) -> String {
    match (step.gradient_norm, without_gradient(aggregate)) {
        (_, part) if part > limits.of(&MOST) => {
            let dead = dead_activation(aggregate)
                .map_or(String::new(), |label| format!("; the output of `{label}` is zero everywhere"));
            format!("The gradient is exactly zero in {} of the matrices{dead}.", share(part))
        }
        (Some(norm), _) => format!("The gradient's norm, unscaled, is {}.", number(norm)),
        (None, _) => String::new(),
    }
}

fn remedy(aggregate: &Aggregate, last: &WeightStep, ratio: f64, limits: &Limits) -> Remedy {
    if without_gradient(aggregate) > limits.of(&MOST) {
        return "Look for what shuts the gradient off: units that are dead (a ReLU whose inputs are all negative) or saturated, a `detach`, a branch that is not \
                taken. A lower learning rate from the start keeps units alive."
            .into();
    }
    if last.lr == Some(0.0) {
        return "The learning rate is 0: set one above 0, or look at the schedule that brought it there.".into();
    }
    let scaled = aggregate.latest.as_ref().and_then(|s| s.loss_scale).filter(|&s| s > 1.0);
    let by = number((USUAL / ratio.max(f64::MIN_POSITIVE)).min(1e6).round());
    let raise = match last.lr {
        Some(lr) => format!("raise the learning rate from {}, by a factor of up to {by}", number(lr)),
        None => format!("raise the learning rate, by a factor of up to {by}"),
    };
    let clipped = match scaled {
        Some(s) => format!(
            "If the gradient is clipped, call `scaler.unscale(&mut opt)?` before it: clipped while it carries the loss scale, it ends {} times too small. If it \
             is unscaled already, the norm that it is clipped to is far too small for it",
            scale(s)
        ),
        None => "If the gradient is clipped, the norm that it is clipped to is far too small for it".into(),
    };
    let norm = last.gradient_norm.map_or(String::new(), |norm| format!(" (its own norm is {})", number(norm)));
    format!(
        "{clipped}{norm}. If it is not clipped, look for what makes it so small, as a mean over too much or a small weight of the loss; or {raise}."
    )
    .into()
}

#[cfg(test)]
mod tests;
