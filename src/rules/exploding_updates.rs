//! ## What it finds
//!
//! Steps of the optimizer that are so large that they undo what was learnt: the learning rate is too high, or a gradient exploded.
//!
//! ## Why it matters
//!
//! The loss jumps, or turns NaN some steps later. What is then seen in FP16 (activations that overflow, a loss scale that falls) is a consequence, which no
//! loss scale cures; FP32 fails as well.
//!
//! ## How it decides
//!
//! By the norm of the update over the norm of the weights, over all weight matrices together. Healthy runs have 0.011 or less at 99 % of their steps, and up
//! to 0.043 at the first. No size of it is wrong by itself, so the loss has a say:
//!
//! * **Error**: it jumped to five times the median of the eight scanned steps before, to 0.01 at least and to twice what the run has ever borne for three steps,
//!   or was above 0.05 from the first steps on; and after it, over three losses or more, the loss is higher: by a fifth, above all of the eight before
//!   it, and by twice their spread. Or it is not finite, or an activation overflowed.
//! * **Warning**: after such a jump, or from the start, it stays above 0.05 for eight scanned steps, and the loss does not fall by 3 %. Steps of
//!   a twentieth of a weight leave nothing of it after some dozens.
//!
//! The step named is that of the jump. Where the learning rate is known it tells whether it rose there; where it did not, and the gradient did, it was the gradient.
//!
//! ## What to do
//!
//! Go back to the learning rate before the jump, or to the one that is named, at which an update is 1 % of the weights. Warm up. Where the gradient exploded
//! clip its norm, after `unscale`.
//!
//! ## When it stays silent
//!
//! On large updates that do no harm: the first steps, warm-up, restarts of a schedule that the run bore before, weights that start at zero. On biases, gains
//! and other vectors. On a batch with a large loss whose update passes without harm. Where no loss is given, as long as nothing overflows.

use super::text::{counted, measured, number};
use super::update_advice::may_update;
use super::{Evidence, Firing, Limits, Needs, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, WeightStep, Weights, median};
use crate::observation::Probe;

/// Factor by which the ratio jumps.
const JUMP: f64 = 5.0;
/// Below this no step undoes anything.
const FLOOR: f64 = 0.01;
/// Factor by which it exceeds what the run has borne before.
const UNHEARD_OF: f64 = 2.0;
/// Factor over what was before at which the jump still goes on.
const GOES_ON: f64 = 3.0;
/// No healthy run keeps this.
const LARGE: f64 = 0.05;
/// Steps for which it is kept.
const KEPT: usize = 8;
/// Steps before a jump that it is measured against, and the fewest.
const BEFORE: usize = 8;
const FEWEST_BEFORE: usize = 4;
/// Losses after a jump that tell of its harm.
const LOSSES_AFTER: usize = 3;
/// Part of the loss by which it rises when there is harm.
const RISE: f64 = 0.2;
/// Part of the loss by which it falls when there is progress.
const PROGRESS: f64 = 0.03;
/// How many times their spread above the losses before.
const SPREADS: f64 = 2.0;
/// An update of this part of the weights is on the safe side.
const SOUND: f64 = 0.01;

/// See the page of the rule.
pub struct ExplodingUpdates;

static INFO: RuleInfo = RuleInfo {
    code: "AMP403",
    name: "exploding-updates",
    severity: Severity::Error,
    summary: "Updates are so large that they undo what was learnt: the learning rate is too high, or a gradient exploded.",
    source: include_str!("exploding_updates.rs"),
};

impl Rule for ExplodingUpdates {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Scans { steps: FEWEST_BEFORE as u64 + 1, applies: may_update }
    }

    fn check(&self, aggregate: &Aggregate, _: &Limits) -> Vec<Verdict> {
        let explosions = (0..aggregate.weights.steps.len()).filter_map(|at| explosion(aggregate, at));
        let mut firing = explosions.filter_map(|e| Some((e, e.harm(aggregate)?)));
        firing.next().map(|(e, harm)| Verdict::Firing(Box::new(e.firing(aggregate, harm)))).into_iter().collect()
    }
}

/// A step whose update was out of proportion.
#[derive(Clone, Copy)]
struct Explosion<'a> {
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

fn explosion(aggregate: &Aggregate, at: usize) -> Option<Explosion<'_>> {
    let steps = &aggregate.weights.steps;
    let step = steps.get(at)?;
    let ratio = step.energy_ratio.filter(|&r| r >= FLOOR)?;
    let before: Vec<f64> = steps.range(..at).rev().take(BEFORE).filter_map(|s| s.energy_ratio).collect();
    if before.len() >= FEWEST_BEFORE {
        let usual = median(before.into_iter())?;
        let jumped = ratio >= JUMP * usual && ratio >= UNHEARD_OF * step.highest_before;
        return jumped.then(|| Explosion { at, step, ratio, before: Some((&steps[at - 1], usual)) });
    }
    // What the window has lost of its beginning is no beginning of the run.
    let is_beginning = aggregate.weights.stepped <= Weights::WINDOW as u64;
    (is_beginning && ratio >= LARGE).then_some(Explosion { at, step, ratio, before: None })
}

impl Explosion<'_> {
    /// What it did, while it goes on.
    fn harm(&self, aggregate: &Aggregate) -> Option<Harm> {
        let ratios = || aggregate.weights.steps.range(self.at..).rev().filter_map(|s| s.energy_ratio);
        let least = self.before.map_or(LARGE, |(_, usual)| GOES_ON * usual);
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
        if after.len() >= LOSSES_AFTER {
            let highest = before.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let now = median(after.iter().copied())?;
            if now - usual > (RISE * usual.abs()).max(SPREADS * (highest - usual)) {
                return Some(Harm::LossRose(usual, now));
            }
        }
        let stays = ratios().count() >= KEPT && ratios().take(KEPT).all(|r| r >= LARGE);
        let latest = median(after.iter().rev().take(BEFORE).copied()).filter(|_| after.len() >= KEPT)?;
        (stays && latest > usual - PROGRESS * usual.abs()).then_some(Harm::NoProgress(usual, latest))
    }

    /// Whether forward has overflowed since, and had not before.
    fn overflowed_after(&self, aggregate: &Aggregate) -> bool {
        let nf = &aggregate.non_finite;
        let first = nf.first_origin.filter(|o| nf.latest.forward == Some(*o));
        first.is_some_and(|origin| origin.step > self.step.step && origin.inf > 0)
    }

    fn firing(&self, aggregate: &Aggregate, harm: Harm) -> Firing {
        let cause = self.cause();
        Firing {
            severity: if matches!(harm, Harm::NoProgress(..)) { Severity::Warning } else { Severity::Error },
            layer: String::new(),
            operator: String::new(),
            probe: Some(Probe::Update),
            since: self.step.step,
            strength: self.ratio,
            evidence: self.evidence(harm),
            explanation: format!("{} {} {}", self.what(), cause.text(), what_followed(harm)),
            remedy: self.remedy(aggregate, &cause).into(),
        }
    }

    fn evidence(&self, harm: Harm) -> Vec<Evidence> {
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

    fn cause(&self) -> Cause {
        let Some((before, _)) = self.before else { return Cause::TooHighFromTheStart(self.step.lr) };
        let rose = |now: Option<f64>, then: Option<f64>| Some((then.filter(|&x| x > 0.0)?, now?));
        let lr = rose(self.step.lr, before.lr);
        let gradient = rose(self.step.gradient_norm, before.gradient_norm);
        match (lr, gradient) {
            (Some((from, to)), _) if to > GOES_ON * from => Cause::LearningRate(from, to),
            (_, Some((from, to))) if to > GOES_ON * from => Cause::Gradient(from, to),
            (Some((lr, _)), _) => Cause::Unknown(Some(lr)),
            (None, _) => Cause::Unknown(None),
        }
    }

    fn remedy(&self, aggregate: &Aggregate, cause: &Cause) -> String {
        let factor = self.ratio / self.before.map_or(SOUND, |(_, usual)| usual.clamp(SOUND / JUMP, SOUND));
        let lower = |lr: f64| number(one_digit(lr / factor));
        match *cause {
            Cause::LearningRate(from, to) => format!(
                "Do not raise the learning rate from {} to {} at step {}: the run bore {}. If it must rise, let it rise over some hundred steps.",
                number(from),
                number(to),
                self.step.step,
                number(from)
            ),
            Cause::Gradient(from, _) => {
                let unscale =
                    if aggregate.scaler_config.is_some() { ", after `scaler.unscale(&mut opt)?`" } else { "" };
                format!(
                    "Clip the gradient's norm{unscale}: `opt.clip_grad_norm({})`; it was {} before. Look at the batch of step {}.",
                    number(one_digit(2.0 * from)),
                    number(from),
                    self.step.step
                )
            }
            Cause::TooHighFromTheStart(Some(lr)) | Cause::Unknown(Some(lr)) => format!(
                "Lower the learning rate from {} to about {}: an update is then 1 % of the weights or less. Warm up over the first steps.",
                number(lr),
                lower(lr)
            ),
            Cause::TooHighFromTheStart(None) | Cause::Unknown(None) => format!(
                "Lower the learning rate by a factor of about {}: an update is then 1 % of the weights or less. `doctor.lr(lr)` tells the doctor of it, and when it \
                 changes.",
                number(factor.ceil())
            ),
        }
    }
}

enum Cause {
    LearningRate(f64, f64),
    Gradient(f64, f64),
    TooHighFromTheStart(Option<f64>),
    Unknown(Option<f64>),
}

impl Cause {
    fn text(&self) -> String {
        match *self {
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
                "The learning rate did not change, so it is too high for where the run is.".into()
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
