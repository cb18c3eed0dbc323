//! How one run came out, in the numbers that are held against those of another.

use super::super::{Counts, Run};
use crate::aggregate::Losses;
use crate::rules::Health;

/// How a run came out. Of several ranks, counts are of the rank that got furthest and losses the mean.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The run's name; empty where it never said.
    pub name: String,
    /// The verdict on it.
    pub health: Health,
    /// Its findings by severity.
    pub counts: Counts,
    /// Steps it took.
    pub steps: u64,
    /// The loss at its end; `None` where it gave none.
    pub loss: Option<LossAtEnd>,
    /// The loss scale at its end; `None` where there was none.
    pub loss_scale: Option<f64>,
    /// Optimizer steps that a scaler withheld.
    pub skipped_steps: u64,
}

/// The latest losses of a run, taken together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossAtEnd {
    /// The mean of the finite ones; NaN where none is.
    pub mean: f64,
    /// Their standard deviation: how far a single batch lies from the mean. NaN where none is finite.
    pub spread: f64,
    /// Losses that were asked.
    pub losses: u64,
    /// Those of them that are not finite.
    pub non_finite: u64,
}

impl LossAtEnd {
    /// Losses that are asked, of each rank.
    pub const STEPS: usize = 50;

    /// The end of the loss over the ranks; `None` where none gave a loss.
    fn of<'a>(ranks: impl Iterator<Item = &'a Losses>) -> Option<Self> {
        let all: Vec<f64> = ranks.flat_map(|of| of.recent.iter().rev().take(Self::STEPS)).map(|at| at.loss).collect();
        let finite: Vec<f64> = all.iter().copied().filter(|loss| loss.is_finite()).collect();
        let n = finite.len() as f64;
        let mean = finite.iter().sum::<f64>() / n;
        let variance = finite.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / n;
        let (losses, non_finite) = (all.len() as u64, (all.len() - finite.len()) as u64);
        (losses > 0).then_some(Self { mean, spread: variance.sqrt(), losses, non_finite })
    }
}

impl Outcome {
    pub(super) fn of(run: &Run<'_>) -> Self {
        let aggregates = || run.ranks.iter().map(|rank| rank.aggregate);
        let scale = aggregates().find_map(|of| of.timeline.points.iter().rev().find_map(|point| point.loss_scale));
        Self {
            name: aggregates().find_map(|of| Some(of.run.as_ref()?.name.clone())).unwrap_or_default(),
            health: run.health(),
            counts: run.counts(),
            steps: run.ranks.iter().map(|rank| rank.steps()).max().unwrap_or(0),
            loss: LossAtEnd::of(aggregates().map(|of| &of.losses)),
            loss_scale: scale,
            skipped_steps: aggregates().map(|of| of.scaler.skipped).max().unwrap_or(0),
        }
    }
}
