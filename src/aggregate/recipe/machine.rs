//! The state machine: how far each optimizer has come, and what its gradients carry.
//!
//! ```text
//!            backward          unscale           step             update
//!  Ready ---------------> .. ----------> Unscaled ----> Stepped ---------> Ready
//! ```

use super::{Clip, Misplaced, Mistake, overflows};
use crate::observation::{Act, Refusal, ScalerEvent, Step};

/// How far an optimizer has come since the scale was last updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Ready,
    Unscaled,
    Stepped,
}

/// One optimizer.
#[derive(Clone, Copy, Debug)]
struct Optimizer {
    stage: Stage,
    /// Whether a backward pass has begun since.
    backward_since: bool,
    /// Whether that added to gradients that were there, as far as it was seen.
    added: bool,
    /// Whether the scale was updated since it was unscaled.
    updated_since: bool,
    /// Whether parameters were changed since it was unscaled.
    changed_since: bool,
    /// The step of the loop in which it was unscaled or stepped.
    step: Option<u64>,
}

const READY: Optimizer = Optimizer {
    stage: Stage::Ready,
    backward_since: false,
    added: false,
    updated_since: false,
    changed_since: false,
    step: None,
};

/// Optimizers that are followed.
const MAX_OPTIMIZERS: usize = 64;

/// How far from a whole number a divisor may lie that means a mean over micro-batches or a scale, and no clipping: clipping by a norm divides by
/// what is never whole, if only for the 1e-6 added to it.
const WHOLE: f64 = 1e-13;

/// A scale below this may be the number of micro-batches too, by which gradients are divided for their mean.
const NO_COUNT: f64 = 64.0;

/// What is known between two events.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    optimizers: Vec<Optimizer>,
    last_index: Option<u64>,
    /// The scale that the gradients now being collected carry; `None` where there are none, they are unscaled, or it is not known.
    carried: Option<f64>,
    /// The scale of the latest backward pass, also after its gradients were unscaled.
    collected: Option<f64>,
    /// Whether the library's scaler has scaled a loss whose backward pass has not begun.
    awaits_backward: bool,
    /// Whether an optimizer was stepped since.
    stepped: bool,
    /// The latest scale in force, as a scaler told it.
    scale: Option<f64>,
    /// Whether the scale was updated since the latest backward pass.
    updated: bool,
    /// A change of the scale that the next backward confirms to be one within an accumulation.
    changed: Option<(f64, f64)>,
    /// A multiplication of gradients that carry the scale, until they are unscaled.
    clip: Option<Clip>,
    /// Gradients divided by the scale itself, by hand.
    divided: bool,
    /// Parameters changed while gradients carried the scale, unless they are unscaled after all.
    raw_step: Option<(f64, bool)>,
    /// More than one of the library's scalers is at work; which optimizer is whose is not known then.
    several: bool,
    found: Vec<Mistake>,
}

impl Machine {
    /// What one step shows.
    pub(super) fn follow(&mut self, step: &Step, foreign: bool) -> Vec<Mistake> {
        if self.last_index.is_none_or(|last| step.index != last + 1) {
            *self = Self { several: self.several, scale: self.scale, ..Self::default() };
        }
        self.last_index = Some(step.index);
        let mut acts = step.recipe.iter().peekable();
        for (at, event) in step.scaler.iter().enumerate() {
            while let Some(act) = acts.next_if(|act| act.after as usize <= at) {
                self.act(&act.act, foreign);
            }
            self.event(*event, foreign);
        }
        acts.for_each(|act| self.act(&act.act, foreign));
        self.confirm_raw_step();
        std::mem::take(&mut self.found)
    }

    fn event(&mut self, event: ScalerEvent, foreign: bool) {
        match event {
            ScalerEvent::Scaled { scale } => self.scaled(scale),
            ScalerEvent::Unscaled { optimizer, scale, .. } => self.unscaled(optimizer, scale, foreign),
            ScalerEvent::Stepped { optimizer, .. } => self.stepped(optimizer),
            ScalerEvent::Updated { from, to, .. } => self.updated(from, to, foreign),
        }
    }

    /// A backward pass under this scale is about to begin.
    fn scaled(&mut self, scale: f64) {
        self.confirm_raw_step();
        let before = self.collected.replace(scale).filter(|_| !self.stepped && self.carried.is_some());
        if self.updated {
            self.changed = before.filter(|&before| before != scale).map(|before| (before, scale));
        }
        self.carried = (scale != 1.0).then_some(scale);
        self.awaits_backward = true;
        (self.stepped, self.updated) = (false, false);
        self.scale = Some(scale);
        for optimizer in &mut self.optimizers {
            (optimizer.backward_since, optimizer.added) = (true, false);
        }
    }

    fn unscaled(&mut self, number: u32, scale: f64, foreign: bool) {
        self.raw_step = None;
        let step = self.last_index;
        let Some(optimizer) = self.optimizer(number) else {
            self.carried = None;
            return;
        };
        let again = *optimizer;
        *optimizer = Optimizer { stage: Stage::Unscaled, step, ..READY };
        self.scale = Some(scale);
        let twice = |backward_between, by_hand| Mistake::UnscaledTwice {
            optimizer: number,
            scale: Some(scale),
            backward_between,
            by_hand,
            refused: false,
        };
        if again.stage == Stage::Unscaled && again.updated_since && !again.backward_since {
            self.found.push(Mistake::Misplaced(Misplaced::UpdatedBeforeStep));
        } else if again.stage == Stage::Unscaled && again.updated_since && again.added {
            self.found.push(twice(true, false));
        } else if again.stage == Stage::Unscaled && !again.updated_since && foreign {
            if !again.backward_since || again.added {
                self.found.push(twice(again.backward_since, false));
            }
        } else if again.stage != Stage::Ready && !again.updated_since && !foreign {
            // One scaler would have refused.
            self.several = true;
        } else if let Some(from) = self.collected.filter(|_| again.stage == Stage::Ready && self.updated) {
            self.found.push(Mistake::ScaleChangedBetween { optimizer: number, from, to: scale });
        }
        if std::mem::take(&mut self.divided) {
            self.found.push(twice(false, true));
        }
        if let Some(clip) = self.clip.take() {
            self.found.push(Mistake::ClippedBeforeUnscale(clip));
        }
        self.carried = None;
    }

    fn stepped(&mut self, number: u32) {
        let step = self.last_index;
        if let Some(optimizer) = self.optimizer(number) {
            *optimizer = Optimizer { stage: Stage::Stepped, step, ..READY };
        }
        self.stepped = true;
    }

    fn updated(&mut self, from: f64, to: f64, foreign: bool) {
        // Two scalers have scales of their own.
        self.several |= !foreign && self.scale.is_some_and(|scale| scale != from);
        self.scale = Some(to);
        self.updated = true;
        for optimizer in &mut self.optimizers {
            match optimizer.stage {
                Stage::Unscaled if optimizer.changed_since && !self.stepped && !foreign => {
                    self.found.push(Mistake::Misplaced(Misplaced::SteppedPastScaler));
                    *optimizer = READY;
                }
                Stage::Unscaled => optimizer.updated_since = true,
                Stage::Stepped => *optimizer = READY,
                Stage::Ready => {}
            }
        }
    }

    fn act(&mut self, act: &Act, foreign: bool) {
        match act {
            Act::Backward { holding, used, product } => {
                let product = product.filter(|p| p.loss.is_finite());
                // A foreign scaler does not tell when it scales a loss.
                let factor = product.map(|p| p.factor);
                match self.scale.filter(|&scale| foreign && factor == Some(scale)) {
                    Some(scale) => self.scaled(scale),
                    None if foreign => self.forget_scale(),
                    // Another loss, without a scale: whose gradients are whose is not known.
                    None if !self.awaits_backward => (self.carried, self.changed) = (None, None),
                    None => {}
                }
                self.awaits_backward = false;
                if let Some(p) = product.filter(|p| overflows(p.loss * p.factor, p.dtype)) {
                    self.found.push(Mistake::HalfLoss { loss: p.loss, scale: p.factor });
                }
                self.backward(holding > used);
            }
            Act::Multiplied { factor, .. } => self.multiplied(*factor),
            Act::Clamped { limit, .. } => {
                self.clip = self.clip.or(self.carried.map(|scale| clip(scale, None, Some(*limit))));
            }
            Act::Cleared { .. } => self.cleared(),
            Act::Stepped { parameters, stale, adaptive } => self.changed_parameters(*parameters, *stale, *adaptive),
            Act::Withheld { parameters, stale } => self.withheld(*parameters, *stale),
            Act::UpdatedAgain => self.found.push(Mistake::Misplaced(Misplaced::UpdatedAgain)),
            Act::HalfUnscaled { parameters } => {
                self.found.push(Mistake::HalfGradients { parameters: parameters.clone() });
            }
            Act::Refused { optimizer, refusal, parameters } => self.refused(*optimizer, *refusal, parameters),
        }
    }

    /// A backward pass whose loss nobody was seen to scale.
    fn forget_scale(&mut self) {
        self.confirm_raw_step();
        (self.collected, self.carried, self.changed) = (None, None, None);
        (self.stepped, self.updated) = (false, false);
    }

    /// Backward runs; `adds` where there are gradients of an earlier micro-batch.
    fn backward(&mut self, adds: bool) {
        (self.clip, self.divided) = (None, false);
        if let Some((from, to)) = self.changed.take().filter(|_| adds) {
            // Gradients that were unscaled in between are another mistake.
            if self.optimizers.iter().all(|o| o.stage != Stage::Unscaled) {
                self.found.push(Mistake::ScaleChangedWithin { from, to });
            }
        }
        for optimizer in &mut self.optimizers {
            optimizer.backward_since = true;
            optimizer.added |= adds;
        }
    }

    fn multiplied(&mut self, factor: f64) {
        let Some(scale) = self.carried.filter(|_| factor > 0.0 && factor < 1.0) else { return };
        let divisor = 1.0 / factor;
        if divisor == scale && scale >= NO_COUNT {
            self.divided = true;
        } else if (divisor - divisor.round()).abs() > WHOLE * divisor {
            self.clip = self.clip.or(Some(clip(scale, Some(factor), None)));
        }
    }

    fn cleared(&mut self) {
        (self.carried, self.clip, self.divided, self.changed) = (None, None, false, None);
    }

    fn changed_parameters(&mut self, parameters: u32, stale: u32, adaptive: bool) {
        if stale > 0 {
            self.found.push(Mistake::Stale { stale, parameters, withheld: false });
        }
        // The optimizer says only now what it is.
        for mistake in &mut self.found {
            if let Mistake::ClippedBeforeUnscale(clip) = mistake {
                clip.adaptive |= adaptive;
            }
        }
        if let Some(scale) = self.carried.filter(|_| !self.divided) {
            self.raw_step = Some((scale, adaptive));
        }
        for optimizer in self.optimizers.iter_mut().filter(|o| o.stage == Stage::Unscaled) {
            optimizer.changed_since = true;
        }
    }

    fn withheld(&mut self, parameters: u32, stale: u32) {
        if stale > 0 {
            self.found.push(Mistake::Stale { stale, parameters, withheld: true });
        }
    }

    /// Nothing unscaled the gradients that an optimizer has used.
    fn confirm_raw_step(&mut self) {
        if let Some((scale, adaptive)) = self.raw_step.take().filter(|_| !self.several) {
            self.found.push(Mistake::SteppedScaled { scale, adaptive });
            (self.carried, self.clip) = (None, None);
        }
    }

    fn refused(&mut self, number: Option<u32>, refusal: Refusal, parameters: &[String]) {
        let number = number.unwrap_or(0);
        let scale = self.scale;
        let updated = self.updated;
        let now = self.optimizer(number).map_or(READY, |optimizer| *optimizer);
        let parameters = parameters.to_vec();
        let within_one_step = now.step.is_some() && now.step == self.last_index;
        let update_missing = Mistake::UpdateMissing { optimizer: number, within_one_step };
        let twice = Mistake::UnscaledTwice {
            optimizer: number,
            scale,
            backward_between: now.backward_since,
            by_hand: false,
            refused: true,
        };
        self.found.push(match refusal {
            Refusal::UnscaledTwice if now.changed_since => update_missing,
            Refusal::UnscaledTwice => twice,
            Refusal::UnscaledAfterStep | Refusal::SteppedTwice if now.backward_since => update_missing,
            Refusal::UnscaledAfterStep => twice,
            Refusal::SteppedTwice => Mistake::Misplaced(Misplaced::SteppedAgain),
            Refusal::NothingChecked if updated => Mistake::Misplaced(Misplaced::UpdatedAgain),
            Refusal::NothingChecked => Mistake::Misplaced(Misplaced::UpdatedFirst),
            Refusal::NothingScaled => Mistake::Misplaced(Misplaced::NothingScaled),
            Refusal::NoGradients => Mistake::NoGradients { optimizer: number, parameters },
            Refusal::HalfGradients => Mistake::HalfGradients { parameters },
        });
    }

    /// `None` where several scalers number their optimizers alike, or there are too many.
    fn optimizer(&mut self, number: u32) -> Option<&mut Optimizer> {
        let number = number as usize;
        if self.several || number >= MAX_OPTIMIZERS {
            return None;
        }
        if number >= self.optimizers.len() {
            self.optimizers.resize(number + 1, READY);
        }
        self.optimizers.get_mut(number)
    }
}

fn clip(scale: f64, factor: Option<f64>, limit: Option<f64>) -> Clip {
    Clip { scale, factor, limit, norm: None, elements: 0, adaptive: false }
}
