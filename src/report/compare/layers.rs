//! What each layer makes of FP16's range, and where two runs differ in that.

use super::super::Run;
use crate::numerics::{Format, Zones};
use crate::observation::Probe;
use crate::scan::Dtype;

/// A share of fading elements that differs by less is noise of the batches.
const SHARE_APART: f64 = 0.1;
/// Bits of headroom that differ by less are noise of the batches.
const BITS_APART: f64 = 2.0;
/// With more bits of headroom than this on both sides nothing is near the end.
const BITS_NEAR: f64 = 4.0;

/// What one layer's tensors that are held in FP16 make of its range, over the whole run. All `None` in a layer that holds none in FP16.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerState {
    /// Of its gradients, the largest share of the non-zero elements that lie below 2^-14 as held, over its tensors.
    pub fading_gradient_share: Option<f64>,
    /// Bits between the largest gradient, as held, and 65504; `None` under a dynamic scaler, which goes to the end of FP16 on purpose.
    pub gradient_headroom_bits: Option<f64>,
    /// Bits between the largest activation and 65504.
    pub activation_headroom_bits: Option<f64>,
    /// The share of its scans that held a NaN or an infinity, the largest over its tensors; masks do not count.
    pub non_finite_share: Option<f64>,
}

/// A layer that differs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerChange<'a> {
    /// Dotted path; empty for the root.
    pub layer: &'a str,
    /// As it was in the base.
    pub base: LayerState,
    /// As it is in the run.
    pub run: LayerState,
}

/// The layers that both runs have and that differ so much that it matters, in the order in which the run saw them.
pub(super) fn changes<'a>(base: &Run<'a>, run: &Run<'a>) -> Vec<LayerChange<'a>> {
    let before = states(base);
    let both = states(run).into_iter().filter_map(|(layer, run)| {
        let base = before.iter().find(|(known, _)| *known == layer)?.1;
        Some(LayerChange { layer, base, run })
    });
    both.filter(LayerChange::matters).collect()
}

fn states<'a>(run: &Run<'a>) -> Vec<(&'a str, LayerState)> {
    let mut all: Vec<(&'a str, LayerState)> = Vec::new();
    let ranks = || run.ranks.iter().map(|rank| rank.aggregate);
    let probes_the_end = ranks().any(|of| of.scaler_config.as_ref().is_some_and(|scaler| !scaler.is_static()));
    for summary in ranks().flat_map(|of| &of.sites) {
        let layer = summary.site.layer.as_str();
        let at = all.iter().position(|(known, _)| *known == layer).unwrap_or_else(|| {
            all.push((layer, LayerState::default()));
            all.len() - 1
        });
        let state = &mut all[at].1;
        if summary.site.dtype != Dtype::F16 || summary.samples == 0 {
            continue;
        }
        let bits = (summary.max_abs > 0.0).then(|| (Format::F16.max.log2() - summary.max_abs.log2()).max(0.0));
        if summary.site.probe.is_gradient() {
            let zones = Zones::of(&summary.exponents, Format::F16, 0);
            let share = (zones.total() > 0).then(|| zones.share(zones.fading + zones.lost));
            state.fading_gradient_share = larger(state.fading_gradient_share, share);
            state.gradient_headroom_bits = smaller(state.gradient_headroom_bits, bits.filter(|_| !probes_the_end));
        } else if summary.site.probe == Probe::Activation {
            state.activation_headroom_bits = smaller(state.activation_headroom_bits, bits);
        } else {
            continue;
        }
        let bad = summary.non_finite_samples.saturating_sub(summary.masked_samples);
        state.non_finite_share = larger(state.non_finite_share, Some(bad as f64 / summary.samples as f64));
    }
    all
}

fn larger(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.map_or(b, |a| Some(b.map_or(a, |b| a.max(b))))
}

fn smaller(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.map_or(b, |a| Some(b.map_or(a, |b| a.min(b))))
}

impl LayerState {
    /// Whether the layer holds activations or gradients in FP16.
    pub fn is_in_fp16(&self) -> bool {
        *self != Self::default()
    }
}

impl LayerChange<'_> {
    /// Whether the difference is more than another order of the batches would make.
    fn matters(&self) -> bool {
        let LayerChange { base, run, .. } = self;
        base.is_in_fp16() != run.is_in_fp16()
            || shares_differ(base.fading_gradient_share, run.fading_gradient_share)
            || shares_differ(base.non_finite_share, run.non_finite_share)
            || bits_differ(base.gradient_headroom_bits, run.gradient_headroom_bits)
            || bits_differ(base.activation_headroom_bits, run.activation_headroom_bits)
    }
}

/// Whether two shares differ so much that it matters.
pub(super) fn shares_differ(a: Option<f64>, b: Option<f64>) -> bool {
    apart(a, b) >= SHARE_APART
}

/// Whether two headrooms differ so much that it matters: the larger of the two is of no interest where both are large.
pub(super) fn bits_differ(a: Option<f64>, b: Option<f64>) -> bool {
    apart(a, b) >= BITS_APART && a.into_iter().chain(b).any(|bits| bits < BITS_NEAR)
}

/// How far apart two numbers are; 0 where one is not known.
fn apart(a: Option<f64>, b: Option<f64>) -> f64 {
    a.zip(b).map_or(0.0, |(a, b)| (a - b).abs())
}
