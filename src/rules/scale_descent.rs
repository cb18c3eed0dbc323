//! What explains a descent of the loss scale: batches that are bad at any scale, or gradients that overflow because of it.
//!
//! A scaler's history is a row of gaps: clean steps, and the burst of skips that ended them. Two explanations are held against each other, each a hazard,
//! that is, the chance of a step to be refused at scale `2^x`:
//!
//! ```text
//! bad batches    h(x) = p                                    above what the scaler makes good
//! nature         h(x) = T((centre - x) / width) + f          f = 0, or 0.72 of what the scaler makes good
//! ```
//!
//! T is the upper tail of Student's t with three degrees of freedom: as heavy as the noise of gradients may be, and heavier than a normal one. Nature is a
//! ceiling of the scale, anywhere, blurred by 0.3, 1 or 2 octaves, together with bad batches that are too few to matter. What is compared is the best of
//! each family on the same gaps, from some burst to the latest one, by the logarithm of the likelihood ratio. The burst at which it is largest is where the descent began.
//!
//! A plain share of bursts without a growth, as in most of what is written on this, tells the two apart less well and later: the figures are on the
//! page of rule `scale-ratchet`.

use std::sync::LazyLock;

use super::{Limits, Threshold};
use crate::aggregate::{Burst, ScaleDynamics};
use crate::observation::ScalerConfig;

/// The rule that tells of it.
const NAME: &str = "scale-ratchet";
/// Widths of the blur of the ceiling, in octaves, and what the likelihood of each is charged: the widest is rare, and explains nearly everything.
const WIDTHS: [(f64, f64); 3] = [(0.3, 0.0), (1.0, 0.0), (2.0, 1.5)];
/// Bad batches that nature may hold, as a share of those at which the scale gains as often as it loses.
const TOLERATED: Threshold = Threshold::new(
    NAME,
    "tolerated",
    0.72,
    "of the critical share of bad batches",
    "What a scaler is trusted to bear, of the share ln 2 / n at which it loses as much as it gains: at 0.72 3 in 100 runs of 10,000 steps raise a false alarm, at 0.85 15.",
);
/// Log-likelihood ratio from which nature is no explanation.
const DECISIVE: Threshold = Threshold::new(
    NAME,
    "decisive",
    4.25,
    "log-likelihood ratio",
    "From here on a scaler that probes its ceiling is no explanation: 3 false alarms in 100 runs of 10,000 steps at 0.72 of the critical share, and 0 in 20 on noise of 1 octave with heavy tails.",
);
/// Bursts of a descent, at least.
const FEWEST_BURSTS: Threshold =
    Threshold::new(NAME, "fewest-bursts", 4.0, "bursts of skips", "Fewer bursts cannot be told from bad luck.");
/// Octaves that a descent has led down, at least.
const FEWEST_OCTAVES: Threshold = Threshold::new(
    NAME,
    "fewest-octaves",
    3.0,
    "octaves",
    "A scaler that probes its ceiling moves by one or two; a descent leads further.",
);
/// Where ceilings are looked for: from this many octaves below the present scale to a few above the highest.
const CEILINGS: (f64, f64) = (40.0, 4.0);
/// Steps of the search, in octaves.
const GRID: f64 = 0.5;
/// Range of the table of tails, in octaves between a scale and the ceiling.
const TABLE: (i32, i32) = (-50, 150);
/// A chance that is never quite 0 or 1, for its logarithm.
const CHANCE: (f64, f64) = (1e-12, 1.0 - 1e-9);

/// For each width the chance of overflow by the distance to the ceiling, in steps of [`GRID`].
static TAILS: LazyLock<Vec<Vec<f64>>> = LazyLock::new(|| {
    let distances = || (TABLE.0 * 2..=TABLE.1 * 2).map(|i| f64::from(i) * GRID);
    WIDTHS.iter().map(|(width, _)| distances().map(|d| upper_tail(d / width)).collect()).collect()
});

/// The chance that Student's t with three degrees of freedom exceeds `t`.
fn upper_tail(t: f64) -> f64 {
    let s = t / 3f64.sqrt();
    0.5 - (s / (1.0 + s * s) + s.atan()) / std::f64::consts::PI
}

/// The thresholds of rule `scale-ratchet`.
pub(super) const THRESHOLDS: &[Threshold] = &[TOLERATED, DECISIVE, FEWEST_BURSTS, FEWEST_OCTAVES];

/// What a scaler gains and loses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Balance {
    /// Octaves of a growth.
    gained: f64,
    /// Octaves that a skip costs: a backoff, or less where a floor or hysteresis holds the scale.
    lost: f64,
    interval: f64,
}

impl Balance {
    /// What these settings gain, and what the skips that are remembered have cost.
    pub fn of(config: &ScalerConfig, dynamics: &ScaleDynamics) -> Self {
        let skips: u64 = dynamics.bursts.iter().map(|b| b.skips).sum();
        let backoffs: u64 = dynamics.bursts.iter().map(|b| b.backoffs).sum();
        let fell = backoffs as f64 / skips.max(1) as f64;
        Self {
            gained: config.growth_factor.log2(),
            lost: fell * -config.backoff_factor.log2(),
            interval: config.growth_interval as f64,
        }
    }

    /// Octaves that the scale moves per bad batch, where a share `p` of them is bad.
    pub fn drift(&self, p: f64) -> f64 {
        let q = (1.0 - p).powf(self.interval);
        self.gained * q / (1.0 - q) - self.lost
    }

    /// The share of bad batches at which the scale gains as often as it loses: ln 2 / n for doubling and halving; 1 where a skip costs nothing.
    pub fn critical(&self) -> f64 {
        let q = self.lost / (self.lost + self.gained).max(f64::MIN_POSITIVE);
        1.0 - q.powf(1.0 / self.interval)
    }
}

/// A descent that bad batches explain and nature does not.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Descent {
    /// The step of the burst at which it began: the first that was no probe of the ceiling.
    pub since: u64,
    /// Bursts since then.
    pub bursts: usize,
    /// Those without a growth of the scale since the previous one.
    pub growthless: usize,
    /// Share of bad batches.
    pub p: f64,
    /// Octaves between the scale at its beginning and now.
    pub octaves: f64,
    /// Logarithm of the likelihood ratio.
    pub evidence: f64,
}

/// The descent that the latest burst belongs to; `None` where there is none, and where nature explains it.
pub(super) fn descent(
    dynamics: &ScaleDynamics,
    config: &ScalerConfig,
    balance: &Balance,
    limits: &Limits,
) -> Option<Descent> {
    let (fewest, octaves_down) = (limits.count(&FEWEST_BURSTS) as usize, limits.of(&FEWEST_OCTAVES));
    let now = dynamics.scale?.max(f64::MIN_POSITIVE).log2();
    let gaps = gaps(dynamics, config);
    let highest = gaps.iter().map(|g| g.x).fold(f64::NEG_INFINITY, f64::max);
    if gaps.len() < fewest || highest - now < octaves_down {
        return None;
    }
    let natural = natural(&gaps, now, highest, limits.of(&TOLERATED) * balance.critical());
    let mut best: Option<Descent> = None;
    let (mut open, mut growthless, mut since) = (0.0, 0, gaps.last()?.step);
    for (n, (gap, natural)) in gaps.iter().zip(&natural).rev().enumerate().map(|(i, g)| (i + 1, g)) {
        open += gap.exposures.iter().map(|e| e.steps).sum::<f64>();
        if !gap.grown_before {
            growthless += 1;
            since = gap.step;
        }
        let p = n as f64 / (n as f64 + open);
        let evidence = n as f64 * p.ln() + open * (1.0 - p).ln() - natural;
        let octaves = gap.x - now;
        let falls = p > balance.critical() && n >= fewest && octaves >= octaves_down;
        if falls && evidence >= limits.of(&DECISIVE) && best.as_ref().is_none_or(|b| evidence > b.evidence) {
            best = Some(Descent { since, bursts: n, growthless, p, octaves, evidence });
        }
    }
    best
}

/// Clean steps and the burst that ended them.
struct Gap {
    /// First step of the burst.
    step: u64,
    /// Exponent of the scale that the burst met.
    x: f64,
    grown_before: bool,
    /// The clean steps, but for those right after the burst before, at which none could have begun.
    exposures: Vec<Exposure>,
}

/// Steps at one scale.
struct Exposure {
    x: f64,
    steps: f64,
}

/// The gaps that are remembered. A run that begins with skips is looking for its scale: that burst ends no gap.
fn gaps(dynamics: &ScaleDynamics, config: &ScalerConfig) -> Vec<Gap> {
    let before = std::iter::once(None).chain(dynamics.bursts.iter().map(Some));
    let pairs = before.zip(&dynamics.bursts);
    pairs.filter_map(|(before, burst)| gap(before, burst, config)).collect()
}

fn gap(before: Option<&Burst>, burst: &Burst, config: &ScalerConfig) -> Option<Gap> {
    let exponent = |scale: f64| scale.max(f64::MIN_POSITIVE).log2();
    let clean = burst.clean_before.unwrap_or(burst.first_ordinal.saturating_sub(1));
    let open = clean.checked_sub(ScaleDynamics::BURST_GAP).filter(|&open| open > 0)?;
    let x = exponent(burst.first_scale);
    let from = before.map_or(x, |b| exponent(b.first_scale) + b.backoffs as f64 * config.backoff_factor.log2());
    let exposures = exposures(from, x, open as f64, config);
    Some(Gap { step: burst.first_step, x, grown_before: burst.grown_before, exposures })
}

/// A growth interval at each scale on the way up from `from` to `to`, and what is left of the steps there.
fn exposures(from: f64, to: f64, steps: f64, config: &ScalerConfig) -> Vec<Exposure> {
    let (rise, interval) = (config.growth_factor.log2(), config.growth_interval as f64);
    let growths = if rise > 0.0 { ((to - from) / rise).round().max(0.0) } else { 0.0 };
    let lower = (1..=growths as u32).map(|k| to - rise * f64::from(k));
    let mut left = steps;
    let mut all = Vec::new();
    // The highest scale has what the lower ones leave.
    for x in lower {
        let steps = interval.min((left - 1.0).max(0.0));
        left -= steps;
        all.push(Exposure { x, steps });
    }
    all.push(Exposure { x: to, steps: left });
    all
}

/// For each gap, the best log-likelihood that nature gives to the gaps from it to the latest.
fn natural(gaps: &[Gap], now: f64, highest: f64, tolerated: f64) -> Vec<f64> {
    let mut best = vec![f64::NEG_INFINITY; gaps.len()];
    let ceilings = ((highest - now + CEILINGS.0 + CEILINGS.1) / GRID).ceil() as u32;
    for (tails, (_, charge)) in TAILS.iter().zip(WIDTHS) {
        for few in [0.0, tolerated] {
            let log_chances: Vec<(f64, f64)> = tails.iter().map(|t| logarithms(t + few)).collect();
            for ceiling in (0..=ceilings).map(|i| now - CEILINGS.0 + GRID * f64::from(i)) {
                let chance = |x: f64| log_chances[place(ceiling - x)];
                let mut sum = -charge;
                for (gap, best) in gaps.iter().zip(&mut best).rev() {
                    sum += chance(gap.x).0 + gap.exposures.iter().map(|e| e.steps * chance(e.x).1).sum::<f64>();
                    *best = best.max(sum);
                }
            }
        }
    }
    best
}

/// The logarithms of a chance and of its contrary.
fn logarithms(chance: f64) -> (f64, f64) {
    let chance = chance.clamp(CHANCE.0, CHANCE.1);
    (chance.ln(), (1.0 - chance).ln())
}

/// Where the table has this distance.
fn place(octaves_below: f64) -> usize {
    let (first, last) = (f64::from(TABLE.0), f64::from(TABLE.1));
    ((octaves_below.clamp(first, last) - first) / GRID).round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::scale_simulation::settings;

    #[test]
    fn the_tail_is_that_of_students_t() {
        // From tables: t3 exceeds 2.353 in 5 % and 5.841 in 0.5 % of the cases.
        assert!((upper_tail(2.353) - 0.05).abs() < 1e-4 && (upper_tail(5.841) - 0.005).abs() < 1e-4);
        assert!((upper_tail(0.0) - 0.5).abs() < 1e-12 && (upper_tail(-2.353) - 0.95).abs() < 1e-4);
    }

    #[test]
    fn the_critical_share_is_ln_2_over_n_for_doubling_and_halving() {
        let balance = Balance { gained: 1.0, lost: 1.0, interval: 2000.0 };
        assert!((balance.critical() * 2000.0 / std::f64::consts::LN_2 - 1.0).abs() < 1e-3);
        assert!(balance.drift(balance.critical()).abs() < 1e-9);
        // A skip that costs nothing is made good by any growth; what never grows makes good nothing.
        assert_eq!(Balance { lost: 0.0, ..balance }.critical(), 1.0);
        assert_eq!(Balance { gained: 0.0, ..balance }.critical(), 0.0);
    }

    #[test]
    fn the_way_up_is_told_from_the_scales_at_its_ends() {
        let way = |from, to, steps| -> Vec<(f64, f64)> {
            exposures(from, to, steps, &settings(50)).iter().map(|e| (e.x, e.steps)).collect()
        };
        assert_eq!(way(8.0, 8.0, 30.0), [(8.0, 30.0)]);
        assert_eq!(way(8.0, 10.0, 120.0), [(9.0, 50.0), (8.0, 50.0), (10.0, 20.0)]);
        // At a ceiling of the settings the scale stands still.
        assert_eq!(way(8.0, 9.0, 1000.0), [(8.0, 50.0), (9.0, 950.0)]);
    }
}
