//! The steps at which a gradient was largest, so that a few that stand apart from all others need not speak for the run.

/// The largest magnitudes of a gradient without its loss scale, one a step: of the [`Largest::HELD`] steps at which they were largest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Largest {
    /// Step and magnitude, the largest first.
    held: Vec<(u64, f64)>,
    /// Steps with a non-zero element.
    steps: u64,
    latest: Option<u64>,
}

impl Largest {
    /// Steps held.
    pub const HELD: usize = 32;
    /// A step stands apart where it is this many times larger than the next: 6 octaves. Healthy gradients move by one or two from step to step.
    const APART: f64 = 64.0;
    /// Of so many steps one may stand apart. What comes more often belongs to the run.
    const RARE: u64 = 32;

    /// Adds a scan of `step`; of the micro-batches of one step the largest counts. Zero and what is not finite tell nothing.
    pub(super) fn push(&mut self, step: u64, max: f64) {
        if !max.is_finite() || max <= 0.0 {
            return;
        }
        if self.latest != Some(step) {
            (self.latest, self.steps) = (Some(step), self.steps + 1);
        }
        match self.held.iter().position(|&(held, _)| held == step) {
            Some(at) if self.held[at].1 >= max => return,
            Some(at) => drop(self.held.remove(at)),
            None => {}
        }
        let at = self.held.partition_point(|&(_, held)| held >= max);
        if at < Self::HELD {
            self.held.insert(at, (step, max));
            self.held.truncate(Self::HELD);
        }
    }

    /// The few steps that stand apart, the largest first; none in a run that is too short to tell.
    pub fn outliers(&self) -> impl Iterator<Item = u64> + '_ {
        let rare = usize::try_from(self.steps / Self::RARE).unwrap_or(usize::MAX);
        let is_apart = |&n: &usize| {
            let (above, below) = (n.checked_sub(1).and_then(|at| self.held.get(at)), self.held.get(n));
            matches!((above, below), (Some(above), Some(below)) if above.1 >= Self::APART * below.1)
        };
        let count = (1..=rare.min(Self::HELD)).rev().find(is_apart).unwrap_or(0);
        self.held[..count].iter().map(|&(step, _)| step)
    }

    /// The largest magnitude at any step but these; `None` where none is held.
    pub fn without(&self, is_left_out: impl Fn(u64) -> bool) -> Option<f64> {
        self.held.iter().find(|&&(step, _)| !is_left_out(step)).map(|&(_, max)| max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 steps of about 1, and these instead.
    fn with(others: &[(u64, f64)]) -> Largest {
        let mut largest = Largest::default();
        for step in 0..100 {
            let max = others.iter().find(|(at, _)| *at == step).map_or(1.0 + step as f64 / 1e3, |o| o.1);
            largest.push(step, max);
        }
        largest
    }

    fn outliers(others: &[(u64, f64)]) -> Vec<u64> {
        with(others).outliers().collect()
    }

    #[test]
    fn a_few_steps_that_are_far_larger_stand_apart() {
        assert_eq!(outliers(&[(33, 1e20)]), [33]);
        assert_eq!(outliers(&[(33, 1e20), (50, 1e3), (60, 200.0)]), [33, 50, 60]);
        assert_eq!(with(&[(33, 1e20)]).without(|step| step == 33), Some(1.099));
        assert_eq!(with(&[(33, 1e20)]).without(|_| false), Some(1e20));
    }

    #[test]
    fn what_is_not_far_larger_or_comes_more_often_belongs_to_the_run() {
        assert!(outliers(&[]).is_empty());
        assert!(outliers(&[(33, 60.0)]).is_empty());
        assert!(outliers(&[(10, 1e3), (20, 1e3), (30, 1e3), (40, 1e3)]).is_empty());
        let mut short = Largest::default();
        (0..20).for_each(|step| short.push(step, if step == 7 { 1e9 } else { 1.0 }));
        assert_eq!(short.outliers().count(), 0);
    }

    #[test]
    fn micro_batches_are_one_step_and_nothing_is_kept_of_zeros_and_infinities() {
        let mut largest = Largest::default();
        [(0, 1.0), (0, 4.0), (0, 2.0), (1, 0.0), (2, f64::INFINITY)]
            .iter()
            .for_each(|&(step, max)| largest.push(step, max));
        assert_eq!((largest.steps, largest.without(|_| false)), (1, Some(4.0)));
        (3..1000).for_each(|step| largest.push(step, 1.0));
        assert_eq!(largest.held.len(), Largest::HELD);
    }
}
