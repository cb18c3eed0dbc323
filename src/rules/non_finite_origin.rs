//! ## What it finds
//!
//! The first operator, in the order of execution, that made a NaN or an infinity which it had not been given; in forward or in backward. Also
//! data that came in non-finite, a parameter that was ruined by its update, and a buffer (running statistics) that stays poisoned after
//! the step that did it was skipped.
//!
//! ## Why it matters
//!
//! By the time the loss is NaN everything is, and the last layer looks as guilty as the first. A non-finite value that does not come from the loss scale
//! is not cured by a scaler: it skips the step, halves the scale, and does so again until nothing is left of it.
//!
//! ## How it decides
//!
//! * **Forward, error** at once: activations carry no loss scale, so it never caused it. In any precision.
//! * **Backward, error**: at once where the derivative of the operator is infinite (the root, the norm or a power of exact zero), where the gradient is held in FP32 or BF16, whose range no scale exhausts, and where there is no scaler. In FP16
//!   only a gradient that is NaN from its beginning, and only when the scale cannot have made it so: it was seen at two scales 2^8 apart,
//!   or at a scale below 1, or twice while the same gradient had stood 2^8 below FP16's end. Under a static scale: three times in 32 steps.
//! * **Parameter, error**: non-finite after the step, while nothing before it was.
//! * **Buffer, error**: non-finite while forward and loss are finite again. Training with batch statistics hides it; evaluation is NaN.
//! * **Loss, error**: non-finite while no observed tensor is.
//!
//! A value that began on a step that was not scanned is said to be of unobserved origin.
//!
//! ## What to do
//!
//! Look at the operator named and at its input. Logarithms, roots and divisions want an epsilon that FP16 can hold (above 2^-24 = 6e-8); a softmax
//! wants one unmasked element in every row; cross-entropy on logits is safe where the logarithm of a softmax is not.
//!
//! ## When it stays silent
//!
//! On a gradient that is not finite and reaches no parameter: the scaler found all of them finite. On calibration and on a scaler that probes its ceiling: FP16 gradients that overflow and recover. On -inf that a mask put there, as long as
//! nothing is made of it. On everything that follows from an origin already known: later layers, ruined weights, later
//! steps. On weights that an optimizer's `eps` ruined: rule `vanishing-eps` says so.

use super::text::{base_name, counted, keep_in_range, layer_name, measured, said, scale, share};
use super::{Firing, Rule, RuleInfo, Severity, Verdict, vanishing_eps};
use crate::aggregate::{Aggregate, BackwardOrigins, Origin, SiteSummary};
use crate::observation::{Probe, ScalerEvent, Site, SiteId, Tier};

/// Ratio of the scales between which a NaN must persist: 2^8.
const INDEPENDENT_RATIO: f64 = 256.0;
/// Below this no scale can be the cause.
const NO_SCALE_LEFT: f64 = 1.0;
/// Times that a gradient with 8 octaves of headroom must turn NaN: one could be a freak batch.
const REPEATED: u64 = 2;
/// Times in 32 steps under a static scale.
const REPEATED_STATIC: u32 = 3;
/// Steps in a row with a non-finite loss that need no scan to be a fault.
const LOSS_STEPS: u64 = 3;
/// Operators whose derivative is infinite where they give zero.
const ROOTS: [&str; 5] = ["sqrt", "norm", "linalg_vector_norm", "std", "cdist"];
/// The layer of what no parameter has touched.
const INPUT: &str = "input";

/// See the page of the rule.
pub struct NonFiniteOrigin;

static INFO: RuleInfo = RuleInfo {
    code: "AMP501",
    name: "non-finite-origin",
    severity: Severity::Error,
    summary: "The first operator that made a NaN or an infinity, not because of the loss scale.",
    source: include_str!("non_finite_origin.rs"),
};

impl Rule for NonFiniteOrigin {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn check(&self, aggregate: &Aggregate) -> Vec<Verdict> {
        if let Some(unsure) = waits_for_a_scan(aggregate) {
            return vec![Verdict::Unsure(unsure)];
        }
        let first = forward(aggregate)
            .or_else(|| brought_in(aggregate))
            .or_else(|| parameter(aggregate))
            .or_else(|| backward(aggregate))
            .or_else(|| loss(aggregate));
        first.into_iter().chain(buffers(aggregate)).map(|f| Verdict::Firing(Box::new(f))).collect()
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
            format!("Look at the batch of step {}, and at {prepared_by}.", origin.step)
        }
        (_, true) => format!(
            "Leave at least one element unmasked in every row that `{}` of layer `{}` normalises, or write a finite number (-3e4) in place of -inf.",
            site.operator,
            layer_name(site)
        ),
        _ => advice_for(site, &origin),
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
        remedy,
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
        remedy,
    })
}

fn ruinous_update<'a>(aggregate: &'a Aggregate, parameter: &Site) -> Option<&'a SiteSummary> {
    aggregate
        .latest_observations()
        .filter(|(o, s)| s.site.probe == Probe::Update && o.stats.non_finite() > 0)
        .map(|(_, s)| s)
        .find(|s| s.site.layer == parameter.layer && s.site.tensor == parameter.tensor)
}

fn backward(aggregate: &Aggregate) -> Option<Firing> {
    let nf = &aggregate.non_finite;
    if reached_no_parameter(aggregate) {
        return None;
    }
    let origin = nf.latest.backward.filter(|_| nf.latest.forward_is_clean() && nf.loss_bad.is_none())?;
    let site = &aggregate.site(origin.site)?.site;
    let history = nf.backward.get(&origin.site)?;
    let why = why_not_the_scale(aggregate, site, &origin, history)?;
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
        advice_for(via.unwrap_or(site), &origin),
    );
    firing.since = history.first.step;
    firing.evidence.extend([
        counted("times", history.events),
        measured("highest_loss_scale", history.highest_scale),
        measured("lowest_loss_scale", history.lowest_scale),
    ]);
    Some(firing)
}

/// Why the loss scale cannot have made this gradient non-finite; `None` where it may have.
fn why_not_the_scale(aggregate: &Aggregate, site: &Site, origin: &Origin, history: &BackwardOrigins) -> Option<String> {
    if !aggregate.went_through_fp16(site) {
        return Some(format!(
            "It is held in {}, whose range no loss scale exhausts: it is independent of the scale.",
            site.dtype.name().to_uppercase()
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
    if high / low >= INDEPENDENT_RATIO {
        return Some(format!(
            "It was so at scale {} and still is at {}: independent of the scale.",
            scale(high),
            scale(low)
        ));
    }
    if low < NO_SCALE_LEFT {
        return Some(format!("It is so at a scale of {}, below 1: independent of the scale.", scale(low)));
    }
    if history.with_headroom >= REPEATED {
        return Some(format!(
            "When last finite, at this scale, it stood 2^{:.0} below FP16's end: the scale ({}) did not cause it.",
            history.headroom_octaves,
            scale(now)
        ));
    }
    let is_static = aggregate.scaler_config.as_ref().is_none_or(|c| c.is_static());
    (is_static && aggregate.non_finite.bad_among_last(32) >= REPEATED_STATIC).then(|| {
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
fn loss(aggregate: &Aggregate) -> Option<Firing> {
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
        (_, Some(since), Some((_, n))) if n >= LOSS_STEPS => (since, "None of these steps was scanned: of unobserved origin.", every_step()),
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
        remedy,
    })
}

/// While a non-finite loss of an unscanned step may still be explained by the next scan.
fn waits_for_a_scan(aggregate: &Aggregate) -> Option<String> {
    let nf = &aggregate.non_finite;
    let since = nf.unseen_loss?;
    let tier = aggregate.latest.as_ref()?.tier;
    let lasts = nf.loss_bad.is_some_and(|(_, n)| n >= LOSS_STEPS);
    (tier != Tier::Full && !lasts && aggregate.end.is_none()).then(|| {
        format!(
            "the loss was not finite at step {since}, which was not scanned; the next scanned step tells more. {}",
            every_step()
        )
    })
}

/// Buffers that stay poisoned although the run goes on as if nothing had been.
fn buffers(aggregate: &Aggregate) -> Vec<Firing> {
    let nf = &aggregate.non_finite;
    let run_is_ruined = !nf.latest.forward_is_clean() || nf.loss_bad.is_some() || has_ruined_parameter(aggregate);
    if run_is_ruined {
        return Vec::new();
    }
    nf.latest.buffers.iter().filter_map(|&id| poisoned_buffer(aggregate, id)).collect()
}

fn poisoned_buffer(aggregate: &Aggregate, id: SiteId) -> Option<Firing> {
    let summary = aggregate.site(id)?;
    let site = &summary.site;
    let since = summary.recent.iter().find(|s| s.stats.non_finite() > 0)?.step;
    Some(Firing {
        severity: Severity::Error,
        layer: site.layer.clone(),
        operator: String::new(),
        probe: Some(Probe::Buffer),
        since,
        strength: 1.0,
        evidence: vec![said("tensor", site.label()), counted("poisoned_since_step", since)],
        explanation: format!(
            "Buffer `{}` has held non-finite values since step {since}. Forward in training mode does not read it, so training looks well and evaluation is \
             NaN; a scaler that skips a step does not undo what forward wrote.",
            site.label()
        ),
        remedy: format!(
            "Reset `{}` (running mean to 0, running variance to 1) or load it from before step {since}, and keep layer `{}` in FP32 so that its input cannot \
             overflow.",
            site.label(),
            layer_name(site)
        ),
    })
}

fn firing(
    aggregate: &Aggregate,
    site: &Site,
    origin: &Origin,
    cause: &str,
    explanation: String,
    remedy: String,
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

/// What usually helps with this operator.
fn advice_for(site: &Site, origin: &Origin) -> String {
    let layer = layer_name(site);
    match base_name(&site.operator) {
        "log" | "log2" | "log10" | "log1p" => {
            format!(
                "`{}` of layer `{layer}` was given zero or less: clamp its input to 1e-6 or more, or use a fused form (log_softmax, cross-entropy on logits).",
                site.operator
            )
        }
        "div" | "reciprocal" | "rsqrt" | "sqrt" | "pow" | "norm" | "linalg_vector_norm" | "std" | "var" => format!(
            "`{}` of layer `{layer}` met a zero or a negative number: add an epsilon to its input, in FP16 one above 2^-24 = 6e-8.",
            site.operator
        ),
        "softmax" | "_softmax" | "log_softmax" | "_log_softmax" => {
            format!(
                "`{}` of layer `{layer}` was given a row without a finite element; look at the mask and at the scores before it.",
                site.operator
            )
        }
        _ if origin.inf > 0 => keep_in_range(site),
        _ => format!(
            "Look at `{}` of layer `{layer}` and its inputs at step {}; keep the layer in FP32 to see whether range is the cause.",
            site.operator, origin.step
        ),
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::scenario::{Scenario, StepBuilder, normal};
    use crate::observation::{Probe, Sampling, Tier};
    use crate::rules::silence::{diagnose, found};
    use crate::rules::{Diagnosis, Finding};
    use crate::scan::Dtype::{self, Bf16, F16, F32};

    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;

    fn well(s: &mut StepBuilder<'_>, dtype: Dtype, seed: u64) {
        s.loss(1.0).activation("fc1", "linear", dtype, &normal(64, 1.0, seed)).activation(
            "fc2",
            "linear",
            dtype,
            &normal(64, 1.0, seed),
        );
        s.gradient("fc2", "linear", dtype, &normal(64, 1.0, seed)).gradient(
            "fc1",
            "linear",
            dtype,
            &normal(64, 1.0, seed),
        );
    }

    fn only(d: &Diagnosis) -> &Finding {
        assert_eq!(found(d), ["AMP501"], "{:#?}", d.findings());
        &d.findings()[0]
    }

    #[test]
    fn a_nan_made_in_forward_is_named_at_once_in_every_precision() {
        for dtype in [F16, Bf16, F32] {
            let mut run = Scenario::new();
            run.steps(3, |s, i| well(s, dtype, i)).steps(3, |s, _| {
                s.loss(NAN).activation("fc1", "linear", dtype, &[1.0]).activation("fc2", "log", dtype, &[NAN]);
                s.activation("fc3", "linear", dtype, &[NAN]).inherited();
                s.gradient("fc3", "linear", dtype, &[NAN]).gradient("fc1", "linear", dtype, &[NAN]).inherited();
            });
            let d = diagnose(&run);
            let f = only(&d);
            assert_eq!((f.layer.as_str(), f.operator.as_str(), f.onset_step, f.last_step), ("fc2", "log", 3, 5));
            assert!(f.explanation.contains("independent") && f.remedy.contains("clamp"), "{f:#?}");
        }
    }

    #[test]
    fn case_2_the_logarithm_of_zero_is_named_before_the_scale_is_gone() {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).step(|s| {
            s.skipped(65536.0, 32768.0).loss(INF).activation("head", "log", F32, &[-INF, 0.1]);
        });
        assert_eq!(only(&diagnose(&run)).operator, "log");
    }

    #[test]
    fn data_that_came_in_non_finite_is_named_as_data() {
        let mut run = Scenario::new();
        run.steps(2, |s, i| well(s, F32, i)).step(|s| {
            s.loss(NAN)
                .activation("input", "data", F32, &[NAN, 1.0])
                .activation("fc1", "linear", F32, &[NAN])
                .inherited();
        });
        let d = diagnose(&run);
        assert_eq!(only(&d).layer, "input");
        assert!(only(&d).remedy.contains("batch of step 2"), "{}", only(&d).remedy);

        // Without an operator before the first layer there is nobody to name: it was handed in.
        let mut run = Scenario::new();
        run.steps(2, |s, i| well(s, F32, i)).step(|s| {
            s.loss(NAN).activation("fc1", "linear", F32, &[NAN]).inherited();
        });
        assert_eq!(only(&diagnose(&run)).layer, "input");
    }

    #[test]
    fn a_non_finite_tensor_that_the_model_was_not_handed_is_not_the_origin() {
        // A loop that averages its losses hands yesterday's NaN to an operator of its own.
        let mut run = Scenario::new();
        run.steps(2, |s, i| well(s, F32, i)).steps(2, |s, _| {
            s.loss(NAN).activation("input", "data", F32, &[NAN]);
            s.activation("fc1", "linear", F32, &[1.0]).activation("fc2", "log", F32, &[NAN]);
        });
        let d = diagnose(&run);
        assert_eq!((only(&d).layer.as_str(), only(&d).last_step), ("fc2", 3));
        let mut run = Scenario::new();
        run.steps(3, |s, i| {
            well(s, F32, i);
            s.activation("input", "data", F32, &[NAN]);
        });
        assert!(found(&diagnose(&run)).is_empty());
    }

    #[test]
    fn what_a_ruined_weight_makes_is_no_origin() {
        let mut run = Scenario::new();
        run.steps(2, |s, i| well(s, F32, i)).step(|s| {
            s.loss(NAN).activation("fc1", "linear", F32, &[1.0]).activation("fc2", "log", F32, &[NAN]);
            s.gradient("fc2", "log", F32, &[NAN]).param("fc1", "weight", F32, &[NAN]);
        });
        run.steps(3, |s, _| {
            s.loss(NAN).activation("fc1", "linear", F32, &[NAN]).activation("fc2", "log", F32, &[NAN]).inherited();
        });
        assert_eq!(only(&diagnose(&run)).layer, "fc2");
    }

    #[test]
    fn case_13_a_nan_made_of_what_a_mask_wrote_is_an_origin() {
        let mut run = Scenario::new();
        run.step(|s| {
            s.loss(NAN)
                .activation("attn", "masked_fill", F16, &[-INF; 8])
                .activation("attn", "softmax", F16, &[NAN; 8])
                .inherited();
            s.activation("fc", "linear", F16, &[NAN; 8]).inherited();
        });
        let d = diagnose(&run);
        let f = only(&d);
        assert_eq!(f.operator, "softmax");
        assert!(f.remedy.contains("one element unmasked in every row"), "{}", f.remedy);
    }

    #[test]
    fn what_follows_from_an_origin_is_not_another_finding() {
        let mut run = Scenario::new();
        run.steps(2, |s, i| well(s, F32, i)).step(|s| {
            s.loss(NAN).activation("fc1", "linear", F32, &[1.0]).activation("fc2", "sqrt", F32, &[NAN]);
            s.gradient("fc2", "sqrt", F32, &[NAN]).param("fc1", "weight", F32, &[NAN]).param(
                "fc2",
                "weight",
                F32,
                &[NAN],
            );
            s.buffer("bn", "running_mean", &[NAN]);
        });
        run.steps(3, |s, _| {
            s.loss(NAN)
                .activation("fc1", "linear", F32, &[NAN])
                .inherited()
                .activation("fc2", "sqrt", F32, &[NAN])
                .inherited();
            s.param("fc1", "weight", F32, &[NAN]).buffer("bn", "running_mean", &[NAN]);
        });
        let d = diagnose(&run);
        assert_eq!((only(&d).layer.as_str(), only(&d).last_step), ("fc2", 2));
    }

    #[test]
    fn a_nan_born_in_backward_is_named_at_once_where_range_cannot_be_the_cause() {
        let mut run = Scenario::new();
        run.steps(2, |s, i| well(s, F32, i)).step(|s| {
            well(s, F32, 9);
            s.gradient("enc", "relu", F32, &[NAN; 64]).via("enc", "sqrt", F32);
        });
        let d = diagnose(&run);
        let f = only(&d);
        assert_eq!((f.layer.as_str(), f.probe, f.onset_step), ("enc", Some(Probe::ActivationGrad), 2));
        assert!(f.explanation.contains("backward of `enc/sqrt`") && f.remedy.contains("epsilon"), "{f:#?}");
    }

    #[test]
    fn a_nan_gradient_in_fp16_needs_proof_that_the_scale_is_not_the_cause() {
        let step = |s: &mut StepBuilder<'_>, scale: f64, bad: bool, i: u64| {
            if bad {
                s.skipped(scale, scale / 2.0)
            } else {
                s.applied(scale)
            };
            s.loss(1.0).gradient("fc2", "linear", F16, &normal(64, 1e-4 * scale, i));
            s.gradient("fc1", "linear", F16, &if bad { vec![NAN; 64] } else { normal(64, 1e-4 * scale, i) });
        };
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0)
            .steps(3, |s, i| step(s, 65536.0, false, i))
            .steps(1, |s, i| step(s, 65536.0, true, i));
        assert!(found(&diagnose(&run)).is_empty(), "one event proves nothing");
        run.steps(1, |s, i| step(s, 32768.0, true, i));
        let d = diagnose(&run);
        assert_eq!((only(&d).layer.as_str(), only(&d).onset_step), ("fc1", 3));
        assert!(only(&d).explanation.contains("below FP16's end"), "{}", only(&d).explanation);
    }

    #[test]
    fn a_nan_gradient_from_the_first_step_is_proved_by_the_fall_of_the_scale() {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).steps(9, |s, i| {
            let scale = 2f64.powi(16 - i as i32);
            s.loss(1.0).skipped(scale, scale / 2.0).gradient("fc1", "linear", F16, &[NAN; 64]);
        });
        let d = diagnose(&run);
        assert!(only(&d).explanation.contains("65536 (2^16) and still is at 256 (2^8)"), "{}", only(&d).explanation);
        assert_eq!(only(&d).onset_step, 0);
    }

    #[test]
    fn case_16_a_buffer_that_stays_poisoned_is_named_with_its_step() {
        let mut run = Scenario::new();
        run.dynamic_scaler(1024.0).steps(6, |s, i| {
            let bad = i == 2;
            if bad {
                s.skipped(1024.0, 512.0)
            } else {
                s.applied(512.0)
            };
            well(s, F16, i);
            s.buffer("bn", "running_var", &[if i >= 2 { INF } else { 1.0 }]);
        });
        let d = diagnose(&run);
        let f = only(&d);
        assert_eq!((f.layer.as_str(), f.probe, f.onset_step), ("bn", Some(Probe::Buffer), 2));
        assert!(f.explanation.contains("since step 2"), "{}", f.explanation);
    }

    #[test]
    fn a_parameter_ruined_by_its_update_names_the_optimizer() {
        let mut run = Scenario::new();
        run.step(|s| {
            well(s, F16, 0);
            s.update("fc1", "addcdiv_", "weight", &[NAN; 4]).param("fc1", "weight", F16, &[NAN; 4]);
            s.update("fc2", "addcdiv_", "weight", &[NAN; 4]).param("fc2", "weight", F16, &[NAN; 4]);
        });
        let d = diagnose(&run);
        let f = only(&d);
        assert_eq!((f.layer.as_str(), f.operator.as_str(), f.probe), ("fc1", "addcdiv_", Some(Probe::Param)));
    }

    #[test]
    fn what_began_between_scans_is_said_to_be_of_unobserved_origin() {
        let mut run = Scenario::sampled(Sampling::Every(5));
        run.step(|s| well(s, F32, 0)).steps(4, |s, _| {
            s.tier(Tier::Light);
        });
        run.step(|s| {
            s.loss(NAN).activation("fc1", "linear", F32, &[NAN]).inherited().param("fc1", "weight", F32, &[NAN]);
        });
        let d = diagnose(&run);
        assert!(
            only(&d).explanation.contains("unobserved origin") && only(&d).remedy.contains("every(1)"),
            "{:#?}",
            only(&d)
        );
    }

    #[test]
    fn a_loss_that_went_bad_unscanned_waits_for_the_next_scan() {
        let mut run = Scenario::sampled(Sampling::Every(5));
        run.step(|s| well(s, F32, 0)).step(|s| {
            s.tier(Tier::Light).loss(NAN);
        });
        let waiting = diagnose(&run);
        assert!(found(&waiting).is_empty() && waiting.doubts().iter().any(|d| d.code == "AMP501"));

        let mut explained = run.clone();
        explained.step(|s| {
            s.loss(NAN).activation("fc2", "log", F32, &[NAN]);
        });
        assert_eq!(only(&diagnose(&explained)).layer, "fc2");

        run.step(|s| well(s, F32, 2));
        let d = diagnose(&run);
        assert_eq!((only(&d).layer.as_str(), only(&d).onset_step), ("", 1));
        assert!(only(&d).explanation.contains("unobserved origin"), "{}", only(&d).explanation);
    }

    #[test]
    fn a_pole_in_a_net_with_a_causal_mask_is_not_blamed_on_the_mask() {
        for (operator, value, advice) in [("log", -INF, "clamp"), ("div", NAN, "epsilon"), ("exp", INF, "in FP32")] {
            let mut run = Scenario::new();
            run.step(|s| {
                s.loss(NAN).activation("attn", "masked_fill", F16, &[1.0, -INF]);
                s.activation("attn", "softmax", F16, &[1.0, 0.0]).activation("up", operator, F16, &[value, 1.0]);
                if operator == "exp" {
                    // It was handed the mask's -inf, and made +inf of a finite element.
                    s.inherited();
                }
            });
            let d = diagnose(&run);
            let f = d.findings().iter().find(|f| f.code == "AMP501").unwrap();
            assert_eq!((f.layer.as_str(), f.operator.as_str()), ("up", operator));
            assert!(f.remedy.contains(advice) && !f.explanation.contains("a mask wrote"), "{f:#?}");
        }
    }

    #[test]
    fn an_infinity_of_a_pole_is_no_matter_of_range() {
        for operator in ["log", "div#2", "rsqrt", "reciprocal", "log_"] {
            let mut run = Scenario::new();
            run.step(|s| {
                s.loss(1.0).activation("up", operator, F16, &[INF, 1.0]);
            });
            assert_eq!(only(&diagnose(&run)).operator, operator);
        }
    }

    #[test]
    fn the_root_of_an_exact_zero_is_named_once_and_at_once() {
        let step = |s: &mut StepBuilder<'_>, i: u64, reaches: bool| {
            let scale = 65536.0 / (i as f64).exp2();
            if reaches {
                s.skipped(scale, scale / 2.0)
            } else {
                s.applied(65536.0)
            };
            s.loss(1.0).activation("up", "sqrt", F16, &[0.0, 1.0]);
            s.gradient("up", "sqrt", F16, &[1.0, 1.0]);
            s.gradient("up", "abs", F16, &[INF, 0.5]).via("up", "sqrt", F16);
        };
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).steps(12, |s, i| step(s, i, true));
        let d = diagnose(&run);
        assert_eq!((only(&d).layer.as_str(), only(&d).onset_step), ("up", 0));
        assert!(only(&d).remedy.contains("epsilon") && only(&d).explanation.contains("exact zero"), "{:#?}", only(&d));

        // A ReLU behind it takes the infinity away: no parameter sees it.
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).steps(12, |s, i| step(s, i, false));
        assert!(found(&diagnose(&run)).is_empty());
    }

    #[test]
    fn the_onset_is_that_of_the_loss_where_the_steps_between_were_not_scanned() {
        let mut run = Scenario::sampled(Sampling::Every(3));
        run.step(|s| well(s, F32, 0)).steps(2, |s, i| {
            s.tier(Tier::Light).loss(if i == 2 { NAN } else { 1.0 });
        });
        run.step(|s| {
            s.loss(NAN).activation("fc2", "log", F32, &[NAN]);
        });
        let d = diagnose(&run);
        assert_eq!((only(&d).layer.as_str(), only(&d).onset_step), ("fc2", 2));
        assert!(
            only(&d).explanation.contains("since step 2") && only(&d).explanation.contains("from step 3"),
            "{:?}",
            only(&d)
        );
    }

    #[test]
    fn a_loss_that_no_observed_operator_made_bad_is_told() {
        let mut run = Scenario::new();
        run.step(|s| {
            well(s, F32, 0);
            s.loss(NAN);
        });
        let d = diagnose(&run);
        assert!(only(&d).layer.is_empty() && only(&d).explanation.contains("not observed"), "{:#?}", only(&d));
    }
}
