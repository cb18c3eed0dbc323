//! What to do with a value that leaves FP16's range, in words and as a setting.

use super::super::Remedy;
use super::super::graph::Graph;
use super::super::text::{INPUT, base_name, is_reduction, layer_name};
use super::{Out, Reach};
use crate::aggregate::{Aggregate, Origin, SiteSummary};
use crate::observation::{Probe, Site};
use crate::scan::Dtype;

impl Reach {
    /// What to do, as a clause that follows "or": `keep layer ... in FP32`.
    pub(in crate::rules) fn clause(&self, aggregate: &Aggregate) -> String {
        match self {
            Self::Layers(layers) => format!(
                "keep {} in FP32 (outside autocast, what goes in cast to FP32)",
                match layers.as_slice() {
                    [one] => format!("layer `{one}`"),
                    [front @ .., last] => format!(
                        "layers {} and `{last}`",
                        front.iter().map(|l| format!("`{l}`")).collect::<Vec<_>>().join(", ")
                    ),
                    [] => "that operator".into(),
                }
            ),
            Self::Run => format!(
                "train in BF16 ({}), which has FP32's range and needs no loss scale: this layer alone in FP32 does not do where the next cast to FP16 meets the same value",
                match bf16(aggregate) {
                    "bf16-masters" => "a model in BF16 with FP32 master weights",
                    _ => "autocast to BF16",
                }
            ),
        }
    }

    /// A remedy with the setting that does so.
    pub(in crate::rules) fn set(&self, remedy: Remedy, aggregate: &Aggregate) -> Remedy {
        match self {
            Self::Layers(layers) => remedy.set("fp32_layers", layers.join(",")),
            Self::Run => remedy.set("precision", bf16(aggregate)),
        }
    }
}

/// The kind of BF16 run that this run becomes.
fn bf16(aggregate: &Aggregate) -> &'static str {
    let in_half = |s: &SiteSummary| s.site.probe == Probe::Param && s.site.dtype == Dtype::F16;
    let has_masters = aggregate.weights.all.iter().any(|w| w.written_back_to == Some(Dtype::F16));
    if has_masters || aggregate.sites.iter().any(in_half) { "bf16-masters" } else { "bf16" }
}

/// How much of the place at which a gradient is blown up is named: the layer will do where the operator has been told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::rules) enum Naming {
    Operator,
    Layer,
}

/// What to do about a gradient that was the first to overflow, without a capital and a full stop: take out what made it, in the layer of the operator
/// whose backward that was, or hold it in a format that can.
pub(in crate::rules) fn without_factor(aggregate: &Aggregate, origin: &Origin, naming: Naming) -> Remedy {
    let site = |id| aggregate.site(id).map(|s| &s.site);
    let made_by = origin.via.and_then(site).or_else(|| site(origin.site));
    let place = match (made_by, naming) {
        (None, _) => "the layer".into(),
        (Some(site), Naming::Layer) => format!("layer `{}`", layer_name(site)),
        (Some(site), _) if site.operator.is_empty() => format!("the product of layer `{}`", layer_name(site)),
        (Some(site), _) => format!("`{}` of layer `{}`", site.operator, layer_name(site)),
    };
    let reach = Reach::of_origin(aggregate, origin);
    let text =
        format!("take the factor out of {place} that blows up what passes backward, or {}", reach.clause(aggregate));
    reach.set(text.into(), aggregate)
}

/// What to do with an operator of FP16 whose result is too large.
pub(in crate::rules) fn keep_in_range(aggregate: &Aggregate, graph: &Graph<'_>, site: &Site) -> Remedy {
    let (operator, name) = (&site.operator, base_name(&site.operator));
    if site.layer == INPUT {
        return format!(
            "Bring the data itself into range before `{operator}` makes FP16 of it: standardise it (mean 0, deviation 1), and drop or clip what lies far out. \
             FP16 ends at 65504."
        )
        .into();
    }
    let layer = layer_name(site);
    if site.dtype != Dtype::F16 {
        return format!(
            "Bring down what goes into `{operator}` of layer `{layer}`: its result is beyond 3.4e38, where BF16 and FP32 end too. Look for a factor that grows from \
             step to step, or a missing normalisation."
        )
        .into();
    }
    let reach = Reach::of_activation(graph, site, Out::Large);
    let text = if is_reduction(name) {
        format!(
            "Take `{operator}` of layer `{layer}` in FP32: convert its input first, or ask for an FP32 result (`{name}(..., Kind::Float)`). Or {}.",
            reach.clause(aggregate)
        )
    } else {
        format!(
            "Bring down what goes into `{operator}` of layer `{layer}`: normalise before it, or scale before the product and not after. Or {}.",
            reach.clause(aggregate)
        )
    };
    reach.set(Remedy::from(text), aggregate)
}
