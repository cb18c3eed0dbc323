//! ## What it finds
//!
//! FP16 activations so small that FP16 keeps only a few bits of each number.
//!
//! ## Why it matters
//!
//! Below 2^-14 = 6.1e-5 each halving costs a bit, and at 2^-25 = 3.0e-8 nothing is left. The next layer is handed a vector that points elsewhere than
//! in FP32. No loss scale helps, for it multiplies gradients, not activations.
//!
//! ## How it decides
//!
//! By Ehat of the activation: **warning** above 1e-4, **error** above 1e-2, each in 3 scanned steps in a row, for tensors of 64 elements or more.
//! Never by the smallest element: 85 % of healthy activations hold numbers below 1e-3.
//!
//! The layer named is the first in the order of forward.
//!
//! ## What to do
//!
//! Make the number larger where it arises: multiply by a power of two before the operator and take it back further on, or normalise the output. Or
//! run that layer in FP32, `no_autocast(|| layer.forward(&x.to_kind(Kind::Float)))`, or under BF16 autocast. Neither does where a normalisation comes
//! next and what it is given is far below the root of its epsilon (3e-3 for the usual 1e-5): it then divides by the epsilon alone, in FP32 too.
//!
//! ## When it stays silent
//!
//! On zeros, which say nothing by themselves. Where the size does not matter to what comes next: added to something much larger (a branch behind a gate that
//! opens slowly), given to a softmax, an exponential or a sigmoid (logits near zero), or summed up to the loss. On FP32 and BF16.

use super::graph::Graph;
use super::range::{Out, Reach, swamped_behind};
use super::text::{layer_name, measured, number, power_of_two, share};
use super::{Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, FEWEST_ELEMENTS, SiteSummary};
use crate::numerics::Underflow;
use crate::observation::{Observation, Probe};
use crate::scan::{Dtype, Stats};

/// See the page of the rule.
pub struct ActivationUnderflow;

static INFO: RuleInfo = RuleInfo {
    code: "AMP104",
    name: "activation-underflow",
    severity: Severity::Error,
    summary: "FP16 activations are so small that FP16 loses their direction.",
    source: include_str!("activation_underflow.rs"),
};

static LOSING: Threshold = Threshold {
    rule: "activation-underflow",
    name: "ehat",
    default: 1e-4,
    unit: "predicted 1 - cosine",
    reason: "In 11,552 activations of 28 healthy runs it was 1.7e-8 everywhere; gradients of runs that were harmed had 2.2e-3 or more.",
};

static LOST: Threshold = Threshold {
    rule: "activation-underflow",
    name: "ehat-error",
    default: 1e-2,
    unit: "predicted 1 - cosine",
    reason: "From here on the direction of a single tensor is damaged: the level at which the rule on gradients names a layer.",
};

static SAMPLES: Threshold = Threshold {
    rule: "activation-underflow",
    name: "samples",
    default: 3.0,
    unit: "scanned steps in a row",
    reason: "What the rules on underflow take; it costs two samples of delay.",
};

/// Operators to which only differences matter.
const SHIFT_INVARIANT: [&str; 9] = [
    "softmax",
    "log_softmax",
    "_softmax",
    "_log_softmax",
    "exp",
    "sigmoid",
    "logsumexp",
    "cross_entropy_loss",
    "binary_cross_entropy_with_logits",
];
/// Operators that add.
const ADDS: [&str; 2] = ["add", "sub"];
/// Operators behind which it is decided.
const PASSES: [&str; 12] = [
    "to",
    "_to_copy",
    "dropout",
    "view",
    "reshape",
    "transpose",
    "flatten",
    "contiguous",
    "clone",
    "masked_fill",
    "cat",
    "stack",
];
/// A sum as large as this has a spacing of FP16's smallest number or more: what is rounded below that is lost in the sum anyhow.
const SWALLOWS: f64 = 6.103515625e-5 * 2.0;
/// Operators looked through, one behind the other.
const DEPTH: u32 = 4;

impl Rule for ActivationUnderflow {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Scans { steps: 3, applies: may_have_fp16_activations }
    }

    fn thresholds(&self) -> &'static [Threshold] {
        static ALL: [Threshold; 3] = [LOSING, LOST, SAMPLES];
        &ALL
    }

    fn thresholds_by_layer(&self) -> &'static [&'static str] {
        &["ehat", "ehat-error", "samples"]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        if !aggregate.latest_observations().any(|(o, s)| is_losing(o, s, limits)) {
            return Vec::new();
        }
        let graph = Graph::of(aggregate);
        let harmed = graph.iter().filter(|(place, node)| {
            is_losing(node.observation, node.summary, limits) && !is_harmless(&graph, *place, DEPTH)
        });
        let harmed: Vec<usize> = harmed.map(|(place, _)| place).collect();
        let Some(&first) = harmed.first() else { return Vec::new() };
        vec![Verdict::Firing(Box::new(firing(aggregate, &graph, first, harmed.len() - 1, limits)))]
    }
}

fn may_have_fp16_activations(aggregate: &Aggregate) -> bool {
    let is_fp16 = |s: &SiteSummary| s.site.probe == Probe::Activation && s.site.dtype == Dtype::F16;
    aggregate.instrument.full_steps == 0 || aggregate.sites.iter().any(is_fp16)
}

/// What FP16 did to an activation; `None` for what is too small a tensor, zero throughout or not finite.
fn ehat(stats: &Stats) -> Option<f64> {
    if stats.count < FEWEST_ELEMENTS || stats.non_finite() > 0 {
        return None;
    }
    Underflow::of(&stats.exponents).map(|u| u.ehat)
}

fn is_losing(observation: &Observation, summary: &SiteSummary, limits: &Limits) -> bool {
    let site = &summary.site;
    // A tensor that reaches FP16's normal numbers is far from it: nearly all are done with here.
    if site.probe != Probe::Activation || site.dtype != Dtype::F16 || observation.stats.max_abs >= 6.103515625e-5 {
        return false;
    }
    let limit = limits.at(&LOSING, &site.layer);
    let loses = |stats: &Stats| ehat(stats).is_some_and(|e| e > limit);
    let samples = limits.at(&SAMPLES, &site.layer) as usize;
    loses(&observation.stats) && summary.last(samples).is_some_and(|mut last| last.all(|s| loses(&s.stats)))
}

/// Whether nothing depends on how well the tensor is held.
fn is_harmless(graph: &Graph<'_>, place: usize, depth: u32) -> bool {
    let mut consumers = graph.consumers(place).peekable();
    let known = consumers.peek().is_some();
    known
        && consumers.all(|at| {
            let node = graph.node(at);
            let name = node.name();
            SHIFT_INVARIANT.contains(&name)
                || node.stats().count == 1
                || ADDS.contains(&name) && node.stats().max_abs >= SWALLOWS
                || PASSES.contains(&name) && depth > 0 && is_harmless(graph, at, depth - 1)
        })
}

fn firing(aggregate: &Aggregate, graph: &Graph<'_>, place: usize, others: usize, limits: &Limits) -> Firing {
    let node = graph.node(place);
    let (site, stats) = (node.site(), node.stats());
    let Some(underflow) = Underflow::of(&stats.exponents) else {
        unreachable!("an activation that loses has elements")
    };
    let limit = limits.at(&LOSING, &site.layer);
    let loses = |s: &&crate::aggregate::Sample| ehat(&s.stats).is_some_and(|e| e > limit);
    let since = node.summary.recent.iter().rev().take_while(loses).last().map_or(0, |s| s.step);
    let also = match others {
        0 => String::new(),
        1 => " One activation after it fares no better.".into(),
        n => format!(" {n} activations after it fare no better."),
    };
    let up = (1.0 / stats.max_abs).log2().floor().exp2();
    Firing {
        severity: if underflow.ehat > limits.at(&LOST, &site.layer) { Severity::Error } else { Severity::Warning },
        layer: site.layer.clone(),
        operator: site.operator.clone(),
        probe: Some(Probe::Activation),
        since,
        strength: underflow.ehat,
        evidence: vec![
            measured("ehat", underflow.ehat),
            measured("max_abs", stats.max_abs),
            measured("fading_share", underflow.fading_share),
            measured("lost_share_estimate", underflow.lost_share),
            measured("zero_share", stats.zeros as f64 / stats.count.max(1) as f64),
        ],
        explanation: format!(
            "The output of `{}` is at most {} ({}) in FP16, whose normal numbers end at 2^-14: {} of its non-zero elements are held in fading precision, and of its \
             direction 1 - cosine = {} is lost, by estimate. A loss scale does not move activations.{also}",
            site.label(),
            number(stats.max_abs),
            power_of_two(stats.max_abs),
            share(underflow.fading_share),
            number(underflow.ehat),
        ),
        remedy: remedy(aggregate, graph, place, up),
    }
}

fn remedy(aggregate: &Aggregate, graph: &Graph<'_>, place: usize, up: f64) -> Remedy {
    if let Some(norm) = swamped_behind(graph, place) {
        let (site, max) = (graph.node(place).site(), graph.node(place).stats().max_abs);
        return Remedy::from(format!(
            "Bring the output of `{}` of layer `{}` up by {}, by a factor before `{norm}`. FP32 or BF16 alone does not do: that normalisation adds its epsilon (1e-5 \
             unless it was set) to a variance of {} at the most, and hands on next to nothing in any format.",
            site.operator,
            layer_name(site),
            power_of_two(up),
            power_of_two(max * max)
        ));
    }
    let (reach, site) = (Reach::of_output(graph, place, Out::Small), graph.node(place).site());
    let text = format!(
        "Bring the output of `{}` of layer `{}` up by {}: by a factor before it that is taken back behind it, or by a normalisation. Or {}.",
        site.operator,
        layer_name(site),
        power_of_two(up),
        reach.clause(aggregate)
    );
    reach.set(text.into(), aggregate)
}

#[cfg(test)]
mod tests {
    use crate::observation::scenario::{Scenario, StepBuilder, normal};
    use crate::rules::Severity;
    use crate::rules::silence::{diagnose, first};
    use crate::scan::Dtype::{self, Bf16, F16};

    /// Six steps of an activation of this size, and of what `next` does with it.
    fn run(deviation: f64, dtype: Dtype, next: impl Fn(&mut StepBuilder<'_>, u64)) -> Scenario {
        let mut run = Scenario::new();
        run.steps(6, |s, i| {
            s.loss(1.0).activation("fc1", "linear", F16, &normal(256, 1.0, i));
            let size = if i >= 2 { deviation } else { 1.0 };
            s.activation("fc2", "linear", dtype, &normal(256, size, i)).from(&["fc1/linear"]);
            next(s, i);
            s.gradient("fc1", "linear", F16, &normal(64, 1.0, i));
        });
        run
    }

    fn silent(run: &Scenario) -> bool {
        first(&diagnose(run), "AMP104").is_none()
    }

    #[test]
    fn an_activation_of_a_millionth_is_found_in_its_layer_from_its_step_on() {
        let d = diagnose(&run(1e-6, F16, |s, i| {
            let size = if i >= 2 { 1e-6 } else { 1.0 };
            s.activation("fc3", "linear", F16, &normal(256, size, i)).from(&["fc2/linear"]);
        }));
        let f = first(&d, "AMP104").expect("found");
        assert_eq!((f.layer.as_str(), f.onset_step, f.severity), ("fc2", 2, Severity::Warning), "{f:#?}");
        assert!(f.explanation.contains("One activation after it"), "{}", f.explanation);
        let worse = diagnose(&run(1e-7, F16, |_, _| {}));
        assert_eq!(worse.findings()[0].severity, Severity::Error);
    }

    #[test]
    fn before_a_normalisation_whose_epsilon_swamps_it_no_precision_is_the_remedy() {
        let with = |out: f64| {
            let d = diagnose(&run(1e-7, F16, |s, i| {
                let out = if i >= 2 { out } else { 1.0 };
                s.activation("bn", "batch_norm", F16, &normal(256, out, i)).from(&["fc2/linear"]);
            }));
            first(&d, "AMP104").expect("found").remedy.clone()
        };
        // What is left is the bias.
        let swamped = with(0.1);
        assert!(swamped.set.is_empty() && swamped.text.contains("by a factor before `bn/batch_norm`"), "{swamped:?}");
        // One with a smaller epsilon makes ordinary numbers of it.
        assert_eq!(with(1.0).set[0].name, "fp32_layers");
    }

    #[test]
    fn small_numbers_that_fp16_or_bf16_holds_are_nothing() {
        for (deviation, dtype) in [(1e-3, F16), (1e-9, Bf16)] {
            assert!(silent(&run(deviation, dtype, |_, _| {})), "{deviation} {dtype:?}");
        }
    }

    #[test]
    fn what_is_added_to_something_large_may_be_small() {
        assert!(silent(&run(1e-6, F16, |s, i| {
            s.activation("fc2", "dropout", F16, &normal(256, 1e-6, i)).from(&["fc2/linear"]);
            s.activation("block", "add", F16, &normal(256, 1.0, i)).from(&["fc1/linear", "fc2/dropout"]);
        })));
    }

    #[test]
    fn logits_near_zero_and_a_loss_are_no_fault() {
        for operator in ["softmax", "log_softmax", "sigmoid"] {
            assert!(silent(&run(1e-6, F16, |s, _| {
                s.activation("fc2", operator, F16, &[0.1; 256]).from(&["fc2/linear"]);
            })));
        }
        assert!(silent(&run(1e-6, F16, |s, _| {
            s.activation("fc2", "mean", F16, &[1e-6]).from(&["fc2/linear"]);
        })));
    }
}
