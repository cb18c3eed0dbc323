//! Whether what was judged is a fault, how grave it is, and whether a layer is to blame.

use super::SAMPLES;
use crate::aggregate::Judged;
use crate::numerics::Format;
use crate::rules::{Limits, Severity, Threshold};

/// Those of the rule that tells of it where no other does.
const NAME: &str = "gradient-underflow";
/// Median Ehat of a harmed run: the least that one had was 2.2e-3.
const MEDIAN_HARMED: Threshold = Threshold::new(
    NAME,
    "median-harmed",
    1e-3,
    "Ehat, predicted 1 - cosine",
    "Of 37 runs that underflow had harmed all reached 2.2e-3 in the median gradient; of 28 healthy ones none left the floor of 1.7e-8. Two of 42 harmless runs passed it, at 1.06 and 1.10 times the loss.",
);
/// Median Ehat at which harm is near: reached by the third sample in every harmed run.
pub(super) const MEDIAN_NEAR: Threshold = Threshold::new(
    NAME,
    "median-near",
    1e-4,
    "Ehat, predicted 1 - cosine",
    "Every harmed run had passed it at the third sample; of 42 harmless runs at a scale far too low 6 had, of 28 healthy ones none.",
);
/// Ehat at which one layer's gradient is damaged.
pub(super) const LAYER_HARMED: Threshold = Threshold::new(
    NAME,
    "layer-harmed",
    1e-2,
    "Ehat, predicted 1 - cosine",
    "At an error of 1 % the direction of one gradient is damaged; no healthy run came near it (1.7e-8).",
);
/// FP16's smallest normal number: a gradient that lies wholly below is fading.
const SMALLEST_NORMAL: f64 = 6.103515625e-5;
/// Part of the gradients that lies below it in a run that is fading.
const MOST: Threshold = Threshold::new(
    NAME,
    "most-below",
    0.5,
    "share of gradients",
    "Gradients that lie wholly below 2^-14: none of 28 healthy runs had this in more than half of them, all 37 harmed ones did, about five octaves before harm.",
);
/// Octaves by which a gradient falls, from one tensor to the next, where a layer and not the scale is to blame. Healthy layers differ by 5 or 6 in all.
const CLIFF_OCTAVES: Threshold = Threshold::new(
    NAME,
    "cliff",
    6.0,
    "octaves",
    "Layers of healthy runs differ by 5 or 6 octaves in all: a fall of more than that at one layer is the fault of the layer.",
);
/// Part of the gradients that must be well, nearer the loss, for a layer to be named as the place where it begins.
const WELL_BEFORE: Threshold = Threshold::new(
    NAME,
    "well-before",
    0.2,
    "share of gradients",
    "A layer is named only where a fifth of the gradients, nearer the loss, are well; else it is so from the loss on.",
);

/// The thresholds of rule `gradient-underflow`.
pub(in crate::rules) const THRESHOLDS: &[Threshold] =
    &[MEDIAN_HARMED, MEDIAN_NEAR, LAYER_HARMED, MOST, CLIFF_OCTAVES, WELL_BEFORE];

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

/// What damages the gradient of this layer.
pub(super) fn layer_harmed(judged: &Judged<'_>, limits: &Limits) -> f64 {
    limits.at(&LAYER_HARMED, &judged.site.site.layer)
}

pub(super) fn decide(judged: &[Judged<'_>], limits: &Limits) -> Option<Decision> {
    let median = (0..SAMPLES).map(|i| median(judged.iter().map(|j| j.ehat[i]).collect())).fold(f64::INFINITY, f64::min);
    let below = |j: &Judged<'_>| j.max_abs < SMALLEST_NORMAL;
    let below_normal = judged.iter().filter(|j| below(j)).count();
    let starved = judged.iter().filter(|j| j.lasting() > layer_harmed(j, limits)).count();
    let most_below = below_normal as f64 > limits.of(&MOST) * judged.len() as f64;
    let severity = match () {
        () if median > limits.of(&MEDIAN_HARMED) => Severity::Error,
        () if median > limits.of(&MEDIAN_NEAR) || starved > 0 || most_below => Severity::Warning,
        () => return None,
    };
    let first = judged.iter().position(|j| j.lasting() > layer_harmed(j, limits));
    let first = first.or_else(|| judged.iter().position(|j| j.lasting() > limits.of(&MEDIAN_NEAR)));
    let first = first.or_else(|| judged.iter().position(below)).unwrap_or(0);
    Some(Decision {
        severity,
        median,
        first,
        layer_is_to_blame: begins_here(judged, first, limits),
        below_normal,
        starved,
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    // The lower of the two middle ones: with an even number, a half that is starved is not yet most of them.
    let middle = (values.len() - 1) / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// Whether gradients nearer the loss are well, so that a layer is to blame and not the scale.
fn begins_here(judged: &[Judged<'_>], first: usize, limits: &Limits) -> bool {
    let near = limits.of(&MEDIAN_NEAR);
    let well = judged[..first].iter().filter(|j| j.lasting() <= near && j.max_abs >= SMALLEST_NORMAL).count();
    well as f64 >= limits.of(&WELL_BEFORE) * judged.len() as f64 && well > 0
        || first > 0 && falls_off(&judged[first - 1], &judged[first], limits)
}

fn falls_off(before: &Judged<'_>, here: &Judged<'_>, limits: &Limits) -> bool {
    let smallest = Format::F16.min_subnormal();
    before.lasting() <= limits.of(&MEDIAN_NEAR)
        && (before.max_abs / here.max_abs.max(smallest)).log2() >= limits.of(&CLIFF_OCTAVES)
}
