//! The document: quantiles of what is followed step by step.

use serde::Serialize;

use super::super::layers::{LayerMagnitudes, Magnitudes};
use super::super::number::Number;
use super::rounding::RoundingDocument;
use super::shadows::LayerShadowDocument;
use crate::aggregate::MagnitudeHistogram;

/// One layer, all ranks together.
#[derive(Serialize)]
pub(super) struct LayerDocument<'a> {
    layer: &'a str,
    magnitudes: Vec<QuantityDocument<'a>>,
    rounding: Vec<RoundingDocument<'a>>,
    /// Its gradient beside FP32's; null where that was never compared.
    fp32_shadow: Option<LayerShadowDocument>,
}

/// One quantity of one tensor of the layer.
#[derive(Serialize)]
struct QuantityDocument<'a> {
    quantity: &'static str,
    operator: &'a str,
    tensor: &'a str,
    probe: &'static str,
    dtype: &'static str,
    #[serde(flatten)]
    magnitudes: MagnitudesDocument,
}

/// A magnitude of the tensor, one a step, over the run; quantiles to 4.4 %.
#[derive(Serialize)]
pub(super) struct MagnitudesDocument {
    steps: u64,
    zero: u64,
    non_finite: u64,
    clamped: u64,
    p0: Option<Number>,
    p1: Option<Number>,
    p10: Option<Number>,
    p50: Option<Number>,
    p90: Option<Number>,
    p99: Option<Number>,
    p100: Option<Number>,
}

impl<'a> LayerDocument<'a> {
    pub(super) fn of(layer: &LayerMagnitudes<'a>) -> Self {
        Self {
            layer: layer.layer,
            magnitudes: layer.magnitudes.iter().map(QuantityDocument::of).collect(),
            rounding: layer.rounding.iter().map(RoundingDocument::of).collect(),
            fp32_shadow: layer.shadow.as_ref().map(LayerShadowDocument::of),
        }
    }
}

impl<'a> QuantityDocument<'a> {
    fn of(of: &Magnitudes<'a>) -> Self {
        Self {
            quantity: of.quantity.name(),
            operator: &of.site.operator,
            tensor: &of.site.tensor,
            probe: of.site.probe.name(),
            dtype: of.site.dtype.name(),
            magnitudes: MagnitudesDocument::new(&of.histogram),
        }
    }
}

impl MagnitudesDocument {
    /// `None` where this magnitude is not followed for the site.
    pub(super) fn of(histogram: &MagnitudeHistogram) -> Option<Self> {
        let followed = histogram.len() + histogram.zero + histogram.non_finite > 0;
        followed.then(|| Self::new(histogram))
    }

    fn new(histogram: &MagnitudeHistogram) -> Self {
        let MagnitudeHistogram { zero, non_finite, clamped, .. } = *histogram;
        let quantile = |q| histogram.quantile(q).map(Number);
        Self {
            steps: histogram.len(),
            zero,
            non_finite,
            clamped,
            p0: quantile(0.0),
            p1: quantile(0.01),
            p10: quantile(0.1),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p100: quantile(1.0),
        }
    }
}
