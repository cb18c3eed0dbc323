//! Elements of each format as vectors of eight `f32`.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::STEP;

/// A format whose every value is an `f32`.
pub(super) trait Format: Copy {
    /// Bytes of an element.
    const SIZE: usize;

    /// Eight elements from `from`, in their order.
    ///
    /// # Safety
    /// `8 * SIZE` bytes are readable, and the processor has AVX2 and F16C.
    unsafe fn eight(from: *const u8) -> __m256;
}

#[derive(Clone, Copy)]
pub(super) struct F16;
#[derive(Clone, Copy)]
pub(super) struct Bf16;
#[derive(Clone, Copy)]
pub(super) struct F32;

impl Format for F16 {
    const SIZE: usize = 2;

    #[inline(always)]
    unsafe fn eight(from: *const u8) -> __m256 {
        // SAFETY: 16 bytes are readable, the caller says; the load needs no alignment.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
}

impl Format for Bf16 {
    const SIZE: usize = 2;

    #[inline(always)]
    unsafe fn eight(from: *const u8) -> __m256 {
        // SAFETY: 16 bytes are readable, the caller says; the load needs no alignment.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())), 16)) }
    }
}

impl Format for F32 {
    const SIZE: usize = 4;

    #[inline(always)]
    unsafe fn eight(from: *const u8) -> __m256 {
        // SAFETY: 32 bytes are readable, the caller says; the load needs no alignment.
        unsafe { _mm256_loadu_ps(from.cast()) }
    }
}

/// The elements of a block.
pub(super) trait Load: Copy {
    /// How many there are.
    fn len(&self) -> usize;

    /// The [`STEP`] elements from `at` on, zeros where they end.
    ///
    /// # Safety
    /// `at < self.len()`, and the processor has AVX2 and F16C.
    unsafe fn step(&self, at: usize) -> [__m256; STEP / 8];
}

/// A tensor's own elements.
#[derive(Clone, Copy)]
pub(super) struct Plain<'a, F> {
    bytes: &'a [u8],
    format: PhantomData<F>,
}

impl<'a, F: Format> Plain<'a, F> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, format: PhantomData }
    }
}

impl<F: Format> Load for Plain<'_, F> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.bytes.len() / F::SIZE
    }

    #[inline(always)]
    unsafe fn step(&self, at: usize) -> [__m256; STEP / 8] {
        let rest = self.len() - at;
        // SAFETY: `rest` elements lie behind the pointer; fewer than a step are copied to where a step fits.
        unsafe {
            let from = self.bytes.as_ptr().add(at * F::SIZE);
            if rest >= STEP { four::<F>(from) } else { last::<F>(from, rest) }
        }
    }
}

/// The differences of two tensors of the same length, rounded to `f32`.
#[derive(Clone, Copy)]
pub(super) struct Difference<'a, F> {
    new: Plain<'a, F>,
    old: Plain<'a, F>,
}

impl<'a, F: Format> Difference<'a, F> {
    pub fn new(new: &'a [u8], old: &'a [u8]) -> Self {
        let both = new.len().min(old.len());
        Self { new: Plain::new(&new[..both]), old: Plain::new(&old[..both]) }
    }
}

impl<F: Format> Load for Difference<'_, F> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.new.len()
    }

    #[inline(always)]
    unsafe fn step(&self, at: usize) -> [__m256; STEP / 8] {
        // SAFETY: both have the same length, and `at` lies within.
        unsafe {
            let (new, old) = (self.new.step(at), self.old.step(at));
            [
                _mm256_sub_ps(new[0], old[0]),
                _mm256_sub_ps(new[1], old[1]),
                _mm256_sub_ps(new[2], old[2]),
                _mm256_sub_ps(new[3], old[3]),
            ]
        }
    }
}

#[inline(always)]
unsafe fn four<F: Format>(from: *const u8) -> [__m256; STEP / 8] {
    // SAFETY: a whole step is readable, the caller says.
    unsafe {
        [
            F::eight(from),
            F::eight(from.add(8 * F::SIZE)),
            F::eight(from.add(16 * F::SIZE)),
            F::eight(from.add(24 * F::SIZE)),
        ]
    }
}

/// The last step of a block, where `rest` elements are left.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn last<F: Format>(from: *const u8, rest: usize) -> [__m256; STEP / 8] {
    let mut padded = [0u8; STEP * 4];
    let bytes = rest.min(STEP) * F::SIZE;
    // SAFETY: `rest` elements are readable, and an element has at most 4 bytes, so that a step of them fits.
    unsafe {
        std::ptr::copy_nonoverlapping(from, padded.as_mut_ptr(), bytes);
        four::<F>(padded.as_ptr())
    }
}
