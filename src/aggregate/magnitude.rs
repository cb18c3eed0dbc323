//! How large a tensor was, step by step, over the whole run.

use hdrhistogram::Histogram;

/// Steps of the scale per octave: each is 4.4 % wide.
const PER_OCTAVE: f64 = 16.0;
/// The lowest octave held; magnitudes below are clamped and counted.
const LOWEST_OCTAVE: f64 = -64.0;
/// The highest value an index may have: 2^64 and above are clamped and counted.
const HIGHEST_INDEX: u64 = 2047;

/// A histogram of magnitudes, one a step, in 8 KB whatever the length of the run.
///
/// An HdrHistogram holds integers, so a magnitude x is recorded as `round(16 (log2 x + 64))`: 2^-24 and 2^-14 are exact edges. Zeros, steps with a
/// non-finite element, and what was clamped are counted apart. Nothing is allocated before the first magnitude.
#[derive(Clone, Debug, Default)]
pub struct MagnitudeHistogram {
    histogram: Option<Box<Histogram<u32>>>,
    /// Steps at which the tensor was all zero.
    pub zero: u64,
    /// Steps at which it held a non-finite element; its finite ones are not recorded.
    pub non_finite: u64,
    /// Steps at which the magnitude lay outside 2^-64..2^64 and was recorded at that edge.
    pub clamped: u64,
}

impl MagnitudeHistogram {
    /// Adds one step.
    pub fn record(&mut self, magnitude: f64, has_non_finite: bool) {
        if has_non_finite || !magnitude.is_finite() {
            self.non_finite += 1;
        } else if magnitude <= 0.0 {
            self.zero += 1;
        } else {
            self.record_positive(magnitude);
        }
    }

    fn record_positive(&mut self, magnitude: f64) {
        let index = (PER_OCTAVE * (magnitude.log2() - LOWEST_OCTAVE)).round();
        let held = index.clamp(1.0, HIGHEST_INDEX as f64);
        self.clamped += u64::from(held != index);
        self.record_index(held as u64, 1);
    }

    fn record_index(&mut self, index: u64, steps: u32) {
        if self.histogram.is_none() {
            self.histogram = Histogram::new_with_bounds(1, HIGHEST_INDEX, 3).ok().map(Box::new);
        }
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record_n(index, steps);
        }
    }

    /// Adds the steps of `other`: the same tensor on another rank. The quantiles are then over the steps of both.
    pub fn merge(&mut self, other: &Self) {
        self.zero += other.zero;
        self.non_finite += other.non_finite;
        self.clamped += other.clamped;
        for recorded in other.histogram.iter().flat_map(|histogram| histogram.iter_recorded()) {
            self.record_index(recorded.value_iterated_to(), recorded.count_at_value());
        }
    }

    /// Steps whose magnitude was recorded.
    pub fn len(&self) -> u64 {
        self.histogram.as_ref().map_or(0, |h| h.len())
    }

    /// Whether no magnitude was recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The magnitude that a share `q` of the recorded steps did not exceed, to 4.4 %; `None` when nothing was recorded.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let histogram = self.histogram.as_ref().filter(|h| !h.is_empty())?;
        Some((histogram.value_at_quantile(q) as f64 / PER_OCTAVE + LOWEST_OCTAVE).exp2())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_one_step_of_the_scale() {
        let mut h = MagnitudeHistogram::default();
        (1..=1000).for_each(|i| h.record(f64::from(i) * 1e-6, false));
        for (q, expected) in [(0.0, 1e-6), (0.5, 5e-4), (0.99, 9.9e-4), (1.0, 1e-3)] {
            let found = h.quantile(q).unwrap();
            assert!((found / expected).log2().abs() <= 1.0 / 16.0, "{q}: {found:e}");
        }
        assert_eq!((h.len(), h.zero, h.non_finite, h.clamped), (1000, 0, 0, 0));
    }

    #[test]
    fn the_edges_of_fp16_are_exact() {
        for exponent in [-24, -14, 15] {
            let mut h = MagnitudeHistogram::default();
            h.record(f64::from(exponent).exp2(), false);
            assert_eq!(h.quantile(0.5), Some(f64::from(exponent).exp2()));
        }
    }

    #[test]
    fn merged_histograms_are_those_of_all_steps() {
        let (mut all, mut ranks) = (MagnitudeHistogram::default(), [(); 3].map(|()| MagnitudeHistogram::default()));
        for i in 0..999u32 {
            let (magnitude, bad) = (f64::from(i % 300) * 1e-5, i % 250 == 7);
            all.record(magnitude, bad);
            ranks[i as usize % 3].record(magnitude, bad);
        }
        let mut merged = MagnitudeHistogram::default();
        ranks.iter().for_each(|rank| merged.merge(rank));
        assert_eq!(merged.histogram, all.histogram);
        assert_eq!((merged.zero, merged.non_finite, merged.len()), (all.zero, all.non_finite, all.len()));
        merged.merge(&MagnitudeHistogram::default());
        assert_eq!(merged.histogram, all.histogram);
    }

    #[test]
    fn zeros_non_finite_steps_and_clamps_are_counted_apart() {
        let mut h = MagnitudeHistogram::default();
        h.record(0.0, false);
        h.record(1.0, true);
        h.record(f64::NAN, false);
        assert!(h.is_empty() && h.quantile(0.5).is_none());
        h.record(1e-300, false);
        h.record(1e300, false);
        assert_eq!((h.zero, h.non_finite, h.clamped, h.len()), (1, 2, 2, 2));
    }
}
