//! What the loss was at first, and lately.

use std::collections::VecDeque;

use crate::observation::Step;

/// The loss of one step, and what is known of that step in every tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// The step.
    pub step: u64,
    /// The loss; may be non-finite.
    pub loss: f64,
    /// The learning rate in force, where it was told.
    pub lr: Option<f64>,
    /// The loss scale in force, where there was one.
    pub loss_scale: Option<f64>,
    /// Whether a scaler withheld the step.
    pub skipped: bool,
}

/// The first losses of the run and the latest; steps without one are not in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Losses {
    /// The first finite losses, at most [`Losses::FIRST`].
    pub first: Vec<f64>,
    /// The latest losses with their steps, oldest first, non-finite ones too: at most [`Losses::WINDOW`].
    pub recent: VecDeque<Loss>,
    /// The lowest that [`Losses::present`] has been, of eight losses or more.
    pub lowest: Option<f64>,
    /// Losses given in the whole run.
    pub count: u64,
    /// The highest learning rate that the run had before the oldest of `recent`; `None` where none was told.
    pub highest_lr_before: Option<f64>,
}

impl Losses {
    /// Losses kept of the beginning.
    pub const FIRST: usize = 3;
    /// Losses kept of the recent past.
    pub const WINDOW: usize = 96;
    /// Losses that are taken together for the present one, since a single batch says little.
    const PRESENT: usize = 8;

    /// What the loss began with: the median of the first ones; `None` before the first.
    pub fn initial(&self) -> Option<f64> {
        median(self.first.iter().copied())
    }

    /// What it is now: the median of the latest finite ones; `None` where there is none.
    pub fn present(&self) -> Option<f64> {
        median(self.recent.iter().rev().map(|at| at.loss).filter(|loss| loss.is_finite()).take(Self::PRESENT))
    }

    /// Whether the loss has come down to this share of what it began with; `None` where there is no loss, or it began at 0 or below, where
    /// shares mean nothing.
    pub fn has_fallen_to(&self, share: f64) -> Option<bool> {
        let initial = self.initial().filter(|&initial| initial > 0.0)?;
        self.present().map(|present| present <= share * initial)
    }

    pub(super) fn push(&mut self, step: &Step) {
        let Some(loss) = step.loss else { return };
        if loss.is_finite() && self.first.len() < Self::FIRST {
            self.first.push(loss);
        }
        self.count += 1;
        if self.recent.len() == Self::WINDOW
            && let Some(lr) = self.recent.pop_front().and_then(|oldest| oldest.lr)
        {
            self.highest_lr_before = Some(self.highest_lr_before.map_or(lr, |highest| highest.max(lr)));
        }
        self.recent.push_back(Loss {
            step: step.index,
            loss,
            lr: step.lr,
            loss_scale: step.loss_scale,
            skipped: step.skipped(),
        });
        if self.count >= Self::PRESENT as u64
            && let Some(present) = self.present()
        {
            self.lowest = Some(self.lowest.map_or(present, |lowest| lowest.min(present)));
        }
    }
}

/// The lower of the two middle ones where their number is even; `None` of nothing.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(values: &[f64]) -> Losses {
        let mut losses = Losses::default();
        for (step, &loss) in values.iter().enumerate() {
            losses.push(&Step {
                index: step as u64,
                time_ns: 0,
                tier: crate::observation::Tier::Off,
                observations: Vec::new(),
                loss: Some(loss),
                loss_scale: None,
                scaler: Vec::new(),
                recipe: Vec::new(),
                lr: None,
                metrics: Vec::new(),
                cost: Default::default(),
            });
        }
        losses
    }

    #[test]
    fn one_batch_is_neither_the_beginning_nor_the_present() {
        let l = losses(&[2.3, 9.0, 2.2, 1.0, 1.0, 1.0, 40.0, f64::NAN, 1.0]);
        assert_eq!((l.initial(), l.present()), (Some(2.3), Some(1.0)));
        assert_eq!((l.has_fallen_to(0.5), l.has_fallen_to(0.4)), (Some(true), Some(false)));
    }

    #[test]
    fn the_lowest_is_one_of_eight_and_no_lucky_batch() {
        let mut values = vec![2.0; 7];
        assert_eq!(losses(&values).lowest, None);
        values.extend([0.01, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0]);
        assert_eq!(losses(&values).lowest, Some(1.0));
    }

    #[test]
    fn of_a_loss_that_is_not_positive_no_share_is_taken() {
        assert_eq!(losses(&[-1.0, -2.0]).has_fallen_to(0.5), None);
        assert_eq!(losses(&[f64::NAN]).present(), None);
        assert_eq!(Losses::default().initial(), None);
    }

    #[test]
    fn the_recent_past_is_bounded() {
        assert_eq!(losses(&[1.0; 1000]).recent.len(), Losses::WINDOW);
    }
}
