//! A sum that cannot overflow.

/// `value * 2^exponent`: a real number whose size may lie outside `f64`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scaled {
    /// The significand.
    pub value: f64,
    /// The power of two it is multiplied by.
    pub exponent: i32,
}

impl Scaled {
    /// The number as an `f64`; infinite where it does not fit.
    pub fn to_f64(self) -> f64 {
        self.value * 2f64.powi(self.exponent)
    }

    /// The base-2 logarithm of a positive number, or `None`.
    pub fn log2(self) -> Option<f64> {
        (self.value > 0.0).then(|| self.value.log2() + f64::from(self.exponent))
    }
}

impl std::ops::Add for Scaled {
    type Output = Scaled;
    fn add(self, other: Scaled) -> Scaled {
        let (high, low) = if self.exponent >= other.exponent { (self, other) } else { (other, self) };
        Scaled { value: high.value + low.value * 2f64.powi(low.exponent - high.exponent), exponent: high.exponent }
    }
}
