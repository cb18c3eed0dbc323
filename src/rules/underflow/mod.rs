//! Gradients that underflow in FP16: what was seen, whether it is a fault, whose, and how it is told.
//!
//! Three rules speak of it, each of one cause, so that a fault is one finding: `no-loss-scale` where there is no scale and one would help,
//! `static-scale-wrong` where a scale that cannot rise would have to, and `gradient-underflow` for all else: a layer, or a dynamic scale.

mod decision;
mod words;

pub(super) use self::decision::THRESHOLDS;
use self::decision::{Decision, decide};
use super::scale_advice::ScaleAdvice;
use super::scaling::Scaling;
use super::{Firing, Limits};
use crate::aggregate::{Aggregate, Judged};

/// Samples in a row in which a condition must hold.
pub(super) const SAMPLES: usize = Judged::SAMPLES;

/// Octaves by which a single streak of non-finite gradients lowers the scale when these, and not the scale, are the fault.
const COLLAPSE_OCTAVES: f64 = 8.0;

/// The evidence by which a finding of an underflow is known, whichever rule tells of it.
pub(super) const MEDIAN_EHAT: &str = "median_ehat";

/// What has to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// There is no scale, or it is 1.
    NoScale,
    /// The scale cannot rise.
    FixedScale,
    /// A layer, or the way a dynamic scale went.
    Other,
}

/// What is known of the gradients at the latest step.
pub(super) enum Seen {
    /// No FP16 gradient can be judged; the samples that one has, where there is one.
    Nothing(Option<usize>),
    /// They are well.
    Well,
    /// They underflow.
    Fault(Cause, Box<Firing>),
}

/// Judges the FP16 gradients of the latest step.
pub(super) fn see(aggregate: &Aggregate, limits: &Limits) -> Seen {
    if !may_underflow(aggregate) {
        return Seen::Well;
    }
    let (judged, samples) = aggregate.judged_gradients();
    if judged.is_empty() {
        return Seen::Nothing(samples);
    }
    match decide(&judged, limits) {
        None => Seen::Well,
        Some(decision) => {
            let fault = Fault::of(aggregate, &judged, decision);
            Seen::Fault(fault.cause, fault.tell(aggregate, limits))
        }
    }
}

/// Whether they underflow, whoever is to tell of it.
pub(super) fn is_fault(aggregate: &Aggregate, limits: &Limits) -> bool {
    may_underflow(aggregate) && decide(&aggregate.judged_gradients().0, limits).is_some()
}

fn may_underflow(aggregate: &Aggregate) -> bool {
    aggregate.has_fp16_gradients() && !scale_collapsed(aggregate)
}

/// Gradients that underflow, and why.
struct Fault<'a, 'j> {
    judged: &'j [Judged<'a>],
    decision: Decision,
    advice: Option<ScaleAdvice<'a>>,
    cause: Cause,
}

impl<'a, 'j> Fault<'a, 'j> {
    fn of(aggregate: &'a Aggregate, judged: &'j [Judged<'a>], decision: Decision) -> Self {
        let advice = ScaleAdvice::of(aggregate);
        let cause = cause(aggregate, &judged[decision.first], advice.as_ref());
        Self { judged, decision, advice, cause }
    }

    fn tell(&self, aggregate: &Aggregate, limits: &Limits) -> Box<Firing> {
        let Self { judged, decision, advice, cause } = self;
        Box::new(words::firing(aggregate, judged, decision, *cause, advice.as_ref(), limits))
    }
}

/// Whether there are FP16 gradients, or nobody has looked yet.
pub(super) fn may_have_fp16_gradients(aggregate: &Aggregate) -> bool {
    aggregate.has_fp16_gradients() || aggregate.instrument.full_steps == 0
}

/// The firing of the rule that speaks for this cause.
pub(super) fn fault_of(aggregate: &Aggregate, wanted: Cause, limits: &Limits) -> Option<Box<Firing>> {
    if !may_underflow(aggregate) {
        return None;
    }
    let (judged, _) = aggregate.judged_gradients();
    let fault = Fault::of(aggregate, &judged, decide(&judged, limits)?);
    (fault.cause == wanted).then(|| fault.tell(aggregate, limits))
}

/// Whether a higher scale would help, and what keeps it from being there.
fn cause(aggregate: &Aggregate, shown: &Judged<'_>, advice: Option<&ScaleAdvice<'_>>) -> Cause {
    let now = shown.latest.loss_scale.unwrap_or(1.0);
    // Where nothing is left of any gradient the scale with which scalers begin is tried first.
    let exponent = advice.map_or(Some(ScaleAdvice::DEFAULT_INIT), ScaleAdvice::exponent);
    match (exponent.map(|e| f64::from(e).exp2()).filter(|&wanted| wanted > now), Scaling::of(aggregate)) {
        (None, _) | (_, Scaling::Dynamic) => Cause::Other,
        (Some(_), Scaling::None) => Cause::NoScale,
        (Some(_), Scaling::Static) if now == 1.0 => Cause::NoScale,
        (Some(_), Scaling::Static | Scaling::AtCeiling) => Cause::FixedScale,
    }
}

/// Whether non-finite gradients drove the scale down in one go: then they are the fault, and what underflows now is a consequence.
fn scale_collapsed(aggregate: &Aggregate) -> bool {
    let now = aggregate.latest.as_ref().and_then(|s| s.loss_scale);
    let collapsed_from =
        aggregate.non_finite.deepest.filter(|s| s.octaves_fallen() >= COLLAPSE_OCTAVES).and_then(|s| s.first_scale);
    matches!((now, collapsed_from), (Some(now), Some(from)) if now <= from / COLLAPSE_OCTAVES.exp2())
}
