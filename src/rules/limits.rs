//! The numbers that rules compare with: each has a name, a default and the reason for it.

/// A number that a rule compares with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// The name of the rule it belongs to: `scale-thrash`.
    pub rule: &'static str,
    /// Its own name, in kebab case: `skip-share`.
    pub name: &'static str,
    /// Its value where nobody set another.
    pub default: f64,
    /// What it is counted in: `share of steps`.
    pub unit: &'static str,
    /// Why this default: what was measured, on healthy runs and on faulty ones.
    pub reason: &'static str,
}

/// The thresholds in force.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {}

impl Limits {
    /// The value in force for the run as a whole.
    pub fn of(&self, threshold: &Threshold) -> f64 {
        threshold.default
    }

    /// The value in force in `layer`.
    pub fn at(&self, threshold: &Threshold, _layer: &str) -> f64 {
        threshold.default
    }
}
