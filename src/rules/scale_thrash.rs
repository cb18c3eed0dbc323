//! ## What it finds
//!
//! A growth interval so short that the scaler wastes steps: it doubles the scale, overflows, halves it, and soon does so again.
//!
//! ## Why it matters
//!
//! A healthy dynamic scaler probes its ceiling once per growth interval n and loses that step: at most one in n + 1. With n = 10 that costs 7 % of
//! the steps, and not any steps: the batches with the largest gradients are those that overflow, so training is biased away from them. In one run the
//! loss ended twice as high with n = 10 as with n = 200, and 12 % higher with n = 20; from n = 50 on the cost vanishes in the noise.
//!
//! ## How it decides
//!
//! **Warning**: over the latest skips, 10 to 64 of them, more than 2 % of the steps were skipped, and more than 60 % of the skips came after the
//! scale had grown. The 2 % must be exceeded by the error of such a count (a third for ten skips). The step named is that of the first skip after a
//! growth.
//!
//! Simulated with gradients that vary by 1 to 3 octaves from batch to batch, n = 10, 20 and 30 skip 7 %, 3.6 % and 2.4 % of the steps and are found;
//! n = 50, 100 and 500 skip 1.5 %, 0.8 % and 0.3 % and are not.
//!
//! ## What to do
//!
//! Set the growth interval that is named, at which probing skips fewer than 1 % of the steps: `GradScaler::builder().growth_interval(100).build()?`,
//! or `scaler.set_growth_interval(100)?` in a run that goes on. The default, 2000, is rarely wrong.
//!
//! ## When it stays silent
//!
//! While the scaler finds its scale at the start. On a scaler whose probing costs less than 2 %. On skips that no growth went before: those are bad
//! batches, and rule `scale-ratchet` counts them. On a static scale.

use super::text::{counted, measured, number, scale, share};
use super::{Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Skip};

const NAME: &str = "scale-thrash";
/// Share of the steps that may be skipped.
const SKIPPED: Threshold = Threshold::new(
    NAME,
    "skip-share",
    0.02,
    "share of steps",
    "With noise of 1 to 3 octaves intervals of 10, 20 and 30 skip 7, 3.6 and 2.4 % of the steps; 50, 100 and 500 skip 1.5, 0.8 and 0.3 %, and cost nothing that could be measured.",
);
/// Share of the skips with a growth before them, at which the scaler's own probing is the cause.
const GROWN: Threshold = Threshold::new(
    NAME,
    "grown-share",
    0.6,
    "share of skips",
    "Skips after a growth are the scaler's own probing. A healthy run has nearly all of them, a ratchet few; below this the interval is not the cause.",
);
/// Skips that say something.
const FEWEST: Threshold =
    Threshold::new(NAME, "fewest-skips", 10.0, "skips", "Fewer do not tell a rate: at ten its error is a third.");
/// The share of skipped steps that the remedy aims at.
const AIM: f64 = 0.01;
/// Intervals that are recommended are multiples of this.
const ROUND: f64 = 100.0;

/// See the page of the rule.
pub struct ScaleThrash;

static INFO: RuleInfo = RuleInfo {
    code: "AMP301",
    name: NAME,
    severity: Severity::Warning,
    summary: "The growth interval is so short that steps are wasted on probing for a higher loss scale.",
    source: include_str!("scale_thrash.rs"),
};

impl Rule for ScaleThrash {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::OneScaler
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[SKIPPED, GROWN, FEWEST]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        thrash(aggregate, limits).map(|t| Verdict::Firing(Box::new(firing(aggregate, &t)))).into_iter().collect()
    }
}

struct Thrash {
    since: u64,
    skips: usize,
    skip_rate: f64,
    grown_share: f64,
    growth_interval: u64,
}

fn thrash(aggregate: &Aggregate, limits: &Limits) -> Option<Thrash> {
    let dynamics = &aggregate.scale_dynamics;
    let config = aggregate.scaler_config.as_ref().filter(|c| c.growth_factor > 1.0)?;
    if !dynamics.refused {
        return None;
    }
    // Until the scale has grown for the first time it is looking for its place.
    let skips: Vec<&Skip> = dynamics.skips.iter().skip_while(|s| !s.grown_before).collect();
    let (first, last) = (skips.first()?, skips.last()?);
    // Between n skips lie n - 1 distances.
    let (distances, steps) = (skips.len() - 1, last.ordinal - first.ordinal);
    let skip_rate = distances as f64 / steps.max(1) as f64;
    let grown_share = skips.iter().filter(|s| s.grown_before).count() as f64 / skips.len() as f64;
    let margin = 1.0 - 1.0 / (distances.max(1) as f64).sqrt();
    let is_enough = skips.len() as u64 >= limits.count(&FEWEST);
    let wastes = skip_rate * margin > limits.of(&SKIPPED) && grown_share > limits.of(&GROWN);
    (is_enough && wastes).then_some(Thrash {
        since: first.step,
        skips: skips.len(),
        skip_rate,
        grown_share,
        growth_interval: config.growth_interval,
    })
}

/// The growth interval at which fewer than 1 % of the steps would be skipped: the skips come per interval.
fn interval_to_use(thrash: &Thrash) -> u64 {
    let per_interval = thrash.skip_rate * (thrash.growth_interval + 1) as f64;
    ((per_interval.max(1.0) / AIM / ROUND).ceil() * ROUND) as u64
}

fn firing(aggregate: &Aggregate, thrash: &Thrash) -> Firing {
    let now = aggregate.latest.as_ref().and_then(|s| s.loss_scale);
    let (n, better) = (thrash.growth_interval, interval_to_use(thrash));
    let mut evidence = vec![
        measured("skip_rate", thrash.skip_rate),
        measured("healthy_skip_rate", 1.0 / (n + 1) as f64),
        measured("share_of_skips_after_a_growth", thrash.grown_share),
        counted("skips", thrash.skips as u64),
        counted("growth_interval", n),
        counted("recommended_growth_interval", better),
    ];
    evidence.extend(now.map(|s| measured("loss_scale", s)));
    Firing {
        severity: Severity::Warning,
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since: thrash.since,
        strength: thrash.skip_rate,
        evidence,
        explanation: format!(
            "{} of the steps were skipped, {} of them after the scale had grown: with a growth interval of {n} the scaler probes its ceiling{} every few \
             steps. The skipped batches are those with the largest gradients, so training is biased away from them.",
            share(thrash.skip_rate),
            share(thrash.grown_share),
            now.map_or(String::new(), |s| format!(" ({})", scale(s))),
        ),
        remedy: Remedy::from(format!(
            "Raise `growth_interval` from {n} to {better} or more: it then skips less than 1 % of the steps. PyTorch's default is {}.",
            number(2000.0)
        ))
        .set("growth_interval", better),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::scale_simulation::{SimulatedScaler, Uniform, number as evidence, settings, simulate};

    /// Gradients that overflow above 2^14, blurred by noise of this many octaves.
    fn noisy(width: f64, seed: u64) -> impl FnMut(f64) -> bool {
        let mut random = Uniform(seed);
        move |exponent| exponent > 14.0 + width * random.normal()
    }

    #[test]
    fn case_6_an_interval_of_10_or_20_is_found_and_the_interval_that_is_named_cures_it() {
        for (growth_interval, seed) in (0..10).flat_map(|seed| [(10, seed), (20, seed)]) {
            for width in [0.1, 0.5, 1.0] {
                let (_, found) = simulate(settings(growth_interval), 2000, noisy(width, seed));
                let firing =
                    found.get("AMP301").unwrap_or_else(|| panic!("n = {growth_interval}, width {width}, seed {seed}"));
                assert_eq!(found.len(), 1, "{found:#?}");
                assert!(firing.since <= 3 * growth_interval + 16, "{}", firing.since);
                let better = evidence(&firing.evidence, "recommended_growth_interval") as u64;
                let (run, found) = simulate(settings(better), 20_000, noisy(width, seed));
                assert!(found.is_empty() && run.skips < 200 + 16, "n = {better}: {} skips, {found:#?}", run.skips);
            }
        }
    }

    #[test]
    fn from_an_interval_of_50_on_probing_is_healthy() {
        for (growth_interval, seed) in (0..10).flat_map(|seed| [(50, seed), (200, seed), (2000, seed)]) {
            for width in [0.0, 0.1, 0.5, 1.0] {
                let (_, found) = simulate(settings(growth_interval), 50_000, noisy(width, seed));
                assert!(found.is_empty(), "n = {growth_interval}, width {width}, seed {seed}: {found:#?}");
            }
        }
    }

    #[test]
    fn batches_of_one_with_noisy_gradients_are_silent_unless_more_than_2_percent_are_skipped() {
        // Octaves of noise from batch to batch, normal or with the tails of Student's t.
        let noises = [(1.0, false), (2.0, false), (3.0, false), (1.0, true), (2.0, true)];
        let runs = [10, 20, 30, 50, 100, 500].into_iter().flat_map(|n| noises.map(|noise| (n, noise)));
        for ((growth_interval, (width, heavy)), seed) in runs.flat_map(|run| (0..2).map(move |seed| (run, seed))) {
            let mut random = Uniform(1000 + seed);
            let is_bad =
                move |exponent: f64| exponent > 14.0 + width * if heavy { random.t3() } else { random.normal() };
            let (run, found) = simulate(settings(growth_interval), 10_000, is_bad);
            let skipped = run.skips as f64 / run.steps() as f64;
            let told = found.contains_key("AMP301");
            println!("n = {growth_interval}, width {width} {heavy}: {:.2} % {told}", 100.0 * skipped);
            // Of what lies between, either may be said.
            assert!(told || skipped < 0.024, "n = {growth_interval}, width {width}, heavy {heavy}: {skipped}");
            assert!(!told || skipped > 0.018, "n = {growth_interval}, width {width}, heavy {heavy}: {skipped}");
        }
    }

    #[test]
    fn calibration_is_no_thrash() {
        let (run, found) = simulate(settings(10), 30, |exponent| exponent > 3.0);
        assert!(run.skips >= 13 && found.is_empty(), "{found:#?}");
    }

    #[test]
    fn skips_without_a_growth_before_them_are_no_matter_of_the_interval() {
        let mut run = SimulatedScaler::new(settings(100));
        (0..3000).for_each(|i| {
            run.step(i % 20 == 0);
            assert!(run.check(&ScaleThrash).is_none());
        });
    }
}
