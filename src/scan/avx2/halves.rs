//! The look at the elements of half precision: extremes and fields sixteen at a time, sums of each 64 in `f32`.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::load::{Bf16, F16, Format};
use super::{Eights, Fields, STEP, Sums};

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
    let (pairs, rest) = bytes.as_chunks::<{ 4 * STEP }>();
    let places = fields.places();
    let (pairs_of_places, rest_of_places) = places.as_chunks_mut::<2>();
    // Loops, not closures: what a closure is handed to has not the features, and nothing would be inlined.
    for (pair, [first, second]) in pairs.iter().zip(&mut *pairs_of_places) {
        let (a, b) = halves_of(pair);
        let (a, b) = (state.take::<H, NOTE>(a, first), state.take::<H, NOTE>(b, second));
        state.sums.add_pair(a, b);
    }
    if !rest.is_empty() {
        let mut padded = [0; 4 * STEP];
        padded[..rest.len()].copy_from_slice(rest);
        let (a, b) = halves_of(&padded);
        if let Some([first, second]) = pairs_of_places.get_mut(pairs.len()) {
            let (a, b) = (state.take::<H, NOTE>(a, first), state.take::<H, NOTE>(b, second));
            state.sums.add_pair(a, b);
        } else if let [last] = rest_of_places {
            let a = state.take::<H, NOTE>(a, last);
            state.sums.add(a);
        }
    }
    state.finish::<NOTE>()
}

/// The two steps of a pair.
#[inline(always)]
fn halves_of(pair: &[u8; 4 * STEP]) -> (&[u8; 2 * STEP], &[u8; 2 * STEP]) {
    let (steps, _) = pair.as_chunks();
    (&steps[0], &steps[1])
}

struct State {
    most: __m256i,
    least: __m256i,
    /// In lanes of 16 bits, which a block's vectors of 16 elements cannot overflow.
    zeros: __m256i,
    sums: Sums,
}

impl State {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new() -> Self {
        let (most, least) = (_mm256_setzero_si256(), _mm256_set1_epi16(-1));
        let zeros = _mm256_setzero_si256();
        Self { most, least, zeros, sums: Sums::new() }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn take<H: Half, const NOTE: u8>(&mut self, step: &[u8; 2 * STEP], to: &mut [MaybeUninit<u8>; STEP]) -> Eights {
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
        Eights::of(x)
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
        let (sum, sum_squares) = self.sums.fold();
        let least = lanes(self.least).into_iter().fold(u16::MAX, u16::min);
        HalfSweep {
            min: if NOTE == note::NOTHING { least } else { least.wrapping_add(1) } >> 1,
            max: lanes(self.most).into_iter().fold(0, u16::max) >> 1,
            zeros: lanes(self.zeros).into_iter().map(u32::from).sum(),
            sum,
            sum_squares,
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
