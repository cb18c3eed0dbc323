//! A gradient over the whole run without its loss scale: what what-if is asked of.

use super::largest::Largest;
use super::starvation::FEWEST_ELEMENTS;
use crate::numerics::{Format, Lost, ScaleWindow, predicted_error};
use crate::scan::{Dtype, ExponentHistogram, Stats};

/// A gradient over the whole run, each scan divided by the loss scale of its step. Scans with a non-finite element are counted and not in it: what
/// overflowed says nothing of its range. A scale that is no power of two counts as the nearest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unscaled {
    /// Finite scans.
    pub samples: u64,
    /// Elements of these, zeros included.
    pub count: u64,
    /// Exponents of their non-zero elements.
    pub exponents: ExponentHistogram,
    /// Smallest magnitude among them; 0 when there was none.
    pub min_abs: f64,
    /// Estimate of the elements that FP16 had rounded to zero before they were scanned; 0 where the tensor was held in a wider format.
    pub lost: f64,
    /// Lowest and highest scale at which it was scanned, as exponents of two.
    pub scales: Option<(i32, i32)>,
    /// Its largest magnitudes, of scans with a non-finite element too: what is left of them was that large at least.
    pub largest: Largest,
    /// The scan that needs the highest scale; `None` where none had as many elements as say something of a layer.
    pub hardest: Option<Hardest>,
}

/// The scan of a gradient that needs the highest loss scale.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardest {
    /// Its step.
    pub step: u64,
    /// The lowest good scale is `2^low`.
    pub low: i32,
    /// Its exponents, without the loss scale.
    pub exponents: ExponentHistogram,
    /// The scale at which it was scanned, as an exponent of two.
    pub scale: i32,
    /// What FP16 had rounded to zero there, estimated.
    pub lost: Lost,
}

impl Hardest {
    /// Predicted error of its direction in `format` at the loss scale `2^scale`.
    pub fn error_at(&self, format: Format, scale: i32) -> f64 {
        let held = self.exponents.shifted(self.scale);
        predicted_error(&held, format, self.lost, scale - self.scale)
    }
}

impl Unscaled {
    /// Adds a scan at `loss_scale`, which is positive and finite. `needs_scale`: whether the tensor is one whose underflow a scale has to prevent.
    pub(super) fn push(&mut self, step: u64, stats: &Stats, dtype: Dtype, loss_scale: f64, needs_scale: bool) {
        self.largest.push(step, stats.max_abs / loss_scale);
        if stats.non_finite() > 0 {
            return;
        }
        let scale = loss_scale.log2().round() as i32;
        self.samples += 1;
        self.count = self.count.saturating_add(stats.count);
        self.scales = Some(self.scales.map_or((scale, scale), |(low, high)| (low.min(scale), high.max(scale))));
        if stats.max_abs == 0.0 {
            return;
        }
        let lost = if dtype == Dtype::F16 { Lost::estimate(&stats.exponents) } else { Lost::default() };
        self.lost += lost.count;
        let smallest = stats.min_abs / f64::from(scale).exp2();
        self.min_abs = if self.min_abs == 0.0 { smallest } else { self.min_abs.min(smallest) };
        self.exponents.merge_shifted(&stats.exponents, -scale);
        if needs_scale && stats.count >= FEWEST_ELEMENTS && self.is_harder(stats, lost, scale) {
            let window = ScaleWindow::of(&stats.exponents, stats.max_abs, lost, loss_scale);
            let exponents = stats.exponents.shifted(-scale);
            self.hardest = window.map(|window| Hardest { step, low: window.low, exponents, scale, lost });
        }
    }

    /// One look at the scale that was enough so far; the whole window is only computed where it no longer is.
    fn is_harder(&self, stats: &Stats, lost: Lost, scale: i32) -> bool {
        self.hardest.as_ref().is_none_or(|hardest| {
            let error = predicted_error(&stats.exponents, Format::F16, lost, hardest.low - scale);
            error >= Format::F16.tolerated_error()
        })
    }

    /// Estimated share of the non-zero elements that FP16 had rounded to zero before they were scanned.
    pub fn lost_share(&self) -> f64 {
        let seen = self.exponents.total() as f64;
        if self.lost > 0.0 { self.lost / (self.lost + seen) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(exponent: i32, n: u64) -> Stats {
        let exponents = ExponentHistogram::from_counts(exponent, [n]);
        Stats {
            count: 2 * n,
            zeros: n,
            min_abs: f64::from(exponent).exp2(),
            max_abs: f64::from(exponent).exp2(),
            exponents,
            ..Stats::default()
        }
    }

    fn push(gradient: &mut Unscaled, step: u64, stats: &Stats, loss_scale: f64) {
        gradient.push(step, stats, Dtype::F16, loss_scale, true);
    }

    #[test]
    fn scans_at_different_scales_lie_on_each_other_without_them() {
        let mut gradient = Unscaled::default();
        for (step, scale) in (0..).zip([8, 10, 3]) {
            push(&mut gradient, step, &stats(scale - 12, 100), f64::from(scale).exp2());
        }
        assert_eq!(gradient.exponents, ExponentHistogram::from_counts(-12, [300]));
        assert_eq!((gradient.samples, gradient.count, gradient.scales), (3, 600, Some((3, 10))));
        assert_eq!(gradient.min_abs, f64::from(-12).exp2());
    }

    #[test]
    fn the_hardest_scan_is_the_smallest_and_gives_the_lower_end() {
        let mut gradient = Unscaled::default();
        for (step, exponent) in [(0, -3), (1, -9), (2, -5)] {
            push(&mut gradient, step, &stats(exponent, 100), 1024.0);
        }
        let hardest = gradient.hardest.expect("one");
        let window = ScaleWindow::of(&stats(-9, 100).exponents, 1.0, Lost::default(), 1024.0).expect("a window");
        assert_eq!((hardest.step, hardest.low), (1, window.low));
        assert!(hardest.error_at(Format::F16, hardest.low) < 1e-4);
        assert!(hardest.error_at(Format::F16, hardest.low - 1) >= 1e-4);
    }

    #[test]
    fn non_finite_scans_and_zeros_say_nothing_of_the_range() {
        let mut gradient = Unscaled::default();
        push(&mut gradient, 0, &Stats { pos_inf: 1, ..stats(10, 100) }, 1.0);
        let largest = gradient.largest.clone();
        assert_eq!(gradient, Unscaled { largest, ..Unscaled::default() });
        assert_eq!(gradient.largest.without(|_| false), Some(1024.0), "what was finite of it is its largest at least");
        push(&mut gradient, 1, &Stats { count: 100, zeros: 100, ..Stats::default() }, 1.0);
        assert_eq!((gradient.samples, gradient.hardest), (1, None));
    }

    #[test]
    fn a_handful_of_elements_sets_no_lower_end() {
        let mut gradient = Unscaled::default();
        push(&mut gradient, 0, &stats(-24, 10), 1.0);
        assert!(gradient.hardest.is_none() && gradient.lost > 0.0 && gradient.lost_share() > 0.1, "{gradient:?}");
    }
}
