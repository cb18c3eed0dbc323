//! ## What it finds
//!
//! A loss that jumps and stays up, with what made it: the learning rate, an update that was too large, the data, or a loss scale that is reported
//! with the loss.
//!
//! ## Why it matters
//!
//! Under mixed precision the loss scale is suspected first, and mostly wrongly: a scaler skips the steps of a scale that is too high. In seven runs
//! whose scale was changed on the way, by factors of 2^-38 to 2^8, under a scaler that checks the gradients, the loss never jumped. A learning rate
//! twenty times higher makes it jump at once.
//!
//! ## How it decides
//!
//! From the losses alone, which are recorded at every step, scanned or not. The latest eight losses are compared with the 32 before them (16 at the
//! least). It is a jump when
//!
//! * their median lies above the median before, by six times the spread before (median distance from the median, as a standard deviation), by a
//!   quarter of it, and by a tenth of the first loss of the run;
//! * and seven of the eight have two fifths of that rise, and lie above all but the two highest before.
//!
//! Then it looks for the cause, in this order:
//!
//! * the loss rose by the factor by which the loss scale did: the loss is reported with the scale in it (**warning**);
//! * the learning rate rose threefold or more in the twelve steps before (**warning**);
//! * the norm of the update over that of the weights rose fivefold before the jump, or is five times higher ever since: it was the learning rate, or
//!   the gradient where that grew as much (**warning**);
//! * the output of an operator became 64 times larger or smaller there: something changed in forward (**warning**);
//! * none of it: then it was the data (**information**; **warning** once the loss has stayed for 96 losses where the run began: then nothing of what was
//!   learnt is left);
//! * nothing was scanned about then, or what was scanned does not tell: the cause is not known. **Information** while the next scan may tell,
//!   **warning** where the loss is still up 32 losses later.
//!
//! **Error** in place of a warning where the jump undid nine tenths of what had been learnt and it was not the data. Where something else began in
//! forward at that step, the jump is listed under it. What the finding says of the present loss is kept up to date.
//!
//! ## What to do
//!
//! * The learning rate: set it back, `opt.set_lr(lr)`, or let it rise over some hundred steps.
//! * An update: clip the norm of the gradient, `scaler.unscale(&mut opt)?; opt.clip_grad_norm(1.0);` before `scaler.step`.
//! * Forward: look at the operator that is named, at what goes into it, and at a normalisation behind it: one whose input became tiny adds its epsilon
//!   to a variance of nothing, in FP32 too (`no_autocast` does not mend it, a factor before it does).
//! * The data: look at the batches from the step named on (another data set, another order, labels that slipped).
//! * The scale: tell the doctor, and the log, the unscaled loss.
//!
//! Tell the doctor the learning rate, `doctor.lr(lr)`: it is then known at every step.
//!
//! ## When it stays silent
//!
//! * On single losses that are high, and on noise, however heavy its tails: with a batch of one the spread is large.
//! * Near zero, where a loss has converged.
//! * On a restart of a schedule to a learning rate that the run had before.
//! * In the first 16 steps, and on losses that fall or rise slowly. A loss that creeps up under a scale that is too low is for rule
//!   `gradient-underflow`.
//! * On a loss that is not finite: rule `loss-not-finite`.

use super::exploding_updates::withheld_before;
use super::text::{counted, measured, number, said, scale};
use super::{Evidence, Finding, Firing, Limits, Needs, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Loss, Losses, Weights, median};

mod cause;
mod changed;
mod present;
#[cfg(test)]
mod tests;

use cause::Cause;

/// Losses that a jump is measured against, and the fewest.
const BEFORE: usize = 32;
const FEWEST_BEFORE: usize = 16;
/// Losses that it lasts for.
const AFTER: usize = 8;
/// One loss in so many of those before may lie as high as a jump.
const OUTLIERS: usize = 16;
/// Part of the rise that all losses after it but one have.
const MOST_OF_IT: f64 = 0.4;
/// Losses after which a jump that nobody explained counts.
const STAYS: usize = 32;
/// The standard deviation of normal numbers over the median of their distances from the median.
const DEVIATION: f64 = 1.4826;
/// Part of what was learnt that a jump must undo to be an error.
const UNDONE: f64 = 0.9;

const SPREADS: Threshold = Threshold {
    rule: "loss-jump",
    name: "spreads",
    default: 6.0,
    unit: "times the spread of the losses before",
    reason: "Of 340 healthy recordings (batches of 1 to 64, restarts, converged losses) none exceeded it together with the other two; learning rates raised thirtyfold give 11 to 980.",
};
const RISE: Threshold = Threshold {
    rule: "loss-jump",
    name: "rise",
    default: 0.25,
    unit: "of the loss before",
    reason: "The smallest jump after a learning rate that was raised twentyfold was 42 % (transformer, 2.35 to 3.34).",
};
const OF_INITIAL: Threshold = Threshold {
    rule: "loss-jump",
    name: "of-initial-loss",
    default: 0.1,
    unit: "of the first loss",
    reason: "Losses that have converged near zero rise tenfold for some steps and fall again, in FP32 too.",
};
const LR_RISE: Threshold = Threshold {
    rule: "loss-jump",
    name: "lr-rise",
    default: 3.0,
    unit: "times the learning rate before",
    reason: "A warm-up that is past its 16th step rises less than this in twelve steps, unless it starts from nothing.",
};
const UPDATE_RISE: Threshold = Threshold {
    rule: "loss-jump",
    name: "update-rise",
    default: 5.0,
    unit: "times update over weights before",
    reason: "Learning rates raised twentyfold gave 33 (transformer) and 2600 (MLP); seven changes of the loss scale left it as it was.",
};

/// See the page of the rule.
pub struct LossJump;

static INFO: RuleInfo = RuleInfo {
    code: "AMP701",
    name: "loss-jump",
    severity: Severity::Error,
    summary: "The loss jumped and stayed up: because of the learning rate, an update, forward, the data (info), or a scale reported with it.",
    source: include_str!("loss_jump.rs"),
};

impl Rule for LossJump {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Losses((FEWEST_BEFORE + AFTER) as u64)
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[SPREADS, RISE, OF_INITIAL, LR_RISE, UPDATE_RISE]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        if !may_rise(aggregate, limits) {
            return Vec::new();
        }
        let losses: Vec<&Loss> = aggregate.losses.recent.iter().filter(|at| at.loss.is_finite()).collect();
        let Some(jump) = find(aggregate, &losses, limits) else { return Vec::new() };
        let cause = cause::of(aggregate, &losses, &jump, limits);
        if matches!(cause, Cause::Restart) || !cause.is_known() && is_forgotten(aggregate, losses[jump.at].step) {
            return Vec::new();
        }
        vec![Verdict::Firing(Box::new(firing(aggregate, &losses, &jump, &cause)))]
    }

    fn follow(&self, finding: &mut Finding, aggregate: &Aggregate) {
        present::tell(finding, aggregate);
    }
}

/// Whether the scans about a step are remembered no more: what they told was said then.
fn is_forgotten(aggregate: &Aggregate, step: u64) -> bool {
    let weights = &aggregate.weights;
    weights.stepped > Weights::WINDOW as u64 && weights.steps.front().is_some_and(|oldest| oldest.step >= step)
}

/// A jump of the loss.
#[derive(Clone, Copy, Debug)]
struct Jump {
    /// The place of the first loss that is high.
    at: usize,
    /// The median before, and how far losses lay from it.
    before: f64,
    spread: f64,
    /// All but the highest outliers before lay below this.
    top: f64,
    /// The median after.
    after: f64,
}

/// The first jump among the recent losses.
fn find(aggregate: &Aggregate, losses: &[&Loss], limits: &Limits) -> Option<Jump> {
    let initial = aggregate.losses.initial()?.max(0.0);
    let last = losses.len().checked_sub(AFTER)?;
    // What the window has lost of its beginning is no beginning of the run.
    let is_beginning = aggregate.losses.count <= Losses::WINDOW as u64;
    let first = if is_beginning { FEWEST_BEFORE } else { BEFORE };
    (first..=last).filter(|&at| may_jump(losses, at)).find_map(|at| {
        let jump = measure(losses, at)?;
        let rise = jump.after - jump.before;
        let least = (limits.of(&SPREADS) * jump.spread)
            .max(limits.of(&RISE) * jump.before.abs())
            .max(limits.of(&OF_INITIAL) * initial);
        (rise >= least && rise > 0.0).then_some(jump)
    })
}

/// A cheap look: no median rises by more than the losses lie apart.
fn may_rise(aggregate: &Aggregate, limits: &Limits) -> bool {
    let finite = aggregate.losses.recent.iter().map(|at| at.loss).filter(|loss| loss.is_finite());
    let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    let initial = aggregate.losses.initial().map_or(0.0, |initial| initial.max(0.0));
    high - low >= limits.of(&OF_INITIAL) * initial
}

/// A cheap look: of the three losses before, one at the least is no outlier, and all but one of those after lie above it.
fn may_jump(losses: &[&Loss], at: usize) -> bool {
    let lowest = losses[at - 3..at].iter().map(|l| l.loss).fold(f64::INFINITY, f64::min);
    losses[at..at + AFTER].iter().filter(|l| l.loss > lowest).count() + 1 >= AFTER
}

/// What changes at `at`; `None` where too many losses after it lie no higher than before.
fn measure(losses: &[&Loss], at: usize) -> Option<Jump> {
    let mut earlier: Vec<f64> = losses[at.saturating_sub(BEFORE)..at].iter().map(|l| l.loss).collect();
    earlier.sort_by(f64::total_cmp);
    let top = *earlier.get(earlier.len() - 1 - earlier.len() / OUTLIERS)?;
    let later = &losses[at..at + AFTER];
    let before = median(earlier.iter().copied())?;
    let after = median(later.iter().map(|l| l.loss))?;
    let least = top.max(before + MOST_OF_IT * (after - before));
    let is_high = |l: &&Loss| l.loss > least;
    if later.iter().copied().filter(is_high).count() + 1 < AFTER {
        return None;
    }
    let first = at + later.iter().position(is_high)?;
    let spread = DEVIATION * median(earlier.iter().map(|x| (x - before).abs()))?;
    Some(Jump { at: first, before, spread, top, after })
}

impl Jump {
    /// The loss now: the median of the latest eight.
    fn now(&self, losses: &[&Loss]) -> f64 {
        median(losses.iter().rev().take(AFTER).map(|l| l.loss)).unwrap_or(self.after)
    }

    /// Whether it has lasted for so long that it is no longer waited for an explanation.
    fn stays(&self, losses: &[&Loss]) -> bool {
        losses.len() >= self.at + STAYS && self.now(losses) > self.top
    }
}

fn firing(aggregate: &Aggregate, losses: &[&Loss], jump: &Jump, cause: &Cause) -> Firing {
    let rise = (jump.after - jump.before) / jump.spread.max(f64::MIN_POSITIVE);
    // A cause that is known is stronger evidence than any height of the jump.
    let strength = rise.min(999.0) + if cause.is_known() { 1000.0 } else { 0.0 };
    Firing {
        severity: severity(aggregate, losses, jump, cause),
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since: losses[jump.at].step,
        strength,
        evidence: evidence(aggregate, losses, jump, cause, rise),
        explanation: explanation(losses, jump, cause),
        remedy: cause.remedy(losses[jump.at].step),
    }
}

fn severity(aggregate: &Aggregate, losses: &[&Loss], jump: &Jump, cause: &Cause) -> Severity {
    let is_open = matches!(cause, Cause::Unknown { .. });
    if matches!(cause, Cause::Data) || is_open && !jump.stays(losses) {
        return Severity::Info;
    }
    let learnt = aggregate.losses.initial().map_or(0.0, |initial| initial - jump.before);
    let undone = learnt > 0.0 && jump.now(losses) - jump.before >= UNDONE * learnt;
    if undone && !matches!(cause, Cause::CarriesScale { .. }) { Severity::Error } else { Severity::Warning }
}

fn evidence(aggregate: &Aggregate, losses: &[&Loss], jump: &Jump, cause: &Cause, rise: f64) -> Vec<Evidence> {
    let mut evidence = vec![
        said("cause", cause.name()),
        measured("loss_before", jump.before),
        measured("loss_after", jump.after),
        measured(present::LOSS_NOW, jump.now(losses)),
        measured(present::TOP, jump.top),
        measured("spread_before", jump.spread),
        measured("rise_over_spread", rise),
        counted("step_of_the_jump", losses[jump.at].step),
    ];
    evidence.extend(losses[jump.at].lr.map(|lr| measured("lr", lr)));
    evidence.extend(cause.evidence());
    evidence.extend(cause.update_step().and_then(|step| withheld_before(aggregate, step)));
    evidence
}

/// What happened then; what became of it is told by [`present::tell`].
fn explanation(losses: &[&Loss], jump: &Jump, cause: &Cause) -> String {
    format!(
        "At step {} the loss jumped from {} to {} (medians of {BEFORE} losses before and {AFTER} after; {} times their spread). {}{}",
        losses[jump.at].step,
        number(jump.before),
        number(jump.after),
        number(((jump.after - jump.before) / jump.spread.max(f64::MIN_POSITIVE)).round()),
        cause.text(),
        about_the_scale(losses, jump, cause),
    )
}

/// The scale is suspected first: what it did about then, and that it is not to blame.
fn about_the_scale(losses: &[&Loss], jump: &Jump, cause: &Cause) -> String {
    let about = &losses[jump.at.saturating_sub(AFTER)..losses.len().min(jump.at + AFTER)];
    let skips = about.iter().filter(|l| l.skipped).count();
    let moved = about.windows(2).find_map(|w| match (w[0].loss_scale, w[1].loss_scale) {
        (Some(from), Some(to)) if from != to => Some((w[1].step, from, to)),
        _ => None,
    });
    match (moved, skips) {
        _ if matches!(cause, Cause::CarriesScale { .. }) => String::new(),
        (Some((step, from, to)), n) => format!(
            " The loss scale changed at step {step} from {} to {}{}: a scale does not enter the loss, and a step that is skipped leaves the weights as they are, so it is not the cause.",
            scale(from),
            scale(to),
            if n > 0 { format!(" and {n} of the steps about it were skipped") } else { String::new() },
        ),
        (None, _) => String::new(),
    }
}
