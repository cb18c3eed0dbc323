//! ## What it finds
//!
//! FP16 parameters whose updates have stayed below 2^-14 = 6.1e-5, FP16's smallest normal number, for a long time.
//!
//! ## Why it matters
//!
//! Updates of that size are near the end of what FP16 weights can take in: they still arrive at weights below about 0.1 and are rounded away at
//! larger ones. How much arrives is measured by rule `dead-updates`; this rule speaks where that is not known, or before it gets worse.
//!
//! ## How it decides
//!
//! At 20 scanned steps in a row the largest element of the update lay below 2^-14 in parameters that hold more than half of the elements that the
//! optimizer steps in FP16, while the loss is above a quarter of its first value.
//!
//! * **Warning**, where what arrives is not known, or phi is below 0.98.
//! * **Information**, where phi is measured and at least 0.98: the updates arrive, with little to spare.
//!
//! Only weights that are stepped in FP16 count. Under FP32 copies such updates are ordinary: 16 of 28 healthy runs had a tensor below 2^-14 for ten
//! scanned steps in a row, because training converges, and FP32 keeps them.
//!
//! ## What to do
//!
//! Let the optimizer step FP32 copies: `let mut opt = MasterWeights::new(&vs)?.build(nn::Adam::default(), lr)?`. Or raise the learning rate, if it is
//! lower than you meant.
//!
//! ## When it stays silent
//!
//! On FP32 parameters and under FP32 masters, where the size of the updates stands in the report and is no fault. On BF16, whose smallest normal number is
//! 2^-126. On a run that has converged. Where `dead-updates` fires: it is then the same fault, measured.

use super::text::{counted, measured, number, power_of_two, share};
use super::update_advice::{may_step, some_of, step_masters, stepped_in_low_precision};
use super::{Firing, Limits, Needs, Rule, RuleInfo, Severity, Threshold, Verdict, broken_masters, dead_updates};
use crate::aggregate::{Aggregate, Change, Weight};
use crate::observation::Probe;
use crate::scan::Dtype;

const NAME: &str = "updates-below-normal";
/// Scanned steps in a row that are long.
const LONG: Threshold = Threshold::new(
    NAME,
    "long",
    20.0,
    "scanned steps in a row",
    "16 of 28 healthy runs have a tensor below 2^-14 for ten samples in a row; it takes most of the model, twice as long.",
);
/// Part of the elements that must lie in such parameters.
const MOST: Threshold =
    Threshold::new(NAME, "most", 0.5, "share of elements", "Biases and gains have small updates in every run.");
/// Share of the first loss below which small updates are those of a run that has converged.
const CONVERGED: Threshold = Threshold::new(
    NAME,
    "converged",
    0.25,
    "share of the first loss",
    "Where the loss has come down to a quarter small updates are those of a run that converges.",
);
/// Phi at which the updates are known to arrive.
const ARRIVES: Threshold =
    Threshold::new(NAME, "arrives", 0.98, "phi", "Runs with phi at 0.98 or more ended within 0.5 % of FP32.");

/// See the page of the rule.
pub struct UpdatesBelowNormal;

static INFO: RuleInfo = RuleInfo {
    code: "AMP402",
    name: NAME,
    severity: Severity::Warning,
    summary: "Updates of FP16 parameters have stayed below FP16's smallest normal number.",
    source: include_str!("updates_below_normal.rs"),
};

impl Rule for UpdatesBelowNormal {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Scans { steps: LONG.default as u64, applies: |a| may_step(a, |dtype| dtype == Dtype::F16) }
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[LONG, MOST, CONVERGED, ARRIVES]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        firing(aggregate, limits).map(|f| Verdict::Firing(Box::new(f))).into_iter().collect()
    }
}

fn firing(aggregate: &Aggregate, limits: &Limits) -> Option<Firing> {
    let stepped: Vec<_> =
        stepped_in_low_precision(aggregate).into_iter().filter(|(_, c)| c.dtype == Dtype::F16).collect();
    let is_below = |(w, _): &(&Weight, &Change)| w.below_normal.is_some_and(|(n, _)| n >= limits.count(&LONG));
    let below: Vec<_> = stepped.iter().copied().filter(is_below).collect();
    let (all, part) = (elements(&stepped), elements(&below));
    if part as f64 <= limits.of(&MOST) * all as f64
        || aggregate.losses.has_fallen_to(limits.of(&CONVERGED)) == Some(true)
    {
        return None;
    }
    if dead_updates::fires(aggregate, limits) || broken_masters::optimizer_steps_the_model(aggregate, limits) {
        return None;
    }
    let phi = aggregate.weights.fidelity(|s| s.stepped).phi();
    let largest = below.iter().map(|(_, c)| c.update_max).fold(0.0, f64::max);
    let steps = below.iter().filter_map(|(w, _)| w.below_normal).map(|(n, _)| n).min().unwrap_or(0);
    let names: Vec<String> = below.iter().map(|(w, _)| w.label()).collect();
    let arrives = match phi {
        Some(phi) => format!(
            "Of what the optimizer intends {} arrives (phi {}), for now.",
            share(phi.clamp(0.0, 1.0)),
            number(phi)
        ),
        None => "How much of it arrives is not known.".into(),
    };
    let mut evidence = vec![
        measured("largest_update", largest),
        counted("scanned_steps_in_a_row", steps),
        counted("parameters", below.len() as u64),
        measured("share_of_elements", part as f64 / all as f64),
    ];
    evidence.extend(phi.map(|phi| measured("phi", phi)));
    evidence.extend(aggregate.latest.as_ref().and_then(|s| s.lr).map(|lr| measured("lr", lr)));
    Some(Firing {
        severity: if phi.is_some_and(|phi| phi >= limits.of(&ARRIVES)) { Severity::Info } else { Severity::Warning },
        layer: String::new(),
        operator: String::new(),
        probe: Some(Probe::Update),
        since: below.iter().filter_map(|(w, _)| w.below_normal).map(|(_, since)| since).min()?,
        strength: steps as f64,
        evidence,
        explanation: format!(
            "For {steps} scanned steps no update of {} has been as large as FP16's smallest normal number, 2^-14 (the largest is {}), in {} of the elements that \
             are stepped in FP16. {arrives} A falling learning rate makes it less.",
            some_of(&names),
            power_of_two(largest),
            share(part as f64 / all as f64),
        ),
        remedy: step_masters(aggregate, "."),
    })
}

fn elements(weights: &[(&Weight, &Change)]) -> u64 {
    weights.iter().map(|(_, c)| c.elements).sum()
}

#[cfg(test)]
mod tests {
    use crate::observation::Rounding;
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::Severity;
    use crate::rules::silence::{diagnose, found};
    use crate::scan::Dtype::{self, Bf16, F16, F32};
    use crate::scan::Fidelity;

    /// A run of 40 steps with updates of 2e-5, of which `phi` arrives.
    fn run(dtype: Dtype, phi: Option<f64>, loss: impl Fn(u64) -> f64) -> Scenario {
        let mut run = Scenario::new();
        run.steps(40, |s, i| {
            s.loss(loss(i)).update_in("fc", "add_", "weight", dtype, &normal(256, 5e-6, i));
            let stepped = phi.map(|phi| Fidelity { intended: 256, dead: 40, non_finite: 0, dot: phi, energy: 1.0 });
            s.rounding(Rounding { stepped, ..Rounding::default() });
            s.param("fc", "weight", dtype, &normal(256, 0.02, i));
        });
        run
    }

    #[test]
    fn small_updates_of_unknown_fate_are_a_warning_and_ones_that_arrive_are_information() {
        let d = diagnose(&run(F16, None, |_| 1.0));
        assert_eq!(found(&d), ["AMP402"]);
        assert_eq!((d.findings()[0].severity, d.findings()[0].onset_step), (Severity::Warning, 0));
        let d = diagnose(&run(F16, Some(0.995), |_| 1.0));
        assert_eq!(found(&d), ["AMP402"]);
        assert_eq!(d.findings()[0].severity, Severity::Info);
    }

    #[test]
    fn where_phi_tells_it_better_it_is_not_told_twice() {
        assert_eq!(found(&diagnose(&run(F16, Some(0.2), |_| 1.0))), ["AMP401"]);
    }

    #[test]
    fn converged_runs_fp32_and_bf16_are_silent() {
        assert!(found(&diagnose(&run(F16, None, |i| 2.0 / (1.0 + i as f64)))).is_empty());
        for dtype in [F32, Bf16] {
            assert!(found(&diagnose(&run(dtype, None, |_| 1.0))).is_empty(), "{dtype:?}");
        }
    }

    #[test]
    fn a_bias_with_small_updates_is_not_most_of_a_model() {
        let mut run = Scenario::new();
        run.steps(40, |s, i| {
            s.loss(1.0).update_in("fc", "add_", "bias", F16, &[1e-6; 64]).param("fc", "bias", F16, &[0.1; 64]);
            s.update_in("fc", "add_", "weight", F16, &normal(256, 1e-3, i)).param(
                "fc",
                "weight",
                F16,
                &normal(256, 0.1, i),
            );
        });
        assert!(found(&diagnose(&run)).is_empty());
    }
}
