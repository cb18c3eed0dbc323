//! ## What it finds
//!
//! Steps of the optimizer that are so large that they undo what was learnt: the learning rate is too high, or a gradient exploded.
//!
//! ## Why it matters
//!
//! The loss jumps, or turns NaN some steps later. What is then seen in FP16 (activations that overflow, a loss scale that falls) is a consequence,
//! which no loss scale cures: FP32 fails as well.
//!
//! ## How it decides
//!
//! By the norm of the update over the norm of the weights, all weight matrices together. Healthy runs have 0.011 or less at 99 % of their steps, and
//! up to 0.043 at the first. No size is wrong by itself, so the loss has a say:
//!
//! * **Error**: the ratio jumped to five times the median of the eight scanned steps before, to at least 0.01 and to twice what the run has borne for
//!   three steps before; or it was above 0.05 from the first steps on. And after it, over three losses or more, the loss is higher: by a fifth, above
//!   all of the eight before it, and by twice their spread; or it is not finite; or an activation overflowed.
//! * **Warning**: after such a jump, or from the start, the ratio stays above 0.05 for eight scanned steps, and the loss does not fall by 3 %. Some
//!   dozen steps of a twentieth of the weights leave little of them.
//!
//! The step named is that of the jump. The cause named is the learning rate where it rose there (tell it with `doctor.lr(lr)`), else the gradient
//! where that grew as much. Where the learning rate is known, and neither it nor the gradient makes an update of that size, it is said that something
//! else wrote the weights.
//!
//! ## What to do
//!
//! Set the learning rate back to what it was before the jump, or to the one named, at which an update is 1 % of the weights: `opt.set_lr(lr)`. Let it
//! rise over some hundred steps. Where it was a gradient, clip its norm: `scaler.unscale(&mut opt)?; opt.clip_grad_norm(1.0);` before `scaler.step`.
//! Go back to a checkpoint from before the jump: what was learnt is gone.
//!
//! ## When it stays silent
//!
//! * On large updates that do no harm: the first steps, a warm-up, a restart of a schedule that the run has borne before, weights that start at zero.
//! * On biases, gains and other vectors.
//! * On weights that something else than the optimizer changed while the scaler skipped its step.
//! * On a batch with a large loss whose update passes without harm.
//! * Where the doctor is told no loss, as long as nothing overflows.

use super::text::{counted, measured, number};
use super::update_advice::{may_update, uses_second_moment};
use super::{Evidence, Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, WeightStep, Weights, median};
use crate::observation::Probe;

const NAME: &str = "exploding-updates";
/// Factor by which the ratio jumps.
const JUMP: Threshold = Threshold::new(
    NAME,
    "jump",
    5.0,
    "factor",
    "Batches and restarts of a schedule move the size of an update by less; a learning rate 20 times too high moved it 33 times and 2600 times.",
);
/// Below this no step undoes anything.
const FLOOR: Threshold = Threshold::new(
    NAME,
    "least",
    0.01,
    "norm of the update over norm of the weights",
    "Healthy runs have 0.011 or less at 99 % of their steps: below this no step undoes anything.",
);
/// Factor by which it exceeds what the run has borne before.
const UNHEARD_OF: Threshold =
    Threshold::new(NAME, "unheard-of", 2.0, "factor", "What the run has borne for three steps before it bears again.");
/// Factor over what was before at which the jump still goes on.
const GOES_ON: Threshold =
    Threshold::new(NAME, "goes-on", 3.0, "factor", "Over what was before: as long as it is so the jump goes on.");
/// No healthy run keeps this.
const LARGE: Threshold = Threshold::new(
    NAME,
    "large",
    0.05,
    "norm of the update over norm of the weights",
    "Healthy runs have up to 0.043 at the first step and keep nothing like it; a learning rate 30 times too high kept 0.07 to 0.22.",
);
/// Steps for which it is kept.
const KEPT: Threshold = Threshold::new(
    NAME,
    "kept",
    8.0,
    "scanned steps in a row",
    "Steps of a twentieth of a weight leave nothing of it after some dozens; the first two or three may be so large.",
);
/// Steps before a jump that it is measured against, and the fewest.
const BEFORE: usize = 8;
const FEWEST_BEFORE: Threshold =
    Threshold::new(NAME, "before", 4.0, "scanned steps", "A median of fewer says nothing of what is usual.");
/// Losses after a jump that tell of its harm.
const LOSSES_AFTER: Threshold =
    Threshold::new(NAME, "losses-after", 3.0, "losses", "One batch with a large loss is no harm.");
/// Part of the loss by which it rises when there is harm.
const RISE: Threshold =
    Threshold::new(NAME, "rise", 0.2, "share of the loss", "Noise of batches of 32 moves the median of three by less.");
/// Part of the loss by which it falls when there is progress.
const PROGRESS: Threshold = Threshold::new(
    NAME,
    "progress",
    0.03,
    "share of the loss",
    "A run that learns comes down by more within eight steps of this size.",
);
/// How many times their spread above the losses before.
const SPREADS: Threshold = Threshold::new(
    NAME,
    "spreads",
    2.0,
    "spreads of the losses before",
    "A noisy loss reaches its own spread by chance.",
);
/// An update of this part of the weights is on the safe side.
const SOUND: Threshold = Threshold::new(
    NAME,
    "sound",
    0.01,
    "norm of the update over norm of the weights",
    "An update of 1 % of the weights is at the upper end of healthy runs; the learning rate that is named aims at it.",
);

/// Learning rates that an element moves by at the most where the gradient is divided by a running root of its square: 1 / sqrt(0.01) for RMSprop's
/// decay of 0.99, and less for Adam's.
const NORMALISED_STEP: f64 = 10.0;
/// Learning rates times gradients that an element moves by at the most otherwise: momentum of 0.95 gathers 20.
const GATHERED_STEP: f64 = 20.0;
/// Steps in a row that a scaler has to withhold before the update for it to be that of the gradient that overflowed.
const WITHHELD: usize = 4;
/// The evidence that says so.
pub(super) const SKIPPED_BEFORE: &str = "skipped_steps_before";

/// See the page of the rule.
pub struct ExplodingUpdates;

static INFO: RuleInfo = RuleInfo {
    code: "AMP403",
    name: NAME,
    severity: Severity::Error,
    summary: "Updates are so large that they undo what was learnt: the learning rate is too high, or a gradient exploded.",
    source: include_str!("exploding_updates.rs"),
};

impl Rule for ExplodingUpdates {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Scans { steps: FEWEST_BEFORE.default as u64 + 1, applies: may_update }
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[JUMP, FLOOR, UNHEARD_OF, GOES_ON, LARGE, KEPT, FEWEST_BEFORE, LOSSES_AFTER, RISE, PROGRESS, SPREADS, SOUND]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        let explosions = (0..aggregate.weights.steps.len()).filter_map(|at| explosion(aggregate, at, limits));
        let mut firing = explosions.filter_map(|e| Some((e, e.harm(aggregate)?)));
        firing.next().map(|(e, harm)| Verdict::Firing(Box::new(e.firing(aggregate, harm)))).into_iter().collect()
    }
}

/// A step whose update was out of proportion.
#[derive(Clone, Copy)]
struct Explosion<'a> {
    limits: &'a Limits,
    at: usize,
    step: &'a WeightStep,
    ratio: f64,
    /// The step before it, and the median ratio of those before it; `None` at the beginning of the run.
    before: Option<(&'a WeightStep, f64)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Harm {
    NotFinite,
    LossRose(f64, f64),
    NoProgress(f64, f64),
}

fn explosion<'a>(aggregate: &'a Aggregate, at: usize, limits: &'a Limits) -> Option<Explosion<'a>> {
    let steps = &aggregate.weights.steps;
    let step = steps.get(at)?;
    let ratio = step.energy_ratio.filter(|&r| r >= limits.of(&FLOOR) && !step.withheld)?;
    let before: Vec<f64> = steps.range(..at).rev().take(BEFORE).filter_map(|s| s.energy_ratio).collect();
    if before.len() as u64 >= limits.count(&FEWEST_BEFORE) {
        let usual = median(before.into_iter())?;
        let jumped = ratio >= limits.of(&JUMP) * usual && ratio >= limits.of(&UNHEARD_OF) * step.highest_before;
        let last = before_a_rise(aggregate, at, limits).unwrap_or(&steps[at - 1]);
        return jumped.then_some(Explosion { limits, at, step, ratio, before: Some((last, usual)) });
    }
    if let Some((last, usual)) = before_a_rise(aggregate, at, limits).and_then(|s| Some((s, s.energy_ratio?)))
        && ratio >= limits.of(&LARGE).max(limits.of(&JUMP) * usual)
    {
        return Some(Explosion { limits, at, step, ratio, before: Some((last, usual)) });
    }
    // What the window has lost of its beginning is no beginning of the run.
    let is_beginning = aggregate.weights.stepped <= Weights::WINDOW as u64;
    (is_beginning && ratio >= limits.of(&LARGE)).then_some(Explosion { limits, at, step, ratio, before: None })
}

/// The last step before the latest gap between scanned steps, where the learning rate rose in that gap: the steps after it, scanned because something
/// was not finite, have the new rate already.
fn before_a_rise<'a>(aggregate: &'a Aggregate, at: usize, limits: &Limits) -> Option<&'a WeightStep> {
    let steps = &aggregate.weights.steps;
    let now = steps.get(at)?.lr?;
    let last = (at.saturating_sub(BEFORE)..at).rev().find(|&i| steps[i + 1].step > steps[i].step + 1)?;
    let last = &steps[last];
    last.lr.is_some_and(|lr| lr > 0.0 && now > limits.of(&GOES_ON) * lr).then_some(last)
}

impl Explosion<'_> {
    /// What it did, while it goes on.
    fn harm(&self, aggregate: &Aggregate) -> Option<Harm> {
        let limits = self.limits;
        let ratios = || aggregate.weights.steps.range(self.at..).rev().filter_map(|s| s.energy_ratio);
        let least = self.before.map_or(limits.of(&LARGE), |(_, usual)| limits.of(&GOES_ON) * usual);
        if ratios().next()? < least {
            return None;
        }
        let losses = |after: bool| {
            let recent = aggregate.losses.recent.iter().filter(move |at| (at.step > self.step.step) == after);
            recent.map(|at| at.loss)
        };
        let before: Vec<f64> = losses(false).rev().take(BEFORE).filter(|l| l.is_finite()).collect();
        let after: Vec<f64> = losses(true).collect();
        if after.iter().any(|l| !l.is_finite()) && !before.is_empty() || self.overflowed_after(aggregate) {
            return Some(Harm::NotFinite);
        }
        let usual = median(before.iter().copied())?;
        if after.len() as u64 >= limits.count(&LOSSES_AFTER) {
            let highest = before.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let now = median(after.iter().copied())?;
            if now - usual > (limits.of(&RISE) * usual.abs()).max(limits.of(&SPREADS) * (highest - usual)) {
                return Some(Harm::LossRose(usual, now));
            }
        }
        let kept = limits.count(&KEPT) as usize;
        let stays = ratios().count() >= kept && ratios().take(kept).all(|r| r >= limits.of(&LARGE));
        let latest = median(after.iter().rev().take(BEFORE).copied()).filter(|_| after.len() >= kept)?;
        (stays && latest > usual - limits.of(&PROGRESS) * usual.abs()).then_some(Harm::NoProgress(usual, latest))
    }

    /// Whether forward has overflowed since, and had not before.
    fn overflowed_after(&self, aggregate: &Aggregate) -> bool {
        let nf = &aggregate.non_finite;
        let first = nf.first_unguarded.filter(|o| nf.latest.forward == Some(*o));
        first.is_some_and(|origin| origin.step > self.step.step && origin.inf > 0)
    }

    fn firing(&self, aggregate: &Aggregate, harm: Harm) -> Firing {
        let cause = self.cause(aggregate);
        Firing {
            severity: if matches!(harm, Harm::NoProgress(..)) { Severity::Warning } else { Severity::Error },
            layer: String::new(),
            operator: String::new(),
            probe: Some(Probe::Update),
            since: self.step.step,
            strength: self.ratio,
            evidence: self.evidence(aggregate, harm),
            explanation: format!("{} {} {}", self.what(), cause.text(), what_followed(harm)),
            remedy: self.remedy(aggregate, &cause),
        }
    }

    fn evidence(&self, aggregate: &Aggregate, harm: Harm) -> Vec<Evidence> {
        let mut evidence = vec![measured("update_over_weights", self.ratio)];
        evidence.extend(self.before.map(|(_, usual)| measured("update_over_weights_before", usual)));
        if let Harm::LossRose(before, after) | Harm::NoProgress(before, after) = harm {
            evidence.extend([measured("loss_before", before), measured("loss_after", after)]);
        }
        evidence.extend(self.step.lr.map(|lr| measured("lr", lr)));
        evidence.extend(self.before.and_then(|(s, _)| s.lr).map(|lr| measured("lr_before", lr)));
        evidence.extend(self.step.gradient_norm.map(|g| measured("gradient_norm", g)));
        evidence.extend(self.before.and_then(|(s, _)| s.gradient_norm).map(|g| measured("gradient_norm_before", g)));
        evidence.push(counted("step_of_the_jump", self.step.step));
        evidence.extend(withheld_before(aggregate, self.step.step));
        evidence
    }

    fn what(&self) -> String {
        let size = number(self.ratio);
        match self.before {
            Some((_, usual)) => format!(
                "At step {} the update grew to {size} of the weights (norm over norm, all matrices), {} times what it was before.",
                self.step.step,
                number((self.ratio / usual).round())
            ),
            None => format!(
                "From the first steps on updates are {size} of the weights (norm over norm, all matrices); healthy runs have 0.01 or less."
            ),
        }
    }

    fn cause(&self, aggregate: &Aggregate) -> Cause {
        let Some((before, _)) = self.before else { return Cause::TooHighFromTheStart(self.step.lr) };
        let goes_on = self.limits.of(&GOES_ON);
        let rose = |now: Option<f64>, then: Option<f64>| Some((then.filter(|&x| x > 0.0)?, now?));
        let lr = rose(self.step.lr, before.lr);
        let gradient = rose(self.step.gradient_norm, before.gradient_norm);
        match (lr, gradient) {
            (Some((from, to)), _) if to > goes_on * from => Cause::LearningRate(from, to),
            (_, Some((from, to))) if to > goes_on * from => Cause::Gradient(from, to),
            (Some((_, lr)), _) => match most_that_steps(aggregate, lr).filter(|&most| self.step.update_rms > most) {
                Some(most) => Cause::NotTheOptimizer(lr, self.step.update_rms, most),
                None => Cause::Unknown(Some(lr)),
            },
            (None, _) => Cause::Unknown(None),
        }
    }

    fn remedy(&self, aggregate: &Aggregate, cause: &Cause) -> Remedy {
        let (sound, jump) = (self.limits.of(&SOUND), self.limits.of(&JUMP));
        let factor = self.ratio / self.before.map_or(sound, |(_, usual)| usual.clamp(sound / jump, sound));
        let lower = |lr: f64| one_digit(lr / factor);
        match *cause {
            Cause::NotTheOptimizer(lr, ..) => Remedy::from(format!(
                "Look at what writes weights at step {}: a checkpoint that is loaded, weights that are initialised anew, a copy or a factor of your own. Where nothing does, the \
                 learning rate in force is another one than {}, which `doctor.lr(lr)` was told.",
                self.step.step,
                number(lr)
            )),
            Cause::LearningRate(from, to) => Remedy::from(format!(
                "Do not raise the learning rate from {} to {} at step {}: the run bore {}. If it must rise, let it rise over some hundred steps.",
                number(from),
                number(to),
                self.step.step,
                number(from)
            ))
            .set("lr", from),
            Cause::Gradient(from, _) => {
                let unscale =
                    if aggregate.scaler_config.is_some() { ", after `scaler.unscale(&mut opt)?`" } else { "" };
                Remedy::from(format!(
                    "Clip the gradient's norm{unscale}: `opt.clip_grad_norm({})`; it was {} before. Look at the batch of step {}.",
                    number(one_digit(2.0 * from)),
                    number(from),
                    self.step.step
                ))
                .set("clip", one_digit(2.0 * from))
            }
            Cause::TooHighFromTheStart(Some(lr)) | Cause::Unknown(Some(lr)) => Remedy::from(format!(
                "Lower the learning rate from {} to about {}: an update is then 1 % of the weights or less. Warm up over the first steps.",
                number(lr),
                number(lower(lr))
            ))
            .set("lr", lower(lr)),
            Cause::TooHighFromTheStart(None) | Cause::Unknown(None) => Remedy::from(format!(
                "Lower the learning rate by a factor of about {}: an update is then 1 % of the weights or less. `doctor.lr(lr)` tells the doctor of it, and when it \
                 changes.",
                number(factor.ceil())
            )),
        }
    }
}

/// Steps that a scaler withheld right before this one, where they are so many that what it then let through is what had overflowed, at a scale at
/// which it fits.
pub(super) fn withheld_before(aggregate: &Aggregate, step: u64) -> Option<Evidence> {
    let earlier = aggregate.losses.recent.iter().rev().skip_while(|at| at.step >= step);
    let withheld = earlier.take_while(|at| at.skipped).count();
    (withheld >= WITHHELD).then(|| counted(SKIPPED_BEFORE, withheld as u64))
}

/// The largest root mean square of an update that this learning rate can make of gradients like those before; `None` where that is not known.
fn most_that_steps(aggregate: &Aggregate, lr: f64) -> Option<f64> {
    if uses_second_moment(aggregate) {
        return Some(NORMALISED_STEP * lr);
    }
    let gradients = aggregate.weights.steps.iter().filter_map(|s| s.gradient_rms);
    gradients.reduce(f64::max).map(|largest| GATHERED_STEP * lr * largest)
}

enum Cause {
    /// No step of the optimizer is so large: something else wrote the weights. The learning rate, the update's rms and the most that it can make.
    NotTheOptimizer(f64, f64, f64),
    LearningRate(f64, f64),
    Gradient(f64, f64),
    TooHighFromTheStart(Option<f64>),
    Unknown(Option<f64>),
}

impl Cause {
    fn text(&self) -> String {
        match *self {
            Cause::NotTheOptimizer(lr, size, most) => format!(
                "No step of the optimizer is so large: its root mean square is {}, and the learning rate, {}, makes {} at the most of gradients as they were. Something else wrote the weights.",
                number(size),
                number(lr),
                number(most)
            ),
            Cause::LearningRate(from, to) => {
                format!("The learning rate rose there from {} to {}.", number(from), number(to))
            }
            Cause::Gradient(from, to) => format!(
                "The gradient grew there, its norm from {} to {}, and not the learning rate.",
                number(from),
                number(to)
            ),
            Cause::TooHighFromTheStart(Some(lr)) => format!("The learning rate, {}, is too high.", number(lr)),
            Cause::TooHighFromTheStart(None) => "The learning rate is too high.".into(),
            Cause::Unknown(Some(_)) => {
                "The learning rate did not change, and no gradient is known to have grown as much: the learning rate is too high for where the run is, or \
                 something else wrote the weights."
                    .into()
            }
            Cause::Unknown(None) => {
                "The gradient did not grow as much: the learning rate did, or what stands for it.".into()
            }
        }
    }
}

fn what_followed(harm: Harm) -> String {
    match harm {
        Harm::NotFinite => "What is not finite after it, in forward and in the loss, follows from it.".into(),
        Harm::LossRose(before, after) => {
            format!("The loss rose from {} to {} after it.", number(before), number(after))
        }
        Harm::NoProgress(before, after) => {
            format!("The loss does not fall any more: {} before it, {} after it.", number(before), number(after))
        }
    }
}

/// Down to one significant digit: what one would type.
fn one_digit(x: f64) -> f64 {
    if x <= 0.0 || !x.is_finite() {
        return x;
    }
    let unit = 10f64.powf(x.log10().floor());
    (x / unit).floor().max(1.0) * unit
}

#[cfg(test)]
mod tests;
