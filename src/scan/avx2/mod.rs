//! The kernel for x86-64 with AVX2 and F16C.
//!
//! Every function here that is not `inline(always)` carries the target features; what is inlined into it inherits them.
//! Nothing is called before [`super::kernel`] has asked the processor.

mod count;
mod load;
mod sweep;

use super::block::{BLOCK, Block, EXPONENTS};
use super::wide::Tables;
use super::{Dtype, Stats};
use load::{Bf16, Difference, F16, F32, Load, Plain};
use sweep::{Sweep, sweep};

/// Elements that one turn of the loops takes: their exponents fill a vector of bytes.
const STEP: usize = 32;

/// The exponent fields of a block, a byte each, padded to whole vectors.
#[repr(align(32))]
struct Fields([u8; BLOCK]);

/// Scans at most [`BLOCK`] elements of `new`, or of `new - old`, as `f32`. Not for `f64`.
///
/// # Safety
/// The processor has AVX2 and F16C.
pub(super) unsafe fn block(dtype: Dtype, new: &[u8], old: Option<&[u8]>) -> Block {
    // SAFETY: the features are the caller's promise.
    unsafe {
        match (dtype, old) {
            (Dtype::F16, None) => scan(Plain::<F16>::new(new)),
            (Dtype::F16, Some(old)) => scan(Difference::<F16>::new(new, old)),
            (Dtype::Bf16, None) => scan(Plain::<Bf16>::new(new)),
            (Dtype::Bf16, Some(old)) => scan(Difference::<Bf16>::new(new, old)),
            (Dtype::F32 | Dtype::F64, None) => scan(Plain::<F32>::new(new)),
            (Dtype::F32 | Dtype::F64, Some(old)) => scan(Difference::<F32>::new(new, old)),
        }
    }
}

/// The kernel for `f64`, compiled for AVX2.
///
/// # Safety
/// The processor has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn wide_block(new: &[u8], old: Option<&[u8]>, tables: &mut Tables, stats: &mut Stats) {
    super::wide::block(new, old, tables, stats);
}

#[target_feature(enable = "avx2,f16c")]
fn scan(load: impl Load) -> Block {
    let count = load.len();
    assert!(count <= BLOCK);
    let padding = (count.next_multiple_of(STEP) - count) as u32;
    let mut fields = Fields([0; BLOCK]);
    let mut seen = sweep::<false>(&load, &mut fields.0);
    if !seen.max.is_finite() {
        seen = sweep::<true>(&load, &mut fields.0);
    }
    let mut block = seen.into_block(count);
    block.zeros =
        count_exponents(&load, &mut fields.0, &mut block) - padding - block.nan - block.pos_inf - block.neg_inf;
    block
}

/// Fills in the exponents, and returns how many elements have none: zeros, padding, and what is not finite.
#[target_feature(enable = "avx2,f16c")]
fn count_exponents(load: &impl Load, fields: &mut [u8; BLOCK], block: &mut Block) -> u32 {
    let padded = block.count.next_multiple_of(STEP as u32) as usize;
    let (low, high) = ((block.min.to_bits() >> 23) as u8, (block.max.to_bits() >> 23) as u8);
    let without = if high > 0 {
        count::bytes(&fields[..padded], low.max(1), high, &mut block.exponents[22 + low.max(1) as usize..])
    } else {
        padded as u32
    };
    if low > 0 || block.max == 0.0 {
        return without;
    }
    // Zeros and subnormals of `f32` share the field 0: tell the subnormals apart, as integers times 2^-149.
    sweep::subnormal_fields(load, fields);
    let others = count::bytes(&fields[..padded], 127, 127 + 22, &mut block.exponents);
    without - (padded as u32 - others)
}

impl Sweep {
    fn into_block(self, count: usize) -> Block {
        Block {
            count: count as u32,
            zeros: 0,
            nan: self.nan,
            pos_inf: self.pos_inf,
            neg_inf: self.neg_inf,
            min: self.min,
            max: self.max,
            sum: self.sum,
            sum_squares: self.sum_squares,
            exponents: [0; EXPONENTS],
        }
    }
}
