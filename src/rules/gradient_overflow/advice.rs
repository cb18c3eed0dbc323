//! What to change where gradients overflow: the scale, the layer, or what lets them grow.

use super::super::Remedy;
use super::super::range::{Naming, without_factor};
use super::super::scale_advice::{Blamed, ScaleAdvice, dynamic_rather_than, headroom, set_scale};
use super::super::text::{count, number, scale, sentence};
use crate::aggregate::{Aggregate, Origin, SiteSummary};

/// Steps at which a gradient that nobody sets to zero has grown, each time, and by what factor in all.
const GROWING_STEPS: usize = 6;
const GROWN: f64 = 1.5;
/// Octaves to lower a scale by at a time where it is not known how far it has to fall.
const BLIND_OCTAVES: i32 = 8;

/// The layer to change; that of the operator whose backward made it.
pub(super) fn change_layer(aggregate: &Aggregate, origin: Option<&Origin>) -> Remedy {
    match origin.filter(|origin| aggregate.site(origin.site).is_some()) {
        Some(origin) => without_factor(aggregate, origin, Naming::Operator),
        None => "set `every(1)` to see which layer overflows, then keep it in FP32 or BF16".into(),
    }
}

/// Where the gradient has grown at every one of the latest steps: the first thing to look for, before any layer.
pub(super) fn forgotten(aggregate: &Aggregate) -> String {
    let norms: Vec<f64> =
        aggregate.weights.steps.iter().rev().take(GROWING_STEPS).filter_map(|s| s.gradient_norm).collect();
    let (Some(&now), Some(&before)) = (norms.first(), norms.last()) else { return String::new() };
    let grows = norms.len() == GROWING_STEPS && norms.windows(2).all(|w| w[0] > w[1]) && now > GROWN * before;
    let text = format!(
        "The gradient grew at each of the last {GROWING_STEPS} steps, its norm from {} to {}, as it does where it is not set to zero between steps: look for a missing \
         `opt.zero_grad()` first. ",
        number(before),
        number(now)
    );
    if grows { text } else { String::new() }
}

/// What to do about the scale where gradients were infinite, so that how large they are is not known; else, where a lower one does not help, what to
/// change.
pub(super) fn lower_beyond_overflow(
    aggregate: &Aggregate,
    origin: Option<&Origin>,
    now: f64,
) -> Result<Remedy, Remedy> {
    // The more elements overflowed, the further the largest lies beyond: an octave for each four times as many, and two to spare.
    let infinite = origin.map_or(1.0, |o| o.inf.max(1) as f64);
    let octaves = 2 + (infinite.log2() / 2.0).ceil() as i32;
    let from = now.log2().floor() as i32;
    let advice = ScaleAdvice::of(aggregate);
    let unknown = never_finite(aggregate);
    let by = if unknown > 0 { octaves.max(BLIND_OCTAVES) } else { octaves };
    let wanted = advice.as_ref().and_then(ScaleAdvice::exponent).map_or(from - by, |e| e.min(from - by));
    // Where it has to be this high for another gradient, that is the first to try.
    let lowest = advice.as_ref().filter(|a| a.lowest.is_some()).map_or(i32::MIN, |a| a.window.low);
    if lowest > from - octaves {
        let blamed = origin.and_then(|o| aggregate.site(o.site)).map_or(Blamed::Nobody, Blamed::TooLarge);
        return Err(advice.map_or_else(Remedy::default, |a| a.layer_to_fix(blamed).reworded(|fix| sentence(fix) + ".")));
    }
    let exponent = wanted.max(lowest);
    match set_scale(aggregate.scaler_config.as_ref(), Some(now), exponent) {
        Some(_) if unknown > 0 => Ok(Remedy::from(format!(
            "Use a dynamic scaler: `GradScaler::default()` finds the scale by itself. Which scale that is cannot be told from here: at {} {} infinite whenever \
             scanned, and how large a value is beyond 65504 FP16 does not say. To keep the scale static, lower it by 2^{} at a time, first to {}, and check \
             again.",
            scale(now),
            if unknown == 1 { "one gradient was".into() } else { format!("{unknown} gradients were") },
            from - exponent,
            scale(f64::from(exponent).exp2()),
        ))
        .set("scaler", "dynamic")),
        Some(set) => {
            let dynamic = dynamic_rather_than(&set, "finds the scale by itself, and lowers it when gradients grow");
            Ok(dynamic.reworded(|dynamic| {
                format!(
                    "{}: that is {} octaves below the scale at which {} of it overflowed. It is a guess, for how large they were FP16 cannot tell.",
                    sentence(dynamic),
                    from - exponent,
                    count(infinite as usize, "element"),
                )
            }))
        }
        None => Err(change_layer(aggregate, origin).reworded(|change| sentence(change) + ".")),
    }
}

/// FP16 gradients of the latest step that were finite at none of their latest samples: how large they are is not known.
fn never_finite(aggregate: &Aggregate) -> usize {
    let never =
        |s: &SiteSummary| aggregate.went_through_fp16(&s.site) && s.recent.iter().all(|x| x.stats.non_finite() > 0);
    aggregate.latest_observations().filter(|(_, s)| s.site.probe.is_gradient() && never(s)).count()
}

/// The scale to set where the largest gradient is known.
pub(super) fn lower(aggregate: &Aggregate, now: f64) -> Remedy {
    let Some(advice) = ScaleAdvice::of(aggregate) else { return Remedy::default() };
    let Some(exponent) = advice.exponent() else {
        return advice.layer_to_fix(Blamed::Nobody).reworded(|fix| sentence(fix) + ".");
    };
    match set_scale(aggregate.scaler_config.as_ref(), Some(now), exponent) {
        Some(set) => set.reworded(|set| format!("{}: {}.", sentence(set), headroom(&advice, exponent))),
        None => {
            Remedy::from("Let the scale be dynamic: a step that overflows is then withheld.").set("scaler", "dynamic")
        }
    }
}
