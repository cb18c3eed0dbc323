//! What a format would make of a tensor at another scale.
//!
//! A histogram of exponents knows each element to its binade. Three rounding edges lie inside one: where a value rounds up to the smallest normal number,
//! where it rounds to zero (which coincides with the beginning of a binade, but for its first number), and where it rounds beyond the end. In FP16 they cut off less than
//! a thousandth of their binade; in E5M2 the first is a quarter of it. So the cut binade is shared out by the power law `P(|x| < a) ~ a^b` that its
//! neighbours show.

use super::{Format, Lost, Zones, predicted_error};
use crate::scan::ExponentHistogram;

/// Slopes beyond these are steps: a share within a binade no longer depends on them.
const STEEPEST: f64 = 20.0;

/// What a format would make of a tensor at another scale. Shares are of the elements that were seen non-zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Predicted `1 - cosine` between the tensor and what the format keeps of it, what overflows left aside.
    pub ehat: f64,
    /// Share that would be subnormal: held, in fading precision.
    pub fading_share: f64,
    /// Share that would round to zero. What had been rounded to zero before the tensor was seen is not in it.
    pub lost_share: f64,
    /// Share that would be too large.
    pub overflow_share: f64,
}

impl Outlook {
    /// The outlook of a tensor with these exponents and this largest magnitude, each element times `2^shift`, in `format`. `lost` as for
    /// [`predicted_error`]. `None` when it has no non-zero element.
    pub fn of(exponents: &ExponentHistogram, max_abs: f64, lost: Lost, format: Format, shift: i32) -> Option<Self> {
        let zones = Zones::of(exponents, format, shift);
        let all = zones.total() as f64;
        let largest = max_abs * f64::from(shift).exp2();
        (zones.total() > 0).then(|| {
            let rounded_up = rounds_up(exponents, format, shift, largest);
            let beyond = rounds_beyond(exponents, format, shift, largest);
            Self {
                ehat: predicted_error(exponents, format, lost, shift),
                fading_share: (zones.fading as f64 - rounded_up) / all,
                lost_share: zones.lost as f64 / all,
                overflow_share: (zones.overflow as f64 + beyond) / all,
            }
        })
    }
}

/// Elements just below the smallest normal number that round up to it.
fn rounds_up(exponents: &ExponentHistogram, format: Format, shift: i32, largest: f64) -> f64 {
    let edge = 2.0 - f64::from(-format.fraction_bits).exp2();
    let end = (largest / f64::from(format.min_normal_exponent - 1).exp2()).min(2.0);
    elements_above(exponents, format.min_normal_exponent - 1 - shift, edge, end)
}

/// Elements of the highest binade that round beyond the largest number. None when the largest element, `largest`, does not.
fn rounds_beyond(exponents: &ExponentHistogram, format: Format, shift: i32, largest: f64) -> f64 {
    let binade = f64::from(format.max_exponent()).exp2();
    let edge = (format.max + format.spacing(format.max_exponent()) / 2.0) / binade;
    elements_above(exponents, format.max_exponent() - shift, edge, (largest / binade).min(2.0))
}

/// Elements of one binade whose significand is `edge` or more, where none exceeds `end`; both in units of the binade's beginning.
fn elements_above(exponents: &ExponentHistogram, exponent: i32, edge: f64, end: f64) -> f64 {
    let here = exponents.count(exponent) as f64;
    if here == 0.0 || end <= edge {
        return 0.0;
    }
    here * share_above(slope(exponents, exponent), edge, end)
}

/// The slope of the law in one binade, from those beside it; where the histogram ends, from the one that is there.
fn slope(exponents: &ExponentHistogram, exponent: i32) -> f64 {
    let [below, here, above] = [-1, 0, 1].map(|by| exponents.count(exponent + by) as f64);
    let slope = match (below > 0.0, above > 0.0) {
        (true, true) => (above / below).log2() / 2.0,
        (true, false) => (here / below).log2(),
        (false, true) => (above / here).log2(),
        (false, false) => 0.0,
    };
    slope.clamp(-STEEPEST, STEEPEST)
}

/// The share of `[1, end]` that lies above `edge` where magnitudes follow a power law of this slope.
fn share_above(slope: f64, edge: f64, end: f64) -> f64 {
    /// Below, the law is the logarithm to within rounding.
    const FLAT: f64 = 1e-6;
    if slope.abs() < FLAT {
        return (end / edge).ln() / end.ln();
    }
    (end.powf(slope) - edge.powf(slope)) / (end.powf(slope) - 1.0)
}

#[cfg(test)]
mod real;
#[cfg(test)]
mod tests;
