//! What two statistics of the same elements disagree in, beyond the rounding of their sums: for tests, and for checks on a device.

use super::{Dtype, Scaled, Stats};

/// What one addition in `f64` may be off by, in units of the partial sum, on both sides and with room to spare: 2^-53 is what it is at most.
const ADDITION_IN_F64: f64 = 1e-15;

/// Additions that are no element's: those of the partial sums of a scan, and of rows on a device.
const FURTHER_ADDITIONS: f64 = 4.0;

/// Elements of up to 32 bits are added up in `f32` first, 64 at a time to four sums: four additions deep, one more rounding for a square, and one to spare.
const ROUNDINGS_IN_F32: f64 = 6.0;

/// What one rounding to `f32` is off by at most, in units of what is rounded: 2^-24.
const ROUNDING_TO_F32: f64 = 1.0 / 16_777_216.0;

/// What `found` and `expected`, two statistics of the same elements of format `dtype`, disagree in; `None` where they differ in nothing but the rounding of the sums.
///
/// Counts, extremes and the histogram are exact, and must be equal. The sums are added up in an order of each side's own: each of n additions is off by at most 2^-53
/// of a partial sum, and no partial sum is larger than the sum of magnitudes, which is at most `sqrt(n * sum of squares)`. All formats but `f64` are added up in `f32`
/// first, 64 elements at a time.
///
/// ```
/// use ampdoctor::scan::{Dtype, disagreement, scan_slice};
///
/// let (one_way, other_way) = (scan_slice(&[1e8f32, 1.0, -1e8]), scan_slice(&[1e8f32, -1e8, 1.0]));
/// assert_eq!(disagreement(Dtype::F32, &one_way, &other_way), None);
/// let said = disagreement(Dtype::F32, &one_way, &scan_slice(&[1e8f32, 0.0, -1e8]));
/// assert!(said.is_some_and(|said| said.contains("zeros")));
/// ```
pub fn disagreement(dtype: Dtype, found: &Stats, expected: &Stats) -> Option<String> {
    let rounded = Stats { sum: expected.sum, sum_squares: expected.sum_squares, ..found.clone() };
    if rounded != *expected {
        return Some(format!("{found:?}, not {expected:?}"));
    }
    let tolerance = tolerance(dtype, expected.count);
    let magnitudes = (expected.sum_squares * expected.count as f64).sqrt();
    if !is_near(found.sum, expected.sum, magnitudes * tolerance) {
        return Some(format!("sum {:?}, not {:?}", found.sum, expected.sum));
    }
    let near = is_near(found.sum_squares, expected.sum_squares, expected.sum_squares * tolerance);
    (!near).then(|| format!("sum of squares {:?}, not {:?}", found.sum_squares, expected.sum_squares))
}

/// What a sum over so many elements may be off by, in units of the sum of magnitudes.
fn tolerance(dtype: Dtype, count: u64) -> f64 {
    let in_f32 = if dtype == Dtype::F64 { 0.0 } else { ROUNDINGS_IN_F32 * ROUNDING_TO_F32 };
    ADDITION_IN_F64 * (count as f64 + FURTHER_ADDITIONS) + in_f32
}

fn is_near(a: Scaled, b: Scaled, slack: Scaled) -> bool {
    let off = a + b * -1.0;
    off.value == 0.0 || (Scaled::new(off.value.abs(), off.exponent) + slack * -1.0).value <= 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::scan_slice;

    /// Statistics whose sum, or sum of squares, is off by this share of the sum of magnitudes, which are all alike here.
    fn off(by: f64, of_squares: bool) -> (Stats, Stats) {
        let expected = scan_slice(&[0.5f64; 64]);
        let mut found = expected.clone();
        let sum = if of_squares { &mut found.sum_squares } else { &mut found.sum };
        *sum = *sum * (1.0 + by);
        (found, expected)
    }

    #[test]
    fn what_f32_rounds_away_is_a_disagreement_in_f64_alone() {
        for of_squares in [false, true] {
            let (found, expected) = off(3e-7, of_squares);
            assert_eq!(disagreement(Dtype::F16, &found, &expected), None);
            assert_eq!(disagreement(Dtype::F32, &found, &expected), None);
            assert!(disagreement(Dtype::F64, &found, &expected).is_some());
            let (found, expected) = off(1e-14, of_squares);
            assert_eq!(disagreement(Dtype::F64, &found, &expected), None);
        }
    }

    #[test]
    fn a_sum_that_is_further_off_than_rounding_is_told_from_one_of_squares() {
        let said = |of_squares| {
            let (found, expected) = off(-1e-6, of_squares);
            disagreement(Dtype::Bf16, &found, &expected).expect("it is off")
        };
        assert!(said(false).starts_with("sum Scaled"), "{}", said(false));
        assert!(said(true).starts_with("sum of squares"), "{}", said(true));
    }

    #[test]
    fn cancellation_is_measured_by_the_magnitudes() {
        let expected = scan_slice(&[1e8f32, -1e8]);
        let found = Stats { sum: Scaled::from(10.0), ..expected.clone() };
        assert_eq!(disagreement(Dtype::F32, &found, &expected), None);
        let found = Stats { sum: Scaled::from(1e3), ..expected.clone() };
        assert!(disagreement(Dtype::F32, &found, &expected).is_some());
    }

    #[test]
    fn one_count_or_extreme_is_enough() {
        let expected = scan_slice(&[1f32, 0.0, f32::NAN, f32::INFINITY]);
        for found in [
            Stats { zeros: 0, nan: 2, ..expected.clone() },
            Stats { pos_inf: 0, neg_inf: 1, ..expected.clone() },
            Stats { max_abs: 1.0 + f64::EPSILON, ..expected.clone() },
        ] {
            assert!(disagreement(Dtype::F32, &found, &expected).is_some(), "{found:?}");
        }
        assert_eq!(disagreement(Dtype::F32, &Stats::default(), &Stats::default()), None);
    }
}
