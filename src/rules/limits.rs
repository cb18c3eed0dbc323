//! The numbers that rules compare with: each has a name, a default and the reason for it.

use super::Pattern;

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

/// Units that count something: first words of them.
const COUNTED: [&str; 9] = ["steps", "scans", "scanned", "samples", "scaler", "skips", "bursts", "growths", "losses"];

impl Threshold {
    /// A threshold of a rule, in the order of its fields.
    pub const fn new(
        rule: &'static str,
        name: &'static str,
        default: f64,
        unit: &'static str,
        reason: &'static str,
    ) -> Self {
        Self { rule, name, default, unit, reason }
    }

    /// Why this value cannot be meant; `None` where it can.
    pub fn refuses(&self, value: f64) -> Option<&'static str> {
        let unit = self.unit.split_whitespace().next().unwrap_or_default();
        match () {
            () if !value.is_finite() => Some("it has to be a finite number"),
            () if value < 0.0 => Some("it cannot be negative"),
            () if unit == "share" && value > 1.0 => Some("a share lies between 0 and 1"),
            () if COUNTED.contains(&unit) && (value < 1.0 || value.fract() != 0.0) => {
                Some("it counts something: a whole number from 1 on")
            }
            () => None,
        }
    }
}

/// The thresholds in force: the defaults, but for what was set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    set: Vec<Limit>,
}

/// A threshold that was set to something else than its default.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// The threshold.
    pub threshold: Threshold,
    /// The layers it holds in; `None` for the whole run.
    pub layers: Option<Pattern>,
    /// The value in force.
    pub value: f64,
}

impl Limits {
    /// Sets a threshold; of several that hold in a layer the last one counts, and one for named layers before one for the run.
    pub fn set(&mut self, limit: Limit) {
        self.set.push(limit);
    }

    /// What was set, in its order.
    pub fn changed(&self) -> &[Limit] {
        &self.set
    }

    /// The value in force for the run as a whole.
    pub fn of(&self, threshold: &Threshold) -> f64 {
        self.last(threshold, |layers| layers.is_none()).unwrap_or(threshold.default)
    }

    /// The value in force in `layer`.
    pub fn at(&self, threshold: &Threshold, layer: &str) -> f64 {
        let here = self.last(threshold, |layers| layers.is_some_and(|pattern| pattern.matches(layer)));
        here.unwrap_or_else(|| self.of(threshold))
    }

    /// A value in force that counts something: rounded, 0 where it is negative.
    pub fn count(&self, threshold: &Threshold) -> u64 {
        self.of(threshold).round() as u64
    }

    fn last(&self, threshold: &Threshold, holds: impl Fn(Option<&Pattern>) -> bool) -> Option<f64> {
        let same = |limit: &&Limit| (limit.threshold.rule, limit.threshold.name) == (threshold.rule, threshold.name);
        self.set.iter().rev().filter(same).find(|limit| holds(limit.layers.as_ref())).map(|limit| limit.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Threshold = Threshold { rule: "r", name: "t", default: 1.0, unit: "share", reason: "measured" };
    const OTHER: Threshold = Threshold { name: "u", ..LIMIT };

    #[test]
    fn values_that_cannot_be_meant_are_refused() {
        let share = |value| LIMIT.refuses(value).is_some();
        assert_eq!(
            [0.0, 0.5, 1.0, 1.1, -0.1, f64::NAN, f64::INFINITY].map(share),
            [false, false, false, true, true, true, true]
        );
        let steps = Threshold { unit: "scanned steps", ..LIMIT };
        assert_eq!([1.0, 20.0, 0.0, 2.5].map(|value| steps.refuses(value).is_some()), [false, false, true, true]);
        assert_eq!(Threshold { unit: "magnitude", ..LIMIT }.refuses(1e5), None);
    }

    #[test]
    fn the_default_holds_until_another_is_set() {
        let mut limits = Limits::default();
        assert_eq!((limits.of(&LIMIT), limits.at(&LIMIT, "fc")), (1.0, 1.0));
        limits.set(Limit { threshold: LIMIT, layers: None, value: 2.0 });
        assert_eq!((limits.of(&LIMIT), limits.at(&LIMIT, "fc"), limits.of(&OTHER)), (2.0, 2.0, 1.0));
    }

    #[test]
    fn what_is_set_for_a_layer_holds_there_only_and_before_what_is_set_for_the_run() {
        let mut limits = Limits::default();
        limits.set(Limit { threshold: LIMIT, layers: Some(Pattern::new("fc*")), value: 3.0 });
        limits.set(Limit { threshold: LIMIT, layers: Some(Pattern::new("fc2")), value: 4.0 });
        limits.set(Limit { threshold: LIMIT, layers: None, value: 2.0 });
        assert_eq!((limits.of(&LIMIT), limits.at(&LIMIT, "conv")), (2.0, 2.0));
        assert_eq!((limits.at(&LIMIT, "fc1"), limits.at(&LIMIT, "fc2"), limits.count(&LIMIT)), (3.0, 4.0, 2));
    }
}
