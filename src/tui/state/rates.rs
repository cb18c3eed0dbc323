//! How fast the run goes, by its own clock.

use std::collections::VecDeque;
use std::time::Duration;

use crate::observation::Step;

/// The times of the latest steps.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// Step and time since the start of the run, oldest first.
    times: VecDeque<(u64, u64)>,
}

impl Rates {
    /// Steps over which the speed is averaged: enough to even out an evaluation, few enough to show a slowdown.
    const STEPS: usize = 64;

    /// Adds one step.
    pub fn push(&mut self, step: &Step) {
        if self.times.len() > Self::STEPS {
            self.times.pop_front();
        }
        self.times.push_back((step.index, step.time_ns));
    }

    /// Steps per second over the latest steps; `None` before the second one.
    pub fn steps_per_second(&self) -> Option<f64> {
        let (first, last) = (self.times.front()?, self.times.back()?);
        let (steps, ns) = (last.0.checked_sub(first.0)?, last.1.checked_sub(first.1)?);
        (steps > 0 && ns > 0).then(|| steps as f64 * 1e9 / ns as f64)
    }

    /// The time that a step takes.
    pub fn step_time(&self) -> Option<Duration> {
        self.steps_per_second().map(|rate| Duration::from_secs_f64((1.0 / rate).min(86_400.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::testing::step;

    #[test]
    fn speed_is_taken_over_the_latest_steps_only() {
        let mut rates = Rates::default();
        let mut time = 0;
        for index in 0..200 {
            time += if index < 100 { 1_000_000_000 } else { 100_000_000 };
            rates.push(&crate::observation::Step { time_ns: time, ..step(index) });
        }
        let rate = rates.steps_per_second().expect("two steps were pushed");
        assert!((rate - 10.0).abs() < 1e-9, "{rate}");
    }

    #[test]
    fn one_step_has_no_speed() {
        let mut rates = Rates::default();
        rates.push(&step(0));
        assert_eq!(rates.steps_per_second(), None);
    }
}
