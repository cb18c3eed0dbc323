//! The kernel for any processor: loops that the compiler can vectorise, and interleaved tables for the exponents.

use super::block::{BLOCK, Block, EXPONENTS, Exponents, LANES, SumOrder, f32_sums_suffice, fold};
use super::{Dtype, Stats};

/// Elements that are decoded at a time.
const CHUNK: usize = 256;

/// What the number of elements is padded to, with zeros.
const STEP: usize = 32;

/// Neighbours often share an exponent; counted in one table, each would wait for the store of the one before.
const TABLES: usize = 4;

/// Adds at most [`BLOCK`] elements of `new`, or of `new - old`, to `stats`, as `f32`, with or without their exponents. Not for `f64`.
pub(super) fn block<const HISTOGRAM: bool>(dtype: Dtype, new: &[u8], old: Option<&[u8]>, stats: &mut Stats) {
    match (dtype, old) {
        (Dtype::F16, None) => plain::<HISTOGRAM, _>(new, f16_to_f32, SumOrder::InOrder, stats),
        (Dtype::F16, Some(old)) => difference::<HISTOGRAM, _>(new, old, f16_to_f32, stats),
        (Dtype::Bf16, None) => plain::<HISTOGRAM, _>(new, bf16_to_f32, SumOrder::EvenOdd, stats),
        (Dtype::Bf16, Some(old)) => difference::<HISTOGRAM, _>(new, old, bf16_to_f32, stats),
        (Dtype::F32 | Dtype::F64, None) => plain::<HISTOGRAM, _>(new, f32::from_ne_bytes, SumOrder::InOrder, stats),
        (Dtype::F32 | Dtype::F64, Some(old)) => difference::<HISTOGRAM, _>(new, old, f32::from_ne_bytes, stats),
    }
}

fn plain<const HISTOGRAM: bool, const SIZE: usize>(
    new: &[u8],
    decode: impl Fn([u8; SIZE]) -> f32,
    order: SumOrder,
    stats: &mut Stats,
) {
    let new = new.as_chunks().0;
    scan::<HISTOGRAM>(new.len(), |at, x| decode_into(x, &new[at..], &decode), order, stats);
}

fn difference<const HISTOGRAM: bool, const SIZE: usize>(
    new: &[u8],
    old: &[u8],
    decode: impl Fn([u8; SIZE]) -> f32,
    stats: &mut Stats,
) {
    let (new, old) = (new.as_chunks().0, old.as_chunks().0);
    let load = |at: usize, x: &mut [f32; CHUNK]| {
        let mut y = [0.0; CHUNK];
        decode_into(x, &new[at..], &decode);
        decode_into(&mut y, &old[at..], &decode);
        for (x, y) in x.iter_mut().zip(y) {
            *x -= y;
        }
    };
    scan::<HISTOGRAM>(new.len().min(old.len()), load, SumOrder::InOrder, stats);
}

/// Fills `x` with the first elements; what the elements do not reach stays as it was.
fn decode_into<const SIZE: usize>(x: &mut [f32; CHUNK], from: &[[u8; SIZE]], decode: &impl Fn([u8; SIZE]) -> f32) {
    for (x, &bytes) in x.iter_mut().zip(from) {
        *x = decode(bytes);
    }
}

fn bf16_to_f32(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_ne_bytes(bytes)) << 16)
}

/// Without branches, so that it vectorises: the integer value of a subnormal is scaled down by a product that is exact.
fn f16_to_f32(bytes: [u8; 2]) -> f32 {
    let half = i32::from(u16::from_ne_bytes(bytes));
    let magnitude = half & 0x7fff;
    let special = if magnitude >= 0x7c00 { 112 << 23 } else { 0 };
    let normal = (magnitude << 13) + (112 << 23) + special;
    let subnormal = (magnitude as f32 * f32::from_bits((127 - 24) << 23)).to_bits() as i32;
    let unsigned = if magnitude < 0x0400 { subnormal } else { normal };
    f32::from_bits((unsigned | (half & 0x8000) << 16) as u32)
}

/// `load(at, x)` puts the elements from `at` on into `x`, which holds zeros.
fn scan<const HISTOGRAM: bool>(
    count: usize,
    load: impl Fn(usize, &mut [f32; CHUNK]),
    order: SumOrder,
    stats: &mut Stats,
) {
    debug_assert!(count <= BLOCK);
    let chunks = |take: &mut dyn FnMut(&mut [f32])| {
        for at in (0..count).step_by(CHUNK) {
            let mut x = [0.0; CHUNK];
            load(at, &mut x);
            take(&mut x[..(count - at).min(CHUNK).next_multiple_of(STEP)]);
        }
    };
    let mut sweep = Sweep::new(order, HISTOGRAM);
    chunks(&mut |x| sweep.take(x));
    let mut special = Special::default();
    if !sweep.max().is_finite() {
        sweep = Sweep::new(SumOrder::InOrder, HISTOGRAM);
        chunks(&mut |x| {
            special.mask(x);
            sweep.take(x);
        });
    }
    let mut sums = (fold(sweep.sum), fold(sweep.squares));
    if !f32_sums_suffice(sweep.max()) {
        let mut exact = Exact::default();
        chunks(&mut |x| {
            Special::default().mask(x);
            exact.take(x);
        });
        sums = (fold(exact.sum), fold(exact.squares));
    }
    let padding = (count.next_multiple_of(STEP) - count) as u32;
    let mut block = Block {
        count: count as u32,
        zeros: sweep.zeros,
        nan: special.nan,
        pos_inf: special.pos_inf,
        neg_inf: special.neg_inf,
        min: sweep.min(),
        max: sweep.max(),
        sum: sums.0,
        sum_squares: sums.1,
    };
    if let Some(fields) = &sweep.fields {
        let mut exponents = [0; EXPONENTS];
        block.zeros = fields.add_up(&mut exponents);
        // A least magnitude of 0 says that there is none but zeros.
        if (1..1 << 23).contains(&sweep.min().to_bits()) {
            chunks(&mut |x| block.zeros -= count_subnormals(x, &mut exponents));
        }
        block.add_exponents_to(&exponents, stats);
    }
    block.zeros -= padding + block.non_finite();
    block.add_to(stats);
}

/// A look at a block. Its extremes and sums hold unless an element is not finite, its sums where they suffice in `f32`.
struct Sweep {
    order: SumOrder,
    sum: [f64; 4],
    squares: [f64; 4],
    most: u32,
    /// The least magnitude less one, so that zero wraps round to the largest and is never the least.
    least: u32,
    /// The exponent fields, where a histogram is wanted.
    fields: Option<Fields>,
    /// Where none is, the zeros; the padding and what was masked among them.
    zeros: u32,
}

impl Sweep {
    fn new(order: SumOrder, histogram: bool) -> Self {
        let fields = histogram.then(Fields::new);
        Self { order, sum: [0.0; 4], squares: [0.0; 4], most: 0, least: u32::MAX, fields, zeros: 0 }
    }

    fn min(&self) -> f32 {
        f32::from_bits(self.least.wrapping_add(1))
    }

    fn max(&self) -> f32 {
        f32::from_bits(self.most)
    }

    fn take(&mut self, x: &[f32]) {
        match self.order {
            SumOrder::InOrder => self.add(x, |row, lane| SumOrder::InOrder.index(row, lane)),
            SumOrder::EvenOdd => self.add(x, |row, lane| SumOrder::EvenOdd.index(row, lane)),
        }
        let magnitudes = x.iter().map(|x| x.to_bits() & 0x7fff_ffff);
        self.most = magnitudes.clone().fold(self.most, u32::max);
        self.least = magnitudes.clone().map(|m| m.wrapping_sub(1)).fold(self.least, u32::min);
        match &mut self.fields {
            Some(fields) => fields.take(x),
            None => self.zeros += magnitudes.map(|m| u32::from(m == 0)).sum::<u32>(),
        }
    }

    fn add(&mut self, x: &[f32], index: impl Fn(usize, usize) -> usize) {
        for pair in x.as_chunks::<STEP>().0.chunks(2) {
            let (mut eight, mut squares) = ([0.0; 8], [0.0; 8]);
            for (place, step) in pair.iter().enumerate() {
                for lane in 0..8 {
                    let [a, b, c, d]: [f32; 4] = std::array::from_fn(|row| step[index(row, lane)]);
                    let (sum, square) = ((a + b) + (c + d), (a * a + b * b) + (c * c + d * d));
                    (eight[lane], squares[lane]) =
                        if place == 0 { (sum, square) } else { (eight[lane] + sum, squares[lane] + square) };
                }
            }
            for lane in 0..4 {
                self.sum[lane] += f64::from(eight[lane] + eight[lane + 4]);
                self.squares[lane] += f64::from(squares[lane] + squares[lane + 4]);
            }
        }
    }
}

/// How many elements have each exponent field.
struct Fields {
    tables: [[u32; 256]; TABLES],
}

impl Fields {
    fn new() -> Self {
        Self { tables: [[0; 256]; TABLES] }
    }

    fn take(&mut self, x: &[f32]) {
        for four in x.as_chunks::<TABLES>().0 {
            for (table, x) in self.tables.iter_mut().zip(four) {
                table[(x.to_bits() >> 23 & 0xff) as usize] += 1;
            }
        }
    }

    /// Puts the counts of normal numbers at their places, and returns how many elements have the field 0: zeros and subnormals.
    fn add_up(&self, exponents: &mut Exponents) -> u32 {
        let fields: [u32; 256] = std::array::from_fn(|i| self.tables.iter().map(|table| table[i]).sum());
        exponents[23..].copy_from_slice(&fields[1..255]);
        fields[0]
    }
}

/// Counts of what is not finite.
#[derive(Default)]
struct Special {
    nan: u32,
    pos_inf: u32,
    neg_inf: u32,
}

impl Special {
    /// Counts what is not finite and puts zeros in its place.
    fn mask(&mut self, x: &mut [f32]) {
        for x in x {
            self.nan += u32::from(x.is_nan());
            self.pos_inf += u32::from(*x == f32::INFINITY);
            self.neg_inf += u32::from(*x == f32::NEG_INFINITY);
            *x = if x.is_finite() { *x } else { 0.0 };
        }
    }
}

/// Sums of finite elements in `f64`.
#[derive(Default)]
struct Exact {
    sum: [f64; LANES],
    squares: [f64; LANES],
}

impl Exact {
    fn take(&mut self, x: &[f32]) {
        for group in x.as_chunks::<LANES>().0 {
            for ((sum, squares), &x) in self.sum.iter_mut().zip(&mut self.squares).zip(group) {
                let x = f64::from(x);
                *sum += x;
                *squares += x * x;
            }
        }
    }
}

/// Counts the subnormals of `f32` at their own exponents, and returns how many there are.
fn count_subnormals(x: &[f32], exponents: &mut Exponents) -> u32 {
    let mut count = 0;
    for magnitude in x.iter().map(|x| x.to_bits() & 0x7fff_ffff) {
        if magnitude < 1 << 23 && magnitude > 0 {
            exponents[31 - magnitude.leading_zeros() as usize] += 1;
            count += 1;
        }
    }
    count
}
