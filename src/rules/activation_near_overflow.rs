//! ## What it finds
//!
//! FP16 activations whose largest value comes near 65504, the largest number of FP16.
//!
//! ## Why it matters
//!
//! One element of 65520 or more becomes infinite, and the next layer norm or softmax makes NaN of it. No loss scale helps: it multiplies gradients,
//! not activations. It mostly grows slowly, so there is time to act before the run breaks.
//!
//! ## How it decides
//!
//! By the largest magnitude, for one element is enough to overflow.
//!
//! * **Warning** above 2^13 = 8192, an eighth of FP16's largest number. In 11,552 activations of 28 healthy runs the largest was 2^5.9 = 60.
//! * **Error** above 2^15 = 32768, half of it: a single larger batch is enough.
//! * **Warning** above 2^11 = 2048 where it grows so steadily that it would pass 65504 within 100 steps, and **error** above 2^13 where that is
//!   within 32. The growth is that of the last 32 scanned steps.
//!
//! The smallest elements play no part: 85 % of healthy activations hold numbers below 1e-3. Activations that are too small as a whole are rule
//! `activation-underflow`.
//!
//! The layer named is the first in the order of forward; those after it that are as large are counted.
//!
//! ## What to do
//!
//! Make the number smaller where it arises: normalise the input of the operator, scale the query of an attention before the product and not the
//! scores after it, lower a learning rate at which weights grow. Or run that layer in FP32, `no_autocast(|| layer.forward(&x.to_kind(Kind::Float)))`,
//! or under BF16 autocast.
//!
//! ## When it stays silent
//!
//! On FP32 and BF16. On values that a mask put there: the output of an operator that masks, or a plateau of large negative values far from all
//! others. On a tensor that already holds an infinity: that is rule `activation-overflow`.

use super::graph::Graph;
use super::range::{Out, Reach};
use super::text::{count, counted, layer_name, measured, number, power_of_two};
use super::{Firing, Limits, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Sample, SiteSummary, is_mask_operator};
use crate::numerics::Format;
use crate::observation::{Observation, Probe, Site};
use crate::scan::{Dtype, Stats};

const NAME: &str = "activation-near-overflow";
/// Three bits below FP16's end.
const NEAR: Threshold = Threshold::new(
    NAME,
    "near",
    8192.0,
    "magnitude",
    "2^13, three bits below the end of FP16: in 11,552 activations of 28 healthy runs the largest was 2^5.9; too high a learning rate reached 2^12.6 to 2^13.8 before NaN.",
);
/// One bit below it.
const VERY_NEAR: Threshold = Threshold::new(
    NAME,
    "very-near",
    32768.0,
    "magnitude",
    "2^15, one bit below the end: the next batch that is twice as large is infinite.",
);
/// From here on a growth counts.
const GROWS_FROM: Threshold = Threshold::new(
    NAME,
    "trend-from",
    2048.0,
    "magnitude",
    "Healthy activations end at 2^5.9, and there they grow up to a hundredfold: growth alone is no sign. None of 28 healthy runs came within five octaves of this.",
);
/// Steps ahead that a growth is taken on.
const STEPS_LEFT: Threshold = Threshold::new(
    NAME,
    "trend-steps",
    100.0,
    "steps until it overflows",
    "As far ahead as three windows of 32 scanned steps, from which the growth is taken.",
);
/// Steps left at which there is no time to wait.
const NO_TIME: Threshold = Threshold::new(
    NAME,
    "no-time",
    32.0,
    "steps until it overflows",
    "The window from which the growth is taken, once more.",
);
/// Samples that make a trend.
const TREND: usize = 8;
/// Octaves from the first quarter of the samples to the last.
const GROWN: f64 = 0.5;
/// Empty octaves between a mask's plateau and all other values.
const MASK_GAP: Threshold = Threshold::new(
    NAME,
    "mask-gap",
    3.0,
    "octaves",
    "Masks of -10000 stand further than this above the scores that they are added to; the activations of one tensor do not.",
);

/// See the page of the rule.
pub struct ActivationNearOverflow;

static INFO: RuleInfo = RuleInfo {
    code: "AMP101",
    name: NAME,
    severity: Severity::Error,
    summary: "FP16 activations come near 65504; the next larger batch makes them infinite.",
    source: include_str!("activation_near_overflow.rs"),
};

impl Rule for ActivationNearOverflow {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[NEAR, VERY_NEAR, MASK_GAP, GROWS_FROM, STEPS_LEFT, NO_TIME]
    }

    fn thresholds_by_layer(&self) -> &'static [&'static str] {
        &["near", "very-near", "mask-gap", "trend-from", "trend-steps", "no-time"]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        let large: Vec<_> = aggregate.latest_observations().filter(|(o, s)| is_near(o, s, limits)).collect();
        let largest = large.iter().max_by(|a, b| a.0.stats.max_abs.total_cmp(&b.0.stats.max_abs));
        let (Some(first), Some(largest)) = (large.first(), largest) else { return Vec::new() };
        let step = aggregate.latest.as_ref().map_or(0, |s| s.index);
        vec![Verdict::Firing(Box::new(firing(aggregate, first, largest, large.len() - 1, step, limits)))]
    }
}

type Seen<'a> = (&'a Observation, &'a SiteSummary);

fn is_near(observation: &Observation, summary: &SiteSummary, limits: &Limits) -> bool {
    let (site, stats) = (&summary.site, &observation.stats);
    let near = limits.at(&NEAR, &site.layer);
    let is_close =
        || stats.max_abs > near || steps_left(summary).is_some_and(|n| n < limits.at(&STEPS_LEFT, &site.layer));
    site.probe == Probe::Activation
        && site.dtype == Dtype::F16
        && stats.max_abs > limits.at(&GROWS_FROM, &site.layer).min(near)
        && is_close()
        && stats.non_finite() == 0
        && !is_mask_operator(&site.operator)
        && !is_mask_plateau(stats, limits.at(&NEAR, &site.layer), limits.at(&MASK_GAP, &site.layer))
}

/// Steps until the largest magnitude passes FP16's end, if it grows on as it did in the recent samples; `None` where it does not grow steadily.
fn steps_left(summary: &SiteSummary) -> Option<f64> {
    let recent: Vec<&Sample> = summary.recent.iter().collect();
    let quarter = recent.len() / 4;
    if recent.len() < TREND || recent.iter().any(|s| s.stats.non_finite() > 0 || s.stats.max_abs == 0.0) {
        return None;
    }
    let (old, new) = (&recent[..quarter], &recent[recent.len() - quarter..]);
    let highest_before = old.iter().map(|s| s.stats.max_abs).fold(0.0, f64::max);
    let lowest_now = new.iter().map(|s| s.stats.max_abs).fold(f64::INFINITY, f64::min);
    let octaves = mean(new, |s| s.stats.max_abs.log2()) - mean(old, |s| s.stats.max_abs.log2());
    let steps = mean(new, |s| s.step as f64) - mean(old, |s| s.step as f64);
    let left = (Format::F16.max / summary.latest()?.stats.max_abs).log2();
    (lowest_now > highest_before && octaves >= GROWN).then(|| left * steps / octaves)
}

fn mean(samples: &[&Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    samples.iter().map(|s| of(s)).sum::<f64>() / samples.len() as f64
}

/// Large values that are all negative and stand far apart from the rest: a mask of -10000 or of FP16's lowest number, added to scores.
fn is_mask_plateau(stats: &Stats, near: f64, gap: f64) -> bool {
    let exponent = near.max(1.0).log2().floor() as i32;
    let large: f64 =
        stats.exponents.iter().filter(|(e, _)| *e >= exponent).map(|(e, n)| f64::from(e).exp2() * n as f64).sum();
    let beneath = stats.exponents.iter().filter(|(e, _)| *e < exponent).map(|(e, _)| e).last();
    let stands_apart = beneath.is_some_and(|e| e < exponent - gap as i32) || stats.zeros > 0 && beneath.is_none();
    // Each element of exponent e is at least 2^e in magnitude: a sum as low as that has no positive one among them.
    stands_apart && stats.sum.to_f64() <= -0.9 * large
}

fn firing(
    aggregate: &Aggregate,
    first: &Seen<'_>,
    largest: &Seen<'_>,
    others: usize,
    step: u64,
    limits: &Limits,
) -> Firing {
    let (observation, summary) = first;
    let site = &summary.site;
    let max_abs = observation.stats.max_abs;
    let grown_from = summary.recent.front().map_or(max_abs, |s| s.stats.max_abs);
    let bits = (Format::F16.max / max_abs).log2();
    let is_largest = largest.1.site == *site;
    let also = match others {
        0 => String::new(),
        n => format!(" {} after it {} as near{}.", count(n, "activation"), if n == 1 { "is" } else { "are" }, {
            let (max, label) = (number(largest.0.stats.max_abs), largest.1.site.label());
            if is_largest { ", none as large".to_owned() } else { format!("; the largest is {max} in `{label}`") }
        }),
    };
    let left = steps_left(summary);
    let near = limits.at(&NEAR, &site.layer);
    let no_time = max_abs > near && left.is_some_and(|n| n <= limits.at(&NO_TIME, &site.layer));
    let trend = left.map_or(String::new(), |n| {
        format!(" It grows: as it did lately, it passes the end in about {:.0} steps.", n.ceil())
    });
    Firing {
        severity: if largest.0.stats.max_abs > limits.at(&VERY_NEAR, &largest.1.site.layer) || no_time {
            Severity::Error
        } else {
            Severity::Warning
        },
        layer: site.layer.clone(),
        operator: site.operator.clone(),
        probe: Some(Probe::Activation),
        since: step,
        strength: max_abs,
        evidence: left
            .map(|n| measured("steps_left_at_this_growth", n))
            .into_iter()
            .chain([
                measured("max_abs", max_abs),
                measured("headroom_bits", bits),
                measured("max_abs_32_samples_ago", grown_from),
            ])
            .chain((!is_largest).then(|| measured("largest_max_abs", largest.0.stats.max_abs)))
            .chain([counted("activations_near_overflow", others as u64 + 1)])
            .collect(),
        explanation: format!(
            "The output of `{}` reached {} ({}) in FP16, which ends at 65504: {bits:.1} bits of headroom.{trend} A loss scale does not move activations.{also}",
            site.label(),
            number(max_abs),
            power_of_two(max_abs),
        ),
        remedy: remedy(aggregate, site, max_abs),
    }
}

fn remedy(aggregate: &Aggregate, site: &Site, max_abs: f64) -> Remedy {
    let reach = Reach::of_activation(&Graph::of(aggregate), site, Out::Large);
    let text = format!(
        "Bring what goes into `{}` of layer `{}` down by {} or more: normalise before it, or scale before the product and not after. Or {}.",
        site.operator,
        layer_name(site),
        power_of_two((max_abs / NEAR.default).log2().ceil().max(1.0).exp2()),
        reach.clause(aggregate)
    );
    reach.set(text.into(), aggregate)
}

#[cfg(test)]
mod tests {
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::Severity;
    use crate::rules::silence::{diagnose, found};
    use crate::scan::Dtype::{Bf16, F16};

    fn with(run: &mut Scenario, dtype: crate::scan::Dtype, values: &[f64]) {
        run.step(|s| {
            s.loss(1.0).activation("fc1", "linear", F16, &normal(64, 1.0, 1));
            s.activation("fc2", "linear", dtype, values).activation("fc3", "linear", F16, &normal(64, 1.0, 2));
            s.gradient("fc3", "linear", F16, &normal(64, 1.0, 3));
        });
    }

    #[test]
    fn three_bits_are_a_warning_and_one_bit_an_error_with_the_onset_of_the_first() {
        let mut run = Scenario::new();
        for value in [100.0, 9000.0, 20000.0, 40000.0] {
            with(&mut run, F16, &[value, 1.0]);
        }
        let d = diagnose(&run);
        assert_eq!(found(&d), ["AMP101"]);
        let f = &d.findings()[0];
        assert_eq!((f.severity, f.layer.as_str(), f.onset_step, f.last_step), (Severity::Error, "fc2", 1, 3));
        assert!(f.explanation.contains("40000"), "{}", f.explanation);
    }

    #[test]
    fn the_first_of_several_large_layers_is_named() {
        let mut run = Scenario::new();
        run.step(|s| {
            s.loss(1.0);
            ["a", "b", "c"].iter().for_each(|l| {
                s.activation(l, "add", F16, &[10000.0]);
            });
            s.gradient("a", "add", F16, &normal(64, 1.0, 0));
        });
        let d = diagnose(&run);
        assert_eq!((found(&d), d.findings()[0].layer.as_str()), (vec!["AMP101"], "a"));
        assert!(d.findings()[0].explanation.contains("2 activations after it"), "{}", d.findings()[0].explanation);
    }

    #[test]
    fn case_14_a_steady_growth_is_told_before_it_is_near_and_says_how_long_it_will_be() {
        let grow = |to: f64, steps: u64| {
            let mut run = Scenario::new();
            for step in 0..steps {
                with(&mut run, F16, &[100.0 * (to / 100.0).powf(step as f64 / (steps - 1) as f64), 1.0]);
            }
            diagnose(&run)
        };
        let d = grow(4000.0, 40);
        assert_eq!((found(&d), d.findings()[0].severity), (vec!["AMP101"], Severity::Warning));
        assert!(d.findings()[0].explanation.contains("passes the end in about"), "{}", d.findings()[0].explanation);
        assert_eq!(grow(9000.0, 20).findings()[0].severity, Severity::Error, "no time is left");
        assert!(found(&grow(1500.0, 40)).is_empty(), "far from the end growth is no sign");
        let mut still = Scenario::new();
        (0..40).for_each(|_| with(&mut still, F16, &[4000.0, 1.0]));
        assert!(found(&diagnose(&still)).is_empty(), "what does not grow may stay");
    }

    #[test]
    fn the_same_value_in_bf16_is_nothing() {
        let mut run = Scenario::new();
        with(&mut run, Bf16, &[60000.0]);
        assert!(found(&diagnose(&run)).is_empty());
    }

    #[test]
    fn a_mask_of_minus_ten_thousand_is_no_large_activation() {
        let mut run = Scenario::new();
        let mut scores = normal(64, 1.0, 5);
        scores.iter_mut().step_by(2).for_each(|x| *x -= 10000.0);
        with(&mut run, F16, &scores);
        run.step(|s| {
            s.activation("attn", "masked_fill#2", F16, &[1.0, 65504.0]).activation(
                "attn",
                "mul",
                F16,
                &[0.0, -10000.0],
            );
        });
        assert!(found(&diagnose(&run)).is_empty());
    }
}
