//! A learning rate that falls while no step is applied.

use super::Mistake;
use crate::observation::Step;

/// The learning rate over the steps that a scaler withheld.
#[derive(Clone, Debug, Default)]
pub(super) struct Schedule {
    /// Index and learning rate of the step before, and whether it was withheld.
    before: Option<(u64, f64, bool)>,
    highest: f64,
    moves: u64,
    from: f64,
    lost: f64,
    /// Whether the rate was ever lower than before: a constant one has no schedule, and one that only rises loses nothing.
    fell: bool,
    /// Steps that were withheld, and of which the rate is not known.
    unknown_skips: u64,
}

impl Schedule {
    pub(super) fn is_unknown_at_skips(&self) -> bool {
        self.fell && self.unknown_skips >= 2
    }

    pub(super) fn push(&mut self, step: &Step) -> Option<Mistake> {
        let lr = step.lr.filter(|lr| lr.is_finite() && *lr >= 0.0);
        self.unknown_skips += u64::from(step.skipped() && lr.is_none());
        let lr = lr?;
        self.fell |= lr < self.highest;
        self.highest = self.highest.max(lr);
        let before = self.before.replace((step.index, lr, step.skipped()));
        let (_, earlier, _) =
            before.filter(|&(index, earlier, skipped)| skipped && index + 1 == step.index && lr < earlier)?;
        if self.moves == 0 {
            self.from = earlier;
        }
        self.moves += 1;
        self.lost += earlier - lr;
        Some(Mistake::SchedulerAhead {
            moves: self.moves,
            from: self.from,
            to: lr,
            lost_share: self.lost / self.highest,
        })
    }
}
