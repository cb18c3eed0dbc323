//! The kernel for x86-64 with AVX2, FMA and F16C.
//!
//! Every function here that is not `inline(always)` carries the target features; what is inlined into it inherits them.
//! Nothing is called before [`super::kernel`] has asked the processor.

mod count;
mod halves;
mod load;
mod sweep;

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::block::{BLOCK, Block, EXPONENTS, Exponents, f32_sums_suffice, fold};
use super::wide::Tables;
use super::{Dtype, Stats};
use halves::{Half, HalfSweep, note};
use load::{Bf16, Difference, F16, F32, Load, Plain};

/// Elements that one turn of the loops takes: their exponents fill a vector of bytes.
const STEP: usize = 32;

/// Adds at most [`BLOCK`] elements of `new`, or of `new - old`, to `stats`, as `f32`, with or without their exponents. Not for `f64`.
///
/// # Safety
/// The processor has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn block<const HISTOGRAM: bool>(dtype: Dtype, new: &[u8], old: Option<&[u8]>, stats: &mut Stats) {
    match (dtype, old) {
        (Dtype::F16, None) => halves::<HISTOGRAM, F16>(new, stats),
        (Dtype::F16, Some(old)) => singles::<HISTOGRAM>(Difference::<F16>::new(new, old), stats),
        (Dtype::Bf16, None) => halves::<HISTOGRAM, Bf16>(new, stats),
        (Dtype::Bf16, Some(old)) => singles::<HISTOGRAM>(Difference::<Bf16>::new(new, old), stats),
        (Dtype::F32 | Dtype::F64, None) => singles::<HISTOGRAM>(Plain::<F32>::new(new), stats),
        (Dtype::F32 | Dtype::F64, Some(old)) => singles::<HISTOGRAM>(Difference::<F32>::new(new, old), stats),
    }
}

/// The kernel for `f64`, compiled for AVX2.
///
/// # Safety
/// The processor has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn wide_block<const HISTOGRAM: bool>(
    new: &[u8],
    old: Option<&[u8]>,
    tables: &mut Tables,
    stats: &mut Stats,
) {
    super::wide::block::<HISTOGRAM>(new, old, tables, stats);
}

/// A block of half precision; what the fast sweep cannot do goes the way of `f32`.
#[target_feature(enable = "avx2,fma,f16c")]
fn halves<const HISTOGRAM: bool, H: Half>(bytes: &[u8], stats: &mut Stats) {
    let load = Plain::<H>::new(bytes);
    let mut fields = Fields::new(load.len());
    // Subnormals seldom come alone: once there was one, the fields of the next blocks are at once those of `f32`.
    let expected = stats.max_abs > 0.0 && stats.min_abs < f64::from(H::MIN_NORMAL);
    let seen = match (HISTOGRAM, expected) {
        (false, _) => without_fields::<H>(bytes, &mut fields, stats),
        (true, true) => halves::sweep::<H, { note::F32_FIELD }>(bytes, &mut fields),
        (true, false) => halves::sweep::<H, { note::OWN_FIELD }>(bytes, &mut fields),
    };
    let (min, max) = (H::from_bits(seen.min), H::from_bits(seen.max));
    if !max.is_finite() || !f32_sums_suffice(max) {
        return singles::<HISTOGRAM>(load, stats);
    }
    let mut block = Block::new(load.len(), min, max, seen.sum, seen.sum_squares);
    if !HISTOGRAM {
        block.zeros = seen.zeros - fields.padding(load.len());
        return block.add_to(stats);
    }
    // Where the format's subnormals are normal numbers of `f32`, they have fields of their own there.
    let subnormal = max > 0.0 && min < H::MIN_NORMAL;
    if subnormal && !expected {
        sweep::write_fields(&load, &mut fields);
    }
    let bias = if subnormal || expected { 0 } else { H::BIAS };
    add_counted(&load, &mut fields, bias, block, stats);
}

/// A sweep that counts the zeros, if there are any.
#[target_feature(enable = "avx2,fma,f16c")]
fn without_fields<H: Half>(bytes: &[u8], fields: &mut Fields, stats: &Stats) -> HalfSweep {
    let frequent = stats.zeros > stats.count / BLOCK as u64;
    if !frequent {
        let seen = halves::sweep::<H, { note::NOTHING }>(bytes, fields);
        if seen.min > 0 {
            return seen;
        }
    }
    halves::sweep::<H, { note::ZEROS }>(bytes, fields)
}

#[target_feature(enable = "avx2,fma,f16c")]
fn singles<const HISTOGRAM: bool>(load: impl Load, stats: &mut Stats) {
    let mut fields = Fields::new(load.len());
    // What is not finite seldom comes alone either: a mask of a causal net stands in every block of its scores.
    let mut seen = match stats.non_finite() {
        0 => sweep::sweep::<HISTOGRAM, false>(&load, &mut fields),
        _ => sweep::sweep::<HISTOGRAM, true>(&load, &mut fields),
    };
    if !seen.max.is_finite() {
        seen = sweep::sweep::<HISTOGRAM, true>(&load, &mut fields);
    }
    if !f32_sums_suffice(seen.max) {
        (seen.sum, seen.sum_squares) = sweep::exact_sums(&load);
    }
    let mut block = Block::new(load.len(), seen.min, seen.max, seen.sum, seen.sum_squares);
    (block.nan, block.pos_inf, block.neg_inf) = (seen.nan, seen.pos_inf, seen.neg_inf);
    if !HISTOGRAM {
        block.zeros = seen.zeros - fields.padding(load.len()) - block.non_finite();
        return block.add_to(stats);
    }
    add_counted(&load, &mut fields, 0, block, stats);
}

/// Adds a block whose zeros are not counted yet, with its exponents. The fields are `bias` below those of `f32`, but for 0.
#[target_feature(enable = "avx2,fma,f16c")]
fn add_counted(load: &impl Load, fields: &mut Fields, bias: u8, mut block: Block, stats: &mut Stats) {
    let mut exponents = [0; EXPONENTS];
    block.zeros = count_exponents(load, fields, bias, &block, &mut exponents) - block.non_finite();
    block.add_to(stats);
    block.add_exponents_to(&exponents, stats);
}

/// Fills in the exponents, and returns how many elements have none: zeros, and what is not finite and was masked.
#[target_feature(enable = "avx2,fma,f16c")]
fn count_exponents(load: &impl Load, fields: &mut Fields, bias: u8, block: &Block, exponents: &mut Exponents) -> u32 {
    let padding = fields.padding(load.len());
    let (low, high) = ((block.min.to_bits() >> 23) as u8, (block.max.to_bits() >> 23) as u8);
    let mut without = (fields.steps * STEP) as u32;
    if high > 0 {
        let low = low.max(1);
        without = count::bytes(fields.bytes(), low - bias, high - bias, &mut exponents[22 + low as usize..]);
    }
    if low == 0 && block.max > 0.0 {
        // Zeros and subnormals of `f32` share the field 0: tell the subnormals apart, as integers times 2^-149.
        sweep::write_subnormal_fields(load, fields);
        let others = count::bytes(fields.bytes(), 127, 127 + 22, exponents);
        without -= (fields.steps * STEP) as u32 - others;
    }
    without - padding
}

/// The exponent fields of a block, a byte each in no order, padded with zeros to whole steps.
struct Fields {
    bytes: [[MaybeUninit<u8>; STEP]; BLOCK / STEP],
    steps: usize,
}

impl Fields {
    /// Room for the fields of `count` elements, to be written before anything is read.
    fn new(count: usize) -> Self {
        assert!(count <= BLOCK);
        Self { bytes: [[MaybeUninit::uninit(); STEP]; BLOCK / STEP], steps: count.div_ceil(STEP) }
    }

    /// Elements of the last step that are none of the block's `count`.
    fn padding(&self, count: usize) -> u32 {
        (self.steps * STEP - count) as u32
    }

    fn steps(&mut self) -> impl Iterator<Item = &mut [MaybeUninit<u8>; STEP]> {
        self.places().iter_mut()
    }

    fn places(&mut self) -> &mut [[MaybeUninit<u8>; STEP]] {
        &mut self.bytes[..self.steps]
    }

    fn bytes(&self) -> &[[u8; STEP]] {
        let written = &self.bytes[..self.steps];
        // SAFETY: every sweep writes all the steps, and nothing reads before a sweep.
        unsafe { std::slice::from_raw_parts(written.as_ptr().cast(), written.len()) }
    }
}

impl Block {
    fn new(count: usize, min: f32, max: f32, sum: f64, sum_squares: f64) -> Self {
        Self { count: count as u32, zeros: 0, nan: 0, pos_inf: 0, neg_inf: 0, min, max, sum, sum_squares }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(bytes: __m256i, to: &mut [MaybeUninit<u8>; STEP]) {
    // SAFETY: the array has the size of the vector; the store needs no alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), bytes) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn doubles(x: __m256d) -> [f64; 4] {
    let mut lanes = [0.0f64; 4];
    // SAFETY: the array has the size of the vector; the store needs no alignment.
    unsafe { _mm256_storeu_pd(lanes.as_mut_ptr(), x) };
    lanes
}

/// Thirty-two elements, or their squares, added up to eight.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn to_eight(x: [__m256; 4]) -> __m256 {
    _mm256_add_ps(_mm256_add_ps(x[0], x[1]), _mm256_add_ps(x[2], x[3]))
}

/// The sums of a block and of its squares, of 64 elements at a time.
struct Sums {
    sum: __m256d,
    squares: __m256d,
}

/// Thirty-two elements added up to eight, and their squares.
#[derive(Clone, Copy)]
struct Eights(__m256, __m256);

impl Eights {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn of(x: [__m256; 4]) -> Self {
        let square = |x| _mm256_mul_ps(x, x);
        Self(to_eight(x), to_eight([square(x[0]), square(x[1]), square(x[2]), square(x[3])]))
    }
}

impl Sums {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new() -> Self {
        Self { sum: _mm256_setzero_pd(), squares: _mm256_setzero_pd() }
    }

    /// Adds two times 32 elements.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_pair(&mut self, a: Eights, b: Eights) {
        self.add(Eights(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)));
    }

    /// Adds the last 32 elements, where their number is odd.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add(&mut self, Eights(sum, squares): Eights) {
        let four = |x| _mm256_cvtps_pd(_mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
        self.sum = _mm256_add_pd(self.sum, four(sum));
        self.squares = _mm256_add_pd(self.squares, four(squares));
    }

    #[target_feature(enable = "avx2")]
    fn fold(self) -> (f64, f64) {
        (fold(doubles(self.sum)), fold(doubles(self.squares)))
    }
}
