//! Losses that lie on a device. To read one is to wait for the device, so a step that is not scanned keeps its loss there: it is recorded a little later, when something
//! waits anyway, when some have come together, or when a second has passed.

use std::time::{Duration, Instant};

use ampdoctor::observation::Step;

use crate::loss::Loss;
use crate::observer::{Kept, KeptReader};
use crate::shim::ShimError;

/// Steps that wait for their losses at most: what a device is waited for that often costs nothing, and it is a small part of the recorder's queue.
const MOST: usize = 16;

/// How long a step waits for its loss at most: whoever watches the run, or reads what a killed one left, misses no more than that.
const LONGEST: Duration = Duration::from_secs(1);

/// The loss of a step.
pub(super) enum StepLoss {
    /// It is known; `None` where there is none.
    Known(Option<f64>),
    /// It is still on its device.
    Later(Kept),
}

impl StepLoss {
    /// Reads it; leaves it on its device where the step does not wait for that.
    pub(super) fn of(loss: &dyn Loss, waits: bool) -> Self {
        let kept = loss.tensor().filter(|_| !waits).and_then(Kept::copy_of);
        kept.map_or_else(|| Self::Known(loss.value()), Self::Later)
    }

    /// The loss, where it is known.
    pub(super) fn known(&self) -> Option<f64> {
        match self {
            Self::Known(loss) => *loss,
            Self::Later(_) => None,
        }
    }
}

/// Steps, oldest first, whose losses are still on their device.
#[derive(Default)]
pub(super) struct Losses {
    waiting: Vec<(Step, Kept)>,
    /// When the first of them began to wait.
    since: Option<Instant>,
    reader: KeptReader,
}

impl Losses {
    /// A step waits for its loss.
    pub(super) fn hold(&mut self, step: Step, loss: Kept, now: Instant) {
        self.since.get_or_insert(now);
        self.waiting.push((step, loss));
    }

    /// Whether it is time to read them.
    pub(super) fn are_due(&self, now: Instant) -> bool {
        self.waiting.len() >= MOST || self.since.is_some_and(|since| now.duration_since(since) >= LONGEST)
    }

    /// The steps with their losses; without, where the device failed, and why it did.
    pub(super) fn read(&mut self) -> (Vec<Step>, Option<ShimError>) {
        self.since = None;
        // Taken out first: what fails below must not come again.
        let waiting = std::mem::take(&mut self.waiting);
        if waiting.is_empty() {
            return (Vec::new(), None);
        }
        let (values, failure) = match self.reader.read(waiting.iter().map(|(_, loss)| loss)) {
            Ok(values) => (values, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let values = values.into_iter().chain(std::iter::repeat(None));
        let steps = waiting.into_iter().zip(values).map(|((step, _), loss)| Step { loss, ..step });
        (steps.collect(), failure)
    }
}

#[cfg(test)]
mod tests {
    use ampdoctor::observation::{Cost, Tier};
    use tch::Tensor;

    use super::*;
    use crate::observer::treat_host_as_device;

    fn step(index: u64) -> Step {
        Step {
            index,
            time_ns: 0,
            tier: Tier::Off,
            observations: Vec::new(),
            loss: None,
            loss_scale: None,
            scaler: Vec::new(),
            recipe: Vec::new(),
            lr: None,
            metrics: Vec::new(),
            cost: Cost::default(),
        }
    }

    fn later(loss: &Tensor) -> Option<Kept> {
        match StepLoss::of(&loss, false) {
            StepLoss::Later(kept) => Some(kept),
            StepLoss::Known(_) => None,
        }
    }

    // One test: the switch is the whole process's, and all others pass either way.
    #[test]
    fn only_losses_on_a_device_wait_and_few_and_not_for_long() {
        treat_host_as_device(false);
        assert_eq!(StepLoss::of(&&Tensor::from(0.5f32), false).known(), Some(0.5), "the host reads it");
        treat_host_as_device(true);
        assert_eq!(StepLoss::of(&1.5, false).known(), Some(1.5));
        assert!(StepLoss::of(&(), false).known().is_none());
        assert_eq!(StepLoss::of(&&Tensor::from(0.25f64), true).known(), Some(0.25), "the step waits anyway");
        assert!(later(&Tensor::from(3i64)).is_none() && later(&Tensor::from_slice(&[1f32, 2.0])).is_none());

        let began = Instant::now();
        let mut losses = Losses::default();
        for index in 0..MOST as u64 {
            assert!(!losses.are_due(began + LONGEST / 2));
            let mut loss = Tensor::from(index as f32);
            let kept = later(&loss).expect("it is on a device");
            // What is kept is the number as it was.
            let _ = loss.fill_(f64::NAN);
            losses.hold(step(index), kept, began);
        }
        assert!(losses.are_due(began), "enough have come together");
        let (steps, failure) = losses.read();
        let read: Vec<_> = steps.iter().map(|s| (s.index, s.loss)).collect();
        assert_eq!(read, (0..MOST as u64).map(|i| (i, Some(i as f64))).collect::<Vec<_>>());
        assert!(failure.is_none() && losses.read().0.is_empty() && !losses.are_due(began + 2 * LONGEST));

        losses.hold(step(99), later(&Tensor::from(f64::INFINITY)).expect("it is on a device"), began);
        assert!(!losses.are_due(began) && losses.are_due(began + LONGEST));
        assert_eq!(losses.read().0[0].loss, Some(f64::INFINITY));
        treat_host_as_device(false);
    }
}
