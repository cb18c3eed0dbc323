//! What one scan returns.

use super::{ExponentHistogram, Scaled};

/// The statistics of one tensor. Extremes, sums and the histogram are over its finite elements.
#[derive(Debug, Default, PartialEq)]
pub struct Stats {
    /// All elements: zeros, finite, non-finite.
    pub count: u64,
    /// Elements equal to zero, of either sign.
    pub zeros: u64,
    /// Elements that are NaN.
    pub nan: u64,
    /// Elements that are +inf.
    pub pos_inf: u64,
    /// Elements that are -inf.
    pub neg_inf: u64,
    /// Smallest magnitude of the finite non-zero elements; 0 when there is none.
    pub min_abs: f64,
    /// Largest magnitude of the finite elements; 0 when there is none.
    pub max_abs: f64,
    /// Sum of the finite elements.
    pub sum: Scaled,
    /// Sum of the squares of the finite elements.
    pub sum_squares: Scaled,
    /// Exponents of the finite non-zero elements.
    pub exponents: ExponentHistogram,
}

impl Clone for Stats {
    fn clone(&self) -> Self {
        Self { exponents: self.exponents.clone(), ..*self }
    }

    /// In the memory that is there.
    fn clone_from(&mut self, other: &Self) {
        let mut exponents = std::mem::take(&mut self.exponents);
        exponents.clone_from(&other.exponents);
        *self = Self { exponents, ..*other };
    }
}

impl Stats {
    /// Elements that are NaN or infinite.
    pub fn non_finite(&self) -> u64 {
        self.nan + self.pos_inf + self.neg_inf
    }

    /// Finite elements, zeros included.
    pub fn finite(&self) -> u64 {
        self.count - self.non_finite()
    }

    /// Mean of the finite elements, or `None` when there is none.
    pub fn mean(&self) -> Option<f64> {
        let n = self.finite();
        (n > 0).then(|| (self.sum / n as f64).to_f64())
    }

    /// Root mean square of the finite elements, or `None` when there is none.
    pub fn rms(&self) -> Option<f64> {
        let n = self.finite();
        (n > 0).then(|| (self.sum_squares / n as f64).sqrt().to_f64())
    }

    /// Rounds the sums to the 24 bits of an `f32`, where that has their range: they take half the room in a recording. Those of `f16`, `bf16` and `f32` are right to about 2^-21
    /// before it.
    pub fn round_sums(&mut self) {
        for sum in [&mut self.sum, &mut self.sum_squares].into_iter().filter(|sum| sum.exponent == 0) {
            let narrow = sum.value as f32;
            if narrow == 0.0 && sum.value == 0.0 || narrow.is_normal() {
                sum.value = narrow.into();
            }
        }
    }

    /// Adds the elements of `other`: the statistics of both tensors taken as one. Counts stop at `u64::MAX`.
    pub fn merge(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.zeros = self.zeros.saturating_add(other.zeros);
        self.nan = self.nan.saturating_add(other.nan);
        self.pos_inf = self.pos_inf.saturating_add(other.pos_inf);
        self.neg_inf = self.neg_inf.saturating_add(other.neg_inf);
        self.widen(other.min_abs, other.max_abs);
        self.sum = self.sum + other.sum;
        self.sum_squares = self.sum_squares + other.sum_squares;
        self.exponents.merge(&other.exponents);
    }

    /// The statistics of the same elements, each taken `times` times. Counts stop at `u64::MAX`.
    pub fn repeated(mut self, times: u64) -> Self {
        match times {
            0 => return Self::default(),
            1 => return self,
            _ => {}
        }
        for count in [&mut self.count, &mut self.zeros, &mut self.nan, &mut self.pos_inf, &mut self.neg_inf] {
            *count = count.saturating_mul(times);
        }
        self.sum = self.sum * times as f64;
        self.sum_squares = self.sum_squares * times as f64;
        self.exponents = self.exponents.repeated(times);
        self
    }

    /// Takes in the extremes of further elements; 0 and 0 when none of them is finite and non-zero.
    pub(super) fn widen(&mut self, min_abs: f64, max_abs: f64) {
        if max_abs > 0.0 {
            self.min_abs = if self.max_abs == 0.0 { min_abs } else { self.min_abs.min(min_abs) };
            self.max_abs = self.max_abs.max(max_abs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scan_slice;
    use super::*;

    #[test]
    fn merged_statistics_are_those_of_the_joined_tensor() {
        let (a, b) = ([1.0f32, -2.0, 0.0, f32::NAN], [0.25f32, f32::INFINITY, 1e-40, f32::NEG_INFINITY]);
        let mut merged = scan_slice(&a);
        merged.merge(&scan_slice(&b));
        assert_eq!(merged, scan_slice(&[a, b].concat()));
        let mut with_empty = merged.clone();
        with_empty.merge(&Stats::default());
        assert_eq!(with_empty, merged);
        let mut from_empty = Stats::default();
        from_empty.merge(&merged);
        assert_eq!(from_empty, merged);
    }

    #[test]
    fn sums_are_rounded_where_a_float_has_their_range_and_stay_where_it_has_not() {
        let rounded = |sum: Scaled| {
            let mut stats = Stats { sum, ..Stats::default() };
            stats.round_sums();
            stats.sum
        };
        let plain = |x: f64| Scaled::new(x, 0);
        assert_eq!(rounded(plain(0.1)), plain(f64::from(0.1f32)));
        for kept in [plain(1e300), plain(1e-300), plain(-0.0), plain(-1e39), Scaled::new(1.5, 5000)] {
            assert_eq!(rounded(kept), kept);
        }
    }

    #[test]
    fn a_copy_into_other_statistics_leaves_nothing_of_them() {
        let (short, long) = (scan_slice(&[1.0f32, f32::NAN]), scan_slice(&[0.0f32, 1e-3, 1e3, f32::INFINITY]));
        for (mut held, other) in [(short.clone(), &long), (long.clone(), &short), (long.clone(), &Stats::default())] {
            held.clone_from(other);
            assert_eq!(held, *other);
        }
    }

    #[test]
    fn repetition_counts_each_element_anew() {
        let once = [1.0f32, -2.0, 0.0, f32::NAN];
        assert_eq!(scan_slice(&once).repeated(3), scan_slice(&once.repeat(3)));
        assert_eq!(scan_slice(&once).repeated(0), Stats::default());
    }

    #[test]
    fn the_root_mean_square_survives_squares_outside_f64() {
        assert_eq!(scan_slice(&[1e308f64; 9]).rms(), Some(1e308));
        let tiny = f64::from_bits(3);
        assert_eq!(scan_slice(&[tiny; 4]).rms(), Some(tiny));
        assert_eq!(scan_slice(&[f64::NAN]).rms(), None);
        assert_eq!(scan_slice(&[0.0f64]).rms(), Some(0.0));
        assert_eq!(scan_slice(&[3.0f32, 5.0]).mean(), Some(4.0));
    }
}
