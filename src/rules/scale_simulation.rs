//! A scaler that is simulated, for the tests of the rules on the loss scale: thousands of steps, no tensors.

use std::collections::BTreeMap;

use super::{Firing, Limits, Rule, Value, Verdict};
use crate::aggregate::Aggregate;
use crate::observation::{Cost, Record, ScalerConfig, ScalerEvent, Step, Tier};

/// PyTorch's scaler with this growth interval.
pub(super) fn settings(growth_interval: u64) -> ScalerConfig {
    ScalerConfig {
        init_scale: 65536.0,
        growth_factor: 2.0,
        backoff_factor: 0.5,
        growth_interval,
        min_scale: None,
        max_scale: None,
        hysteresis: 1,
        foreign: false,
    }
}

/// Uniform numbers in [0, 1): SplitMix64.
pub(super) struct Uniform(pub u64);

impl Uniform {
    pub fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.next().max(f64::MIN_POSITIVE).ln()).sqrt() * (std::f64::consts::TAU * self.next()).cos()
    }

    /// Student's t with three degrees of freedom: heavy tails.
    pub fn t3(&mut self) -> f64 {
        let chi2: f64 = (0..3).map(|_| self.normal().powi(2)).sum();
        self.normal() / (chi2 / 3.0).sqrt()
    }
}

/// A run of nothing but scaler events.
pub(super) struct SimulatedScaler {
    pub config: ScalerConfig,
    pub scale: f64,
    pub skips: u64,
    pub aggregate: Aggregate,
    tracker: u64,
    bad_in_a_row: u64,
    step: u64,
}

impl SimulatedScaler {
    pub fn new(config: ScalerConfig) -> Self {
        let mut aggregate = Aggregate::default();
        aggregate.apply(Record::Scaler(config.clone()));
        Self { scale: config.init_scale, config, skips: 0, aggregate, tracker: 0, bad_in_a_row: 0, step: 0 }
    }

    /// One step, in which gradients were finite or not.
    pub fn step(&mut self, bad: bool) {
        let from = self.scale;
        self.bad_in_a_row = if bad { self.bad_in_a_row + 1 } else { 0 };
        self.tracker = if bad { 0 } else { self.tracker + 1 };
        if bad && self.bad_in_a_row >= self.config.hysteresis {
            self.scale = (from * self.config.backoff_factor).max(self.config.min_scale.unwrap_or(0.0));
        } else if self.tracker == self.config.growth_interval {
            self.scale = from * self.config.growth_factor;
            self.tracker = 0;
        }
        self.skips += u64::from(bad);
        let scaler = vec![
            ScalerEvent::Unscaled { optimizer: 0, scale: from, found_inf: bad },
            ScalerEvent::Stepped { optimizer: 0, applied: !bad },
            ScalerEvent::Updated { from, to: self.scale, growth_tracker: self.tracker },
        ];
        self.aggregate.apply(Record::Step(Step {
            index: self.step,
            time_ns: 0,
            tier: Tier::Light,
            observations: Vec::new(),
            loss: Some(1.0),
            loss_scale: Some(from),
            scaler,
            recipe: Vec::new(),
            lr: None,
            metrics: Vec::new(),
            cost: Cost::default(),
        }));
        self.step += 1;
    }

    /// What the rule finds now.
    pub fn check(&self, rule: &dyn Rule) -> Option<Firing> {
        rule.check(&self.aggregate, &Limits::default()).into_iter().find_map(|v| match v {
            Verdict::Firing(firing) => Some(*firing),
            _ => None,
        })
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.step
    }
}

/// A run of `steps` steps, each bad or not by the exponent of the scale; and the first firing of each rule of the family.
pub(super) fn simulate(
    config: ScalerConfig,
    steps: u64,
    mut is_bad: impl FnMut(f64) -> bool,
) -> (SimulatedScaler, BTreeMap<&'static str, Firing>) {
    let rules: Vec<_> = super::all().iter().filter(|r| r.info().code.starts_with("AMP3")).collect();
    let mut run = SimulatedScaler::new(config);
    let mut found = BTreeMap::new();
    for _ in 0..steps {
        run.step(is_bad(run.scale.log2()));
        for rule in &rules {
            if !found.contains_key(rule.info().code)
                && let Some(firing) = run.check(**rule)
            {
                found.insert(rule.info().code, firing);
            }
        }
    }
    (run, found)
}

/// A number of the evidence.
pub(super) fn number(evidence: &[super::Evidence], name: &str) -> f64 {
    match evidence.iter().find(|e| e.name == name).map(|e| &e.value) {
        Some(Value::Number(x)) => *x,
        Some(Value::Count(n)) => *n as f64,
        other => panic!("{name}: {other:?}"),
    }
}

/// The middle of some numbers.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
