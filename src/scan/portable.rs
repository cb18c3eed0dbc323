//! The kernel for any processor: loops that the compiler can vectorise, and interleaved tables for the exponents.

use super::Dtype;
use super::block::{BLOCK, Block, EXPONENTS, LANES, fold};

/// Neighbours often share an exponent; counted in one table, each would wait for the store of the one before.
const TABLES: usize = 4;

/// Scans at most [`BLOCK`] elements of `new`, or of `new - old`, as `f32`. Not for `f64`.
pub(super) fn block(dtype: Dtype, new: &[u8], old: Option<&[u8]>) -> Block {
    match dtype {
        Dtype::F16 => either(new, old, f16_to_f32),
        Dtype::Bf16 => either(new, old, |bytes| f32::from_bits(u32::from(u16::from_ne_bytes(bytes)) << 16)),
        Dtype::F32 | Dtype::F64 => either(new, old, f32::from_ne_bytes),
    }
}

fn either<const SIZE: usize>(new: &[u8], old: Option<&[u8]>, decode: impl Fn([u8; SIZE]) -> f32) -> Block {
    let new = new.as_chunks::<SIZE>().0;
    match old.map(|old| old.as_chunks::<SIZE>().0) {
        None => scan(new.len(), |at, x| decode_into(x, &new[at..], &decode)),
        Some(old) => scan(new.len().min(old.len()), |at, x| {
            let mut y = [0.0; LANES];
            decode_into(x, &new[at..], &decode);
            decode_into(&mut y, &old[at..], &decode);
            for (x, y) in x.iter_mut().zip(y) {
                *x -= y;
            }
        }),
    }
}

/// Fills `x` with the first elements; what the elements do not reach stays as it was.
fn decode_into<const SIZE: usize>(x: &mut [f32; LANES], from: &[[u8; SIZE]], decode: &impl Fn([u8; SIZE]) -> f32) {
    match from.first_chunk::<LANES>() {
        Some(group) => {
            for (x, &bytes) in x.iter_mut().zip(group) {
                *x = decode(bytes);
            }
        }
        None => {
            for (x, &bytes) in x.iter_mut().zip(from) {
                *x = decode(bytes);
            }
        }
    }
}

/// Without branches, so that it vectorises: a subnormal is scaled up to a normal number by a product that is exact.
fn f16_to_f32(bytes: [u8; 2]) -> f32 {
    let half = u32::from(u16::from_ne_bytes(bytes));
    let finite = f32::from_bits((half & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    let special = f32::from_bits((half & 0x7fff) << 13 | 0xff << 23);
    let magnitude = if half & 0x7c00 == 0x7c00 { special } else { finite };
    f32::from_bits(magnitude.to_bits() | (half & 0x8000) << 16)
}

/// `load(at, x)` puts the elements from `at` on into `x`, which holds zeros.
fn scan(count: usize, load: impl Fn(usize, &mut [f32; LANES])) -> Block {
    debug_assert!(count <= BLOCK);
    let groups = || {
        (0..count).step_by(LANES).map(|at| {
            let mut x = [0.0; LANES];
            load(at, &mut x);
            x
        })
    };
    let sweep = sweep(groups());
    let special = if sweep.fields[255] > 0 { Special::of(groups()) } else { Special::default() };
    let mut exponents = [0; EXPONENTS];
    exponents[23..].copy_from_slice(&sweep.fields[1..255]);
    // A least magnitude of 0 says that there is none but zeros.
    let below = if (1..1 << 23).contains(&sweep.min) { count_subnormals(groups(), &mut exponents) } else { 0 };
    let (sum, sum_squares) = special.sums.unwrap_or(sweep.sums);
    Block {
        count: count as u32,
        zeros: sweep.fields[0] - below - (count.next_multiple_of(LANES) - count) as u32,
        nan: special.nan,
        pos_inf: special.pos_inf,
        neg_inf: special.neg_inf,
        min: f32::from_bits(sweep.min),
        max: f32::from_bits(special.max.unwrap_or(sweep.max)),
        sum,
        sum_squares,
        exponents,
    }
}

/// The first look at a block. Sums and the maximum hold unless an element is not finite.
struct Sweep {
    sums: (f64, f64),
    min: u32,
    max: u32,
    fields: [u32; 256],
}

fn sweep(groups: impl Iterator<Item = [f32; LANES]>) -> Sweep {
    let (mut sum, mut squares) = ([0.0; LANES], [0.0; LANES]);
    let (mut least, mut most) = ([u32::MAX; LANES], [0; LANES]);
    let mut tables = [[0u32; 256]; TABLES];
    for x in groups {
        for lane in 0..LANES {
            let wide = f64::from(x[lane]);
            sum[lane] += wide;
            squares[lane] += wide * wide;
        }
        for lane in 0..LANES {
            let magnitude = x[lane].to_bits() & 0x7fff_ffff;
            most[lane] = most[lane].max(magnitude);
            // Zero wraps round to the largest and so is never the least.
            least[lane] = least[lane].min(magnitude.wrapping_sub(1));
        }
        for lane in 0..LANES {
            tables[lane % TABLES][(x[lane].to_bits() >> 23 & 0xff) as usize] += 1;
        }
    }
    let least = least.into_iter().fold(u32::MAX, u32::min);
    Sweep {
        sums: (fold(sum), fold(squares)),
        min: least.wrapping_add(1),
        max: most.into_iter().fold(0, u32::max),
        fields: std::array::from_fn(|i| tables.iter().map(|table| table[i]).sum()),
    }
}

/// The second look at a block with elements that are not finite: what they are, and the rest without them.
#[derive(Default)]
struct Special {
    nan: u32,
    pos_inf: u32,
    neg_inf: u32,
    max: Option<u32>,
    sums: Option<(f64, f64)>,
}

impl Special {
    fn of(groups: impl Iterator<Item = [f32; LANES]>) -> Self {
        let mut special = Self::default();
        let (mut sum, mut squares, mut max) = ([0.0; LANES], [0.0; LANES], 0);
        for (lane, x) in groups.flat_map(|x| x.into_iter().enumerate()) {
            if x.is_finite() {
                let wide = f64::from(x);
                sum[lane] += wide;
                squares[lane] += wide * wide;
                max = max.max(x.abs().to_bits());
            } else if x.is_nan() {
                special.nan += 1;
            } else if x > 0.0 {
                special.pos_inf += 1;
            } else {
                special.neg_inf += 1;
            }
        }
        Self { max: Some(max), sums: Some((fold(sum), fold(squares))), ..special }
    }
}

/// Counts the subnormals of `f32` at their own exponents, and returns how many there are.
fn count_subnormals(groups: impl Iterator<Item = [f32; LANES]>, exponents: &mut [u32; EXPONENTS]) -> u32 {
    let mut count = 0;
    for magnitude in groups.flatten().map(|x| x.to_bits() & 0x7fff_ffff) {
        if magnitude < 1 << 23 && magnitude > 0 {
            exponents[31 - magnitude.leading_zeros() as usize] += 1;
            count += 1;
        }
    }
    count
}
