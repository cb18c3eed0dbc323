//! Which steps are watched in full.

use ampdoctor::observation::Sampling;

/// Full steps after a skipped step or a non-finite value, so that its origin is caught if it comes again.
const AFTERMATH: u32 = 3;

/// Full steps in a row that such events may ask for, before a clean step must come between: a run that stays broken is not slowed
/// for ever.
const MAX_AFTERMATH: u32 = 12;

/// Weight of the latest step in the running means of the times.
const SMOOTHING: f64 = 0.2;

/// Chooses the full steps. A function of what it was told: it reads no clock.
#[derive(Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    /// The step at which the next full one is due.
    due: u64,
    aftermath: u32,
    in_a_row: u32,
    /// Running means of an unwatched step's and of a full step's probe time, in nanoseconds.
    step_ns: Option<f64>,
    probe_ns: Option<f64>,
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
        Self { sampling, due: 0, aftermath: 0, in_a_row: 0, step_ns: None, probe_ns: None }
    }

    /// Whether the very first step is full.
    pub(crate) fn first(&self) -> bool {
        !matches!(self.sampling, Sampling::Off)
    }

    /// Whether the step after this one is full.
    pub(crate) fn next(&mut self, step: StepFacts) -> bool {
        self.learn(step);
        let next = step.index + 1;
        if matches!(self.sampling, Sampling::Off) {
            return false;
        }
        if step.full && next > self.due {
            self.due = step.index + self.spacing();
        }
        self.watch_aftermath(step.alarming);
        let full = next >= self.due || self.aftermath > 0;
        self.aftermath = self.aftermath.saturating_sub(1);
        full
    }

    fn watch_aftermath(&mut self, alarming: bool) {
        if !alarming {
            self.in_a_row = 0;
        } else if self.in_a_row < MAX_AFTERMATH {
            self.in_a_row += 1;
            self.aftermath = AFTERMATH;
        }
    }

    fn learn(&mut self, step: StepFacts) {
        let mean =
            |old: Option<f64>, new: u64| Some(old.map_or(new as f64, |old| old + SMOOTHING * (new as f64 - old)));
        // The first step warms up: it stands in only until there is another.
        self.step_ns = if step.index <= 1 { Some(step.work_ns as f64) } else { mean(self.step_ns, step.work_ns) };
        if step.full {
            self.probe_ns = mean(self.probe_ns, step.probe_ns);
        }
    }

    /// Steps from one full step to the next.
    fn spacing(&self) -> u64 {
        match self.sampling {
            Sampling::Every(n) => n.max(1),
            Sampling::Off => u64::MAX,
            Sampling::Budget(share) => {
                let (Some(step), Some(probe)) = (self.step_ns, self.probe_ns) else { return 1 };
                // probe / (n * step) <= share
                (probe / (share.max(1e-6) * step.max(1.0))).ceil().clamp(1.0, 1e6) as u64
            }
        }
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
        // 20 % of a step at 2 %: one step in ten.
        assert_eq!(full_steps(Sampling::Budget(0.02), 35), [0, 10, 20, 30]);
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
