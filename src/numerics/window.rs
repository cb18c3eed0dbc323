//! The loss scales at which a gradient neither underflows nor overflows.

use super::{Format, Lost, predicted_error};
use crate::scan::ExponentHistogram;

/// Part of a format's largest number that the largest element may reach: one bit of headroom.
const ONE_BIT: f64 = 0.5;
/// Shifts that are searched: from a tensor at FP32's end to one at its beginning.
const SHIFTS: (i32, i32) = (-160, 160);

/// A range of scales, as exponents of two, both ends allowed. Empty when `low > high`.
///
/// `low` is the smallest power of two at which the predicted error of the tensor stays below what is [tolerated](Format::tolerated_error), which is 1e-4
/// in FP16; `high` the largest that leaves its largest element one bit of headroom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleWindow {
    /// The lowest good scale is `2^low`.
    pub low: i32,
    /// The highest good scale is `2^high`.
    pub high: i32,
}

impl ScaleWindow {
    /// The window of one gradient in FP16, seen with these exponents and this largest magnitude at `loss_scale` (1 where there was none). `lost`
    /// as for [`predicted_error`]. `None` for a tensor without a non-zero element and for a scale that is no positive number.
    pub fn of(exponents: &ExponentHistogram, max_abs: f64, lost: Lost, loss_scale: f64) -> Option<Self> {
        Self::in_format(exponents, max_abs, lost, loss_scale, Format::F16)
    }

    /// The same in any format.
    pub fn in_format(
        exponents: &ExponentHistogram,
        max_abs: f64,
        lost: Lost,
        loss_scale: f64,
        format: Format,
    ) -> Option<Self> {
        let measurable = max_abs > 0.0 && max_abs.is_finite() && loss_scale > 0.0 && loss_scale.is_finite();
        if !measurable || exponents.total() == 0 {
            return None;
        }
        let tolerated = format.tolerated_error();
        let good = |shift: i32| predicted_error(exponents, format, lost, shift) < tolerated;
        let (mut bad, mut lowest_good) = SHIFTS;
        while lowest_good - bad > 1 {
            let middle = bad + (lowest_good - bad) / 2;
            if good(middle) {
                lowest_good = middle;
            } else {
                bad = middle;
            }
        }
        Some(Self {
            low: loss_scale.log2().ceil() as i32 + lowest_good,
            high: (format.max * ONE_BIT / max_abs * loss_scale).log2().floor() as i32,
        })
    }

    /// The scales that are good for both.
    pub fn intersect(self, other: Self) -> Self {
        Self { low: self.low.max(other.low), high: self.high.min(other.high) }
    }

    /// Whether `2^exponent` is good.
    pub fn contains(&self, exponent: i32) -> bool {
        (self.low..=self.high).contains(&exponent)
    }

    /// Whether no scale is good.
    pub fn is_empty(&self) -> bool {
        self.low > self.high
    }

    /// The exponent of the scale to set, or `None` when there is none: two bits below the upper end, so that the largest gradient keeps three bits of
    /// headroom, but not above 2^24, where a scale only says that the loss is very small, and never outside the window.
    pub fn recommended(&self) -> Option<i32> {
        const SPARE_BITS: i32 = 2;
        const HIGHEST_SENSIBLE: i32 = 24;
        (!self.is_empty()).then(|| (self.high - SPARE_BITS).min(HIGHEST_SENSIBLE).max(self.low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(exponent: i32, loss_scale: f64) -> Option<ScaleWindow> {
        let h = ExponentHistogram::from_counts(exponent, [1000]);
        ScaleWindow::of(&h, f64::from(exponent).exp2(), Lost::default(), loss_scale)
    }

    #[test]
    fn the_upper_end_leaves_one_bit_of_headroom() {
        // 2^0 at scale 1: 2^14 is the last power of two below 32752.
        assert_eq!(at(0, 1.0).unwrap().high, 14);
        assert_eq!(at(0, 1024.0).unwrap().high, 24);
    }

    #[test]
    fn the_lower_end_is_where_the_predicted_error_reaches_its_bound() {
        let window = at(0, 1.0).unwrap();
        let h = ExponentHistogram::from_counts(0, [1000]);
        assert!(predicted_error(&h, Format::F16, Lost::default(), window.low) < 1e-4);
        assert!(predicted_error(&h, Format::F16, Lost::default(), window.low - 1) >= 1e-4);
        assert_eq!(at(0, 1024.0).unwrap().low, window.low + 10);
    }

    #[test]
    fn a_scale_that_is_no_power_of_two_is_rounded_to_the_safe_side() {
        let window = at(0, 1000.0).unwrap();
        assert_eq!(window, at(0, 1024.0).unwrap());
    }

    #[test]
    fn one_tensor_far_above_the_rest_empties_the_window() {
        let both = at(-40, 1.0).unwrap().intersect(at(10, 1.0).unwrap());
        assert!(both.is_empty() && both.recommended().is_none(), "{both:?}");
    }

    #[test]
    fn the_recommendation_lies_inside_and_leaves_three_bits() {
        assert_eq!(at(0, 1.0).unwrap().recommended(), Some(12));
        assert_eq!(ScaleWindow { low: 9, high: 10 }.recommended(), Some(9));
        assert_eq!(ScaleWindow { low: 0, high: 90 }.recommended(), Some(24));
    }

    #[test]
    fn zeros_and_senseless_scales_have_no_window() {
        assert_eq!(ScaleWindow::of(&ExponentHistogram::default(), 0.0, Lost::default(), 1.0), None);
        assert_eq!(at(0, 0.0), None);
        assert_eq!(at(0, f64::NAN), None);
    }
}
