//! ## What it finds
//!
//! The first operator, in the order of execution, that made a NaN or an infinity out of finite numbers, in forward or in backward. Also data that
//! came in non-finite, and a parameter that was ruined by its update.
//!
//! ## Why it matters
//!
//! By the time the loss is NaN everything is, and the last layer looks as guilty as the first. No scaler cures a value that the loss scale did not
//! make: it skips the step, halves the scale, and does so again until nothing is left of it.
//!
//! ## How it decides
//!
//! * Forward, **error** at once, in any precision: activations carry no loss scale, so it cannot be the cause.
//! * Backward, **error** at once, where no scale is to blame: the derivative of the operator is infinite (the root, the norm or a power of exact
//!   zero), the gradient is held in FP32 or BF16, or there is no scaler.
//! * Backward in FP16 under a scaler, **error** only for a gradient that is NaN from its beginning, and only when the scale cannot have made it so:
//!   it was seen at two scales that differ by 2^8, or at a scale below 1, or twice while the same gradient had stood 2^8 below 65504. Under a static
//!   scale: three times in 32 steps.
//! * Parameter, **error**: not finite after the step, while nothing before it was.
//! * Loss, **error**: not finite, while every tensor that was looked at is.
//!
//! Where the value arose at a step that was not scanned, the finding says that its origin was not observed.
//!
//! ## What to do
//!
//! Look at the operator named and at its input.
//!
//! * A logarithm, a root or a division needs an epsilon that FP16 can hold, above 2^-24 = 6e-8: `(x + 1e-6).log()`, `x.clamp_min(1e-6).sqrt()`. The
//!   usual 1e-8 is zero in FP16.
//! * A softmax needs one unmasked element in every row.
//! * Take the fused forms: `log_softmax` and `cross_entropy_for_logits`, not `softmax` and then `log`.
//! * For the batch that brings the NaN: `x.isfinite().all()` before forward.
//!
//! Where the origin was not observed, scan every step: `Doctor::builder().every(1).attach(&vs)`. Weights that are NaN do not recover: go back to a
//! checkpoint.
//!
//! ## When it stays silent
//!
//! * On a gradient that is not finite and reaches no parameter: the scaler found all of them finite.
//! * On FP16 gradients that overflow and recover, while a dynamic scaler finds its scale or probes its ceiling.
//! * On -inf that a mask put there, as long as nothing is made of it.
//! * On all that follows from an origin already known: later layers, ruined weights, later steps.
//! * Where another rule says it better: weights ruined by an optimizer's `eps` (`vanishing-eps`), a softmax over a row that is masked as a whole
//!   (`masked-row`), buffers (`poisoned-buffer`).

mod advice;

use self::advice::{Pass, advice_for};
use super::text::{INPUT, base_name, counted, layer_name, measured, said, scale, share};
use super::update_advice::format_name;
use super::{Firing, Limits, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict, masked_row, vanishing_eps};
use crate::aggregate::{Aggregate, BackwardOrigins, Origin, SiteSummary};
use crate::observation::{Probe, ScalerEvent, Site, Tier};

const NAME: &str = "non-finite-origin";
/// Ratio of the scales between which a NaN must persist: 2^8.
const INDEPENDENT_RATIO: Threshold = Threshold::new(
    NAME,
    "independent",
    256.0,
    "ratio of scales",
    "2^8: a NaN that is there at two scales so far apart is not made by the scale.",
);
/// Below this no scale can be the cause.
const NO_SCALE_LEFT: f64 = 1.0;
/// Times that a gradient with 8 octaves of headroom must turn NaN: one could be a freak batch.
const REPEATED: Threshold = Threshold::new(
    NAME,
    "repeated",
    2.0,
    "times",
    "A gradient with 8 octaves of headroom that turns NaN once may be a freak batch.",
);
/// Times in 32 steps under a static scale.
const REPEATED_STATIC: Threshold = Threshold::new(
    NAME,
    "repeated-static",
    3.0,
    "times in 32 steps",
    "At a static scale the scale cannot be told from the batch by moving.",
);
/// Steps in a row with a non-finite loss that need no scan to be a fault.
const LOSS_STEPS: Threshold = Threshold::new(
    NAME,
    "loss-steps",
    3.0,
    "steps in a row",
    "A loss that is not finite so often is a fault, seen or not; one may be scanned at the next step.",
);
/// Operators whose derivative is infinite where they give zero.
const ROOTS: [&str; 5] = ["sqrt", "norm", "linalg_vector_norm", "std", "cdist"];

/// See the page of the rule.
pub struct NonFiniteOrigin;

static INFO: RuleInfo = RuleInfo {
    code: "AMP501",
    name: NAME,
    severity: Severity::Error,
    summary: "The first operator that made a NaN or an infinity, not because of the loss scale.",
    source: include_str!("non_finite_origin.rs"),
};

impl Rule for NonFiniteOrigin {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[INDEPENDENT_RATIO, REPEATED, REPEATED_STATIC, LOSS_STEPS]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        if let Some(unsure) = waits_for_a_scan(aggregate, limits) {
            return vec![Verdict::Unsure(unsure)];
        }
        if masked_row::origin(aggregate).is_some() {
            return Vec::new();
        }
        // Between two scans nothing new is seen: then it was last seen at the scan before.
        let is_seen_now = aggregate.non_finite.is_of_latest_step(aggregate.latest.as_ref());
        let seen = || is_seen_now.then_some(aggregate);
        let first = seen()
            .and_then(forward)
            .or_else(|| seen().and_then(brought_in))
            .or_else(|| seen().and_then(parameter))
            .or_else(|| seen().and_then(|aggregate| backward(aggregate, limits)))
            .or_else(|| loss(aggregate, limits));
        first.into_iter().map(|f| Verdict::Firing(Box::new(f))).collect()
    }
}

fn forward(aggregate: &Aggregate) -> Option<Firing> {
    let origin = aggregate.non_finite.latest.forward?;
    let site = &aggregate.site(origin.site)?.site;
    let whose = match (site.layer == INPUT, origin.after_mask) {
        (true, _) => {
            "No parameter has touched it yet: the data itself is not finite, or its preparation made it so.".to_string()
        }
        (_, true) => {
            "Infinities that a mask wrote went in: a row that is masked as a whole leaves nothing to normalise."
                .to_string()
        }
        _ => "Its inputs were finite.".to_string(),
    };
    let remedy = match (site.layer == INPUT, origin.after_mask) {
        (true, _) => {
            let prepared_by = match site.operator.as_str() {
                "data" => "the run's input data (what is fed to the model)".to_string(),
                operator => format!("`{operator}`, which prepares it"),
            };
            format!("Look at the batch of step {}, and at {prepared_by}.", origin.step).into()
        }
        (_, true) => format!(
            "Leave at least one element unmasked in every row that `{}` of layer `{}` normalises, or write a finite number (-3e4) in place of -inf.",
            site.operator,
            layer_name(site)
        )
        .into(),
        _ => advice_for(aggregate, site, &origin, Pass::Forward),
    };
    let onset = aggregate.non_finite.onset(&origin);
    let before = match onset {
        since if since < origin.step => {
            format!(
                " The loss was not finite since step {since}, which was not scanned; this is seen from step {}.",
                origin.step
            )
        }
        _ => String::new(),
    };
    let who = match (site.layer.as_str(), site.operator.as_str()) {
        (INPUT, "data") => {
            "The run's input data (what is fed to the model) is the first in forward to hold".to_string()
        }
        _ => format!("`{}` is the first operator to make", site.label()),
    };
    let explanation = format!(
        "{who} {}{}, in {} of its elements. {whose} Activations carry no loss scale: it is independent of it, and no scale can help.{before}",
        kind(&origin),
        if site.operator == "data" { "" } else { " in forward" },
        share((origin.nan + origin.inf) as f64 / origin.count.max(1) as f64),
    );
    let mut firing = firing(aggregate, site, &origin, "independent of the loss scale", explanation, remedy);
    firing.since = onset;
    if onset < origin.step {
        firing.evidence.push(counted("seen_from_step", origin.step));
    }
    Some(firing)
}

/// Non-finite activations that no observed operator of this step made.
fn brought_in(aggregate: &Aggregate) -> Option<Firing> {
    let nf = &aggregate.non_finite;
    let summary = aggregate.site(nf.latest.brought_in?)?;
    if nf.first_origin.is_some() || nf.latest.parameter.is_some() || has_ruined_parameter(aggregate) {
        return None;
    }
    let step = nf.latest_step;
    let (layer, from, remedy) = match unobserved_since(aggregate) {
        Some(since) => (
            String::new(),
            format!("It began after step {since}, on a step that was not scanned: of unobserved origin."),
            every_step(),
        ),
        None => (
            INPUT.to_string(),
            "It came in with the data, or with a tensor that is not observed.".to_string(),
            format!("Look at the batch of step {step}: assert that it is finite before it enters the model."),
        ),
    };
    Some(Firing {
        severity: Severity::Error,
        layer,
        operator: String::new(),
        probe: Some(Probe::Activation),
        since: step,
        strength: 1.0,
        evidence: vec![said("first_seen_in", summary.site.label())],
        explanation: format!(
            "`{}` was handed a non-finite value that no observed operator made. {from}",
            summary.site.label()
        ),
        remedy: remedy.into(),
    })
}

/// Whether a parameter is not finite: then all that forward and backward make of it is a consequence.
pub(super) fn has_ruined_parameter(aggregate: &Aggregate) -> bool {
    aggregate.sites.iter().any(|s| s.site.probe == Probe::Param && s.latest().is_some_and(|l| l.stats.non_finite() > 0))
}

/// A parameter that its update ruined while every value before was finite.
fn parameter(aggregate: &Aggregate) -> Option<Firing> {
    let nf = &aggregate.non_finite;
    let (id, fresh) = nf.latest.parameter?;
    if !fresh || nf.first_origin.is_some() || vanishing_eps::fires(aggregate) {
        return None;
    }
    let site = &aggregate.site(id)?.site;
    let update = ruinous_update(aggregate, site);
    let operator = update.map_or(String::new(), |u| u.site.operator.clone());
    let (cause, remedy) = match (unobserved_since(aggregate), update) {
        (Some(since), _) => (format!("It became so after step {since}, on a step that was not scanned: of unobserved origin."), every_step()),
        (None, Some(_)) => (
            format!("Gradients and activations were finite: its update (`{operator}`) made it so."),
            "Look at the optimizer: in FP16 an `eps` of 1e-8 is zero and the second moment underflows. Step FP32 masters (`MasterWeights`), or use an `eps` \
             above 2^-24 = 6e-8."
                .to_string(),
        ),
        (None, None) => (
            "No observed gradient, activation or update was non-finite.".to_string(),
            format!("Look for code that writes into `{}` outside the optimizer, or a checkpoint that was loaded with it.", site.label()),
        ),
    };
    Some(Firing {
        severity: Severity::Error,
        layer: site.layer.clone(),
        operator,
        probe: Some(Probe::Param),
        since: nf.latest_step,
        strength: 1.0,
        evidence: vec![said("tensor", site.label())],
        explanation: format!("Parameter `{}` is not finite after step {}. {cause}", site.label(), nf.latest_step),
        remedy: remedy.into(),
    })
}

fn ruinous_update<'a>(aggregate: &'a Aggregate, parameter: &Site) -> Option<&'a SiteSummary> {
    aggregate
        .latest_observations()
        .filter(|(o, s)| s.site.probe == Probe::Update && o.stats.non_finite() > 0)
        .map(|(_, s)| s)
        .find(|s| s.site.layer == parameter.layer && s.site.tensor == parameter.tensor)
}

fn backward(aggregate: &Aggregate, limits: &Limits) -> Option<Firing> {
    let nf = &aggregate.non_finite;
    if reached_no_parameter(aggregate) {
        return None;
    }
    let origin = nf.latest.backward.filter(|_| nf.latest.forward_is_clean() && nf.loss_bad.is_none())?;
    let site = &aggregate.site(origin.site)?.site;
    let history = nf.backward.get(&origin.site)?;
    let why = why_not_the_scale(aggregate, site, &origin, history, limits)?;
    let via = origin.via.and_then(|id| aggregate.site(id)).map(|s| &s.site);
    let explanation = format!(
        "The gradient of `{}` is the first in the order of backward to hold {}, in {} of its elements{}, while forward and loss are finite. {why}",
        site.label(),
        kind(&origin),
        share((origin.nan + origin.inf) as f64 / origin.count.max(1) as f64),
        via.map_or(String::new(), |v| format!("; the backward of `{}` made it", v.label())),
    );
    let mut firing = firing(
        aggregate,
        site,
        &origin,
        "independent of the loss scale",
        explanation,
        advice_for(aggregate, via.unwrap_or(site), &origin, Pass::Backward),
    );
    firing.since = history.first.step;
    // With each time more the evidence is newer.
    firing.strength = history.events as f64;
    firing.evidence.extend([
        counted("times", history.events),
        measured("highest_loss_scale", history.highest_scale),
        measured("lowest_loss_scale", history.lowest_scale),
    ]);
    Some(firing)
}

/// Why the loss scale cannot have made this gradient non-finite; `None` where it may have.
fn why_not_the_scale(
    aggregate: &Aggregate,
    site: &Site,
    origin: &Origin,
    history: &BackwardOrigins,
    limits: &Limits,
) -> Option<String> {
    if !aggregate.went_through_fp16(site) {
        return Some(format!(
            "It is held in {}, whose range no loss scale exhausts: it is independent of the scale.",
            format_name(site.dtype)
        ));
    }
    let is_pole = is_pole_of_derivative(aggregate, origin);
    // An infinity in FP16 is a matter of range, and of rule AMP202; NaN from the beginning and the pole of a derivative are not.
    if origin.inf > 0 && !is_pole {
        return None;
    }
    if let Some(via) = origin.via.and_then(|id| aggregate.site(id)).filter(|_| is_pole) {
        return Some(format!(
            "`{}` gave an exact zero, where its derivative is infinite: independent of the scale.",
            via.site.label()
        ));
    }
    let Some(now) = origin.loss_scale else {
        return Some("There is no loss scale that could have caused it.".into());
    };
    let (high, low) = (history.highest_scale, history.lowest_scale);
    if high / low >= limits.of(&INDEPENDENT_RATIO) {
        return Some(format!(
            "It was so at scale {} and still is at {}: independent of the scale.",
            scale(high),
            scale(low)
        ));
    }
    if low < NO_SCALE_LEFT {
        return Some(format!("It is so at a scale of {}, below 1: independent of the scale.", scale(low)));
    }
    if history.with_headroom >= limits.count(&REPEATED) {
        return Some(format!(
            "When last finite, at this scale, it stood 2^{:.0} below FP16's end: the scale ({}) did not cause it.",
            history.headroom_octaves,
            scale(now)
        ));
    }
    let is_static = aggregate.scaler_config.as_ref().is_none_or(|c| c.is_static());
    (is_static && u64::from(aggregate.non_finite.bad_among_last(32)) >= limits.count(&REPEATED_STATIC)).then(|| {
        format!("It is NaN, not infinite, at its beginning, again and again at the static scale {}.", scale(now))
    })
}

/// Whether what backward made non-finite was shut out before it reached a parameter, as by a ReLU behind it: the scaler found every gradient finite.
fn reached_no_parameter(aggregate: &Aggregate) -> bool {
    let finds = |wanted: bool| {
        let events = aggregate.latest.iter().flat_map(|step| &step.scaler);
        events.filter(|e| matches!(e, ScalerEvent::Unscaled { found_inf, .. } if *found_inf == wanted)).count()
    };
    finds(false) > 0 && finds(true) == 0
}

/// Whether a gradient comes out of an operator whose derivative is infinite where it gives zero, and which gave zero at that step.
pub(super) fn is_pole_of_derivative(aggregate: &Aggregate, origin: &Origin) -> bool {
    let Some(via) = origin.via.and_then(|id| aggregate.site(id)) else { return false };
    let zeros = via.recent.iter().rev().find(|s| s.step <= origin.step).map_or(0, |s| s.stats.zeros);
    match base_name(&via.site.operator).trim_end_matches('_') {
        // A square of zero has a derivative of zero: only where each zero, and nothing else, became non-finite is it a pole.
        "pow" => zeros > 0 && origin.inf + origin.nan == zeros,
        name => zeros > 0 && ROOTS.contains(&name),
    }
}

/// A loss that is non-finite while nothing observed is.
fn loss(aggregate: &Aggregate, limits: &Limits) -> Option<Firing> {
    let nf = &aggregate.non_finite;
    let step = aggregate.latest.as_ref()?;
    if nf.first_origin.is_some() || !nf.latest.forward_is_clean() || has_ruined_parameter(aggregate) {
        return None;
    }
    let (since, cause, remedy) = match (step.tier, nf.unseen_loss, nf.loss_bad) {
        (Tier::Full, _, Some((since, _))) if nf.unseen_loss.is_none() => (
            since,
            "Every observed tensor of that step was finite: it was made by operators that are not observed.",
            "Look at what is done to the loss after the model: a logarithm, a division by a count that may be zero, a product in FP16.".into(),
        ),
        (Tier::Full, Some(since), _) => (since, "That step was not scanned: of unobserved origin.", every_step()),
        (_, Some(since), Some((_, n))) if n >= limits.count(&LOSS_STEPS) => (since, "None of these steps was scanned: of unobserved origin.", every_step()),
        _ => return None,
    };
    Some(Firing {
        severity: Severity::Error,
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since,
        strength: 1.0,
        evidence: step.loss.map(|l| measured("loss", l)).into_iter().collect(),
        explanation: format!("The loss was not finite at step {since}. {cause}"),
        remedy: remedy.into(),
    })
}

/// While a non-finite loss of an unscanned step may still be explained by the next scan.
fn waits_for_a_scan(aggregate: &Aggregate, limits: &Limits) -> Option<String> {
    let nf = &aggregate.non_finite;
    let since = nf.unseen_loss?;
    let tier = aggregate.latest.as_ref()?.tier;
    let lasts = nf.loss_bad.is_some_and(|(_, n)| n >= limits.count(&LOSS_STEPS));
    (tier != Tier::Full && !lasts && aggregate.end.is_none()).then(|| {
        format!(
            "the loss was not finite at step {since}, which was not scanned; the next scanned step tells more. {}",
            every_step()
        )
    })
}

fn firing(
    aggregate: &Aggregate,
    site: &Site,
    origin: &Origin,
    cause: &str,
    explanation: String,
    remedy: Remedy,
) -> Firing {
    let mut evidence = vec![
        said("cause", cause),
        said("dtype", site.dtype.name()),
        counted("nan_elements", origin.nan),
        counted("infinite_elements", origin.inf),
        counted("elements", origin.count),
    ];
    evidence.extend(origin.loss_scale.map(|s| measured("loss_scale", s)));
    evidence.extend(aggregate.latest.as_ref().and_then(|s| s.loss).map(|l| measured("loss", l)));
    Firing {
        severity: Severity::Error,
        layer: site.layer.clone(),
        operator: site.operator.clone(),
        probe: Some(site.probe),
        since: origin.step,
        strength: 1.0,
        evidence,
        explanation,
        remedy,
    }
}

/// The last scanned step, where steps that were not scanned lie between it and the latest.
fn unobserved_since(aggregate: &Aggregate) -> Option<u64> {
    let nf = &aggregate.non_finite;
    match nf.previous_full_step {
        Some(previous) => (nf.latest_step > previous + 1).then_some(previous),
        None => (nf.latest_step > 0).then_some(0),
    }
}

fn every_step() -> String {
    "Scan every step to see where it begins: `Doctor::builder().every(1)`.".into()
}

fn kind(origin: &Origin) -> &'static str {
    match (origin.nan, origin.inf) {
        (_, 0) => "NaN",
        (0, _) => "an infinity",
        _ => "NaN and infinities",
    }
}

#[cfg(test)]
mod tests;
