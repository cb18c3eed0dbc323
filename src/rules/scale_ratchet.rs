//! ## What it finds
//!
//! Batches whose gradients are not finite at any loss scale, so many that a dynamic scaler loses more at them than it regains between them: the scale
//! goes down and down, to nothing.
//!
//! ## Why it matters
//!
//! The scaler answers each such batch by halving its scale, and doubles it only after a whole growth interval without one. With a share p of bad
//! batches and an interval of n steps it loses more than it gains from p n = ln 2 = 0.69 on: at n = 2000 one bad batch in 2885 is too many. The scale
//! shrinks over hours; then the gradients underflow and training stops, without a NaN in sight.
//!
//! ## How it decides
//!
//! Skips with at most 2 clean steps between them are one burst, so that a descent counts once. Two explanations of the clean stretches between the
//! bursts are compared: bad batches, which come as often at a low scale as at a high one; and a scaler that probes its ceiling, which noisy gradients
//! blur, with at most a few bad batches. It is a descent where
//!
//! * bad batches explain the bursts better, by 4.25 in the logarithm of the likelihood, since some step: that is the step named;
//! * and their measured share is more than the scaler makes good: p n > ln 2;
//! * and the scale has fallen by 2^3 or more, in four bursts or more.
//!
//! **Warning** while the scale is 1 or more, with the number of steps until it falls below; **error** from then on.
//!
//! In simulations (n = 50) bad batches at 1.44, 2.2, 3.6 and 6 times the critical share ln 2 / n are found after 1700, 420, 220 and 125 steps. At
//! 0.72 times that share, which the scaler bears, 3 in 100 runs of 10,000 steps raise a false alarm, at 0.85 times 15. Close to the critical share
//! bad luck and a slow descent look alike.
//!
//! The rate of skips does not tell: a run that collapses may skip less often than a healthy one.
//!
//! ## What to do
//!
//! Look at the batches whose steps are named: bad inputs, empty masks, a division by a count of zero. Drop or repair them. Until then a floor,
//! `GradScaler::builder().min_scale(1.0).build()?`, keeps the scale useful for the other steps, and a growth interval well below 0.69 / p lets it
//! recover, where p is small enough for that.
//!
//! ## When it stays silent
//!
//! * While a scaler finds its scale at the start, and on one that probes its ceiling.
//! * While the gradients of the steps that are applied leave the scale no room: they have grown, and it is where it has to be.
//! * On fewer bad batches than the scaler makes good.
//! * On a scale that a floor of 1 or more, or hysteresis, holds: then rule `scale-floor` says how often.
//! * On one long streak of skips: that is no bad batch but a fault of the model, and rule `non-finite-origin` or `gradient-overflow` names it.
//! * With two scalers whose scales cannot be told apart: it says that it cannot tell.

use super::scale_advice::{ScaleAdvice, upper_end};
use super::scale_descent::{Balance, Descent, THRESHOLDS, descent};
use super::text::{counted, measured, number, said, scale, share};
use super::{Evidence, Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::Aggregate;

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

    fn needs(&self) -> Needs {
        Needs::OneScaler
    }

    fn thresholds(&self) -> &'static [Threshold] {
        THRESHOLDS
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        ratchet(aggregate, limits).map(|r| Verdict::Firing(Box::new(firing(aggregate, &r)))).into_iter().collect()
    }
}

/// A ratchet, in numbers.
struct Ratchet {
    descent: Descent,
    growth_interval: u64,
    /// The share of bad batches that the scaler makes good.
    critical: f64,
    /// Octaves that the scale moves per bad batch: negative.
    drift: f64,
    scale: f64,
}

impl Ratchet {
    /// Scaler steps until the scale is below 1.
    fn steps_left(&self) -> Option<f64> {
        (self.scale >= NO_SCALE_LEFT).then(|| octaves_left(self.scale) / -self.drift / self.descent.p)
    }
}

/// Halvings until the scale is below 1: from 1 itself it takes one.
fn octaves_left(scale: f64) -> f64 {
    scale.log2().floor() + 1.0
}

fn ratchet(aggregate: &Aggregate, limits: &Limits) -> Option<Ratchet> {
    let dynamics = &aggregate.scale_dynamics;
    let config = aggregate.scaler_config.as_ref().filter(|c| c.backoff_factor < 1.0)?;
    let has_floor = config.min_scale.is_some_and(|floor| floor >= NO_SCALE_LEFT);
    // Only where something is new: with a growth since the last burst the next one is none of this kind.
    if has_floor || !dynamics.refused || dynamics.growths_since_skip > 0 {
        return None;
    }
    let balance = Balance::of(config, dynamics);
    let descent = descent(dynamics, config, &balance, limits)?;
    if stands_at_its_ceiling(aggregate, dynamics.scale?) {
        return None;
    }
    let drift = balance.drift(descent.p);
    (drift < 0.0).then_some(Ratchet {
        growth_interval: config.growth_interval,
        critical: balance.critical(),
        drift,
        scale: dynamics.scale?,
        descent,
    })
}

/// Whether the gradients of the steps that were applied leave the scale no room: then they have grown, and it is where it has to be.
fn stands_at_its_ceiling(aggregate: &Aggregate, scale: f64) -> bool {
    let gradients =
        aggregate.sites.iter().filter(|s| s.site.probe.is_gradient() && aggregate.went_through_fp16(&s.site));
    let finite = gradients.flat_map(|s| &s.recent).filter(|sample| sample.stats.non_finite() == 0);
    let unscaled = finite.filter_map(|sample| Some(sample.stats.max_abs / sample.loss_scale?));
    upper_end(unscaled.fold(0.0, f64::max)).is_some_and(|ceiling| scale.log2() >= f64::from(ceiling))
}

fn firing(aggregate: &Aggregate, ratchet: &Ratchet) -> Firing {
    let severity = if ratchet.scale < NO_SCALE_LEFT { Severity::Error } else { Severity::Warning };
    Firing {
        severity,
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since: ratchet.descent.since,
        // The later, the better p is known and the nearer the end.
        strength: aggregate.scale_dynamics.skips_total as f64,
        evidence: evidence(aggregate, ratchet),
        explanation: explanation(ratchet),
        remedy: remedy(aggregate, ratchet),
    }
}

fn evidence(aggregate: &Aggregate, ratchet: &Ratchet) -> Vec<Evidence> {
    let descent = &ratchet.descent;
    let mut evidence = vec![
        measured("bad_batch_share", descent.p),
        measured("critical_bad_batch_share", ratchet.critical),
        measured("log_likelihood_ratio", descent.evidence),
        counted("growth_interval", ratchet.growth_interval),
        measured("drift_octaves_per_bad_batch", ratchet.drift),
        measured("loss_scale", ratchet.scale),
        measured("octaves_fallen", descent.octaves),
        counted("bursts", descent.bursts as u64),
        counted("bursts_without_growth", descent.growthless as u64),
        said("bad_steps", bad_steps(aggregate, descent)),
    ];
    evidence.extend(recovering_interval(descent.p).map(|n| counted("recovering_growth_interval", n)));
    evidence.extend(ratchet.steps_left().map(|steps| measured("steps_to_scale_below_1", steps.round())));
    evidence
}

fn explanation(ratchet: &Ratchet) -> String {
    let Ratchet { descent, growth_interval: n, critical, .. } = ratchet;
    let what = format!(
        "Since step {} the loss scale has fallen by 2^{:.0} in {} bursts of skips, {} of them without a growth since the one before, and they come as \
         often at the low scale as at the high one: about {} of the batches (one in {}) have gradients that are not finite at any scale. With a growth \
         interval of {n} the scaler makes good at most {}.",
        descent.since,
        descent.octaves,
        descent.bursts,
        descent.growthless,
        share(descent.p),
        number((1.0 / descent.p).round()),
        percent(*critical),
    );
    let end = match ratchet.steps_left() {
        Some(steps) => format!(
            "The scale, now {}, moves by {:.2} octaves per bad batch and falls below 1 in about {} steps; then gradients underflow.",
            scale(ratchet.scale),
            ratchet.drift,
            number(steps.round())
        ),
        None => format!(
            "The scale has fallen to {}: it shrinks gradients instead of lifting them, and the further it falls the more of them underflow.",
            scale(ratchet.scale)
        ),
    };
    format!("{what} {end}")
}

/// A share that may be far below a tenth of a percent.
fn percent(x: f64) -> String {
    format!("{} %", number(x * 100.0))
}

/// The latest bad batches, oldest first: skips that no growth had gone before.
fn bad_steps(aggregate: &Aggregate, descent: &Descent) -> String {
    let steps = aggregate.scale_dynamics.growthless_steps().rev();
    let mut steps: Vec<String> =
        steps.take_while(|s| *s >= descent.since).take(NAMED_STEPS).map(|s| s.to_string()).collect();
    steps.reverse();
    steps.join(", ")
}

fn remedy(aggregate: &Aggregate, ratchet: &Ratchet) -> Remedy {
    let (p, n) = (ratchet.descent.p, ratchet.growth_interval);
    let floor = ScaleAdvice::of(aggregate).map_or(0, |a| a.window.low.clamp(0, a.window.high.max(0)));
    let floor = f64::from(floor).exp2();
    let meanwhile = match recovering_interval(p) {
        Some(interval) => {
            format!("A `growth_interval` of {interval} in place of {n} lets it recover between them too.")
        }
        None => format!(
            "A shorter `growth_interval` does not help here: it would have to be below {:.0}, and probing the ceiling so often wastes 2 % of the steps by itself.",
            critical_interval(p)
        ),
    };
    // The settings keep the run alive and leave the cause where it is: none of them is the remedy.
    Remedy::from(format!(
        "Look at the batches of steps {} (bad inputs, empty masks, a division by a count of zero) and drop or repair them: no \
         setting of the scaler does, and their steps go on being skipped. Until then a floor, `min_scale` = {}, keeps the scale from falling below it. {meanwhile}",
        bad_steps(aggregate, &ratchet.descent),
        scale(floor)
    ))
}

/// The growth interval at which the scale gains more than it loses: half of what is critical, where that is not so short that it wastes steps by itself.
fn recovering_interval(p: f64) -> Option<u64> {
    Some((critical_interval(p) / 2.0).floor() as u64).filter(|&interval| interval >= SHORTEST_INTERVAL)
}

/// The growth interval at which this share of bad batches is critical.
fn critical_interval(p: f64) -> f64 {
    std::f64::consts::LN_2 / p
}

#[cfg(test)]
mod tests;
