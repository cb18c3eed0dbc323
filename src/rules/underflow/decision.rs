//! Whether what was judged is a fault, how grave it is, and whether a layer is to blame.

use super::judged::{Judged, SAMPLES};
use crate::numerics::Format;
use crate::rules::Severity;

/// Median Ehat of a harmed run: the least that one had was 2.2e-3.
const MEDIAN_HARMED: f64 = 1e-3;
/// Median Ehat at which harm is near: reached by the third sample in every harmed run.
pub(super) const MEDIAN_NEAR: f64 = 1e-4;
/// Ehat at which one layer's gradient is damaged.
pub(super) const LAYER_HARMED: f64 = 1e-2;
/// FP16's smallest normal number: a gradient that lies wholly below is fading.
const SMALLEST_NORMAL: f64 = 6.103515625e-5;
/// Part of the gradients that lies below it in a run that is fading.
const MOST: f64 = 0.5;
/// Octaves by which a gradient falls, from one tensor to the next, where a layer and not the scale is to blame. Healthy layers differ by 5 or 6 in all.
const CLIFF_OCTAVES: f64 = 6.0;
/// Part of the gradients that must be well, nearer the loss, for a layer to be named as the place where it begins.
const WELL_BEFORE: f64 = 0.2;

pub(in crate::rules) struct Decision {
    pub severity: Severity,
    /// Median over the gradients, lasting over the samples.
    pub median: f64,
    /// Place of the first gradient, in the order of backward, that is to be shown.
    pub first: usize,
    /// Whether it names the layer, or the run as a whole is meant.
    pub layer_is_to_blame: bool,
    /// Gradients that lie wholly below the smallest normal number.
    pub below_normal: usize,
    /// Gradients that are starved.
    pub starved: usize,
}

pub(super) fn decide(judged: &[Judged<'_>]) -> Option<Decision> {
    let median = (0..SAMPLES).map(|i| median(judged.iter().map(|j| j.ehat[i]).collect())).fold(f64::INFINITY, f64::min);
    let below = |j: &Judged<'_>| j.max_abs < SMALLEST_NORMAL;
    let below_normal = judged.iter().filter(|j| below(j)).count();
    let starved = judged.iter().filter(|j| j.lasting() > LAYER_HARMED).count();
    let most_below = below_normal as f64 > MOST * judged.len() as f64;
    let severity = match () {
        () if median > MEDIAN_HARMED => Severity::Error,
        () if median > MEDIAN_NEAR || starved > 0 || most_below => Severity::Warning,
        () => return None,
    };
    let worst_first = [LAYER_HARMED, MEDIAN_NEAR];
    let first = worst_first.iter().find_map(|&t| judged.iter().position(|j| j.lasting() > t));
    let first = first.or_else(|| judged.iter().position(below)).unwrap_or(0);
    Some(Decision { severity, median, first, layer_is_to_blame: begins_here(judged, first), below_normal, starved })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    // The lower of the two middle ones: with an even number, a half that is starved is not yet most of them.
    values.get((values.len().max(1) - 1) / 2).copied().unwrap_or(0.0)
}

/// Whether gradients nearer the loss are well, so that a layer is to blame and not the scale.
fn begins_here(judged: &[Judged<'_>], first: usize) -> bool {
    let well = judged[..first].iter().filter(|j| j.lasting() <= MEDIAN_NEAR && j.max_abs >= SMALLEST_NORMAL).count();
    well as f64 >= WELL_BEFORE * judged.len() as f64 && well > 0
        || first > 0 && falls_off(&judged[first - 1], &judged[first])
}

fn falls_off(before: &Judged<'_>, here: &Judged<'_>) -> bool {
    let smallest = Format::F16.min_subnormal();
    before.lasting() <= MEDIAN_NEAR && (before.max_abs / here.max_abs.max(smallest)).log2() >= CLIFF_OCTAVES
}
