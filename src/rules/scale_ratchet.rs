//! ## What it finds
//!
//! Batches whose gradients are not finite at any loss scale, so many that a dynamic scaler loses more at them than it regains between them: the scale
//! goes down and down, to nothing.
//!
//! ## Why it matters
//!
//! The scaler answers each such batch by halving, and doubles only after a whole growth interval without one. With a share p of bad batches and an
//! interval of n steps it gains as often as it loses at p n = ln 2: with n = 2000 one bad batch in 2885 is too many. It looks like a scale that shrinks
//! over hours; then the gradients underflow and training stops, without a NaN in sight.
//!
//! ## How it decides
//!
//! Skips at most 2 clean steps apart are one burst, so that a descent counts once. What tells bad batches from a scaler that probes its ceiling
//! is whether the scale grew since the burst before: the rate of skips does not tell (a run that collapses may skip less often than a healthy one).
//!
//! * More than half of the last 20 bursts had no growth since the previous one (for factors other than 2 and 1/2: more than the share at which losses
//!   and gains are equal). The most that healthy runs had was half. Or, sooner: at most one of the last 10 had.
//! * And the scale has fallen by 2^9 or more since the highest of the last 64 bursts: gradients that the scale makes overflow do not do so 2^9 below.
//! * And the measured p and n say that the scale falls: per bad batch it loses what a backoff takes, and gains q/(1-q) growths, q = (1-p)^n. They must say so
//!   even if p were smaller by 1.5 over the square root of the number of bursts, for at its ceiling every scaler gains as often as it loses.
//! * And the bursts do not become rarer as the scale falls: where they do, it is a descent to a ceiling that noise blurs.
//! * **Warning** while the scale is 1 or more, with the steps that are left until it falls below; **error** from then on.
//!
//! p is estimated from the bursts that are looked at: one that begins later than two clean steps after the last one.
//!
//! ## What to do
//!
//! Find what is wrong with the batches whose steps are named. Until then, a floor for the scale (`min_scale`) keeps the other layers and steps alive, and
//! a growth interval well below ln 2 / p lets the scale recover, where p is small enough for that.
//!
//! ## When it stays silent
//!
//! On calibration: one descent is one burst, and a slow one becomes rarer. On a scaler that probes its ceiling: it grew before. On fewer bad
//! batches than the scaler makes good (close to that number, from 0.7 ln 2 / n on, bad luck may lower the scale by 2^9 for a while, and is told). Gradients with tails so heavy
//! that they lower the scale by 2^9 and more without a bad batch are not told apart at an interval of 2000; the scale falls all the same. On a scale that a floor or hysteresis holds. On one long streak of skips: that is no bad batch but
//! a fault of the model, and rule `non-finite-origin` or `gradient-overflow` names it. On two scalers whose scales cannot be told apart.

use super::scale_advice::ScaleAdvice;
use super::text::{counted, measured, number, said, scale, share};
use super::{Evidence, Firing, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, Burst, ScaleDynamics};
use crate::observation::ScalerConfig;

/// Bursts of which a majority without a growth is enough: 10 are too few, for healthy runs have 6 of those.
const MAJORITY: usize = 20;
/// Bursts that are enough where almost none of them had a growth.
const FEW: usize = 10;
/// The share of those without one.
const ALMOST_ALL: f64 = 0.9;
/// Octaves that the scale must have fallen.
const FALLEN_OCTAVES: f64 = 9.0;
/// Standard errors of p to be on the safe side.
const MARGIN: f64 = 1.5;
/// By how much the second half of the bursts may lie further apart than the first. Two halves of ten, alike in truth, differ by more once in a hundred.
const BECOMES_RARER: f64 = 3.0;
/// Below this the scale shrinks gradients instead of lifting them.
const NO_SCALE_LEFT: f64 = 1.0;
/// Steps that are named.
const NAMED_STEPS: usize = 12;
/// Below this interval a scaler that probes its ceiling wastes 2 % of the steps by that alone.
const SHORTEST_INTERVAL: u64 = 50;

/// See the page of the rule.
pub struct ScaleRatchet;

static INFO: RuleInfo = RuleInfo {
    code: "AMP302",
    name: "scale-ratchet",
    severity: Severity::Error,
    summary: "Bad batches lower the loss scale more often than it can grow: it falls to nothing.",
    source: include_str!("scale_ratchet.rs"),
};

impl Rule for ScaleRatchet {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn check(&self, aggregate: &Aggregate) -> Vec<Verdict> {
        ratchet(aggregate).map(|r| Verdict::Firing(Box::new(firing(aggregate, &r)))).into_iter().collect()
    }
}

/// A ratchet, in numbers.
struct Ratchet {
    since: u64,
    bursts: usize,
    /// Bursts without growth since the previous one.
    growthless: usize,
    /// Share of the steps whose batch is bad.
    p: f64,
    growth_interval: u64,
    /// Octaves that the scale moves per bad batch: negative.
    drift: f64,
    scale: f64,
}

impl Ratchet {
    /// Scaler steps until the scale is below 1.
    fn steps_left(&self) -> Option<f64> {
        (self.scale >= NO_SCALE_LEFT).then(|| octaves_left(self.scale) / -self.drift / self.p)
    }
}

/// Halvings until the scale is below 1: from 1 itself it takes one.
fn octaves_left(scale: f64) -> f64 {
    scale.log2().floor() + 1.0
}

fn ratchet(aggregate: &Aggregate) -> Option<Ratchet> {
    let dynamics = &aggregate.scale_dynamics;
    let config = aggregate.scaler_config.as_ref().filter(|c| c.backoff_factor < 1.0)?;
    // With a growth since the last burst the next one would be none of this kind.
    if dynamics.several_scalers || dynamics.growths_since_skip > 0 {
        return None;
    }
    let scale = dynamics.scale.filter(|&now| octaves_fallen(dynamics, now) >= FALLEN_OCTAVES)?;
    if become_rarer(dynamics) {
        return None;
    }
    let majority = latest(dynamics, MAJORITY).and_then(|b| falling(config, &b, scale, |share, even| share > even));
    majority.or_else(|| latest(dynamics, FEW).and_then(|b| falling(config, &b, scale, |share, _| share >= ALMOST_ALL)))
}

/// Octaves between the highest scale at a burst, the first of the run apart, and the present one.
fn octaves_fallen(dynamics: &ScaleDynamics, now: f64) -> f64 {
    let highest =
        dynamics.bursts.iter().filter(|b| b.clean_before.is_some()).map(|b| b.first_scale).fold(0.0, f64::max);
    (highest / now.max(f64::MIN_POSITIVE)).log2()
}

/// The latest `n` bursts, where there are as many; the first of the run is calibration and does not count.
fn latest(dynamics: &ScaleDynamics, n: usize) -> Option<Vec<Burst>> {
    let from = dynamics.bursts.len().checked_sub(n)?;
    let bursts: Vec<Burst> = dynamics.bursts.range(from..).filter(|b| b.clean_before.is_some()).copied().collect();
    (bursts.len() == n).then_some(bursts)
}

/// What these bursts say, where `decides` holds of their share without a growth and of the share at which losses and gains are equal.
fn falling(config: &ScalerConfig, bursts: &[Burst], scale: f64, decides: impl Fn(f64, f64) -> bool) -> Option<Ratchet> {
    let n = bursts.len() as f64;
    let growthless = bursts.iter().filter(|b| !b.grown_before).count();
    let skips: u64 = bursts.iter().map(|b| b.skips).sum();
    let backoffs: u64 = bursts.iter().map(|b| b.backoffs).sum();
    let lost = backoffs as f64 / skips as f64 * -config.backoff_factor.log2();
    let gained = config.growth_factor.log2();
    let drift = |p: f64| {
        let q = (1.0 - p).powf(config.growth_interval as f64);
        gained * q / (1.0 - q) - lost
    };
    let p = bad_share(bursts)?;
    let is_decided = decides(growthless as f64 / n, gained / (gained + lost));
    (is_decided && drift(p * (1.0 - MARGIN / n.sqrt())) < 0.0).then(|| Ratchet {
        since: bursts.iter().find(|b| !b.grown_before).map_or(0, |b| b.first_step),
        bursts: bursts.len(),
        growthless,
        p,
        growth_interval: config.growth_interval,
        drift: drift(p),
        scale,
    })
}

/// The share of bad batches: of the steps at which a burst could have begun, those at which one did. At the steps of a burst and for two clean ones
/// after it none can. One less in both, so that it is right on average.
fn bad_share(bursts: &[Burst]) -> Option<f64> {
    let open: u64 = bursts.iter().filter_map(|b| b.clean_before).map(|clean| clean - ScaleDynamics::BURST_GAP).sum();
    (open > 1).then(|| (bursts.len() - 1) as f64 / (open - 1) as f64)
}

/// Whether the later half of all bursts that are kept lies much further apart than the earlier one.
fn become_rarer(dynamics: &ScaleDynamics) -> bool {
    let clean: Vec<u64> = dynamics.bursts.iter().filter_map(|b| b.clean_before).collect();
    let (first, second) = clean.split_at(clean.len() / 2);
    second.iter().sum::<u64>() as f64 > BECOMES_RARER * first.iter().sum::<u64>() as f64
}

fn firing(aggregate: &Aggregate, ratchet: &Ratchet) -> Firing {
    let severity = if ratchet.scale < NO_SCALE_LEFT { Severity::Error } else { Severity::Warning };
    Firing {
        severity,
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since: ratchet.since,
        // The later, the better p is known and the nearer the end.
        strength: aggregate.scale_dynamics.skips_total as f64,
        evidence: evidence(aggregate, ratchet),
        explanation: explanation(ratchet),
        remedy: remedy(aggregate, ratchet),
    }
}

fn evidence(aggregate: &Aggregate, ratchet: &Ratchet) -> Vec<Evidence> {
    let mut evidence = vec![
        measured("bad_batch_share", ratchet.p),
        measured("critical_bad_batch_share", critical(ratchet.growth_interval)),
        counted("growth_interval", ratchet.growth_interval),
        measured("drift_octaves_per_bad_batch", ratchet.drift),
        measured("loss_scale", ratchet.scale),
        counted("bursts", ratchet.bursts as u64),
        counted("bursts_without_growth", ratchet.growthless as u64),
        said("bad_steps", bad_steps(&aggregate.scale_dynamics)),
    ];
    evidence.extend(ratchet.steps_left().map(|steps| measured("steps_to_scale_below_1", steps.round())));
    evidence
}

/// The share of bad batches at which doublings and halvings are equal.
fn critical(growth_interval: u64) -> f64 {
    std::f64::consts::LN_2 / growth_interval as f64
}

fn explanation(ratchet: &Ratchet) -> String {
    let &Ratchet { p, growth_interval: n, .. } = ratchet;
    let what = format!(
        "{} of the last {} bursts of skips came without a growth of the scale since the one before, and they do not become rarer as it falls: about {} of \
         the batches (one in {}) have gradients that are not finite at any scale. With a growth interval of {n} the scaler makes good at most {} (ln 2 / {n}).",
        ratchet.growthless,
        ratchet.bursts,
        share(p),
        number((1.0 / p).round()),
        percent(critical(n)),
    );
    let end = match ratchet.steps_left() {
        Some(steps) => format!(
            "The scale, now {}, moves by {:.2} octaves per bad batch and falls below 1 in about {} steps; then gradients underflow.",
            scale(ratchet.scale),
            ratchet.drift,
            number(steps.round())
        ),
        None => format!(
            "The scale has fallen to {}: it shrinks gradients instead of lifting them, and they underflow.",
            scale(ratchet.scale)
        ),
    };
    format!("{what} {end}")
}

/// A share that may be far below a tenth of a percent.
fn percent(x: f64) -> String {
    format!("{} %", number(x * 100.0))
}

fn bad_steps(dynamics: &ScaleDynamics) -> String {
    let mut steps: Vec<String> = dynamics.growthless_steps().rev().take(NAMED_STEPS).map(|s| s.to_string()).collect();
    steps.reverse();
    steps.join(", ")
}

fn remedy(aggregate: &Aggregate, ratchet: &Ratchet) -> String {
    // Half of what is critical, so that the scale gains more than it loses.
    let interval = (critical_interval(ratchet.p) / 2.0).floor() as u64;
    let meanwhile = if interval >= SHORTEST_INTERVAL {
        format!(
            "lower `growth_interval` from {} to {interval}, so that the scale recovers between them, and set",
            ratchet.growth_interval
        )
    } else {
        format!(
            "set (a shorter growth interval does not help: it would have to be below {:.0}, where probing the ceiling alone costs 2 % of the steps)",
            critical_interval(ratchet.p)
        )
    };
    let floor = ScaleAdvice::of(aggregate).map_or(0, |a| a.window.low.clamp(0, a.window.high.max(0)));
    format!(
        "Look at the batches of steps {} (bad inputs, empty masks, a division by a count of zero) and drop or repair them. Until then, {meanwhile} \
         `min_scale` to {}.",
        bad_steps(&aggregate.scale_dynamics),
        scale(f64::from(floor).exp2())
    )
}

/// The growth interval at which this share of bad batches is critical.
fn critical_interval(p: f64) -> f64 {
    std::f64::consts::LN_2 / p
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::scale_simulation::{SimulatedScaler, Uniform, median, number, settings, simulate};

    /// Batches of which this share is bad at any scale, below a ceiling of 2^15 that noise of half an octave blurs.
    fn bad_batches(p: f64, seed: u64) -> impl FnMut(f64) -> bool {
        let mut random = Uniform(seed);
        move |exponent| random.next() < p || exponent > 15.0 + 0.5 * random.normal()
    }

    /// For 20 seeds, the steps left as the first finding told, divided by those that it then took; infinite where the scale was below 1 before.
    fn told_over_true(p: f64, growth_interval: u64) -> Vec<f64> {
        let ratio = |seed: u64| {
            let mut is_bad = bad_batches(p, 1000 * seed);
            let mut run = SimulatedScaler::new(settings(growth_interval));
            let told = loop {
                run.step(is_bad(run.scale.log2()));
                if run.scale < 1.0 {
                    return f64::INFINITY;
                }
                if let Some(firing) = run.check(&ScaleRatchet) {
                    break number(&firing.evidence, "steps_to_scale_below_1");
                }
            };
            let told_at = run.steps();
            while run.scale >= 1.0 {
                run.step(is_bad(run.scale.log2()));
            }
            told / (run.steps() - told_at) as f64
        };
        (0..20).map(ratio).collect()
    }

    #[test]
    fn the_steps_that_are_left_are_right_within_a_factor_of_two() {
        for (p, growth_interval) in [(0.005, 2000), (0.01, 2000), (0.05, 2000), (0.05, 50)] {
            let ratios = told_over_true(p, growth_interval);
            let late = ratios.iter().filter(|r| r.is_infinite()).count();
            let ratio = median(ratios);
            println!("p = {p}, n = {growth_interval}: told / true = {ratio:.2}, {late} of 20 too late");
            assert!(
                (0.5..2.0).contains(&ratio) && late <= 6,
                "p = {p}, n = {growth_interval}: {ratio}, {late} too late"
            );
        }
    }

    #[test]
    fn below_ln_2_over_n_the_scaler_makes_good_what_bad_batches_cost() {
        // At 0.72 of the critical share bad luck lowers the scale by 2^9 now and then.
        for (p, growth_interval, may_fire) in [(0.005, 50, 0), (0.0001, 2000, 0), (0.01, 50, 6)] {
            let found = |seed| simulate(settings(growth_interval), 200 * growth_interval, bad_batches(p, seed)).1;
            let codes: Vec<Vec<&str>> = (0..20).map(|seed| found(seed).into_keys().collect()).collect();
            println!("p = {p}, n = {growth_interval}: {codes:?}");
            let fired = codes.iter().filter(|c| !c.is_empty()).count();
            assert!(fired <= may_fire, "p = {p}, n = {growth_interval}: {codes:?}");
        }
    }

    #[test]
    fn at_1_44_times_ln_2_over_n_it_is_found_although_fewer_steps_are_skipped_than_in_a_healthy_run() {
        let steps: Vec<f64> = (0..20)
            .map(|seed| {
                let mut is_bad = bad_batches(0.02, seed);
                let mut run = SimulatedScaler::new(settings(50));
                while run.check(&ScaleRatchet).is_none() && run.steps() < 20_000 {
                    run.step(is_bad(run.scale.log2()));
                }
                run.steps() as f64
            })
            .collect();
        println!("{steps:?}");
        assert!(median(steps) < 3000.0);
    }

    #[test]
    fn natural_noise_of_any_width_is_no_ratchet() {
        // Heavy tails lower the scale by 15 octaves at n = 2000: there it is a ratchet, of batches that are not quite bad.
        let noises = [("narrow", 0.1, false), ("wide", 1.0, false), ("heavy", 1.0, true)];
        for (growth_interval, seed) in [10, 50, 200, 2000].into_iter().flat_map(|n| (0..5).map(move |seed| (n, seed))) {
            for (name, width, heavy) in noises.into_iter().filter(|&(.., heavy)| !heavy || growth_interval <= 200) {
                let mut random = Uniform(seed);
                let mut run = SimulatedScaler::new(settings(growth_interval));
                for _ in 0..60_000 {
                    run.step_below(12.0 + width * if heavy { random.t3() } else { random.normal() });
                    let found = run.check(&ScaleRatchet);
                    assert!(found.is_none(), "n = {growth_interval}, {name}, seed {seed}: {found:#?}");
                }
            }
        }
    }

    #[test]
    fn a_descent_from_far_above_the_ceiling_is_calibration() {
        let config = ScalerConfig { init_scale: 2f64.powi(32), ..settings(1000) };
        let mut random = Uniform(7);
        let (_, found) = simulate(config, 20_000, move |exponent| exponent > 9.0 + random.normal());
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn case_3_bad_batches_are_named_and_the_remedy_applied_ends_it() {
        let (run, found) = simulate(settings(2000), 4000, bad_batches(0.003, 5));
        let firing = &found["AMP302"];
        assert_eq!((firing.severity, found.len()), (Severity::Warning, 1), "{found:#?}");
        let p = number(&firing.evidence, "bad_batch_share");
        assert!((0.0015..0.006).contains(&p), "{p}");
        assert!(run.skips >= 10 && firing.remedy.contains("`growth_interval` from 2000 to "), "{}", firing.remedy);
        let interval = firing.remedy.split(" to ").nth(1).and_then(|s| s.split(',').next()).unwrap().parse().unwrap();
        let (_, found) = simulate(settings(interval), 100_000, bad_batches(0.003, 6));
        assert!(!found.contains_key("AMP302"), "n = {interval}: {found:#?}");
    }

    #[test]
    fn below_1_it_is_an_error_and_no_steps_are_left() {
        let mut run = SimulatedScaler::new(settings(2000));
        (0..2000).for_each(|i| run.step(i % 50 == 20));
        let firing = run.check(&ScaleRatchet).unwrap();
        assert_eq!(firing.severity, Severity::Error);
        assert!(
            firing.evidence.iter().all(|e| e.name != "steps_to_scale_below_1")
                && firing.explanation.contains("has fallen to")
        );
    }

    #[test]
    fn a_floor_that_holds_the_scale_and_hysteresis_that_forgives_are_no_ratchet() {
        for config in [
            ScalerConfig { min_scale: Some(1024.0), ..settings(2000) },
            ScalerConfig { hysteresis: 2, ..settings(2000) },
        ] {
            let mut run = SimulatedScaler::new(config.clone());
            (0..5000).for_each(|i| run.step(i % 97 == 20));
            assert!(run.check(&ScaleRatchet).is_none(), "{config:?}");
        }
    }

    #[test]
    fn one_long_streak_is_another_fault() {
        let mut run = SimulatedScaler::new(settings(2000));
        (0..200).for_each(|i| run.step(i >= 50));
        assert!(run.check(&ScaleRatchet).is_none());
    }
}
