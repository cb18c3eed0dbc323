//! Where the ranks of a run do not do the same.
//!
//! In data-parallel training every rank makes the same decision at the same step: it skips, or it does not, and the loss scale stays the same everywhere.
//! Where a rank is alone with its scale or its skips, the weights of the ranks drift apart. A value that is not finite in the forward pass of one
//! rank alone comes from its data or its device.

use std::collections::{BTreeMap, BTreeSet};

use crate::aggregate::{Aggregate, GradientNorms, Timeline, is_mask_operator, median};
use crate::observation::{Probe, Site};

/// What one rank has and the others have not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Contrast {
    /// The first step of the first stretch where it is so.
    pub(crate) step: u64,
    /// What this rank has there.
    pub(crate) here: f64,
    /// What the others have there; of several values the most common one.
    pub(crate) others: f64,
}

/// Where a rank is alone: with its loss scale, and with the number of its skips.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Apart {
    pub(crate) scale: Option<Contrast>,
    pub(crate) skips: Option<Contrast>,
}

/// What a stretch of steps must have in common on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Stretch {
    scale: Option<f64>,
    skipped: u64,
}

/// The first stretch in which each rank is alone with its scale, or with its skips; in the order of `aggregates`.
///
/// A rank that could not write all its steps is not asked for its skips: some may be among those that are missing.
pub(crate) fn apart(aggregates: &[&Aggregate]) -> Vec<Apart> {
    let whole: Vec<bool> = aggregates.iter().map(|a| a.instrument.dropped_steps == 0).collect();
    let timelines: Vec<&Timeline> = aggregates.iter().map(|a| &a.timeline).collect();
    of_timelines(&timelines, &whole)
}

fn of_timelines(timelines: &[&Timeline], whole: &[bool]) -> Vec<Apart> {
    let stride = timelines.iter().map(|timeline| timeline.stride).max().unwrap_or(1);
    let ranks: Vec<BTreeMap<u64, Stretch>> = timelines.iter().map(|timeline| stretches(timeline, stride)).collect();
    let mut found = vec![Apart::default(); ranks.len()];
    let (mut scale_known, mut skips_known) = (false, false);
    let steps: BTreeSet<u64> = ranks.iter().flat_map(|rank| rank.keys().copied()).collect();
    for step in steps {
        let here: Vec<Option<Stretch>> = ranks.iter().map(|rank| rank.get(&step).copied()).collect();
        if !scale_known {
            let scales: Vec<_> = here.iter().map(|s| s.and_then(|s| s.scale)).collect();
            let alone = minority(step, &scales);
            scale_known = !alone.is_empty();
            alone.into_iter().for_each(|(rank, contrast)| found[rank].scale = Some(contrast));
        }
        if !skips_known {
            let skips = here.iter().zip(whole).map(|(s, whole)| s.filter(|_| *whole).map(|s| s.skipped as f64));
            let alone = minority(step, &skips.collect::<Vec<_>>());
            skips_known = !alone.is_empty();
            alone.into_iter().for_each(|(rank, contrast)| found[rank].skips = Some(contrast));
        }
    }
    found
}

/// The places of those whose value is not the most common one; all, where no value is more common than the others.
fn minority(step: u64, values: &[Option<f64>]) -> Vec<(usize, Contrast)> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    values.iter().flatten().for_each(|value| *counts.entry(value.to_bits()).or_default() += 1);
    let most = counts.values().copied().max().unwrap_or(0);
    let common: Vec<u64> = counts.iter().filter(|&(_, &n)| n == most).map(|(&value, _)| value).collect();
    let other = |here: u64| common.iter().copied().find(|value| *value != here);
    let is_alone = |value: u64| counts.len() > 1 && (common.len() > 1 || !common.contains(&value));
    let contrast = |here: f64| {
        let others = other(here.to_bits()).filter(|_| is_alone(here.to_bits()))?;
        Some(Contrast { step, here, others: f64::from_bits(others) })
    };
    (0..).zip(values).filter_map(|(place, value)| Some((place, contrast((*value)?)?))).collect()
}

/// A timeline in stretches of this many steps, without the last one, of which more may come.
fn stretches(timeline: &Timeline, stride: u64) -> BTreeMap<u64, Stretch> {
    let mut stretches: BTreeMap<u64, Stretch> = BTreeMap::new();
    for point in &timeline.points {
        let stretch = stretches.entry(point.step / stride * stride).or_default();
        stretch.scale = point.loss_scale.or(stretch.scale);
        stretch.skipped += point.skipped;
    }
    stretches.pop_last();
    stretches
}

/// Parts of the run in which the norms of the gradients are compared: a single batch says little.
const PARTS: u64 = 16;

/// Where the gradient of a rank is far from those of the others, by more than `octaves`, in `parts` of the sixteen parts of the run one after the other; in the
/// order of `norms`. The base-2 logarithms of the norms at the beginning of that, those of the others by their median.
pub(crate) fn far_norms(norms: &[&GradientNorms], octaves: f64, parts: usize) -> Vec<Option<Contrast>> {
    let last = norms.iter().filter_map(|norms| norms.last_step()).min().unwrap_or(0);
    let finest = norms.iter().map(|norms| norms.stride()).max().unwrap_or(1);
    let stride = (last / PARTS + 1).next_power_of_two().max(finest);
    let means: Vec<BTreeMap<u64, f64>> = norms.iter().map(|norms| norms.means(stride)).collect();
    (0..means.len()).map(|rank| far(&means, rank, octaves, parts)).collect()
}

/// Of two ranks both are far from the other; who is right nobody knows.
fn far(means: &[BTreeMap<u64, f64>], rank: usize, octaves: f64, parts: usize) -> Option<Contrast> {
    let mut in_a_row = 0;
    let mut first = None;
    for (&step, &here) in &means[rank] {
        let others = (0..means.len()).filter(|other| *other != rank);
        let Some(others) = median(others.filter_map(|other| means[other].get(&step).copied())) else { continue };
        if (here - others).abs() <= octaves {
            (in_a_row, first) = (0, None);
            continue;
        }
        in_a_row += 1;
        let began = *first.get_or_insert(Contrast { step, here, others });
        if in_a_row >= parts {
            return Some(began);
        }
    }
    None
}

/// The first step (or the first of the stretch of steps) at which a forward value was not finite, masks apart.
pub(crate) fn first_non_finite(aggregate: &Aggregate) -> Option<u64> {
    let in_forward = |site: &Site| site.probe == Probe::Activation && !is_mask_operator(&site.operator);
    let origin = aggregate.non_finite.first_origin;
    let from_origin = origin.filter(|o| aggregate.site(o.site).is_some_and(|s| in_forward(&s.site)));
    let seen = aggregate.sites.iter().filter(|s| in_forward(&s.site) && s.non_finite_samples > 0);
    let from_maxima = || {
        let bad = seen.filter_map(|s| s.maxima.iter().find(|(_, stretch)| stretch.non_finite > 0));
        bad.map(|(step, _)| step).min()
    };
    from_origin.map(|origin| origin.step).or_else(from_maxima)
}

/// The rank that alone, or before all others, had a value that was not finite.
pub(crate) fn first_alone(steps: &[Option<u64>]) -> Option<usize> {
    let first = steps.iter().flatten().min()?;
    let mut at_first = (0..).zip(steps).filter(|(_, step)| **step == Some(*first)).map(|(place, _)| place);
    at_first.next().filter(|_| at_first.next().is_none() && steps.len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::TimelinePoint;

    fn timeline(stride: u64, scales: &[f64], skips: &[u64]) -> Timeline {
        let point = |(i, &loss_scale): (usize, &f64)| {
            let step = i as u64 * stride;
            TimelinePoint { step, loss: None, loss_scale: Some(loss_scale), skipped: u64::from(skips.contains(&step)) }
        };
        Timeline { stride, points: scales.iter().enumerate().map(point).collect() }
    }

    fn alone(timelines: &[&Timeline]) -> Vec<(Option<u64>, Option<u64>)> {
        let step = |contrast: Option<Contrast>| contrast.map(|c| c.step);
        let found = of_timelines(timelines, &vec![true; timelines.len()]);
        found.into_iter().map(|apart| (step(apart.scale), step(apart.skips))).collect()
    }

    const NOTHING: (Option<u64>, Option<u64>) = (None, None);

    #[test]
    fn ranks_that_do_the_same_are_not_apart_even_when_one_lags() {
        let (ahead, behind) = (timeline(1, &[8.0, 8.0, 4.0, 4.0, 4.0], &[1]), timeline(1, &[8.0, 8.0, 4.0], &[1]));
        assert_eq!(alone(&[&ahead, &behind]), [NOTHING; 2]);
        assert_eq!(alone(&[&ahead]), [NOTHING]);
        assert!(alone(&[]).is_empty());
    }

    #[test]
    fn of_three_ranks_the_one_that_differs_is_named_and_of_two_both() {
        let (same, other) = (timeline(1, &[8.0; 6], &[]), timeline(1, &[8.0, 8.0, 4.0, 4.0, 2.0, 2.0], &[1, 3]));
        let apart = (Some(2), Some(1));
        assert_eq!(alone(&[&same, &other, &same]), [NOTHING, apart, NOTHING]);
        assert_eq!(alone(&[&same, &other]), [apart, apart]);
        let found = of_timelines(&[&same, &other, &same], &[true; 3]);
        assert_eq!(found[1].scale, Some(Contrast { step: 2, here: 4.0, others: 8.0 }));
        assert_eq!(found[1].skips, Some(Contrast { step: 1, here: 1.0, others: 0.0 }));
    }

    #[test]
    fn a_rank_that_could_not_write_all_its_steps_is_not_asked_for_its_skips() {
        let (same, other) = (timeline(1, &[8.0; 6], &[]), timeline(1, &[8.0; 6], &[1]));
        assert_eq!(of_timelines(&[&same, &other, &same], &[true, false, true]), [Apart::default(); 3]);
    }

    #[test]
    fn timelines_of_different_strides_are_compared_in_the_longer_one() {
        let (fine, coarse) = (timeline(1, &[8.0; 32], &[]), timeline(8, &[8.0; 4], &[]));
        assert_eq!(alone(&[&fine, &coarse]), [NOTHING; 2]);
        let other = timeline(8, &[8.0, 8.0, 4.0, 4.0], &[]);
        assert_eq!(alone(&[&fine, &fine, &other]), [NOTHING, NOTHING, (Some(16), None)]);
    }

    #[test]
    fn a_rank_without_a_scale_is_not_compared() {
        let (mut none, some) = (timeline(1, &[8.0; 6], &[]), timeline(1, &[8.0; 6], &[]));
        none.points.iter_mut().for_each(|point| point.loss_scale = None);
        assert_eq!(alone(&[&none, &some]), [NOTHING; 2]);
    }

    #[test]
    fn not_finite_first_or_alone_is_one_rank() {
        assert_eq!(first_alone(&[None, Some(7), None]), Some(1));
        assert_eq!(first_alone(&[Some(8), Some(7), Some(8)]), Some(1));
        assert_eq!(first_alone(&[Some(7), Some(7), None]), None);
        assert_eq!(first_alone(&[None, None]), None);
        assert_eq!(first_alone(&[Some(3)]), None, "one rank is not alone among many");
    }
}
