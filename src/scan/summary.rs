//! What a quick look returns.

use super::{Scaled, Stats};

/// A tensor's statistics without the histogram of its exponents; all else as in [`Stats`] of the same elements, bit for bit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
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
}

impl Summary {
    /// Elements that are NaN or infinite.
    pub fn non_finite(&self) -> u64 {
        self.nan + self.pos_inf + self.neg_inf
    }

    /// Whether no element is NaN or infinite; true of an empty tensor.
    pub fn is_finite(&self) -> bool {
        self.non_finite() == 0
    }
}

impl From<Stats> for Summary {
    fn from(stats: Stats) -> Self {
        let Stats { count, zeros, nan, pos_inf, neg_inf, min_abs, max_abs, sum, sum_squares, exponents: _ } = stats;
        Self { count, zeros, nan, pos_inf, neg_inf, min_abs, max_abs, sum, sum_squares }
    }
}
