//! ## What it finds
//!
//! A softmax that makes NaN of rows in which a mask left nothing: every element is -inf.
//!
//! ## Why it matters
//!
//! Infinities that a mask wrote are by design, but a row of nothing else leaves nothing to normalise: 0 / 0 is NaN. It comes with certain batches
//! only (an empty sequence, a row of padding), in any precision. In FP16 it also comes from a mask that was meant to be finite: -1e9 is -inf there,
//! and so is the sum of two masks of -65504.
//!
//! ## How it decides
//!
//! **Error**, at once: the first NaN in the order of forward comes out of a softmax whose input held -inf of a mask. No loss scale plays a part in
//! it.
//!
//! ## What to do
//!
//! Leave at least one element unmasked in every row, or mask with a number that FP16 holds, once and not twice: `scores.masked_fill(&mask, -3e4)`.
//! Multiply the result by 0 for rows that are padding as a whole.
//!
//! ## When it stays silent
//!
//! On masks that leave something in every row. On NaN that was not made of a mask: rule `non-finite-origin`.

use super::graph::Graph;
use super::text::{base_name, counted, layer_name, measured, said, share};
use super::{Firing, Limits, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, Origin};
use crate::observation::{Probe, Site};

/// See the page of the rule.
pub struct MaskedRow;

static INFO: RuleInfo = RuleInfo {
    code: "AMP504",
    name: "masked-row",
    severity: Severity::Error,
    summary: "A softmax made NaN of a row in which a mask left nothing but -inf.",
    source: include_str!("masked_row.rs"),
};

/// Operators that normalise a row.
const NORMALISES: [&str; 7] = [
    "softmax",
    "_softmax",
    "log_softmax",
    "_log_softmax",
    "_safe_softmax",
    "logsumexp",
    "scaled_dot_product_attention",
];

impl Rule for MaskedRow {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn check(&self, aggregate: &Aggregate, _: &Limits) -> Vec<Verdict> {
        let found = origin(aggregate).map(|(origin, site)| firing(aggregate, &origin, site));
        found.map(|f| Verdict::Firing(Box::new(f))).into_iter().collect()
    }
}

/// The origin in forward that is this rule's, and its site.
pub(super) fn origin(aggregate: &Aggregate) -> Option<(Origin, &Site)> {
    let origin = aggregate.non_finite.latest.forward.filter(|o| o.after_mask && o.nan > 0)?;
    let site = &aggregate.site(origin.site)?.site;
    NORMALISES.contains(&base_name(&site.operator)).then_some((origin, site))
}

fn firing(aggregate: &Aggregate, origin: &Origin, site: &Site) -> Firing {
    let graph = Graph::of(aggregate);
    let place = graph.iter().find(|(_, node)| node.observation.site == origin.site && node.stats().nan > 0);
    let scores = place.and_then(|(at, _)| graph.made(at, 0)).map(|at| graph.node(at));
    let mut evidence = vec![
        said("cause", "independent of the loss scale"),
        counted("nan_elements", origin.nan),
        counted("elements", origin.count),
    ];
    evidence.extend(scores.iter().map(|node| counted("masked_elements", node.stats().neg_inf)));
    evidence.extend(origin.loss_scale.map(|s| measured("loss_scale", s)));
    let by = scores.map_or(String::new(), |node| {
        format!(
            " (`{}`, {} of it -inf)",
            node.site().label(),
            share(node.stats().neg_inf as f64 / node.stats().count.max(1) as f64)
        )
    });
    Firing {
        severity: Severity::Error,
        layer: site.layer.clone(),
        operator: site.operator.clone(),
        probe: Some(Probe::Activation),
        since: aggregate.non_finite.onset(origin),
        strength: origin.nan as f64,
        evidence,
        explanation: format!(
            "`{}` is the first operator to make NaN in forward, in {} of its elements: a mask filled whole rows of its input{by} with -inf, by design, and a row that is \
             masked as a whole leaves nothing to normalise. It is independent of the loss scale, and no scale can help.",
            site.label(),
            share(origin.nan as f64 / origin.count.max(1) as f64),
        ),
        remedy: format!(
            "Leave at least one element unmasked in every row that `{}` of layer `{}` normalises, or write a finite number (-3e4) in place of -inf; in FP16 -1e9 is \
             -inf, and so are two planes of -65504 that are added.",
            site.operator,
            layer_name(site)
        )
        .into(),
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::silence::{diagnose, found};
    use crate::scan::Dtype::{self, F16, F32};

    const NAN: f64 = f64::NAN;
    const MASKED: f64 = f64::NEG_INFINITY;

    fn run(dtype: Dtype, operator: &str, output: &[f64]) -> Scenario {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).step(|s| {
            s.loss(NAN).skipped(65536.0, 32768.0).activation("attn", "matmul", dtype, &normal(4, 1.0, 1));
            s.activation("attn", operator, dtype, &[MASKED, MASKED, 1.0, MASKED]).from(&["attn/matmul"]);
            s.activation("attn", "softmax", dtype, output).inherited().from(&[&format!("attn/{operator}")]);
            s.activation("attn", "matmul#2", dtype, &[NAN; 4]).inherited().from(&["attn/softmax"]);
            s.gradient("attn", "softmax", dtype, &[NAN; 4]);
        });
        run
    }

    #[test]
    fn case_13_a_row_that_is_masked_as_a_whole_is_told_at_the_softmax() {
        for (dtype, mask) in [(F16, "masked_fill"), (F16, "add"), (F32, "masked_fill"), (F16, "where")] {
            let d = diagnose(&run(dtype, mask, &[NAN, NAN, 1.0, 0.0]));
            assert_eq!(found(&d), ["AMP504"], "{mask}: {:#?}", d.findings());
            let f = &d.findings()[0];
            assert_eq!((f.layer.as_str(), f.operator.as_str()), ("attn", "softmax"));
            assert!(f.explanation.contains("75 % of it -inf"), "{}", f.explanation);
        }
    }

    #[test]
    fn a_mask_that_leaves_something_in_every_row_is_by_design() {
        let mut run = Scenario::new();
        run.steps(3, |s, i| {
            s.loss(1.0).activation("attn", "masked_fill", F16, &[MASKED, 0.5, 1.0, MASKED]);
            s.activation("attn", "softmax", F16, &[0.0, 1.0, 1.0, 0.0]).from(&["attn/masked_fill"]);
            s.gradient("attn", "softmax", F16, &normal(64, 1.0, i));
        });
        assert!(found(&diagnose(&run)).is_empty());
    }
}
