//! What made a loss jump, as far as the steps about it tell.

use super::changed::{Changed, changed};
use super::{AFTER, Jump, LR_RISE, UPDATE_RISE};
use crate::aggregate::{Aggregate, Loss, WeightStep, median};
use crate::rules::text::{measured, number, scale};
use crate::rules::{Evidence, Limits, Remedy};

/// Losses before a jump among which its cause lies.
const LEAD: usize = 12;
/// Steps before a jump whose update may have made it.
const UPDATE_LEAD: u64 = 8;
/// A learning rate that the run has had before, to this part of it, is nothing new.
const SAME: f64 = 0.9;
/// Octaves by which the loss and the scale may differ in their rise where the one is in the other.
const ALIKE_OCTAVES: f64 = 0.15;
/// Octaves by which the scale must have risen for that.
const RISEN_OCTAVES: f64 = 0.5;
/// Part of the update's growth, as a power, that the gradient must have to be the reason of it.
const GRADIENT_PART: f64 = 0.5;

pub(super) enum Cause {
    /// The loss is reported with the scale in it.
    CarriesScale { from: f64, to: f64 },
    /// The learning rate rose, above the highest that the run had borne.
    LearningRate { from: f64, to: f64, borne: f64, step: u64 },
    /// The update grew, for one step at the least, and not because of the gradient.
    Update { from: f64, to: f64, step: u64 },
    /// The update grew because the gradient did.
    Gradient { from: f64, to: f64, step: u64 },
    /// Updates are what they were, and an operator's output is not.
    Forward(Box<Changed>),
    /// Updates are what they were, and so is all that forward does.
    Data,
    /// A schedule went back to a learning rate that the run had before.
    Restart,
    /// Nothing was scanned that would tell; the learning rate where it is known, and did not rise.
    Unknown { lr: Option<f64>, scanned: Scanned },
}

/// The scanned updates about a jump whose cause they do not tell, by their steps.
#[derive(Clone, Copy)]
pub(super) struct Scanned {
    /// The latest before it, and the first since.
    before: Option<u64>,
    since: Option<u64>,
    /// Whether any lies so far before it that it tells what is usual.
    usual: bool,
}

pub(super) fn of(aggregate: &Aggregate, losses: &[&Loss], jump: &Jump, limits: &Limits) -> Cause {
    let onset = losses[jump.at].step;
    let made_by_a_step = carries_scale(losses, jump)
        .or_else(|| learning_rate(aggregate, losses, jump, limits))
        .or_else(|| update(aggregate, onset, limits));
    let in_forward = || changed(aggregate, onset).map(|changed| Cause::Forward(Box::new(changed)));
    match made_by_a_step {
        Some(Cause::Data) => in_forward().unwrap_or(Cause::Data),
        Some(cause) => cause,
        None => in_forward()
            .unwrap_or_else(|| Cause::Unknown { lr: losses[jump.at].lr, scanned: scanned(aggregate, onset) }),
    }
}

fn scanned(aggregate: &Aggregate, onset: u64) -> Scanned {
    let steps = aggregate.weights.steps.iter().filter(|s| s.energy_ratio.is_some()).map(|s| s.step);
    Scanned {
        before: steps.clone().rfind(|&s| s < onset),
        since: steps.clone().find(|&s| s >= onset),
        usual: steps.clone().any(|s| s + UPDATE_LEAD < onset),
    }
}

fn carries_scale(losses: &[&Loss], jump: &Jump) -> Option<Cause> {
    let (from, to) = (losses[jump.at - 1].loss_scale?, losses[jump.at].loss_scale?);
    let octaves = (to / from).log2();
    let alike = jump.before > 0.0 && ((jump.after / jump.before).log2() - octaves).abs() < ALIKE_OCTAVES;
    (octaves >= RISEN_OCTAVES && alike).then_some(Cause::CarriesScale { from, to })
}

fn learning_rate(aggregate: &Aggregate, losses: &[&Loss], jump: &Jump, limits: &Limits) -> Option<Cause> {
    let lead = &losses[jump.at.saturating_sub(LEAD)..=jump.at];
    let (lowest, from) =
        lead.iter().enumerate().filter_map(|(at, l)| Some((at, l.lr?))).min_by(|a, b| a.1.total_cmp(&b.1))?;
    let higher = |at: &&&Loss| at.lr.is_some_and(|lr| lr > 0.0 && lr >= limits.of(&LR_RISE) * from);
    let risen = lead[lowest..].iter().find(higher)?;
    let to = lead[lowest..].iter().filter_map(|at| at.lr).fold(0.0, f64::max);
    let earlier = losses.iter().take_while(|at| at.step < risen.step).filter_map(|at| at.lr);
    let borne = earlier.chain(aggregate.losses.highest_lr_before).fold(from, f64::max);
    let step = risen.step;
    Some(if borne >= SAME * to { Cause::Restart } else { Cause::LearningRate { from, to, borne, step } })
}

/// What the updates say that were scanned.
fn update(aggregate: &Aggregate, onset: u64, limits: &Limits) -> Option<Cause> {
    let steps = &aggregate.weights.steps;
    let is_lead = |s: &&WeightStep| s.step < onset && s.step + UPDATE_LEAD >= onset;
    let usual = |of: fn(&WeightStep) -> Option<f64>| {
        median(steps.iter().filter(|s| s.step + UPDATE_LEAD < onset).filter_map(of)).filter(|&x| x > 0.0)
    };
    let ratio = usual(|s| s.energy_ratio)?;
    let norm = usual(|s| s.gradient_norm);
    // What changed the weights at a step that a scaler withheld was no update of the optimizer.
    let grown = |s: &WeightStep| s.energy_ratio.filter(|&r| r >= limits.of(&UPDATE_RISE) * ratio && !s.withheld);
    if let Some((step, to)) = steps.iter().filter(is_lead).find_map(|s| Some((s, grown(s)?))) {
        return Some(whose(step, ratio, to, norm));
    }
    // The update that the first high loss was computed after was an ordinary one.
    if steps.iter().any(|s| s.step + 1 == onset && s.energy_ratio.is_some()) {
        return Some(Cause::Data);
    }
    let after = steps.iter().rfind(|s| s.step >= onset && s.energy_ratio.is_some());
    match after.and_then(|s| Some((s, grown(s)?))) {
        // After the jump a gradient is larger because the loss is: only an update that outgrew it says something.
        Some((step, to)) => Some(whose(step, ratio, to, norm)).filter(|c| matches!(c, Cause::Update { .. })),
        None => after.map(|_| Cause::Data),
    }
}

fn whose(step: &WeightStep, from: f64, to: f64, norm: Option<f64>) -> Cause {
    let growth = norm.and_then(|norm| Some((norm, step.gradient_norm?)));
    match growth {
        Some((before, now)) if (now / before).ln() >= GRADIENT_PART * (to / from).ln() => {
            Cause::Gradient { from: before, to: now, step: step.step }
        }
        _ => Cause::Update { from, to, step: step.step },
    }
}

impl Cause {
    /// The step of the update that made it, where one did.
    pub fn update_step(&self) -> Option<u64> {
        match *self {
            Self::Update { step, .. } | Self::Gradient { step, .. } => Some(step),
            _ => None,
        }
    }

    pub fn is_known(&self) -> bool {
        !matches!(self, Self::Unknown { .. })
    }

    /// The word in the evidence.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CarriesScale { .. } => "loss scale reported with the loss",
            Self::LearningRate { .. } => "learning rate",
            Self::Update { .. } => "update",
            Self::Gradient { .. } => "gradient",
            Self::Forward(_) => "forward",
            Self::Data => "data",
            Self::Restart => "restart of the schedule",
            Self::Unknown { .. } => "unknown",
        }
    }

    pub fn evidence(&self) -> Vec<Evidence> {
        let pair = |before, from, after, to| vec![measured(before, from), measured(after, to)];
        match *self {
            Self::Forward(ref changed) => changed.evidence(),
            Self::CarriesScale { from, to } => pair("loss_scale_before", from, "loss_scale_after", to),
            Self::LearningRate { from, to, .. } => pair("lr_before", from, "lr_after", to),
            Self::Update { from, to, .. } => pair("update_over_weights_before", from, "update_over_weights", to),
            Self::Gradient { from, to, .. } => pair("gradient_norm_before", from, "gradient_norm", to),
            Self::Data | Self::Restart | Self::Unknown { .. } => Vec::new(),
        }
    }

    pub fn text(&self) -> String {
        match *self {
            Self::Forward(ref changed) => changed.text(),
            Self::CarriesScale { from, to } => format!(
                "It rose by the factor by which the loss scale did, from {} to {}: the loss that is reported has the scale in it, and nothing happened to the run.",
                scale(from),
                scale(to)
            ),
            Self::LearningRate { from, to, step, .. } => {
                format!("The learning rate rose from {} to {} at step {step}: that is the cause.", number(from), number(to))
            }
            Self::Update { from, to, step } => format!(
                "The update was {} of the weights at step {step} (norm over norm, all matrices), and {} before, and the gradient did not grow as much: the learning rate is the cause, or \
                 what stands for it.",
                number(to),
                number(from)
            ),
            Self::Gradient { from, to, step } => format!(
                "The gradient's norm was {} at step {step}, and {} before: an update that was too large is the cause, and not the learning rate.",
                number(to),
                number(from)
            ),
            Self::Data => "The updates before it were what they always are, and so are those since: the data is the cause, or what the loss makes of it."
                .into(),
            Self::Restart => String::new(),
            Self::Unknown { lr, scanned } => {
                let lr = match lr {
                    Some(lr) => format!("The learning rate did not rise, it is {}.", number(lr)),
                    None => "The learning rate is not known.".into(),
                };
                format!("What made it is not known: {}. {lr}", scanned.text())
            }
        }
    }

    pub fn remedy(&self, onset: u64) -> Remedy {
        match *self {
            Self::Forward(ref changed) => changed.remedy().into(),
            Self::CarriesScale { .. } => Remedy::from(
                "Give `doctor.step`, and whatever else reports it, the loss before it is scaled. `GradScaler::backward(&loss)` scales a copy of its own.",
            ),
            Self::LearningRate { to, borne, .. } => Remedy::from(format!(
                "Do not raise the learning rate to {}: the run bore {}. If it must rise, let it rise over some hundred steps.",
                number(to),
                number(borne)
            ))
            .set("lr", borne),
            Self::Update { from, to, .. } => Remedy::from(format!(
                "Look for what raises the learning rate before step {onset}, and lower it by a factor of about {}. `doctor.lr(lr)` tells the doctor of it at every step.",
                number((to / from).round())
            )),
            Self::Gradient { from, .. } => {
                let norm = two_digits(2.0 * from);
                Remedy::from(format!(
                    "Clip the gradient's norm, after `scaler.unscale(&mut opt)?` where there is a scaler: `opt.clip_grad_norm({})`. Look at the batches before step {onset}.",
                    number(norm)
                ))
                .set("clip", norm)
            }
            Self::Data => Remedy::from(format!(
                "Where nothing else was found that began at step {onset}, look at the batches from there on: another data set, another order, labels or a loss that changed."
            )),
            Self::Restart => Remedy::default(),
            Self::Unknown { lr, .. } => {
                let told = if lr.is_some() { "" } else { " Tell the doctor the learning rate: `doctor.lr(lr)`." };
                Remedy::from(format!(
                    "Look at the batches of the {AFTER} steps before step {onset}, and scan every step to see whether an update was too large: \
                     `Doctor::builder().every(1)`.{told}"
                ))
            }
        }
    }
}

impl Scanned {
    /// Why they do not tell the cause.
    fn text(self) -> String {
        match (self.before, self.since) {
            (None, None) => "no update about it was scanned".into(),
            (Some(before), None) => format!("no update since step {before} was scanned"),
            (None, Some(since)) => format!("no update before it was scanned, the first is that of step {since}"),
            _ if !self.usual => format!(
                "no update earlier than {UPDATE_LEAD} steps before it was scanned, to hold the later ones against"
            ),
            (Some(before), Some(since)) => format!(
                "of the updates about it those of steps {before} and {since} were scanned, and none between them; those since are larger, but so is the gradient, as it is after any jump"
            ),
        }
    }
}

/// What one would type.
fn two_digits(x: f64) -> f64 {
    if x <= 0.0 || !x.is_finite() {
        return x;
    }
    let unit = 10f64.powf(x.log10().floor() - 1.0);
    (x / unit).round() * unit
}
