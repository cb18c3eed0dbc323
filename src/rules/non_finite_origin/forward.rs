//! What forward made of finite numbers, and what came into it from outside.

use super::super::text::{INPUT, counted, layer_name, said, share};
use super::super::{Firing, Severity};
use super::advice::{Pass, advice_for};
use super::{every_step, firing, has_ruined_parameter, kind, unobserved_since};
use crate::aggregate::Aggregate;
use crate::observation::Probe;

/// The first operator of forward that made it.
pub(super) fn forward(aggregate: &Aggregate) -> Option<Firing> {
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
pub(super) fn brought_in(aggregate: &Aggregate) -> Option<Firing> {
    let nf = &aggregate.non_finite;
    let summary = aggregate.site(nf.latest.brought_in?)?;
    if nf.first_unguarded.is_some() || nf.latest.parameter.is_some() || has_ruined_parameter(aggregate) {
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
