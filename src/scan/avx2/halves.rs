//! The look at the elements of half precision: extremes and fields sixteen at a time, sums of each 32 in `f32`.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::super::block::fold;
use super::load::{Bf16, F16, Format};
use super::{Fields, STEP, add_four};

/// A format of 16 bits.
pub(super) trait Half: Format {
    /// Shifted right by so many bits, the doubled element is its exponent field.
    const SHIFT: i32;
    /// What to add to the exponent field for that of `f32`.
    const BIAS: u8;
    /// The smallest number whose field is not 0, where `f32` tells the smaller ones apart; else 0.
    const MIN_NORMAL: f32;

    /// The element with these bits.
    fn from_bits(bits: u16) -> f32;

    /// Sixteen elements as `f32`, in the order of [`super::super::block::SumOrder`].
    ///
    /// # Safety
    /// `elements` lie at `from`, and the processor has AVX2 and F16C.
    unsafe fn widen(elements: __m256i, from: *const u8) -> [__m256; 2];
}

impl Half for F16 {
    const SHIFT: i32 = 11;
    const BIAS: u8 = 112;
    const MIN_NORMAL: f32 = half::f16::MIN_POSITIVE.to_f32_const();

    fn from_bits(bits: u16) -> f32 {
        half::f16::from_bits(bits).to_f32()
    }

    #[inline(always)]
    unsafe fn widen(_: __m256i, from: *const u8) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe { [Self::eight(from), Self::eight(from.add(16))] }
    }
}

impl Half for Bf16 {
    const SHIFT: i32 = 8;
    const BIAS: u8 = 0;
    const MIN_NORMAL: f32 = 0.0;

    fn from_bits(bits: u16) -> f32 {
        half::bf16::from_bits(bits).to_f32()
    }

    #[inline(always)]
    unsafe fn widen(elements: __m256i, _: *const u8) -> [__m256; 2] {
        // SAFETY: the features are the caller's promise.
        unsafe {
            let odd = _mm256_and_si256(elements, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            [_mm256_castsi256_ps(_mm256_slli_epi32(elements, 16)), _mm256_castsi256_ps(odd)]
        }
    }
}

/// What one sweep over a block of halves found.
pub(super) struct HalfSweep {
    /// Smallest magnitude that is not zero, as bits; 0 where there is none.
    pub min: u16,
    /// Largest magnitude, as bits: if it is not finite, the sums do not hold.
    pub max: u16,
    /// Zeros, the padding among them, where they are counted.
    pub zeros: u32,
    pub sum: f64,
    pub sum_squares: f64,
}

/// What a sweep puts down of each element.
pub(super) mod note {
    /// The format's own exponent field.
    pub const OWN_FIELD: u8 = 0;
    /// The exponent field of the element as `f32`.
    pub const F32_FIELD: u8 = 1;
    /// Nothing, but zeros are counted.
    pub const ZEROS: u8 = 2;
    /// Nothing: where there is a zero, the padding too, the smallest magnitude is 0. A tenth faster than counting.
    pub const NOTHING: u8 = 3;
}

/// Sweeps over the block and puts down in `fields` what `NOTE`, one of [`note`], says.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn sweep<H: Half, const NOTE: u8>(bytes: &[u8], fields: &mut Fields) -> HalfSweep {
    let mut state = State::new();
    let (steps, rest) = bytes.as_chunks::<{ 2 * STEP }>();
    for (step, to) in steps.iter().zip(fields.steps()) {
        state.take::<H, NOTE>(step, to);
    }
    if !rest.is_empty() {
        let mut padded = [0; 2 * STEP];
        padded[..rest.len()].copy_from_slice(rest);
        if let Some(to) = fields.steps().nth(steps.len()) {
            state.take::<H, NOTE>(&padded, to);
        }
    }
    state.finish::<NOTE>()
}

struct State {
    most: __m256i,
    least: __m256i,
    /// In lanes of 16 bits, which a block's vectors of 16 elements cannot overflow.
    zeros: __m256i,
    sum: __m256d,
    squares: __m256d,
}

impl State {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new() -> Self {
        let (most, least) = (_mm256_setzero_si256(), _mm256_set1_epi16(-1));
        let zeros = _mm256_setzero_si256();
        Self { most, least, zeros, sum: _mm256_setzero_pd(), squares: _mm256_setzero_pd() }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn take<H: Half, const NOTE: u8>(&mut self, step: &[u8; 2 * STEP], to: &mut [MaybeUninit<u8>; STEP]) {
        let from = step.as_ptr();
        // SAFETY: a step is two vectors; loads need no alignment; this function has the features.
        let (a, b, x) = unsafe {
            let (a, b) = (_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast()));
            let ([x0, x1], [x2, x3]) = (H::widen(a, from), H::widen(b, from.add(32)));
            (a, b, [x0, x1, x2, x3])
        };
        let (a, b) = (self.widen_range::<NOTE>(a), self.widen_range::<NOTE>(b));
        let shift = _mm_cvtsi32_si128(H::SHIFT);
        match NOTE {
            note::F32_FIELD => super::store(super::sweep::f32_fields(x), to),
            note::ZEROS => {
                let zero = |x| _mm256_cmpeq_epi16(x, _mm256_setzero_si256());
                // A comparison yields -1 where it holds.
                self.zeros = _mm256_sub_epi16(self.zeros, _mm256_add_epi16(zero(a), zero(b)));
            }
            note::NOTHING => {}
            _ => super::store(_mm256_packus_epi16(_mm256_srl_epi16(a, shift), _mm256_srl_epi16(b, shift)), to),
        }
        self.sum = _mm256_add_pd(self.sum, add_four(x));
        self.squares = _mm256_add_pd(self.squares, add_four(x.map(|x| _mm256_mul_ps(x, x))));
    }

    /// Takes in the extremes, and returns the elements doubled: without their sign.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn widen_range<const NOTE: u8>(&mut self, elements: __m256i) -> __m256i {
        // Without the sign, the magnitudes of floats are ordered as integers.
        let doubled = _mm256_add_epi16(elements, elements);
        self.most = _mm256_max_epu16(self.most, doubled);
        // Zero wraps round to the largest and so is never the least.
        let one = _mm256_set1_epi16(1);
        let magnitude = if NOTE == note::NOTHING { doubled } else { _mm256_sub_epi16(doubled, one) };
        self.least = _mm256_min_epu16(self.least, magnitude);
        doubled
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn finish<const NOTE: u8>(self) -> HalfSweep {
        let least = lanes(self.least).into_iter().fold(u16::MAX, u16::min);
        HalfSweep {
            min: if NOTE == note::NOTHING { least } else { least.wrapping_add(1) } >> 1,
            max: lanes(self.most).into_iter().fold(0, u16::max) >> 1,
            zeros: lanes(self.zeros).into_iter().map(u32::from).sum(),
            sum: fold(super::doubles(self.sum)),
            sum_squares: fold(super::doubles(self.squares)),
        }
    }
}

#[target_feature(enable = "avx2")]
fn lanes(x: __m256i) -> [u16; 16] {
    let mut lanes = [0u16; 16];
    // SAFETY: the array has the size of the vector; the store needs no alignment.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), x) };
    lanes
}
