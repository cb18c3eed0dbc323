//! The magnitudes of each layer over the run, all ranks together, as quantiles.

use super::number::readable;
use super::{LayerShadow, TensorRounding};
use super::{Layout, Run};
use crate::aggregate::MagnitudeHistogram;
use crate::observation::{Probe, Site};

/// What of a tensor is followed, one value a step. Magnitudes have no unit; they are as the tensor was held, so that a gradient's are times the loss
/// scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// The largest magnitude of a gradient.
    GradientMax,
    /// The largest magnitude of an activation.
    ActivationMax,
    /// The smallest non-zero magnitude of an activation.
    ActivationMin,
    /// The largest change of a parameter's element.
    UpdateMax,
}

impl Quantity {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Quantity::GradientMax => "gradient_max",
            Quantity::ActivationMax => "activation_max",
            Quantity::ActivationMin => "activation_min",
            Quantity::UpdateMax => "update_max",
        }
    }
}

/// One quantity of one tensor, over the steps of all ranks.
#[derive(Clone, Debug)]
pub struct Magnitudes<'a> {
    /// The tensor.
    pub site: &'a Site,
    /// What is followed.
    pub quantity: Quantity,
    /// Its values.
    pub histogram: MagnitudeHistogram,
}

/// The quantities of one layer, in the order in which its tensors were first seen.
#[derive(Clone, Debug)]
pub struct LayerMagnitudes<'a> {
    /// Dotted path; empty for the root.
    pub layer: &'a str,
    /// What is followed in it; never empty.
    pub magnitudes: Vec<Magnitudes<'a>>,
    /// What low precision left of the steps of its parameters, where there is something to say.
    pub rounding: Vec<TensorRounding<'a>>,
    /// Its gradient beside FP32's, where that was compared.
    pub shadow: Option<LayerShadow>,
}

/// The layers of a run in the order in which they were first seen, each with what is followed in it. The histograms of a tensor on several ranks are
/// merged.
pub fn layer_magnitudes<'a>(run: &Run<'a>) -> Vec<LayerMagnitudes<'a>> {
    let mut layers: Vec<LayerMagnitudes<'a>> = Vec::new();
    for summary in run.ranks.iter().flat_map(|rank| &rank.aggregate.sites) {
        for (quantity, histogram) in followed(summary.site.probe, &summary.step_max, &summary.step_min) {
            if histogram.len() + histogram.zero + histogram.non_finite > 0 {
                add(&mut layers, &summary.site, quantity, histogram);
            }
        }
    }
    for layer in &mut layers {
        layer.rounding = TensorRounding::of_layer(run, layer.layer);
        layer.shadow = LayerShadow::of_layer(run, layer.layer);
    }
    layers
}

fn followed<'a>(
    probe: Probe,
    largest: &'a MagnitudeHistogram,
    smallest: &'a MagnitudeHistogram,
) -> Vec<(Quantity, &'a MagnitudeHistogram)> {
    match probe {
        Probe::Activation => vec![(Quantity::ActivationMax, largest), (Quantity::ActivationMin, smallest)],
        Probe::Update => vec![(Quantity::UpdateMax, largest)],
        probe if probe.is_gradient() => vec![(Quantity::GradientMax, largest)],
        _ => Vec::new(),
    }
}

fn add<'a>(layers: &mut Vec<LayerMagnitudes<'a>>, site: &'a Site, quantity: Quantity, histogram: &MagnitudeHistogram) {
    let at = layers.iter().position(|known| known.layer == site.layer).unwrap_or_else(|| {
        layers.push(LayerMagnitudes { layer: &site.layer, magnitudes: Vec::new(), rounding: Vec::new(), shadow: None });
        layers.len() - 1
    });
    let known = &mut layers[at].magnitudes;
    match known.iter_mut().find(|of| of.site == site && of.quantity == quantity) {
        Some(of) => of.histogram.merge(histogram),
        None => known.push(Magnitudes { site, quantity, histogram: histogram.clone() }),
    }
}

/// The quantiles of the table, with their titles.
const QUANTILES: [(f64, &str); 5] = [(0.0, "p0"), (0.01, "p1"), (0.5, "p50"), (0.99, "p99"), (1.0, "p100")];

/// A table for people: of each layer the quantiles of what is followed in it.
pub(super) fn layers(run: &Run<'_>, layout: &Layout) -> String {
    let all = layer_magnitudes(run);
    if all.is_empty() {
        return "no tensor was scanned\n".into();
    }
    let mut out = layout.wrap("", "", EXPLANATION);
    for LayerMagnitudes { layer, magnitudes, rounding, shadow } in all {
        let layer = if layer.is_empty() { "(root)" } else { layer };
        out.push_str(&format!("\n{}\n{}\n", layout.bold(layer), layout.dim(&caption())));
        magnitudes.iter().for_each(|of| out.push_str(&row(of)));
        rounding.iter().flat_map(TensorRounding::text).for_each(|line| out.push_str(&format!("  {line}\n")));
        shadow.iter().for_each(|of| out.push_str(&format!("  {}\n", of.text())));
    }
    out
}

const EXPLANATION: &str = "One value a step and rank, as the tensor was held: a gradient with its loss scale. The quantiles are right to 4.4 %. Steps at \
                           which the tensor was all zero, or not finite, are counted and have no value. Phi is what arrived of the updates, by energy: 1 is all, 0 nothing.";

fn caption() -> String {
    let titles: String = QUANTILES.iter().map(|(_, title)| format!("{title:>11}")).collect();
    format!("  {:<28} {:<14} {:<4} {:>7} {:>6} {:>6}{titles}", "tensor", "quantity", "held", "steps", "zero", "nonf")
}

fn row(of: &Magnitudes<'_>) -> String {
    let Magnitudes { site, quantity, histogram } = of;
    let name = if site.tensor.is_empty() { &site.operator } else { &site.tensor };
    let name = format!("{name} {}", site.probe.name());
    let value = |q| histogram.quantile(q).map_or_else(|| "-".to_owned(), readable);
    let values: String = QUANTILES.iter().map(|&(q, _)| format!("{:>11}", value(q))).collect();
    let (held, steps) = (site.dtype.name(), histogram.len());
    let (zero, bad) = (histogram.zero, histogram.non_finite);
    format!("  {name:<28} {:<14} {held:<4} {steps:>7} {zero:>6} {bad:>6}{values}\n", quantity.name())
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Fixture;
    use super::*;

    #[test]
    fn two_ranks_are_merged_tensor_by_tensor() {
        let fixture = Fixture::sick();
        let (one, both) = (fixture.run(), fixture.three_ranks());
        let (one, both) = (layer_magnitudes(&one), layer_magnitudes(&both));
        assert_eq!(one.len(), both.len());
        for (one, both) in one[0].magnitudes.iter().zip(&both[0].magnitudes) {
            assert_eq!((one.site, one.quantity), (both.site, both.quantity));
            assert_eq!(2 * one.histogram.len(), both.histogram.len());
            assert_eq!(one.histogram.quantile(1.0), both.histogram.quantile(1.0));
        }
    }

    #[test]
    fn a_layer_tells_its_quantiles_in_a_table() {
        insta::assert_snapshot!(layers(&Fixture::sick().run(), &Layout::default()));
    }

    #[test]
    fn a_run_without_a_scan_says_so() {
        assert_eq!(layers(&Run::empty(), &Layout::default()), "no tensor was scanned\n");
    }
}
