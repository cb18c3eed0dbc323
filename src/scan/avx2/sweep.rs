//! The look at the elements themselves: extremes, sums, and each exponent field put down as a byte.

use std::arch::x86_64::*;

use super::super::block::fold;
use super::load::Load;
use super::{Eights, Fields, STEP, Sums, doubles, store};

/// What one sweep over a block found. Without `MASK`, the sums hold only if `max` is finite, and only if they suffice in `f32`.
pub(super) struct Sweep {
    pub nan: u32,
    pub pos_inf: u32,
    pub neg_inf: u32,
    /// Without fields: zeros, the padding and what was masked among them.
    pub zeros: u32,
    pub min: f32,
    pub max: f32,
    pub sum: f64,
    pub sum_squares: f64,
}

/// Sweeps over the block and fills `fields`; without `FIELDS` it leaves them alone and counts the zeros, which they would tell.
///
/// With `MASK` elements that are not finite are counted and then taken as zeros, in the fields as well. It costs a third more,
/// so it is done only where the sweep without it, or a block before, has met one.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn sweep<const FIELDS: bool, const MASK: bool>(load: &impl Load, fields: &mut Fields) -> Sweep {
    let (mut sums, mut first) = (Sums::new(), None);
    let mut most = _mm256_setzero_si256();
    let mut least = _mm256_set1_epi32(-1);
    let mut zeros = _mm256_setzero_si256();
    let mut special = Special::new();
    for (at, fields) in (0..load.len()).step_by(STEP).zip(fields.steps()) {
        // SAFETY: `at` is below the length, and this function has the features.
        let mut x = unsafe { load.step(at) };
        let mut exponents = [_mm256_setzero_si256(); 4];
        for k in 0..4 {
            if MASK {
                x[k] = special.take(x[k]);
            }
            let bits = _mm256_castps_si256(x[k]);
            // Without the sign, the magnitudes of floats are ordered as integers.
            let doubled = _mm256_add_epi32(bits, bits);
            most = _mm256_max_epu32(most, doubled);
            // Zero wraps round to the largest and so is never the least.
            least = _mm256_min_epu32(least, _mm256_sub_epi32(doubled, _mm256_set1_epi32(1)));
            if FIELDS {
                exponents[k] = _mm256_srli_epi32(doubled, 24);
            } else {
                zeros = _mm256_sub_epi32(zeros, _mm256_cmpeq_epi32(doubled, _mm256_setzero_si256()));
            }
        }
        if FIELDS {
            store(pack(exponents), fields);
        }
        match first.take() {
            Some(first) => sums.add_pair(first, Eights::of(x)),
            None => first = Some(Eights::of(x)),
        }
    }
    first.into_iter().for_each(|last| sums.add(last));
    let (sum, sum_squares) = sums.fold();
    Sweep {
        nan: add_up(special.nan),
        pos_inf: add_up(special.pos_inf),
        neg_inf: add_up(special.neg_inf),
        zeros: if FIELDS { 0 } else { add_up(zeros) },
        min: f32::from_bits(lanes(least).into_iter().fold(u32::MAX, u32::min).wrapping_add(1) >> 1),
        max: f32::from_bits(lanes(most).into_iter().fold(0, u32::max) >> 1),
        sum,
        sum_squares,
    }
}

/// The sums of the finite elements and of their squares, element by element in `f64`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn exact_sums(load: &impl Load) -> (f64, f64) {
    let zero = _mm256_setzero_pd();
    let (mut sum, mut squares) = ([zero; 4], [zero; 4]);
    let mut special = Special::new();
    for at in (0..load.len()).step_by(STEP) {
        // SAFETY: `at` is below the length, and this function has the features.
        let x = unsafe { load.step(at) };
        for (k, x) in x.into_iter().enumerate() {
            let x = special.take(x);
            let (low, high) = (_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
            for (half, x) in [_mm256_cvtps_pd(low), _mm256_cvtps_pd(high)].into_iter().enumerate() {
                let lane = k % 2 * 2 + half;
                sum[lane] = _mm256_add_pd(sum[lane], x);
                // The product of two `f32` is exact in `f64`: fused or not, the result is the same.
                squares[lane] = _mm256_fmadd_pd(x, x, squares[lane]);
            }
        }
    }
    (fold_lanes(sum), fold_lanes(squares))
}

/// Fills `fields` with the exponent fields of the elements as `f32`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn write_fields(load: &impl Load, fields: &mut Fields) {
    for (at, fields) in (0..load.len()).step_by(STEP).zip(fields.steps()) {
        // SAFETY: `at` is below the length, and this function has the features.
        store(f32_fields(unsafe { load.step(at) }), fields);
    }
}

/// The exponent fields of 32 elements, a byte each.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn f32_fields(x: [__m256; 4]) -> __m256i {
    // The upper halves of two vectors in one: the fields are in them, the order does not matter.
    let upper = |a, b| _mm256_blend_epi16(_mm256_srli_epi32(_mm256_castps_si256(a), 16), _mm256_castps_si256(b), 0xaa);
    let field = |x| _mm256_srli_epi16(_mm256_add_epi16(x, x), 8);
    _mm256_packus_epi16(field(upper(x[0], x[1])), field(upper(x[2], x[3])))
}

/// Fills `fields` with `127 + e` where the element is a subnormal `2^e` to `2^(e+1)` times the smallest, else with 0.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn write_subnormal_fields(load: &impl Load, fields: &mut Fields) {
    for (at, fields) in (0..load.len()).step_by(STEP).zip(fields.steps()) {
        // SAFETY: `at` is below the length, and this function has the features.
        let x = unsafe { load.step(at) };
        store(
            pack([subnormal_field(x[0]), subnormal_field(x[1]), subnormal_field(x[2]), subnormal_field(x[3])]),
            fields,
        );
    }
}

#[target_feature(enable = "avx2")]
fn subnormal_field(x: __m256) -> __m256i {
    let magnitude = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fff_ffff));
    let small = _mm256_cmpgt_epi32(_mm256_set1_epi32(1 << 23), magnitude);
    let as_integer = _mm256_castps_si256(_mm256_cvtepi32_ps(magnitude));
    _mm256_and_si256(small, _mm256_srli_epi32(as_integer, 23))
}

/// Counts of what is not finite, in lanes.
struct Special {
    nan: __m256i,
    pos_inf: __m256i,
    neg_inf: __m256i,
}

impl Special {
    #[target_feature(enable = "avx2")]
    fn new() -> Self {
        let zero = _mm256_setzero_si256();
        Self { nan: zero, pos_inf: zero, neg_inf: zero }
    }

    /// Counts what is not finite and puts zeros in its place. A comparison yields -1 where it holds.
    #[target_feature(enable = "avx2")]
    fn take(&mut self, x: __m256) -> __m256 {
        let bits = _mm256_castps_si256(x);
        let infinity = _mm256_set1_epi32(0x7f80_0000);
        let magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fff_ffff));
        self.nan = _mm256_sub_epi32(self.nan, _mm256_cmpgt_epi32(magnitude, infinity));
        self.pos_inf = _mm256_sub_epi32(self.pos_inf, _mm256_cmpeq_epi32(bits, infinity));
        let negative = _mm256_set1_epi32(0xff80_0000_u32 as i32);
        self.neg_inf = _mm256_sub_epi32(self.neg_inf, _mm256_cmpeq_epi32(bits, negative));
        _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_cmpgt_epi32(infinity, magnitude)))
    }
}

/// Thirty-two integers below 256 as bytes. Their order is lost; for counting it does not matter.
#[target_feature(enable = "avx2")]
fn pack(x: [__m256i; 4]) -> __m256i {
    _mm256_packus_epi16(_mm256_packus_epi32(x[0], x[1]), _mm256_packus_epi32(x[2], x[3]))
}

#[target_feature(enable = "avx2")]
fn lanes(x: __m256i) -> [u32; 8] {
    let mut lanes = [0u32; 8];
    // SAFETY: the array has the size of the vector; the store needs no alignment.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), x) };
    lanes
}

#[target_feature(enable = "avx2")]
fn add_up(x: __m256i) -> u32 {
    lanes(x).into_iter().sum()
}

#[target_feature(enable = "avx2")]
fn fold_lanes(x: [__m256d; 4]) -> f64 {
    let mut lanes = [0.0f64; 16];
    for (x, to) in x.into_iter().zip(lanes.as_chunks_mut::<4>().0) {
        *to = doubles(x);
    }
    fold(lanes)
}
