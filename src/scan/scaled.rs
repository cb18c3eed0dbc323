//! A sum that cannot overflow.

/// `value * 2^exponent`: a real number whose size may lie outside `f64`.
///
/// The operators return one form per number: exponent 0 where an `f64` holds it as a normal number (or it is 0 or not finite),
/// else a value whose magnitude is in `[1, 2)`. Numbers in that form compare as the reals that they stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scaled {
    /// The significand.
    pub value: f64,
    /// The power of two it is multiplied by.
    pub exponent: i32,
}

impl Scaled {
    /// `value * 2^exponent`, brought into the one form of its number.
    pub fn new(value: f64, exponent: i32) -> Self {
        let Some((significand, own)) = split(value) else {
            return Self { value, exponent: 0 };
        };
        let exponent = own.saturating_add(exponent);
        if (-1022..=1023).contains(&exponent) {
            Self { value: significand * power_of_two(exponent), exponent: 0 }
        } else {
            Self { value: significand, exponent }
        }
    }

    /// The number as an `f64`, rounded once; infinite where it is too large, zero or subnormal where it is too small.
    pub fn to_f64(self) -> f64 {
        split(self.value).map_or(self.value, |(value, own)| shift(value, own.saturating_add(self.exponent)))
    }

    /// The base-2 logarithm of a positive number, or `None`.
    pub fn log2(self) -> Option<f64> {
        let (significand, own) = split(self.value).filter(|&(significand, _)| significand > 0.0)?;
        Some(significand.log2() + f64::from(own) + f64::from(self.exponent))
    }

    /// The square root of a number that is not negative; NaN for a negative one.
    pub fn sqrt(self) -> Self {
        let odd = self.exponent.rem_euclid(2);
        let Some((significand, own)) = split(self.value) else {
            return Self { value: self.value.sqrt(), exponent: 0 };
        };
        let half = (self.exponent - odd) / 2;
        let own_odd = own.rem_euclid(2);
        // Both odd powers of two go under the root: at most 2 * 2 * 2.
        let under = significand * power_of_two(odd + own_odd);
        Self::new(under.sqrt(), half + (own - own_odd) / 2)
    }
}

impl From<f64> for Scaled {
    fn from(value: f64) -> Self {
        Self::new(value, 0)
    }
}

impl std::ops::Add for Scaled {
    type Output = Scaled;

    /// The sum, rounded as one `f64` addition rounds. What is below the other number's last bit by more than 2^1022 adds nothing.
    fn add(self, other: Scaled) -> Scaled {
        let plain = self.value + other.value;
        if self.exponent == 0 && other.exponent == 0 && plain.is_normal() {
            return Scaled { value: plain, exponent: 0 };
        }
        let (Some((a, a_own)), Some((b, b_own))) = (split(self.value), split(other.value)) else {
            return sum_with_special(self, other);
        };
        let (a_exp, b_exp) = (a_own.saturating_add(self.exponent), b_own.saturating_add(other.exponent));
        let (high, top, low, bottom) = if a_exp >= b_exp { (a, a_exp, b, b_exp) } else { (b, b_exp, a, a_exp) };
        Scaled::new(high + shift(low, bottom.saturating_sub(top)), top)
    }
}

impl std::ops::Mul<f64> for Scaled {
    type Output = Scaled;

    /// The product, rounded once.
    fn mul(self, factor: f64) -> Scaled {
        match (split(self.value), split(factor)) {
            (Some((a, a_own)), Some((b, b_own))) => {
                Scaled::new(a * b, a_own.saturating_add(b_own).saturating_add(self.exponent))
            }
            _ => Scaled { value: self.value * factor, exponent: 0 },
        }
    }
}

impl std::ops::Div<f64> for Scaled {
    type Output = Scaled;

    /// The quotient, rounded once.
    fn div(self, divisor: f64) -> Scaled {
        match (split(self.value), split(divisor)) {
            (Some((a, a_own)), Some((b, b_own))) => {
                Scaled::new(a / b, a_own.saturating_sub(b_own).saturating_add(self.exponent))
            }
            _ => Scaled { value: self.value / divisor, exponent: 0 },
        }
    }
}

/// The sum where at least one value is zero, infinite or NaN.
fn sum_with_special(a: Scaled, b: Scaled) -> Scaled {
    if a.value == 0.0 {
        Scaled::new(b.value, b.exponent)
    } else if b.value == 0.0 {
        Scaled::new(a.value, a.exponent)
    } else {
        Scaled { value: a.value + b.value, exponent: 0 }
    }
}

/// A significand in `[1, 2)` with the sign of `value`, and its exponent; `None` for zero, infinities and NaN.
fn split(value: f64) -> Option<(f64, i32)> {
    const FIELD: u64 = 0x7ff << 52;
    if value == 0.0 || !value.is_finite() {
        return None;
    }
    let (normal, below) = if value.is_normal() { (value, 0) } else { (value * power_of_two(64), 64) };
    let exponent = ((normal.to_bits() & FIELD) >> 52) as i32 - 1023;
    Some((f64::from_bits(normal.to_bits() & !FIELD | 1023 << 52), exponent - below))
}

/// `significand * 2^exponent` for a significand in `[1, 2)` of either sign, rounded once.
fn shift(significand: f64, exponent: i32) -> f64 {
    match exponent {
        1024.. => significand * f64::INFINITY,
        -1022..=1023 => significand * power_of_two(exponent),
        // The first product is exact, only the second rounds.
        -2044..=-1023 => significand * power_of_two(-1022) * power_of_two(exponent + 1022),
        _ => significand * 0.0,
    }
}

/// `2^exponent` for the exponents of normal numbers, -1022 to 1023.
pub(super) fn power_of_two(exponent: i32) -> f64 {
    debug_assert!((-1022..=1023).contains(&exponent));
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zero_adds_nothing_at_any_exponent() {
        for exponent in [i32::MIN, -2000, 0, 2000, i32::MAX] {
            let zero = Scaled { value: 0.0, exponent };
            assert_eq!((zero + Scaled::from(3.0)), Scaled::from(3.0));
            assert_eq!((Scaled::new(1.0, -3000) + zero), Scaled { value: 1.0, exponent: -3000 });
            assert_eq!(zero.to_f64(), 0.0);
            assert_eq!(zero.log2(), None);
        }
    }

    #[test]
    fn far_exponents_reach_f64_where_the_number_fits() {
        assert_eq!(Scaled { value: 1e-300, exponent: 1100 }.to_f64(), 1e-300 * 2f64.powi(1000) * 2f64.powi(100));
        assert_eq!(Scaled { value: 1e300, exponent: -1100 }.to_f64(), 1e300 * 2f64.powi(-1000) * 2f64.powi(-100));
        assert_eq!(Scaled { value: 1.0, exponent: -1074 }.to_f64(), f64::from_bits(1));
        assert_eq!(Scaled { value: f64::from_bits(1), exponent: 2097 }.to_f64(), 2f64.powi(1023));
        assert_eq!(Scaled { value: -1.0, exponent: 1024 }.to_f64(), f64::NEG_INFINITY);
        assert_eq!(Scaled { value: 1.0, exponent: i32::MIN }.to_f64(), 0.0);
        assert_eq!(Scaled { value: 1.0, exponent: i32::MAX }.to_f64(), f64::INFINITY);
    }

    #[test]
    fn squares_of_the_largest_doubles_add_up() {
        let square = Scaled::new(f64::MAX / 2f64.powi(1023), 1023) * f64::MAX;
        let two = square + square;
        assert_eq!(two.to_f64(), f64::INFINITY);
        assert!((two.log2().unwrap() - 2049.0).abs() < 1e-9);
        assert_eq!((two * 0.5).sqrt().to_f64(), f64::MAX);
    }

    #[test]
    fn a_cancelled_sum_is_zero_and_not_lost() {
        let big = Scaled::new(1.5, 5000);
        assert_eq!(big + big * -1.0, Scaled::default());
        assert_eq!((big + Scaled::from(1.0)) + big * -1.0, Scaled::default());
    }

    proptest! {
        #[test]
        fn addition_is_that_of_f64_wherever_f64_can(a in any::<f64>(), b in any::<f64>()) {
            prop_assume!(a.is_finite() && b.is_finite());
            let sum = Scaled::from(a) + Scaled::from(b);
            prop_assert_eq!(sum.to_f64(), a + b);
        }

        #[test]
        fn a_common_power_of_two_does_not_matter(a in -1e3..1e3f64, b in -1e3..1e3f64, by in -30_000..30_000i32) {
            let moved = Scaled::new(a, by) + Scaled::new(b, by);
            prop_assert_eq!(moved, Scaled::new(a + b, by));
            prop_assert_eq!(Scaled::new(a, by) * b, Scaled::new(a * b, by));
        }

        #[test]
        fn the_root_halves_the_exponent(a in 1e-3..1e3f64, by in -30_000..30_000i32) {
            let root = Scaled::new(a, by).sqrt();
            let near_one = Scaled::new(root.value, root.exponent - by.div_euclid(2)).to_f64();
            prop_assert_eq!(near_one, (a * power_of_two(by.rem_euclid(2))).sqrt());
        }
    }
}
