//! ## What it finds
//!
//! Integers (counts, positions, ids) held in FP16 or BF16, where different ones become the same number.
//!
//! ## Why it matters
//!
//! FP16 holds every integer up to 2048 and BF16 every one up to 256; beyond that only every second, then every fourth, and from 65520 on FP16 has
//! infinity. Two positions become one, a count stops growing, and nothing says so.
//!
//! ## How it decides
//!
//! **Warning**, at once, on evidence: a cast of integers after which some are not what they were; or integers made in 16 bits of which neighbours are
//! equal beyond 2048 (BF16: 256) and none before. It looks at what enters the model, and at what that was computed from. A count that became infinite
//! is rule `unsafe-operator`.
//!
//! ## What to do
//!
//! Keep counts, positions and ids in `Kind::Int64` or `Kind::Float`, and cast what was computed from them: `positions.to_kind(Kind::Float)` first,
//! then the sine or the table, then `.to_kind(Kind::Half)`.
//!
//! ## When it stays silent
//!
//! On integers that the format holds, however large (65,504 even ones, multiples of a power of two), and on numbers with a fraction.

use super::graph::{Graph, Node};
use super::text::{counted, layer_name};
use super::{Firing, Limits, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::Aggregate;
use crate::observation::{Observation, Probe};
use crate::scan::Dtype;

/// See the page of the rule.
pub struct InexactIntegers;

static INFO: RuleInfo = RuleInfo {
    code: "AMP107",
    name: "inexact-integers",
    severity: Severity::Warning,
    summary: "Integers are held in FP16 or BF16, which rounds them: beyond 2048, or 256.",
    source: include_str!("inexact_integers.rs"),
};

static ELEMENTS: Threshold = Threshold {
    rule: "inexact-integers",
    name: "elements",
    default: 1.0,
    unit: "elements that are not what they were",
    reason: "Each is measured, not estimated: one integer that became another is one too many.",
};

impl Rule for InexactIntegers {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn thresholds(&self) -> &'static [Threshold] {
        std::slice::from_ref(&ELEMENTS)
    }

    fn thresholds_by_layer(&self) -> &'static [&'static str] {
        &["elements"]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        if !aggregate.latest_observations().any(|(o, _)| inexact(o) > 0) {
            return Vec::new();
        }
        let graph = Graph::of(aggregate);
        let step = aggregate.latest.as_ref().map_or(0, |s| s.index);
        let mut firings: Vec<Firing> = Vec::new();
        for (place, node) in graph.iter().filter(|(_, node)| inexact(node.observation) > 0) {
            let user = graph.consumers(place).next().map_or(node, |at| graph.node(at));
            let layer = &user.site().layer;
            let enough = inexact(node.observation) as f64 >= limits.at(&ELEMENTS, layer);
            if enough && firings.iter().all(|f| f.layer != *layer) {
                firings.push(firing(node, user, step));
            }
        }
        firings.into_iter().map(|f| Verdict::Firing(Box::new(f))).collect()
    }
}

fn inexact(observation: &Observation) -> u64 {
    observation.provenance.as_ref().and_then(|p| p.inexact).unwrap_or(0)
}

fn firing(node: Node<'_>, user: Node<'_>, step: u64) -> Firing {
    let (stats, n) = (node.stats(), inexact(node.observation));
    let (format, reach) = match node.site().dtype {
        Dtype::Bf16 => ("BF16", 256u64),
        _ => ("FP16", 2048),
    };
    let of_all = n as f64 / stats.count.max(1) as f64;
    Firing {
        severity: Severity::Warning,
        layer: user.site().layer.clone(),
        operator: user.site().operator.clone(),
        probe: Some(Probe::Activation),
        since: step,
        strength: of_all,
        evidence: vec![
            counted("inexact_elements", n),
            counted("elements", stats.count),
            counted("largest_integer_held", reach),
        ],
        explanation: format!(
            "`{}` takes what was made of integers in {format}, which holds every integer only up to {reach}: {n} of them are not what they were, and different ones became \
             equal.",
            user.site().label(),
        ),
        remedy: Remedy::from(format!(
            "Keep the counts, positions or ids that `{}` of layer `{}` takes as integers or in FP32, and cast only what was computed from them.",
            user.site().operator,
            layer_name(user.site())
        ))
        .in_fp32(&user.site().layer),
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::silence::{diagnose, first, found};
    use crate::scan::Dtype::{self, Bf16, F16};

    fn run(dtype: Dtype, inexact: Option<u64>) -> Scenario {
        let mut run = Scenario::new();
        let positions: Vec<f64> = (0..4096).map(f64::from).collect();
        run.steps(2, |s, i| {
            s.loss(1.0).activation("input", "data", dtype, &positions);
            if let Some(n) = inexact {
                s.inexact(n);
            }
            s.activation("pos", "mul", dtype, &normal(64, 1.0, i)).from(&["input/data", "pos.weight"]);
            s.gradient("pos", "mul", dtype, &normal(64, 1.0, i));
        });
        run
    }

    #[test]
    fn positions_that_became_equal_are_told_in_the_layer_that_takes_them() {
        let d = diagnose(&run(F16, Some(1023)));
        assert_eq!(found(&d), ["AMP107"]);
        let f = &d.findings()[0];
        assert_eq!((f.layer.as_str(), f.operator.as_str(), f.onset_step), ("pos", "mul", 0));
        assert!(f.explanation.contains("FP16, which holds every integer only up to 2048"), "{}", f.explanation);
        assert!(first(&diagnose(&run(Bf16, Some(3000))), "AMP107").is_some());
    }

    #[test]
    fn large_numbers_alone_are_no_evidence() {
        for inexact in [None, Some(0)] {
            assert!(found(&diagnose(&run(F16, inexact))).is_empty());
        }
    }
}
