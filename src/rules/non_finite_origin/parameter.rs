//! Parameters that their update ruined.

use super::super::text::said;
use super::super::{Firing, Severity, vanishing_eps};
use super::{every_step, unobserved_since};
use crate::aggregate::{Aggregate, SiteSummary};
use crate::observation::{Probe, Site};

/// A parameter that its update ruined while every value before was finite.
pub(super) fn parameter(aggregate: &Aggregate) -> Option<Firing> {
    let nf = &aggregate.non_finite;
    let (id, fresh) = nf.latest.parameter?;
    if !fresh || nf.first_unguarded.is_some() || vanishing_eps::fires(aggregate) {
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
