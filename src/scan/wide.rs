//! The kernel for `f64`: plain loops, compiled once for any processor and once for AVX2.
//!
//! Three looks at a block in the first-level cache: extremes; sums, scaled by the power of two of the largest element so that
//! no square overflows and none that matters underflows; exponents, in interleaved tables.

use super::block::fold;
use super::{Scaled, Stats};

/// Elements in a block: 8 KB of them, and their counts fit 16 bits.
pub(super) const WIDE_BLOCK: usize = 1024;

/// Below this many elements, clearing and adding up the tables costs more than it saves.
const FEW: usize = 256;

const LANES: usize = 8;
const TABLES: usize = 4;
const FIELDS: usize = 2048;

/// The exponent range within which squares are safe unscaled.
const SAFE: i32 = 400;

/// The tables of one scan; cleared after each block where it has counted.
pub(super) struct Tables(Vec<[[u16; FIELDS]; TABLES]>);

impl Tables {
    /// No memory is taken before the first block that needs it.
    pub fn new() -> Self {
        Self(Vec::new())
    }

    fn get(&mut self) -> &mut [[u16; FIELDS]; TABLES] {
        if self.0.is_empty() {
            self.0.push([[0; FIELDS]; TABLES]);
        }
        &mut self.0[0]
    }
}

/// Adds at most [`WIDE_BLOCK`] elements of `new`, or of `new - old`, to `stats`, with or without their exponents.
#[inline(always)]
pub(super) fn block<const HISTOGRAM: bool>(new: &[u8], old: Option<&[u8]>, tables: &mut Tables, stats: &mut Stats) {
    let new = new.as_chunks().0;
    let Some(old) = old.map(|old| old.as_chunks().0) else {
        return scan::<HISTOGRAM>(new, tables, stats);
    };
    let mut difference = [[0; 8]; WIDE_BLOCK];
    for ((x, &new), &old) in difference.iter_mut().zip(new).zip(old) {
        *x = (f64::from_ne_bytes(new) - f64::from_ne_bytes(old)).to_ne_bytes();
    }
    scan::<HISTOGRAM>(&difference[..new.len().min(old.len())], tables, stats);
}

/// The first elements, then zeros.
#[inline(always)]
fn decode(from: &[[u8; 8]]) -> [f64; LANES] {
    match from.first_chunk::<LANES>() {
        Some(group) => group.map(f64::from_ne_bytes),
        None => std::array::from_fn(|i| from.get(i).map_or(0.0, |&bytes| f64::from_ne_bytes(bytes))),
    }
}

#[inline(always)]
fn scan<const HISTOGRAM: bool>(elements: &[[u8; 8]], tables: &mut Tables, stats: &mut Stats) {
    let count = elements.len();
    let groups = || (0..count).step_by(LANES).map(|at| decode(&elements[at..]));
    let seen = extremes::<HISTOGRAM>(groups());
    if seen.non_finite > 0.0 {
        count_special(groups(), stats);
    }
    let before = if HISTOGRAM { stats.exponents.total() } else { 0 };
    if seen.max > 0.0 {
        stats.widen(seen.min, seen.max);
        add_sums(groups(), exponent_of(seen.max), stats);
        if HISTOGRAM {
            count_exponents(groups, count, &seen, tables, stats);
        }
    }
    stats.count += count as u64;
    stats.zeros += match HISTOGRAM {
        true => count as u64 - (stats.exponents.total() - before) - seen.non_finite as u64,
        false => seen.zeros as u64 - (count.next_multiple_of(LANES) - count) as u64,
    };
}

/// What the first look at a block finds.
struct Extremes {
    /// Smallest magnitude of the finite non-zero elements.
    min: f64,
    /// Largest magnitude of the finite elements.
    max: f64,
    /// Zeros, the padding among them; counted only where no histogram tells them.
    zeros: f64,
    non_finite: f64,
}

#[inline(always)]
fn extremes<const HISTOGRAM: bool>(groups: impl Iterator<Item = [f64; LANES]>) -> Extremes {
    let (mut least, mut most, mut special) = ([f64::INFINITY; LANES], [0.0f64; LANES], [0.0; LANES]);
    let mut zeros = [0.0; LANES];
    for x in groups {
        for lane in 0..LANES {
            let magnitude = x[lane].abs();
            let finite = magnitude < f64::INFINITY;
            let known = if finite { magnitude } else { 0.0 };
            let non_zero = if known > 0.0 { known } else { f64::INFINITY };
            special[lane] += if finite { 0.0 } else { 1.0 };
            if !HISTOGRAM {
                zeros[lane] += if magnitude == 0.0 { 1.0 } else { 0.0 };
            }
            most[lane] = if known > most[lane] { known } else { most[lane] };
            least[lane] = if non_zero < least[lane] { non_zero } else { least[lane] };
        }
    }
    Extremes {
        min: least.into_iter().fold(f64::INFINITY, f64::min),
        max: most.into_iter().fold(0.0, f64::max),
        zeros: zeros.into_iter().sum(),
        non_finite: special.into_iter().sum(),
    }
}

#[inline(always)]
fn add_sums(groups: impl Iterator<Item = [f64; LANES]>, top: i32, stats: &mut Stats) {
    // Scaled up by at most 2^1000: even the smallest subnormal then has a normal square.
    let by = if top.abs() <= SAFE { 0 } else { (-top).clamp(-1022, 1000) };
    let scale = super::scaled::power_of_two(by);
    let (mut sum, mut squares) = ([0.0; LANES], [0.0; LANES]);
    for x in groups {
        for lane in 0..LANES {
            let x = if x[lane].abs() < f64::INFINITY { x[lane] * scale } else { 0.0 };
            sum[lane] += x;
            squares[lane] += x * x;
        }
    }
    stats.sum = stats.sum + Scaled::new(fold(sum), -by);
    stats.sum_squares = stats.sum_squares + Scaled::new(fold(squares), -2 * by);
}

fn count_special(groups: impl Iterator<Item = [f64; LANES]>, stats: &mut Stats) {
    for x in groups.flatten().filter(|x| !x.is_finite()) {
        if x.is_nan() {
            stats.nan += 1;
        } else if x > 0.0 {
            stats.pos_inf += 1;
        } else {
            stats.neg_inf += 1;
        }
    }
}

#[inline(always)]
fn count_exponents<G: Iterator<Item = [f64; LANES]>>(
    groups: impl Fn() -> G,
    count: usize,
    seen: &Extremes,
    tables: &mut Tables,
    stats: &mut Stats,
) {
    if count < FEW {
        return count_singly(groups(), stats);
    }
    count_in_tables(groups(), exponent_of(seen.min), exponent_of(seen.max), tables.get(), stats);
    if seen.min < f64::MIN_POSITIVE {
        count_subnormals(groups(), stats);
    }
}

fn count_singly(groups: impl Iterator<Item = [f64; LANES]>, stats: &mut Stats) {
    for x in groups.flatten().filter(|&x| x.is_finite() && x != 0.0) {
        stats.exponents.add(exponent_of(x), 1);
    }
}

/// Counts the elements that share their exponent field with zero.
fn count_subnormals(groups: impl Iterator<Item = [f64; LANES]>, stats: &mut Stats) {
    let mut counts = [0; 52];
    for magnitude in groups.flatten().map(|x| x.abs().to_bits()) {
        if magnitude < 1 << 52 && magnitude > 0 {
            counts[63 - magnitude.leading_zeros() as usize] += 1;
        }
    }
    stats.exponents.add_counts(-1074, &counts);
}

#[inline(always)]
fn count_in_tables(
    groups: impl Iterator<Item = [f64; LANES]>,
    low: i32,
    high: i32,
    tables: &mut [[u16; FIELDS]; TABLES],
    stats: &mut Stats,
) {
    for x in groups {
        for lane in 0..LANES {
            tables[lane % TABLES][(x[lane].to_bits() >> 52) as usize % FIELDS] += 1;
        }
    }
    for exponent in low.max(-1022)..=high {
        let field = (exponent + 1023) as usize;
        let count = tables.iter_mut().map(|table| u64::from(std::mem::take(&mut table[field]))).sum();
        stats.exponents.add(exponent, count);
    }
    // Zeros, subnormals and what is not finite were counted along with the rest.
    for table in tables {
        (table[0], table[FIELDS - 1]) = (0, 0);
    }
}

/// `floor(log2 |x|)` of a finite number that is not zero.
fn exponent_of(x: f64) -> i32 {
    let bits = x.abs().to_bits();
    match (bits >> 52) as i32 {
        0 => -1011 - bits.leading_zeros() as i32,
        field => field - 1023,
    }
}
