//! The properties of floating-point formats, and rounding to them.

use crate::scan::Dtype;

/// A binary floating-point format.
///
/// Magnitudes run from [`min_subnormal`](Self::min_subnormal) in steps of that size up to
/// [`min_normal`](Self::min_normal), and from there with a constant number of significant bits up to [`max`](Self::max).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Format {
    /// The name used in reports: `fp16`, `bf16`, `fp8_e4m3`, `fp8_e5m2`, `fp32`.
    pub name: &'static str,
    /// The largest finite number.
    pub max: f64,
    /// The exponent of the smallest normal number.
    pub min_normal_exponent: i32,
    /// Bits of the significand after the binary point.
    pub fraction_bits: i32,
    /// Whether there is an infinity; without one, what is too large becomes NaN.
    pub has_infinity: bool,
}

impl Format {
    /// IEEE binary16: largest 65504, smallest normal 2^-14, smallest subnormal 2^-24.
    pub const F16: Format =
        Format { name: "fp16", max: 65504.0, min_normal_exponent: -14, fraction_bits: 10, has_infinity: true };
    /// bfloat16: the exponents of FP32, 8 bits of significand.
    pub const BF16: Format = Format {
        name: "bf16",
        max: 3.3895313892515355e38,
        min_normal_exponent: -126,
        fraction_bits: 7,
        has_infinity: true,
    };
    /// FP8 E4M3 of the Open Compute Project: largest 448, no infinity.
    pub const E4M3: Format =
        Format { name: "fp8_e4m3", max: 448.0, min_normal_exponent: -6, fraction_bits: 3, has_infinity: false };
    /// FP8 E5M2 of the Open Compute Project: the exponents of FP16, largest 57344.
    pub const E5M2: Format =
        Format { name: "fp8_e5m2", max: 57344.0, min_normal_exponent: -14, fraction_bits: 2, has_infinity: true };
    /// IEEE binary32.
    pub const F32: Format =
        Format { name: "fp32", max: f32::MAX as f64, min_normal_exponent: -126, fraction_bits: 23, has_infinity: true };

    /// All formats, widest range last.
    pub const ALL: [Format; 5] = [Format::E4M3, Format::E5M2, Format::F16, Format::BF16, Format::F32];

    /// The format of a scanned dtype; `None` for `f64`, which nothing here is compared with.
    pub fn of(dtype: Dtype) -> Option<Format> {
        match dtype {
            Dtype::F16 => Some(Format::F16),
            Dtype::Bf16 => Some(Format::BF16),
            Dtype::F32 => Some(Format::F32),
            Dtype::F64 => None,
        }
    }

    /// The smallest normal number: below it precision fades.
    pub fn min_normal(&self) -> f64 {
        f64::from(self.min_normal_exponent).exp2()
    }

    /// The exponent of the smallest subnormal number.
    pub fn min_subnormal_exponent(&self) -> i32 {
        self.min_normal_exponent - self.fraction_bits
    }

    /// The smallest number above zero.
    pub fn min_subnormal(&self) -> f64 {
        f64::from(self.min_subnormal_exponent()).exp2()
    }

    /// The largest magnitude that still rounds to zero: half the smallest subnormal, where the tie goes to even.
    pub fn largest_lost(&self) -> f64 {
        self.min_subnormal() / 2.0
    }

    /// The exponent of the largest finite number.
    pub fn max_exponent(&self) -> i32 {
        exponent_of(self.max)
    }

    /// The distance between neighbours among numbers of this exponent; in the subnormals, the smallest subnormal.
    pub fn spacing(&self, exponent: i32) -> f64 {
        f64::from(self.spacing_exponent(exponent)).exp2()
    }

    /// The exponent of [`spacing`](Self::spacing), which is a power of two.
    pub fn spacing_exponent(&self, exponent: i32) -> i32 {
        exponent.max(self.min_normal_exponent) - self.fraction_bits
    }

    /// Predicted error of a tensor of normal numbers, which no scale lowers: 1.7e-8 in FP16, 1.1e-6 in BF16, 2.8e-4 in E4M3, 1.1e-3 in E5M2.
    pub fn rounding_floor(&self) -> f64 {
        /// `1 / (2 * 12 * 7/3)`: half the mean squared error of rounding, over the mean square of numbers spread evenly over [1, 2).
        const PER_SQUARED_SPACING: f64 = 1.0 / 56.0;
        f64::from(-2 * self.fraction_bits).exp2() * PER_SQUARED_SPACING
    }

    /// The predicted error that a tensor may have: 1e-4, below which harm was 5 to 12 octaves of loss scale away; in the FP8 formats, whose rounding alone
    /// exceeds that, twice what rounding costs.
    pub fn tolerated_error(&self) -> f64 {
        const TOLERATED: f64 = 1e-4;
        TOLERATED.max(2.0 * self.rounding_floor())
    }

    /// The nearest number of the format, ties to even. Too large becomes an infinity, or NaN in a format without one.
    pub fn round(&self, x: f64) -> f64 {
        if !x.is_finite() || x == 0.0 {
            return if x.is_infinite() && !self.has_infinity { f64::NAN } else { x };
        }
        let spacing = self.spacing(exponent_of(x));
        let rounded = (x / spacing).round_ties_even() * spacing;
        match rounded.abs() > self.max {
            false => rounded,
            true if self.has_infinity => f64::INFINITY.copysign(x),
            true => f64::NAN,
        }
    }
}

/// `floor(log2 |x|)`, exact; -1075 for zero, 1024 for NaN and the infinities.
pub fn exponent_of(x: f64) -> i32 {
    let bits = x.abs().to_bits();
    match (bits >> 52) as i32 {
        0 if bits == 0 => -1075,
        0 => -1011 - bits.leading_zeros() as i32,
        field => field - 1023,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn every_fp16_number_rounds_to_itself() {
        for bits in 0..=u16::MAX {
            let x = f16::from_bits(bits).to_f64();
            let rounded = Format::F16.round(x);
            assert!(rounded == x || (rounded.is_nan() && x.is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn rounding_agrees_with_an_independent_one_between_all_neighbours() {
        for bits in 0..0x7c00u16 {
            let (low, high) = (f16::from_bits(bits).to_f64(), f16::from_bits(bits + 1).to_f64());
            let high = if high.is_finite() { high } else { 65536.0 };
            for share in [0.25, 0.4999, 0.5, 0.5001, 0.75] {
                let x = low + (high - low) * share;
                assert_eq!(Format::F16.round(x), f16::from_f64(x).to_f64(), "{x:e}");
                assert_eq!(Format::F16.round(-x), f16::from_f64(-x).to_f64(), "{x:e}");
            }
        }
        for bits in (0..0x7f80u16).step_by(7) {
            let (low, high) = (bf16::from_bits(bits).to_f64(), bf16::from_bits(bits + 1).to_f64());
            if high.is_finite() {
                let x = low + (high - low) * 0.51;
                assert_eq!(Format::BF16.round(x), bf16::from_f64(x).to_f64(), "{x:e}");
            }
        }
    }

    #[test]
    fn fp16_ends_where_it_is_said_to_end() {
        let f = Format::F16;
        assert_eq!(f.round(65519.99), 65504.0);
        assert_eq!(f.round(65520.0), f64::INFINITY);
        assert_eq!(f.min_normal(), 6.103515625e-5);
        assert!((f.min_subnormal() - 5.96e-8).abs() < 1e-10);
        assert_eq!(f.round(f.largest_lost()), 0.0);
        assert_eq!(f.round(f.largest_lost() * 1.0001), f.min_subnormal());
        assert_eq!(f.spacing(0), 2f64.powi(-10));
        assert_eq!(f.round(1e-8), 0.0);
        assert!((f.round(1e-7) - 1.19e-7).abs() < 1e-9);
        assert!((f.round(1e-5) - 1.00136e-5).abs() < 1e-10);
        assert_eq!(f.round(-1e9), f64::NEG_INFINITY);
        assert_eq!(f.round(0.9999), 1.0);
        assert!(f.round(256.0 * 256.0).is_infinite() && f.round(255.9 * 255.9).is_finite());
        assert_eq!(f.round((-17.4f64).exp()), 0.0);
        assert_eq!(f.round(1.0 / (1.0 + (-9f64).exp())), 1.0);
    }

    #[test]
    fn relative_spacing_grows_as_the_subnormals_fade() {
        let relative = |x: f64| Format::F16.spacing(exponent_of(x)) / x;
        for (x, expected) in [(3e-5, 0.002), (1e-5, 0.006), (1e-6, 0.06), (2e-7, 0.30), (6e-8, 0.99)] {
            assert!((relative(x) / expected - 1.0).abs() < 0.1, "{x:e}: {}", relative(x));
        }
    }

    #[test]
    fn integers_are_exact_up_to_the_width_of_the_significand() {
        for (format, last) in [(Format::F16, 2048), (Format::BF16, 256)] {
            assert!((0..=last).all(|i| format.round(f64::from(i)) == f64::from(i)));
            assert_ne!(format.round(f64::from(last + 1)), f64::from(last + 1));
        }
    }

    #[test]
    fn the_other_formats_end_where_they_are_said_to_end() {
        assert_eq!((Format::BF16.min_normal_exponent, Format::BF16.max), (-126, bf16::MAX.to_f64()));
        assert_eq!((Format::E4M3.min_normal(), Format::E4M3.min_subnormal()), (2f64.powi(-6), 2f64.powi(-9)));
        assert_eq!((Format::E5M2.min_normal(), Format::E5M2.min_subnormal()), (2f64.powi(-14), 2f64.powi(-16)));
        assert_eq!(Format::E4M3.round(464.0), 448.0);
        assert!(Format::E4M3.round(465.0).is_nan() && Format::E4M3.round(f64::INFINITY).is_nan());
        assert_eq!(Format::E5M2.round(61439.0), 57344.0);
        assert_eq!(Format::E5M2.round(61440.0), f64::INFINITY);
        for f in Format::ALL {
            assert_eq!(f.round(f.max), f.max, "{}", f.name);
            assert_eq!(f.round(f.min_subnormal()), f.min_subnormal(), "{}", f.name);
        }
    }

    #[test]
    fn the_exponent_is_exact_down_to_the_smallest_subnormal() {
        for e in -1074..=1023 {
            let x = f64::from(e).exp2();
            assert_eq!(exponent_of(x), e);
            assert_eq!(exponent_of(-x), e);
        }
        assert_eq!((exponent_of(0.0), exponent_of(f64::NAN), exponent_of(f64::INFINITY)), (-1075, 1024, 1024));
        assert_eq!(exponent_of(1.9999), 0);
    }
}
