//! Which steps are watched in full.

use ampdoctor::observation::Sampling;

/// Full steps after a skipped step or a non-finite value, so that its origin is caught if it comes again.
const AFTERMATH: u32 = 3;

/// Full steps in a row that such events may ask for, before a clean step must come between: a run that stays broken is not slowed
/// for ever.
const MAX_AFTERMATH: u32 = 12;

/// Weight of the latest step in the running mean of what a full step costs.
const SMOOTHING: f64 = 0.2;

/// A full step that took longer than this many usual ones was held up by something else, and is booked as this many.
const MOST_BOOKED: f64 = 4.0;

/// A full step is booked as this many times what the clock saw of it: caches that are cold after a scan and LibTorch's own bookkeeping for
/// its observers slow the training, the recorder's thread has work of its own, and no clock of ours sees that. By the benchmark up to a fifth more, and a third
/// of a percent of every step; a budget is a promise.
const UNSEEN: f64 = 1.5;

/// Chooses the full steps. A function of what it was told: it reads no clock.
#[derive(Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    account: Account,
    aftermath: u32,
    in_a_row: u32,
}

/// What was earned by training and spent on watching, under a budget: every step earns its share, every full one spends what it cost.
#[derive(Debug, Default)]
struct Account {
    /// Nanoseconds that may still be spent; below 0 in debt.
    balance: f64,
    /// Running mean of what a full step costs, in nanoseconds.
    full_ns: Option<f64>,
}

/// What a step was like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepFacts {
    pub index: u64,
    pub full: bool,
    /// Wall time of the step without the probe.
    pub work_ns: u64,
    pub probe_ns: u64,
    /// Skipped, or something in it was not finite.
    pub alarming: bool,
}

impl Sampler {
    pub(crate) fn new(sampling: Sampling) -> Self {
        Self { sampling, account: Account::default(), aftermath: 0, in_a_row: 0 }
    }

    /// Whether the very first step is full.
    pub(crate) fn first(&self) -> bool {
        !matches!(self.sampling, Sampling::Off)
    }

    /// Whether the step after this one is full.
    pub(crate) fn next(&mut self, step: StepFacts) -> bool {
        self.watch_aftermath(step.alarming);
        let aftermath = self.aftermath > 0;
        self.aftermath = self.aftermath.saturating_sub(1);
        match self.sampling {
            Sampling::Off => false,
            Sampling::Every(n) => (step.index + 1).is_multiple_of(n.max(1)) || aftermath,
            Sampling::Budget(share) => {
                self.account.book(step, share);
                self.account.is_even() || aftermath && self.account.has_credit()
            }
        }
    }

    fn watch_aftermath(&mut self, alarming: bool) {
        if !alarming {
            self.in_a_row = 0;
        } else if self.in_a_row < MAX_AFTERMATH {
            self.in_a_row += 1;
            self.aftermath = AFTERMATH;
        }
    }
}

impl Account {
    fn book(&mut self, step: StepFacts, share: f64) {
        let mut spent = step.probe_ns as f64;
        if step.full {
            let usual = self.full_ns.unwrap_or(spent);
            // The first step warms up: it stands in only until there is another.
            self.full_ns = Some(if step.index <= 1 { spent } else { usual + SMOOTHING * (spent - usual) });
            spent = UNSEEN * spent.min(MOST_BOOKED * usual);
        }
        // The share is one of the time of the training alone. What is not spent is not saved: full steps stay evenly spaced.
        self.balance = (self.balance + share * step.work_ns as f64 - spent).min(0.0);
    }

    fn is_even(&self) -> bool {
        self.balance >= 0.0
    }

    /// Events may be followed on credit, up to the longest aftermath; then what it cost is earned first.
    fn has_credit(&self) -> bool {
        self.full_ns.is_none_or(|full| -self.balance < f64::from(MAX_AFTERMATH) * full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(index: u64, full: bool) -> StepFacts {
        StepFacts { index, full, work_ns: 1_000_000, probe_ns: if full { 200_000 } else { 0 }, alarming: false }
    }

    fn full_steps(sampling: Sampling, steps: u64) -> Vec<u64> {
        let mut sampler = Sampler::new(sampling);
        let mut full = sampler.first();
        let mut seen = Vec::new();
        for index in 0..steps {
            if full {
                seen.push(index);
            }
            full = sampler.next(facts(index, full));
        }
        seen
    }

    #[test]
    fn every_third_step_is_full() {
        assert_eq!(full_steps(Sampling::Every(3), 10), [0, 3, 6, 9]);
        assert_eq!(full_steps(Sampling::Every(1), 4), [0, 1, 2, 3]);
    }

    #[test]
    fn off_is_never_full() {
        assert!(full_steps(Sampling::Off, 10).is_empty());
    }

    #[test]
    fn a_budget_spaces_full_steps_by_what_they_cost() {
        // 20 % of a step at 2 %, and as much as half of it that no clock sees: one step in fifteen.
        assert_eq!(full_steps(Sampling::Budget(0.02), 50), [0, 15, 30, 45]);
    }

    /// The share of the training's time that watching took in `steps` steps, every `alarm`-th of them alarming.
    fn cost(share: f64, steps: u64, alarm: u64, probe_ns: impl Fn(u64) -> u64) -> f64 {
        let mut sampler = Sampler::new(Sampling::Budget(share));
        let mut full = sampler.first();
        let (mut work, mut probe) = (0, 0);
        for index in 0..steps {
            let probe_ns = if full { probe_ns(index) } else { 500 };
            let step = StepFacts { index, full, work_ns: 1_000_000, probe_ns, alarming: index % alarm == alarm - 1 };
            (work, probe) = (work + step.work_ns, probe + probe_ns);
            full = sampler.next(step);
        }
        probe as f64 / work as f64
    }

    #[test]
    fn a_budget_is_kept_however_often_something_alarming_comes() {
        for alarm in [u64::MAX, 1000, 50, 10, 3, 1] {
            let cost = cost(0.02, 20_000, alarm, |_| 200_000);
            // What is unseen of a full step is booked, and nothing more of a light one: the share, what light steps take beyond theirs, and the last credit.
            assert!((0.012..0.0205 / UNSEEN).contains(&cost), "every {alarm}: {cost}");
        }
    }

    #[test]
    fn a_budget_follows_what_a_full_step_costs() {
        let cost = cost(0.02, 20_000, u64::MAX, |index| if index < 10_000 { 100_000 } else { 3_000_000 });
        assert!((0.012..0.0205 / UNSEEN).contains(&cost), "{cost}");
    }

    #[test]
    fn a_step_that_was_held_up_does_not_end_the_watching() {
        let mut sampler = Sampler::new(Sampling::Budget(0.02));
        let mut full = sampler.first();
        let mut seen = Vec::new();
        for index in 0..200 {
            seen.extend(full.then_some(index));
            let held_up = StepFacts { probe_ns: 2_000_000_000, ..facts(index, full) };
            full = sampler.next(if index == 15 { held_up } else { facts(index, full) });
        }
        assert_eq!(seen[..5], [0, 15, 75, 90, 105]);
    }

    #[test]
    fn after_an_alarm_the_next_steps_are_full_but_not_for_ever() {
        let mut sampler = Sampler::new(Sampling::Every(1000));
        let mut full = sampler.first();
        let mut count = 0;
        for index in 0..500 {
            full = sampler.next(StepFacts { alarming: index >= 10, ..facts(index, full) });
            count += u32::from(full);
        }
        assert_eq!(count, MAX_AFTERMATH + AFTERMATH - 1);
    }
}
