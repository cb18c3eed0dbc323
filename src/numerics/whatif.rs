//! What a format would make of a tensor at another scale.
//!
//! A histogram of exponents knows each element to its binade. Three rounding edges lie inside one: where a value rounds up to the smallest normal number,
//! where it rounds to zero (which coincides with the beginning of a binade, but for its first number), and where it rounds beyond the end. In FP16 they cut off less than
//! a thousandth of their binade; in E5M2 the first is a quarter of it. So the cut binade is shared out by the power law that its neighbours show, and where that
//! cannot be trusted to [half a point](Share::TOLERANCE), as where nearly all elements are alike, the share is told by its bounds.

mod cut;
mod share;

use super::{Format, Lost, Zones, predicted_error};
use crate::scan::ExponentHistogram;
use cut::{Cut, Edge, Extremes};
pub use share::Share;

/// What a format would make of a tensor at another scale. Shares are of the elements that were seen non-zero, and of what they are rounded to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Predicted `1 - cosine` between the tensor and what the format keeps of it, what overflows left aside.
    pub ehat: f64,
    /// Share that would be subnormal: held, in fading precision.
    pub fading: Share,
    /// Share that would round to zero. What had been rounded to zero before the tensor was seen is not in it.
    pub lost: Share,
    /// Share that would be too large.
    pub overflow: Share,
}

impl Outlook {
    /// The outlook of a tensor with these exponents, this smallest and this largest magnitude other than zero, each element times `2^shift`, in `format`. `lost` as for
    /// [`predicted_error`]. `min_abs` may be 0 where it is not known. `None` when it has no non-zero element.
    pub fn of(
        exponents: &ExponentHistogram,
        (min_abs, max_abs): (f64, f64),
        lost: Lost,
        format: Format,
        shift: i32,
    ) -> Option<Self> {
        let zones = Zones::of(exponents, format, shift);
        let [min, max] = [min_abs, max_abs].map(|x| x * f64::from(shift).exp2());
        let extremes = Extremes { min, max };
        if zones.total() == 0 {
            return None;
        }
        // What is no larger than half the smallest number is gone: the tie goes to zero, and a tensor of one number may be nothing but ties.
        if max <= format.largest_lost() {
            return Some(Self { ehat: 1.0, lost: Share::exact(1.0), ..Self::default() });
        }
        let up = Cut::of(exponents, shift, extremes, &rounds_up(format));
        let beyond = Cut::of(exponents, shift, extremes, &rounds_beyond(format));
        let share = |part: u64, cut: Cut| Share::of(part as f64, cut, zones.total() as f64);
        Some(Self {
            ehat: predicted_error(exponents, format, lost, shift),
            fading: share(zones.fading, up.taken_away()),
            lost: Share::exact(zones.share(zones.lost)),
            overflow: share(zones.overflow, beyond),
        })
    }
}

/// Just below the smallest normal number elements round up to it.
fn rounds_up(format: Format) -> Edge<impl Fn(f64) -> bool> {
    Edge {
        exponent: format.min_normal_exponent - 1,
        at: 2.0 - f64::from(-format.fraction_bits).exp2(),
        is_beyond: move |x| format.round(x) >= format.min_normal(),
    }
}

/// In the highest binade elements round beyond the largest number.
fn rounds_beyond(format: Format) -> Edge<impl Fn(f64) -> bool> {
    let binade = f64::from(format.max_exponent()).exp2();
    Edge {
        exponent: format.max_exponent(),
        at: (format.max + format.spacing(format.max_exponent()) / 2.0) / binade,
        is_beyond: move |x| !format.round(x).is_finite(),
    }
}

#[cfg(test)]
mod real;
#[cfg(test)]
mod tests;
