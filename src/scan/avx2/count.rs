//! The histogram of bytes in a known range.
//!
//! ```text
//! for each 15 values of the range:                  one look at the bytes, which lie in the first-level cache
//!     index = byte - base                           0: below (in the first group: no exponent), 1..=15, or more
//!     for each pair of indices: shuffle looks up 0x01 for the even, 0x10 for the odd, 0 for any other index,
//!         and the answers add up in two counters of 4 bits per byte; before one overflows they go to counters of 8 bits
//! a range of many groups: interleaved tables, a store for each byte
//! ```

use std::arch::x86_64::*;

use super::super::block::BLOCK;

/// Values that one look at the bytes counts: what `pshufb` can tell apart, less the one for "below".
const GROUP: usize = 15;

/// From this many looks on the tables are faster.
const MANY: usize = 8;

/// Additions that a counter of 4 bits bears.
const NIBBLE: usize = 15;

/// Counters of 8 bits bear the vectors of one block.
const _: () = assert!(BLOCK / 32 <= 255);

/// Adds to `counts[i]` the bytes equal to `low + i`, up to `high`, and returns how many bytes are 0.
///
/// Every byte must be 0 or in `low..=high`, and `1 <= low <= high`; there are at most [`BLOCK`] of them.
#[target_feature(enable = "avx2")]
pub(super) fn bytes(bytes: &[[u8; 32]], low: u8, high: u8, counts: &mut [u32]) -> u32 {
    let counts = &mut counts[..(high - low) as usize + 1];
    if counts.len().div_ceil(GROUP) >= MANY {
        return in_tables(bytes, low, counts);
    }
    let mut zeros = 0;
    for (group, counts) in counts.chunks_mut(GROUP).enumerate() {
        let base = low - 1 + (group * GROUP) as u8;
        let found = match counts.len() {
            1..=3 => look::<2>(bytes, base),
            4..=7 => look::<4>(bytes, base),
            8..=11 => look::<6>(bytes, base),
            _ => look::<8>(bytes, base),
        };
        for (count, n) in counts.iter_mut().zip(&found[1..]) {
            *count += n;
        }
        if group == 0 {
            zeros = found[0];
        }
    }
    zeros
}

/// How many bytes are at most `base`, and how many are `base + 1`, ... `base + 2 * PAIRS - 1`.
#[target_feature(enable = "avx2")]
fn look<const PAIRS: usize>(bytes: &[[u8; 32]], base: u8) -> [u32; 16] {
    let mut counters = [_mm256_setzero_si256(); 16];
    let base = _mm256_set1_epi8(base as i8);
    // The shuffle yields 0 for an index whose highest bit is set: raise those above 15 to there.
    let above = _mm256_set1_epi8(0x70);
    for chunk in bytes.chunks(NIBBLE) {
        let mut nibbles = [_mm256_setzero_si256(); PAIRS];
        for vector in chunk {
            // SAFETY: the array has the size of the vector; the load needs no alignment.
            let vector = unsafe { _mm256_loadu_si256(vector.as_ptr().cast()) };
            let index = _mm256_adds_epu8(_mm256_subs_epu8(vector, base), above);
            for (pair, nibbles) in nibbles.iter_mut().enumerate() {
                *nibbles = _mm256_add_epi8(*nibbles, _mm256_shuffle_epi8(pair_table(pair), index));
            }
        }
        let mask = _mm256_set1_epi8(15);
        for (pair, nibbles) in nibbles.into_iter().enumerate() {
            let odd = _mm256_and_si256(_mm256_srli_epi16(nibbles, 4), mask);
            counters[2 * pair] = _mm256_add_epi8(counters[2 * pair], _mm256_and_si256(nibbles, mask));
            counters[2 * pair + 1] = _mm256_add_epi8(counters[2 * pair + 1], odd);
        }
    }
    let mut sums = [0; 16];
    for (four, sums) in counters.as_chunks::<4>().0.iter().zip(sums.as_chunks_mut::<4>().0) {
        add_bytes(four, sums);
    }
    sums
}

/// The table that yields 1 for index `2 * pair` and 16 for the next.
#[target_feature(enable = "avx2")]
fn pair_table(pair: usize) -> __m256i {
    let shift = pair % 4 * 16;
    let (low, high) = if pair < 4 { (0x1001u64 << shift, 0) } else { (0, 0x1001u64 << shift) };
    _mm256_set_epi64x(high as i64, low as i64, high as i64, low as i64)
}

/// The sums of the bytes of four vectors, which come to less than 2^16 in each quarter of a vector.
#[target_feature(enable = "avx2")]
fn add_bytes(x: &[__m256i; 4], to: &mut [u32; 4]) {
    let quarters = x.map(|x| _mm256_sad_epu8(x, _mm256_setzero_si256()));
    let a = _mm256_or_si256(quarters[0], _mm256_slli_epi64(quarters[1], 32));
    let b = _mm256_or_si256(quarters[2], _mm256_slli_epi64(quarters[3], 32));
    let halves = _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let sums = _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    // SAFETY: the array has the size of the vector; the store needs no alignment.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), sums) };
}

fn in_tables(bytes: &[[u8; 32]], low: u8, counts: &mut [u32]) -> u32 {
    // Neighbours often are equal; in one table each would wait for the store of the one before.
    let mut tables = [[0u16; 256]; 8];
    for eight in bytes.as_flattened().as_chunks::<8>().0 {
        for (table, &byte) in tables.iter_mut().zip(eight) {
            table[byte as usize] += 1;
        }
    }
    let total = |value: usize| tables.iter().map(|table| u32::from(table[value])).sum::<u32>();
    for (i, count) in counts.iter_mut().enumerate() {
        *count += total(low as usize + i);
    }
    total(0)
}
