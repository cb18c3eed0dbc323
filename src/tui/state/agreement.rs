//! Where the ranks of a run do not do the same.
//!
//! In data-parallel training every rank makes the same decision at the same step: it skips, or it does not, and the loss scale stays the same everywhere.
//! Where a rank is alone with its scale or its skips, the weights of the ranks drift apart. A value that is not finite in the forward pass of one
//! rank alone comes from its data or its device.

use std::collections::{BTreeMap, BTreeSet};

use crate::aggregate::{Aggregate, Timeline, is_mask_operator};
use crate::observation::{Probe, Site};

/// Something that one rank does and the others do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remark {
    /// Its recording stopped at this step, without an end, while others went on.
    Stopped(u64),
    /// It ended in order at this step, and others went on.
    Ended(u64),
    /// Its recording was over before another one began: it is left from an earlier run, and not compared.
    EarlierRun,
    /// Its loss scale is another, from about this step on.
    Scale(u64),
    /// It skips other steps, from about this step on.
    Skips(u64),
    /// A forward value was not finite here, first at this step, and on the others later or never.
    NonFinite(u64),
}

impl Remark {
    /// In words, to stand behind the number of a rank.
    pub fn words(self) -> String {
        match self {
            Remark::Stopped(step) => format!("stopped at step {step}"),
            Remark::Ended(step) => format!("ended at step {step}, others went on"),
            Remark::EarlierRun => "left from an earlier run".into(),
            Remark::Scale(step) => format!("other loss scale from step {step}"),
            Remark::Skips(step) => format!("other skips from step {step}"),
            Remark::NonFinite(step) => format!("not finite at step {step}, alone or first"),
        }
    }
}

/// What a stretch of steps must have in common on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Stretch {
    scale: Option<f64>,
    skipped: u64,
}

/// The first stretch in which each rank is alone with its scale, or with its skips; in the order of `timelines`.
pub fn disagreements(timelines: &[&Timeline]) -> Vec<Vec<Remark>> {
    let stride = timelines.iter().map(|timeline| timeline.stride).max().unwrap_or(1);
    let ranks: Vec<BTreeMap<u64, Stretch>> = timelines.iter().map(|timeline| stretches(timeline, stride)).collect();
    let mut remarks = vec![Vec::new(); ranks.len()];
    let (mut scale_known, mut skips_known) = (false, false);
    let steps: BTreeSet<u64> = ranks.iter().flat_map(|rank| rank.keys().copied()).collect();
    for step in steps {
        let here: Vec<Option<Stretch>> = ranks.iter().map(|rank| rank.get(&step).copied()).collect();
        let scales: Vec<_> = here.iter().map(|s| s.and_then(|s| s.scale).map(f64::to_bits)).collect();
        let skips: Vec<_> = here.iter().map(|s| s.map(|s| s.skipped)).collect();
        scale_known |= note(&mut remarks, &scales, Remark::Scale(step), scale_known);
        skips_known |= note(&mut remarks, &skips, Remark::Skips(step), skips_known);
    }
    remarks
}

/// Adds the remark to the ranks that are alone, unless the first of its kind is known; whether there were any.
fn note(remarks: &mut [Vec<Remark>], values: &[Option<u64>], remark: Remark, known: bool) -> bool {
    let alone = if known { Vec::new() } else { minority(values) };
    alone.iter().for_each(|&rank| remarks[rank].push(remark));
    !alone.is_empty()
}

/// The places of those whose value is not the most common one; all, where no value is more common than the others.
fn minority(values: &[Option<u64>]) -> Vec<usize> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    values.iter().flatten().for_each(|&value| *counts.entry(value).or_default() += 1);
    let most = counts.values().copied().max().unwrap_or(0);
    let common: Vec<u64> = counts.iter().filter(|&(_, &n)| n == most).map(|(&value, _)| value).collect();
    let is_alone = |value: u64| counts.len() > 1 && (common.len() > 1 || !common.contains(&value));
    (0..).zip(values).filter(|(_, value)| value.is_some_and(is_alone)).map(|(place, _)| place).collect()
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

/// The first step (or the first of the stretch of steps) at which a forward value was not finite, masks apart.
pub fn first_non_finite(aggregate: &Aggregate) -> Option<u64> {
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
pub fn first_alone(steps: &[Option<u64>]) -> Option<usize> {
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

    #[test]
    fn ranks_that_do_the_same_draw_no_remark_even_when_one_lags() {
        let (ahead, behind) = (timeline(1, &[8.0, 8.0, 4.0, 4.0, 4.0], &[1]), timeline(1, &[8.0, 8.0, 4.0], &[1]));
        assert_eq!(disagreements(&[&ahead, &behind]), [vec![], vec![]]);
        assert_eq!(disagreements(&[&ahead]), [vec![]]);
        assert!(disagreements(&[]).is_empty());
    }

    #[test]
    fn of_three_ranks_the_one_that_differs_is_named_and_of_two_both() {
        let (same, other) = (timeline(1, &[8.0; 6], &[]), timeline(1, &[8.0, 8.0, 4.0, 4.0, 2.0, 2.0], &[1, 3]));
        let alone = vec![Remark::Skips(1), Remark::Scale(2)];
        assert_eq!(disagreements(&[&same, &other, &same]), [vec![], alone.clone(), vec![]]);
        assert_eq!(disagreements(&[&same, &other]), [alone.clone(), alone]);
    }

    #[test]
    fn timelines_of_different_strides_are_compared_in_the_longer_one() {
        let (fine, coarse) = (timeline(1, &[8.0; 32], &[]), timeline(8, &[8.0; 4], &[]));
        assert_eq!(disagreements(&[&fine, &coarse]), [vec![], vec![]]);
        let other = timeline(8, &[8.0, 8.0, 4.0, 4.0], &[]);
        assert_eq!(disagreements(&[&fine, &fine, &other]), [vec![], vec![], vec![Remark::Scale(16)]]);
    }

    #[test]
    fn a_rank_without_a_scale_is_not_compared() {
        let (mut none, some) = (timeline(1, &[8.0; 6], &[]), timeline(1, &[8.0; 6], &[]));
        none.points.iter_mut().for_each(|point| point.loss_scale = None);
        assert_eq!(disagreements(&[&none, &some]), [vec![], vec![]]);
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
