//! How an underflow is told: the numbers, what they mean, and what to change.

use super::decision::{Decision, MEDIAN_NEAR, layer_harmed};
use super::{Cause, MEDIAN_EHAT};
use crate::aggregate::{Aggregate, Judged};
use crate::numerics::Underflow;
use crate::rules::graph::Graph;
use crate::rules::range::Reach;
use crate::rules::scale_advice::{Blamed, ScaleAdvice, compare, dynamic_rather_than, headroom, set_scale};
use crate::rules::scaling::Scaling;
use crate::rules::text::{count, counted, layer_name, measured, number, power_of_two, scale, sentence, share};
use crate::rules::{Evidence, Firing, Limits, Remedy, Severity};
use crate::scan::Likeness;

pub(super) fn firing(
    aggregate: &Aggregate,
    judged: &[Judged<'_>],
    decision: &Decision,
    cause: Cause,
    advice: Option<&ScaleAdvice<'_>>,
    limits: &Limits,
) -> Firing {
    let shown = &judged[decision.first];
    // Where the scale is the cause, the run as a whole is the place.
    let names_layer = decision.layer_is_to_blame && cause == Cause::Other;
    Firing {
        severity: decision.severity,
        layer: if names_layer { shown.site.site.layer.clone() } else { String::new() },
        operator: if names_layer { shown.site.site.operator.clone() } else { String::new() },
        probe: Some(shown.site.site.probe),
        since: judged
            .iter()
            .filter(|j| j.lasting() >= shown.lasting().min(layer_harmed(shown, limits)))
            .map(|j| j.since)
            .min()
            .unwrap_or(shown.since),
        strength: decision.median.max(shown.lasting()),
        evidence: evidence(aggregate, shown, judged.len(), decision, advice),
        explanation: explanation(aggregate, judged, decision, cause, limits),
        remedy: remedy(aggregate, shown, names_layer, advice),
    }
}

fn evidence(
    aggregate: &Aggregate,
    shown: &Judged<'_>,
    judged: usize,
    decision: &Decision,
    advice: Option<&ScaleAdvice<'_>>,
) -> Vec<Evidence> {
    let underflow = shown.latest.underflow.unwrap_or(Underflow::ALL_LOST);
    let scale = shown.latest.loss_scale.unwrap_or(1.0);
    let mut evidence = vec![
        measured(MEDIAN_EHAT, decision.median),
        measured("layer_ehat", shown.lasting()),
        counted("judged_gradients", judged as u64),
        counted("starved_gradients", decision.starved as u64),
        counted("gradients_below_2^-14", decision.below_normal as u64),
        measured("loss_scale", scale),
        measured("max_abs_as_held", shown.max_abs),
        measured("max_abs_unscaled", shown.max_abs / scale),
    ];
    // Of a gradient that is lost whole no element is left to fade.
    if shown.latest.stats.max_abs > 0.0 && underflow.lost_share < 1.0 {
        evidence.push(measured("fading_share", underflow.fading_share));
    }
    let (lost, l1) = match underflow.measured {
        true => ("lost_share", "lost_l1_share"),
        false => ("lost_share_estimate", "lost_l1_share_estimate"),
    };
    evidence.extend([measured(lost, underflow.lost_share), measured(l1, underflow.l1hat)]);
    if let Some(like) = shown.against_fp32(aggregate) {
        evidence.extend(like.lost_share().map(|share| measured("lost_share_against_fp32", share)));
        evidence.push(measured("one_minus_cosine_against_fp32", 1.0 - like.cosine().unwrap_or(0.0)));
    }
    let raised = |exponent: &i32| f64::from(*exponent).exp2() > scale || shown.latest.loss_scale.is_none();
    if let Some((advice, exponent)) = advice.and_then(|a| Some((a, a.exponent().filter(raised)?))) {
        evidence.push(measured("recommended_loss_scale", f64::from(exponent).exp2()));
        evidence.push(measured("headroom_bits_at_recommended", advice.headroom_bits(exponent)));
    }
    evidence
}

fn explanation(
    aggregate: &Aggregate,
    judged: &[Judged<'_>],
    decision: &Decision,
    cause: Cause,
    limits: &Limits,
) -> String {
    let shown = &judged[decision.first];
    let upstream = judged[decision.first + 1..].iter().filter(|j| j.lasting() > limits.of(&MEDIAN_NEAR)).count();
    let mut text = vec![what_is_left(shown), what_is_wrong(judged, decision)];
    if decision.layer_is_to_blame {
        text.push(format!("It begins at layer `{}`{}.", layer_name(&shown.site.site), made_by(aggregate, shown)));
        if upstream > 0 {
            text.push(format!("{} nearer the input inherited it.", count(upstream, "gradient")));
        }
    } else {
        text.push("It is so from the loss on: no layer is to blame.".into());
    }
    text.extend(shown.against_fp32(aggregate).map(|like| measured_by_shadow(shown, &like)));
    text.push(why(aggregate, shown, cause));
    text.join(" ")
}

/// What a comparison with FP32 of the same batch says of the layer: no estimate.
fn measured_by_shadow(shown: &Judged<'_>, like: &Likeness) -> String {
    let layer = layer_name(&shown.site.site);
    let lost = share(like.lost_share().unwrap_or(0.0));
    match like.cosine() {
        Some(cosine) => format!(
            "Measured against FP32: of the gradient of the parameters of `{layer}` {lost} of the elements were rounded to zero, and 1 - cosine is {}.",
            number(1.0 - cosine)
        ),
        None => format!("Measured against FP32: nothing is left of the gradient of the parameters of `{layer}`."),
    }
}

/// What keeps the scale from being where it has to be.
fn why(aggregate: &Aggregate, shown: &Judged<'_>, cause: Cause) -> String {
    let now = shown.latest.loss_scale.unwrap_or(1.0);
    match (cause, Scaling::of(aggregate)) {
        (Cause::NoScale, Scaling::None) => "There is no loss scaler, and these gradients need one.".into(),
        (Cause::NoScale, _) => "The loss scale is 1, as if there were none, and these gradients need one.".into(),
        (Cause::FixedScale, Scaling::AtCeiling) => {
            format!("The scale stands at its ceiling, `max_scale` = {}, and cannot rise.", scale(now))
        }
        (Cause::FixedScale, _) => format!("The scale is static at {}, so nothing raises it.", scale(now)),
        (Cause::Other, _) => "The scale is too low for these gradients, or they are too small for any.".into(),
    }
}

fn what_is_wrong(judged: &[Judged<'_>], decision: &Decision) -> String {
    let all = judged.len();
    match decision.severity {
        Severity::Error => format!(
            "The layers are moved in a wrong direction, or not at all: the predicted error of the direction (1 - cosine) is {} in the median of {} \
             (0: none, 1: all is lost; harmed runs have more than 1e-3, healthy ones 2e-8); {} lie wholly below 2^-14 = 6.1e-5.",
            number(decision.median),
            count(all, "gradient"),
            decision.below_normal
        ),
        _ if decision.starved > 0 => format!(
            "FP16 loses the direction of {} of {all} gradients: the predicted error (1 - cosine; 1: all is lost) is above 0.01 there.",
            decision.starved
        ),
        _ => format!(
            "{} of {} lie wholly below 2^-14 = 6.1e-5, where FP16's precision fades; the direction of the gradient is not lost yet.",
            decision.below_normal,
            count(all, "gradient")
        ),
    }
}

fn what_is_left(shown: &Judged<'_>) -> String {
    let label = shown.site.site.label();
    let scale = shown.latest.loss_scale.unwrap_or(1.0);
    let Some(u) = shown.latest.underflow.filter(|_| shown.latest.stats.max_abs > 0.0) else {
        return format!(
            "Nothing is left of the gradient of `{label}`: all {} elements are zero, so nothing that it is handed on to learns.",
            shown.latest.stats.count
        );
    };
    let lost = match (u.lost_share, u.saturated) {
        (s, _) if u.measured => format!("{} of all were rounded to zero (measured at the cast from FP32)", share(s)),
        (0.0, _) => "none seem lost".to_string(),
        (s, true) => format!("an estimated {} or more of all were rounded to zero (the estimate ends there)", share(s)),
        (s, false) => format!("an estimated {} of all were rounded to zero", share(s)),
    };
    let unscaled = match scale {
        1.0 => String::new(),
        scale => format!(", {} without the loss scale", power_of_two(shown.max_abs / scale)),
    };
    format!(
        "Of the gradient of `{label}`, {} of the elements that are left fade (subnormal) and {lost}; its largest value is {} as FP16 held it{unscaled}.",
        share(u.fading_share),
        power_of_two(shown.max_abs),
    )
}

fn made_by(aggregate: &Aggregate, shown: &Judged<'_>) -> String {
    let via = shown.latest.via.and_then(|id| aggregate.site(id));
    via.map_or(String::new(), |v| format!(", in the backward of `{}`", v.site.label()))
}

fn remedy(
    aggregate: &Aggregate,
    shown: &Judged<'_>,
    layer_is_to_blame: bool,
    advice: Option<&ScaleAdvice<'_>>,
) -> Remedy {
    let config = aggregate.scaler_config.as_ref();
    let now = shown.latest.loss_scale;
    // Underflow is never cured by a lower scale: one that is not above what is in force says that the layer, and not the scale, is the place to look.
    let raised = |exponent: i32| {
        let higher = f64::from(exponent).exp2() > now.unwrap_or(0.0);
        set_scale(config, now, exponent).filter(|_| higher || now.is_none())
    };
    let Some(advice) = advice else {
        let Some(set) = raised(ScaleAdvice::DEFAULT_INIT) else { return look_at(aggregate, shown) };
        const NOTHING: &str = "Nothing of the gradient is left to compute a scale from.";
        return match Scaling::of(aggregate) {
            Scaling::Static => follow(aggregate, set).reworded(|set| format!("{NOTHING} {}.", sentence(set))),
            _ => set.reworded(|set| {
                format!("{NOTHING} {}; a dynamic one halves itself until the gradients fit.", sentence(set))
            }),
        };
    };
    let blamed = if layer_is_to_blame { Blamed::TooSmall(shown.site) } else { Blamed::Nobody };
    let Some(exponent) = advice.exponent() else {
        return advice.layer_to_fix(blamed).reworded(|fix| sentence(fix) + ".");
    };
    let Some(set) = raised(exponent) else { return look_at(aggregate, shown) };
    let set = if advice.incomplete || advice.shrank { follow(aggregate, set) } else { set };
    let fits = headroom(advice, exponent);
    if shown.latest.stats.max_abs > 0.0 {
        let compared = compare(shown.site, &shown.latest.stats, now.unwrap_or(1.0), exponent);
        set.reworded(|set| format!("{}: {compared}, and {fits}.", sentence(set)))
    } else {
        set.reworded(|set| {
            format!(
                "{}: a gradient of which nothing is left cannot say which scale it needs, so begin there and look again; {fits}.",
                sentence(set)
            )
        })
    }
}

/// A static scale where no value is safe, as nothing is left of a gradient or as gradients have moved: a dynamic one looks for it, and follows.
fn follow(aggregate: &Aggregate, set: Remedy) -> Remedy {
    if Scaling::of(aggregate) != Scaling::Static {
        return set;
    }
    dynamic_rather_than(&set, "finds the scale by itself, and follows the gradients")
}

/// What to look at where the scale cannot help.
fn look_at(aggregate: &Aggregate, shown: &Judged<'_>) -> Remedy {
    let site = &shown.site.site;
    let via = shown.latest.via.and_then(|id| aggregate.site(id)).map_or(site, |v| &v.site);
    let reach = Reach::of_gradient(&Graph::of(aggregate), site);
    let text = format!(
        "Look at layer `{}`, at what `{}` passes backward: a factor that shrinks the gradient there, a sigmoid or softmax at its end, a mean over very \
         many elements. Take it out, or {}.",
        layer_name(site),
        via.label(),
        reach.clause(aggregate)
    );
    reach.set(text.into(), aggregate)
}
