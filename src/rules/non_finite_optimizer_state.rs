//! ## What it finds
//!
//! State of the optimizer (momentum, Adam's moments) that is NaN or infinite, while the gradient that comes in is finite.
//!
//! ## Why it matters
//!
//! The state is a running average, which never gets rid of an infinity. One batch whose squared gradient overflows makes Adam's second moment
//! infinite, and from then on every update of that element is x / inf = 0: weights are finite, the loss is finite, and the parameter never moves
//! again. A NaN goes into the weights at once.
//!
//! ## How it decides
//!
//! **Error**, at once: the gradient of this step is finite, and what the optimizer's operator reads besides it and the parameter is not. All parameters of
//! which this holds are one finding, at the layer of the first.
//!
//! ## What to do
//!
//! Build the optimizer anew, or go back to a checkpoint from before that step. Then keep such a gradient from it: `opt.clip_grad_norm(1.0)` before
//! the step, or a `GradScaler`, which skips the step. State held in FP16 is infinite from gradients of 256 on: keep it in FP32 (`MasterWeights`).
//!
//! ## When it stays silent
//!
//! While the gradient is not finite either: rule `gradient-overflow` or `non-finite-origin` tells why. Where the optimizer's operators were not
//! scanned, or it keeps its state to itself.

use std::collections::BTreeSet;

use super::text::{count, counted, said};
use super::update_advice::some_of;
use super::{Firing, Limits, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, SiteSummary};
use crate::observation::{Observation, Probe, Site};
use crate::scan::Dtype;

/// See the page of the rule.
pub struct NonFiniteOptimizerState;

static INFO: RuleInfo = RuleInfo {
    code: "AMP503",
    name: "non-finite-optimizer-state",
    severity: Severity::Error,
    summary: "A moment of the optimizer is NaN or infinite while the gradients are finite.",
    source: include_str!("non_finite_optimizer_state.rs"),
};

impl Rule for NonFiniteOptimizerState {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn check(&self, aggregate: &Aggregate, _: &Limits) -> Vec<Verdict> {
        let states = aggregate.latest_observations().filter(|(_, s)| s.site.probe == Probe::OptimizerState);
        let seen: Vec<Seen<'_>> =
            states.filter(|(o, s)| o.stats.non_finite() > 0 && gradient_is_finite(aggregate, &s.site)).collect();
        if seen.is_empty() { Vec::new() } else { vec![Verdict::Firing(Box::new(firing(aggregate, &seen)))] }
    }
}

type Seen<'a> = (&'a Observation, &'a SiteSummary);

fn gradient_is_finite(aggregate: &Aggregate, of: &Site) -> bool {
    let mut gradients = aggregate
        .latest_observations()
        .filter(|(_, s)| s.site.probe == Probe::ParamGrad && s.site.layer == of.layer && s.site.tensor == of.tensor);
    gradients.next().is_some_and(|(o, _)| o.stats.non_finite() == 0)
        && gradients.all(|(o, _)| o.stats.non_finite() == 0)
}

/// All layers are one finding, at the first: one batch does it to all of them.
fn firing(aggregate: &Aggregate, seen: &[Seen<'_>]) -> Firing {
    let step = aggregate.latest.as_ref().map_or(0, |s| s.index);
    let (layer, operator) = seen.first().map_or(("", ""), |(_, s)| (&s.site.layer, &s.site.operator));
    let mut names: Vec<String> = seen.iter().map(|(_, s)| s.site.label()).collect();
    names.dedup();
    let layers: BTreeSet<&str> = seen.iter().map(|(_, s)| s.site.layer.as_str()).collect();
    let total = |of: fn(&Observation) -> u64| seen.iter().map(|(o, _)| of(o)).sum::<u64>();
    let (nan, inf) = (total(|o| o.stats.nan), total(|o| o.stats.pos_inf + o.stats.neg_inf));
    let in_fp16 = seen.iter().any(|(_, s)| s.site.dtype == Dtype::F16);
    let what = match nan {
        0 => {
            "An infinite second moment makes every update of its element x / inf = 0: these weights never move again, and nothing turns NaN"
        }
        _ => "It goes into the weights with the next update, if it has not already",
    };
    let then = if in_fp16 {
        "Step FP32 copies (`MasterWeights`): the square of a gradient of 256 is infinite in FP16."
    } else {
        "Then clip such gradients to a norm of 1 before the step, `opt.clip_grad_norm(1.0)`; where the norm itself overflows that makes zeros of them."
    };
    let mut remedy: super::Remedy = format!(
        "Build the optimizer anew, or go back to a checkpoint from before step {step}: an average does not get rid of an infinity. {then}"
    )
    .into();
    remedy = if in_fp16 { remedy.set("precision", "fp16-masters") } else { remedy.set("clip", 1.0) };
    Firing {
        severity: Severity::Error,
        layer: layer.to_owned(),
        operator: operator.to_owned(),
        probe: Some(Probe::OptimizerState),
        since: step,
        strength: (nan + inf) as f64,
        evidence: vec![
            counted("layers", layers.len() as u64),
            counted("nan_elements", nan),
            counted("infinite_elements", inf),
            counted("elements", total(|o| o.stats.count)),
            said("operator", operator),
        ],
        explanation: format!(
            "The optimizer's own tensors for {} of {} ({}) hold {nan} NaN and {inf} infinities as `{operator}` takes them, while the gradient is finite. {what}.",
            count(names.len(), "parameter"),
            count(layers.len(), "layer"),
            some_of(&names),
        ),
        remedy,
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::silence::{diagnose, first, found};
    use crate::scan::Dtype::F32;

    const INF: f64 = f64::INFINITY;

    fn run(gradient: &[f64]) -> Scenario {
        let mut run = Scenario::new();
        run.steps(4, |s, i| {
            s.loss(1.0).param_grad("fc", "weight", F32, if i >= 1 { gradient } else { &[1.0; 64] });
            if i >= 1 {
                s.optimizer_state("fc", "addcdiv_", "weight", &[INF; 64]);
            }
            let moved = if i >= 1 { vec![0.0; 64] } else { normal(64, 1e-3, i) };
            s.update("fc", "addcdiv_", "weight", &moved).param("fc", "weight", F32, &normal(64, 1.0, 7));
        });
        run
    }

    #[test]
    fn a_second_moment_that_overflowed_is_told_while_weights_and_loss_look_well() {
        let d = diagnose(&run(&[1e-3; 64]));
        let f = first(&d, "AMP503").expect("found");
        assert_eq!((f.layer.as_str(), f.onset_step, f.operator.as_str()), ("fc", 1, "addcdiv_"));
        assert!(f.explanation.contains("never move again"), "{}", f.explanation);
        assert_eq!(f.remedy.set[0].name, "clip");
    }

    #[test]
    fn one_batch_that_ruins_the_state_of_all_layers_is_one_finding_with_the_layers_counted() {
        let mut run = Scenario::new();
        run.steps(4, |s, i| {
            s.loss(1.0);
            for layer in ["fc1", "fc2", "fc3"] {
                s.param_grad(layer, "weight", F32, &[1e-3; 64]);
                s.optimizer_state(layer, "addcdiv_", "weight", &[if i >= 1 { INF } else { 1.0 }; 64]);
                s.update(layer, "addcdiv_", "weight", &normal(64, if i >= 1 { 0.0 } else { 1e-3 }, i));
                s.param(layer, "weight", F32, &normal(64, 1.0, 7));
            }
        });
        let d = diagnose(&run);
        assert_eq!(found(&d), ["AMP503"], "{:#?}", d.findings());
        let f = &d.findings()[0];
        assert_eq!((f.layer.as_str(), f.onset_step), ("fc1", 1));
        assert!(f.explanation.contains("for 3 parameters of 3 layers (`fc1.weight`, "), "{}", f.explanation);
        assert!(f.evidence.contains(&crate::rules::text::counted("layers", 3)), "{:?}", f.evidence);
    }

    #[test]
    fn behind_a_gradient_that_is_not_finite_it_is_a_consequence() {
        assert!(!found(&diagnose(&run(&[INF; 64]))).contains(&"AMP503"));
    }
}
