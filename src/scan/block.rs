//! What a kernel says of one block of elements that fit `f32`, and the order in which all kernels add.

use super::Stats;

/// Elements in a block: their exponents (a byte each) and the `f32` that they come from stay in the first-level cache, and
/// 128 vectors of bytes cannot overflow a counter of 8 bits.
pub(super) const BLOCK: usize = 4096;

/// Exponent of the smallest `f32` subnormal, the first of [`Exponents`].
pub(super) const FIRST: i32 = -149;

/// Exponents of `f32`: 23 of subnormals, 254 of normal numbers.
pub(super) const EXPONENTS: usize = 23 + 254;

/// Where sums are kept in `f64` element by element, they are kept in this many lanes: element `i` of a block goes to lane
/// `i % LANES`. All kernels do so and fold the lanes in the same order, and so return the same bits.
pub(super) const LANES: usize = 16;

/// How 64 elements are added up in `f32`, to four: each 32 as 4 x 8 elements `(0 + 1) + (2 + 3)`, then the second eight sums to the first, and the upper half of
/// these to the lower. Which element stands in which of the 4 x 8 places is what the format's conversion makes of it. Where there are no more elements there are zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SumOrder {
    /// Eights of neighbours.
    InOrder,
    /// From each sixteen, those of even and those of odd index.
    EvenOdd,
}

impl SumOrder {
    /// The element, of each 32, in place `lane` of the eight `row`.
    pub fn index(self, row: usize, lane: usize) -> usize {
        match self {
            Self::InOrder => 8 * row + lane,
            Self::EvenOdd => 16 * (row / 2) + 2 * lane + row % 2,
        }
    }
}

/// The statistics of at most [`BLOCK`] elements as `f32`.
pub(super) struct Block {
    pub count: u32,
    pub zeros: u32,
    pub nan: u32,
    pub pos_inf: u32,
    pub neg_inf: u32,
    /// Smallest magnitude of the finite non-zero elements; anything where there is none.
    pub min: f32,
    /// Largest magnitude of the finite elements.
    pub max: f32,
    /// Sums of the finite elements. They cannot overflow: the square of an `f32` is below 2^256.
    pub sum: f64,
    pub sum_squares: f64,
}

/// The exponents of a block: `[i]` finite non-zero elements have exponent `FIRST + i`. A summary has none.
pub(super) type Exponents = [u32; EXPONENTS];

impl Block {
    /// Adds the block to the statistics of its tensor.
    pub fn add_to(&self, stats: &mut Stats) {
        stats.count += u64::from(self.count);
        stats.zeros += u64::from(self.zeros);
        stats.nan += u64::from(self.nan);
        stats.pos_inf += u64::from(self.pos_inf);
        stats.neg_inf += u64::from(self.neg_inf);
        if self.max > 0.0 {
            stats.widen(f64::from(self.min), f64::from(self.max));
            stats.sum = stats.sum + self.sum.into();
            stats.sum_squares = stats.sum_squares + self.sum_squares.into();
        }
    }

    /// Adds the block's exponents, all of them between those of its extremes, to the histogram of its tensor.
    pub fn add_exponents_to(&self, exponents: &Exponents, stats: &mut Stats) {
        if self.max > 0.0 {
            let (low, high) = (index_of(self.min), index_of(self.max));
            stats.exponents.add_counts(FIRST + low as i32, &exponents[low..=high]);
        }
    }

    /// Elements that are NaN or infinite.
    pub fn non_finite(&self) -> u32 {
        self.nan + self.pos_inf + self.neg_inf
    }
}

/// Index in [`Exponents`] of a positive finite number.
fn index_of(x: f32) -> usize {
    let bits = x.to_bits();
    match bits >> 23 {
        0 => 31 - bits.leading_zeros() as usize,
        field => field as usize + 22,
    }
}

/// Whether the elements of a block may be added up in `f32`, 64 at a time, before they go to `f64`.
///
/// So long as the largest is in this range no sum of squares overflows, and what underflows is below 2^-49 of the largest square.
pub(super) fn f32_sums_suffice(max: f32) -> bool {
    const LOW: f32 = f32::from_bits((127 - 50) << 23);
    const HIGH: f32 = f32::from_bits((127 + 58) << 23);
    max == 0.0 || (LOW..HIGH).contains(&max)
}

/// Adds the lanes of a sum in an order that is the same everywhere.
pub(super) fn fold<const N: usize>(mut lanes: [f64; N]) -> f64 {
    let mut width = N / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}
