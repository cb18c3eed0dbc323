//! Whether the loop keeps to the recipe of loss scaling: backward, unscale, clip, step, update, each once and in this order.
//!
//! [`Machine`] follows the events of one step after the other; what it notices is kept once for each kind of mistake. A mistake is only noticed on positive evidence:
//! where something was not seen, as between scanned steps, nothing is noticed.

mod losses;
mod machine;
mod schedule;
#[cfg(test)]
mod tests;

use std::mem::discriminant;

use super::SiteSummary;
use crate::observation::{Probe, ScalerConfig, Step};
use crate::scan::Dtype;
use losses::ReportedLoss;
use machine::Machine;
use schedule::Schedule;

/// A mistake in the order of a loop, with the numbers it stands on.
#[derive(Clone, Debug, PartialEq)]
pub enum Mistake {
    /// Gradients of one optimizer were divided by the scale twice, or would have been, had the scaler not refused.
    UnscaledTwice {
        /// Number of the optimizer.
        optimizer: u32,
        /// The scale.
        scale: Option<f64>,
        /// Whether a backward pass came between: each micro-batch was unscaled.
        backward_between: bool,
        /// Whether the first of them was a division by hand.
        by_hand: bool,
        /// Whether the scaler refused.
        refused: bool,
    },
    /// Gradients were clipped while they still carried the scale.
    ClippedBeforeUnscale(Clip),
    /// An optimizer was stepped and its next step began without `update`.
    UpdateMissing {
        /// Number of the optimizer.
        optimizer: u32,
        /// Whether both lie within one step of the loop: then it may be two optimizers that hold the same parameters.
        within_one_step: bool,
    },
    /// A call that came twice, too early, or past the scaler.
    Misplaced(Misplaced),
    /// An optimizer stepped with gradients that still carried the scale.
    SteppedScaled {
        /// The scale.
        scale: f64,
        /// Whether the optimizer divides by the size of its gradients.
        adaptive: bool,
    },
    /// An optimizer stepped, or would have, with gradients that held those of an earlier step.
    Stale {
        /// Parameters whose gradient did.
        stale: u32,
        /// Parameters that were stepped.
        parameters: u32,
        /// Whether the scaler withheld the step.
        withheld: bool,
    },
    /// Gradients of one step were collected under two scales.
    ScaleChangedWithin {
        /// The scale of the earlier backward pass.
        from: f64,
        /// That of the later one.
        to: f64,
    },
    /// The scale was updated after one optimizer and before another whose gradients carry the scale from before.
    ScaleChangedBetween {
        /// The optimizer that came too late.
        optimizer: u32,
        /// The scale that its gradients carry.
        from: f64,
        /// The scale they were divided by: the same, where the update happened to leave it.
        to: f64,
    },
    /// The product of loss and scale was taken in FP16, and was infinite.
    HalfLoss {
        /// The loss.
        loss: f64,
        /// The scale.
        scale: f64,
    },
    /// The loss that the doctor was given is the scaled one.
    ScaledLossReported {
        /// What it was given.
        reported: f64,
        /// The loss that was scaled.
        loss: f64,
        /// The scale.
        scale: f64,
    },
    /// No parameter of an optimizer had a gradient.
    NoGradients {
        /// Number of the optimizer.
        optimizer: u32,
        /// Its parameters.
        parameters: Vec<String>,
    },
    /// FP16 gradients were given to a scaler.
    HalfGradients {
        /// The parameters.
        parameters: Vec<String>,
    },
    /// The learning rate fell while no step was applied.
    SchedulerAhead {
        /// Steps that were withheld and after which it fell.
        moves: u64,
        /// What it was at the first of them.
        from: f64,
        /// What it was after the latest.
        to: f64,
        /// How much it fell by at all of them, over the highest it was.
        lost_share: f64,
    },
}

/// Gradients clipped while they carried the scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    /// The scale.
    pub scale: f64,
    /// What they were multiplied by; `None` where they were clamped.
    pub factor: Option<f64>,
    /// The largest magnitude that clamping left; `None` where they were multiplied.
    pub limit: Option<f64>,
    /// The norm of all gradients before, scale included; `None` where they were not scanned.
    pub norm: Option<f64>,
    /// Their elements; 0 where they were not scanned.
    pub elements: u64,
    /// Whether the optimizer divides by the size of its gradients.
    pub adaptive: bool,
}

/// A call in the wrong place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// `update` a second time, with nothing checked in between.
    UpdatedAgain,
    /// `update` before any optimizer was unscaled or stepped.
    UpdatedFirst,
    /// `update` between `unscale` and `step`: `step` then unscaled once more.
    UpdatedBeforeStep,
    /// `step` a second time with the same gradients.
    SteppedAgain,
    /// The optimizer's own step in place of the scaler's: nobody withholds it.
    SteppedPastScaler,
    /// `unscale`, `step` or `update`, and no loss was ever scaled.
    NothingScaled,
}

/// A mistake over the run.
#[derive(Clone, Debug, PartialEq)]
pub struct Sighting {
    /// The first step.
    pub first: u64,
    /// The latest step.
    pub latest: u64,
    /// How often.
    pub times: u64,
    /// The mistake, as it was when it was latest.
    pub mistake: Mistake,
}

/// What was noticed of the recipe.
#[derive(Clone, Debug, Default)]
pub struct Recipe {
    /// One for each kind of mistake, in the order in which they were first made.
    pub sightings: Vec<Sighting>,
    machine: Machine,
    schedule: Schedule,
    reported: ReportedLoss,
}

impl Recipe {
    /// The mistake that `which` picks.
    pub fn sighting(&self, which: impl Fn(&Mistake) -> bool) -> Option<&Sighting> {
        self.sightings.iter().find(|s| which(&s.mistake))
    }

    /// Whether the learning rate was seen to fall, and steps were withheld, two at least, at which it was not told.
    pub fn lr_unknown_at_skips(&self) -> bool {
        self.schedule.is_unknown_at_skips()
    }

    pub(super) fn push(&mut self, step: &Step, config: Option<&ScalerConfig>, sites: &[SiteSummary]) {
        let foreign = config.is_none_or(|c| c.foreign);
        let mut mistakes = self.machine.follow(step, foreign);
        mistakes.extend(self.reported.push(step));
        mistakes.extend(self.schedule.push(step));
        for mut mistake in mistakes {
            if let Mistake::ClippedBeforeUnscale(clip) = &mut mistake {
                (clip.norm, clip.elements) = gradients_of(step, sites);
            }
            self.note(step.index, mistake);
        }
    }

    fn note(&mut self, step: u64, mistake: Mistake) {
        let known = self.sightings.iter_mut().find(|s| discriminant(&s.mistake) == discriminant(&mistake));
        match known {
            Some(sighting) => {
                sighting.times += 1;
                sighting.latest = step;
                sighting.mistake = mistake;
            }
            None => self.sightings.push(Sighting { first: step, latest: step, times: 1, mistake }),
        }
    }
}

/// Norm and number of elements of the parameters' gradients, as they were scanned before they were unscaled.
fn gradients_of(step: &Step, sites: &[SiteSummary]) -> (Option<f64>, u64) {
    let gradients = step
        .observations
        .iter()
        .filter(|o| sites.get(o.site.0 as usize).is_some_and(|s| s.site.probe == Probe::ParamGrad));
    let (squares, elements) =
        gradients.fold((0.0, 0), |(sum, n), o| (sum + o.stats.sum_squares.to_f64(), n + o.stats.count));
    ((elements > 0 && squares.is_finite()).then(|| squares.sqrt()), elements)
}

/// Whether a product in this format is infinite though its factors are finite.
fn overflows(value: f64, dtype: Dtype) -> bool {
    let limit = match dtype {
        // From here on FP16 rounds to infinity.
        Dtype::F16 => 65520.0,
        Dtype::Bf16 | Dtype::F32 => f64::from(f32::MAX),
        Dtype::F64 => f64::MAX,
    };
    value.is_finite() && value.abs() >= limit
}
