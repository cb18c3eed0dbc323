//! The zones of a format in which the elements of a tensor lie.

use super::Format;
use crate::scan::ExponentHistogram;

/// How many non-zero elements a format would lose, hold in fading precision, hold well, or overflow.
///
/// Exact to one binade at each end: the two binades that a rounding edge cuts are counted where most of them belongs.
/// Of `[2^-25, 2^-24)` in FP16 only 2^-25 itself rounds to zero, so the binade counts as fading; of `[32768, 65536)` only what lies above
/// 65520 overflows, so it counts as safe, and `top` tells how many elements are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zones {
    /// Rounded to zero.
    pub lost: u64,
    /// Subnormal: held, with fewer bits the smaller it is.
    pub fading: u64,
    /// Normal: held in full precision.
    pub safe: u64,
    /// Too large: infinite, or NaN in a format without infinities.
    pub overflow: u64,
    /// Part of `safe` that lies in the format's highest binade, some of which may round beyond its end.
    pub top: u64,
}

impl Zones {
    /// The zones of the elements of `exponents`, each times `2^shift`, in `format`. All zero when there is no element.
    pub fn of(exponents: &ExponentHistogram, format: Format, shift: i32) -> Self {
        let lowest_held = format.min_subnormal_exponent() - 1;
        let mut zones = Self::default();
        for (exponent, n) in exponents.iter() {
            let exponent = exponent + shift;
            if exponent < lowest_held {
                zones.lost += n;
            } else if exponent < format.min_normal_exponent {
                zones.fading += n;
            } else if exponent <= format.max_exponent() {
                zones.safe += n;
                zones.top += if exponent == format.max_exponent() { n } else { 0 };
            } else {
                zones.overflow += n;
            }
        }
        zones
    }

    /// All non-zero elements.
    pub fn total(&self) -> u64 {
        self.lost + self.fading + self.safe + self.overflow
    }

    /// `part` as a share of all non-zero elements; 0 when there is none.
    pub fn share(&self, part: u64) -> f64 {
        if self.total() == 0 { 0.0 } else { part as f64 / self.total() as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::exponent_of;
    use proptest::prelude::*;

    fn histogram(values: &[f64]) -> ExponentHistogram {
        let mut h = ExponentHistogram::default();
        values.iter().filter(|x| **x != 0.0).for_each(|&x| h.add(exponent_of(x), 1));
        h
    }

    #[test]
    fn the_edges_of_fp16_are_where_rounding_puts_them() {
        let h = histogram(&[2f64.powi(-26), 2f64.powi(-25) * 1.5, 2f64.powi(-15), 2f64.powi(-14), 40000.0, 70000.0]);
        let z = Zones::of(&h, Format::F16, 0);
        assert_eq!(z, Zones { lost: 1, fading: 2, safe: 2, overflow: 1, top: 1 });
        assert_eq!(z.total(), 6);
    }

    #[test]
    fn nothing_has_no_zones_and_no_share() {
        let z = Zones::of(&ExponentHistogram::default(), Format::E4M3, 3);
        assert_eq!((z.total(), z.share(z.lost)), (0, 0.0));
    }

    proptest! {
        /// The naive twin rounds every element; it may differ only in the two binades that a rounding edge cuts.
        #[test]
        fn zones_agree_with_rounding_every_element(exps in prop::collection::vec(-40f64..40.0, 1..200), shift in -20i32..20) {
            let values: Vec<f64> = exps.iter().map(|e| e.exp2()).collect();
            for format in [Format::F16, Format::E5M2, Format::E4M3, Format::BF16] {
                let z = Zones::of(&histogram(&values), format, shift);
                let scaled = values.iter().map(|x| x * f64::from(shift).exp2());
                let mut naive = Zones::default();
                for x in scaled {
                    let r = format.round(x);
                    if x == format.largest_lost() { naive.fading += 1; }
                    else if r == 0.0 { naive.lost += 1 }
                    else if !r.is_finite() && exponent_of(x) > format.max_exponent() { naive.overflow += 1 }
                    else if exponent_of(x) < format.min_normal_exponent { naive.fading += 1 }
                    else { naive.safe += 1 }
                }
                naive.top = z.top;
                prop_assert_eq!(z, naive);
            }
        }
    }
}
