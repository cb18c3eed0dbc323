//! Gradients at other loss scales: each tensor, each layer, the run.

use super::{Held, SCALES, by_layer};
use crate::aggregate::{Aggregate, SiteSummary, Unscaled};
use crate::numerics::{Format, Lost, Outlook};
use crate::observation::{Probe, Site};
use crate::rules::scale_advice::{Outliers, lower_end, upper_end};

/// Above this share of elements lost before they were seen, what is said of higher scales is a lower bound.
const UNSEEN_SHARE: f64 = 5e-4;

/// What backward is handed on by a gradient that loses more than this share of its elements differs from what was recorded: of the products of attention, lost
/// shares were up to 0.9 times as many points too low. Below it nothing was off by more than half a point.
const NOTICEABLE_SHARE: f64 = 5e-3;

/// What FP16 would make of gradients at one loss scale. Shares are of the elements seen non-zero; of a layer, those of its tensor with the largest, fading and lost
/// of the gradients of activations where it has any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AtScale {
    /// The loss scale is `2^scale`.
    pub scale: i32,
    /// Predicted `1 - cosine` at the step that needed the highest scale; `None` for what never underflows first, as the gradient of a parameter.
    pub ehat: Option<f64>,
    /// Share that would be subnormal.
    pub fading_share: f64,
    /// Share that would round to zero.
    pub lost_share: f64,
    /// Share that would be too large.
    pub overflow_share: f64,
    /// Whether more may fade: elements that FP16 had lost at the scale of the recording would be back at this one.
    pub fading_at_least: bool,
    /// Whether more is lost: elements that FP16 had lost already.
    pub lost_at_least: bool,
    /// Whether a gradient that backward computes before it would lose a part at this scale. What is then handed on is in no histogram of its own: more may be lost
    /// than is said, and less fade.
    pub inherits_loss: bool,
}

/// One gradient at each of [`SCALES`].
#[derive(Clone, Debug)]
pub struct SiteOutlook<'a> {
    /// The tensor.
    pub site: &'a Site,
    /// Elements of all finite scans, zeros included.
    pub elements: u64,
    /// Those of them that were not zero.
    pub nonzero: u64,
    /// Estimated share of the non-zero elements that FP16 had lost before they were scanned; 0 where it held none of them.
    pub unseen_share: f64,
    /// Lowest good scale, as an exponent; `None` as for [`AtScale::ehat`].
    pub low: Option<i32>,
    /// Highest good scale, as an exponent; outliers, as [`Window::outliers`](super::Window::outliers), left out.
    pub high: Option<i32>,
    /// At each scale.
    pub at: Vec<AtScale>,
}

/// One layer at each of [`SCALES`].
#[derive(Clone, Debug)]
pub struct LayerOutlook<'a> {
    /// Dotted path; empty for the root.
    pub layer: &'a str,
    /// Lowest scale that is good for all its gradients, as an exponent; `None` where it has none that could underflow.
    pub low: Option<i32>,
    /// Highest scale that is good for all of them.
    pub high: Option<i32>,
    /// At each scale, its tensor with the largest number.
    pub at: Vec<AtScale>,
    /// Its gradients, in the order in which they were first seen.
    pub sites: Vec<SiteOutlook<'a>>,
}

/// The run at one loss scale: the layer that is worst off, and the one in the middle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleOutlook<'a> {
    /// The numbers of the layer with the largest; not all of them of the same one.
    pub worst: AtScale,
    /// Those of the layer in the middle.
    pub median: AtScale,
    /// The layer with the largest Ehat; `None` where none has one.
    pub worst_layer: Option<&'a str>,
    /// Layers of which a part would overflow.
    pub overflowing_layers: usize,
}

impl<'a> SiteOutlook<'a> {
    fn of(summary: &'a SiteSummary, outliers: &Outliers) -> Option<Self> {
        let unscaled = summary.unscaled.as_deref().filter(|unscaled| unscaled.exponents.total() > 0)?;
        Some(Self {
            site: &summary.site,
            elements: unscaled.count,
            nonzero: unscaled.exponents.total(),
            unseen_share: unscaled.lost_share(),
            low: lower_end(summary),
            high: upper_end(outliers.largest_but(summary)),
            at: SCALES.filter_map(|scale| AtScale::of(unscaled, summary.max_unscaled, scale)).collect(),
        })
    }
}

impl AtScale {
    /// A gradient at one scale; `None` without a non-zero element.
    fn of(unscaled: &Unscaled, max_unscaled: f64, scale: i32) -> Option<Self> {
        let outlook =
            Outlook::of(&unscaled.exponents, (unscaled.min_abs, max_unscaled), Lost::default(), Format::F16, scale)?;
        let was_lost = unscaled.lost_share() > UNSEEN_SHARE;
        Some(Self {
            scale,
            ehat: unscaled.hardest.as_ref().map(|hardest| hardest.error_at(Format::F16, scale)),
            fading_share: outlook.fading.likely,
            lost_share: outlook.lost.likely,
            overflow_share: outlook.overflow.likely,
            fading_at_least: was_lost && unscaled.scales.is_some_and(|(lowest, _)| scale > lowest),
            lost_at_least: was_lost,
            inherits_loss: false,
        })
    }

    /// The largest of each number.
    fn worst(scale: i32, all: &[AtScale]) -> Self {
        let underflowing = could_underflow(all);
        let largest = |of: fn(&AtScale) -> f64| underflowing.iter().map(of).fold(0.0, f64::max);
        Self {
            scale,
            ehat: all.iter().filter_map(|at| at.ehat).reduce(f64::max),
            fading_share: largest(|at| at.fading_share),
            lost_share: largest(|at| at.lost_share),
            overflow_share: all.iter().map(|at| at.overflow_share).fold(0.0, f64::max),
            fading_at_least: underflowing.iter().any(|at| at.fading_at_least),
            lost_at_least: underflowing.iter().any(|at| at.lost_at_least),
            inherits_loss: underflowing.iter().any(|at| at.inherits_loss),
        }
    }

    /// The middle one of each number; of an even count the lower, so that a half is not yet most of them.
    fn median(scale: i32, all: &[AtScale]) -> Self {
        let (middle, underflowing) = (|values: Vec<f64>| middle(values).unwrap_or(0.0), could_underflow(all));
        Self {
            ehat: self::middle(all.iter().filter_map(|at| at.ehat).collect()),
            fading_share: middle(underflowing.iter().map(|at| at.fading_share).collect()),
            lost_share: middle(underflowing.iter().map(|at| at.lost_share).collect()),
            overflow_share: middle(all.iter().map(|at| at.overflow_share).collect()),
            ..Self::worst(scale, all)
        }
    }
}

/// Those that have an Ehat, where any has. The gradient of a parameter that changes nothing, as a bias before a softmax, is nothing but noise of rounding;
/// all of it may fade.
fn could_underflow(all: &[AtScale]) -> Vec<AtScale> {
    let with: Vec<AtScale> = all.iter().filter(|at| at.ehat.is_some()).copied().collect();
    if with.is_empty() { all.to_vec() } else { with }
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

/// The layers whose gradients FP16 carries, or would, of all ranks.
pub(super) fn layers<'a>(ranks: &[&'a Aggregate]) -> Vec<LayerOutlook<'a>> {
    let outlooks = ranks.iter().flat_map(|rank| {
        let held = Held::of(rank);
        let carried = || rank.sites.iter().filter(|summary| held.carries(rank, summary));
        let outliers = Outliers::among(carried());
        let mut outlooks: Vec<_> = carried().filter_map(|summary| SiteOutlook::of(summary, &outliers)).collect();
        hand_losses_on(&mut outlooks);
        outlooks
    });
    let named = outlooks.map(|outlook| (outlook.site.layer.as_str(), outlook));
    by_layer(named).into_iter().map(|(layer, sites)| LayerOutlook::of(layer, sites)).collect()
}

/// Marks all that backward computes after a gradient that loses a part. `outlooks` stand in the order of backward.
fn hand_losses_on(outlooks: &mut [SiteOutlook<'_>]) {
    let mut lost_before = vec![false; SCALES.count()];
    for outlook in outlooks {
        // Nothing is computed from the gradient of a parameter.
        let is_handed_on = outlook.site.probe != Probe::ParamGrad;
        for (at, lost_before) in outlook.at.iter_mut().zip(&mut lost_before) {
            at.inherits_loss = *lost_before;
            *lost_before |= is_handed_on && at.lost_share > NOTICEABLE_SHARE;
        }
    }
}

impl<'a> LayerOutlook<'a> {
    fn of(layer: &'a str, sites: Vec<SiteOutlook<'a>>) -> Self {
        let worst_at = |(place, scale): (usize, i32)| {
            let all: Vec<AtScale> = sites.iter().filter_map(|site| site.at.get(place)).copied().collect();
            AtScale::worst(scale, &all)
        };
        Self {
            layer,
            low: sites.iter().filter_map(|site| site.low).max(),
            high: sites.iter().filter_map(|site| site.high).min(),
            at: SCALES.enumerate().map(worst_at).collect(),
            sites,
        }
    }

    /// The layer at any scale; outside of [`SCALES`] at its end.
    pub fn at(&self, scale: i32) -> Option<&AtScale> {
        self.at.get((scale.clamp(*SCALES.start(), *SCALES.end()) - SCALES.start()) as usize)
    }

    /// Whether no scale is good for all of its gradients.
    pub fn conflicts(&self) -> bool {
        matches!((self.low, self.high), (Some(low), Some(high)) if low > high)
    }
}

/// The run at each scale; nothing where no layer has a gradient.
pub(super) fn run<'a>(layers: &[LayerOutlook<'a>]) -> Vec<ScaleOutlook<'a>> {
    if layers.is_empty() {
        return Vec::new();
    }
    let at = |(place, scale): (usize, i32)| {
        let all: Vec<AtScale> = layers.iter().filter_map(|layer| layer.at.get(place)).copied().collect();
        let ehat = |layer: &LayerOutlook<'_>| layer.at.get(place).and_then(|at| at.ehat);
        let worst = layers.iter().filter(|layer| ehat(layer).is_some());
        ScaleOutlook {
            worst: AtScale::worst(scale, &all),
            median: AtScale::median(scale, &all),
            worst_layer: worst
                .max_by(|a, b| ehat(a).partial_cmp(&ehat(b)).unwrap_or(std::cmp::Ordering::Equal))
                .map(|l| l.layer),
            overflowing_layers: all.iter().filter(|at| at.overflow_share > 0.0).count(),
        }
    };
    SCALES.enumerate().map(at).collect()
}
