//! One pass over a tensor's memory: counts, extremes, sums and the exact histogram of binary exponents.

mod histogram;
mod scaled;
mod stats;
mod view;

pub use histogram::ExponentHistogram;
pub use scaled::Scaled;
pub use stats::Stats;
pub use view::{Dtype, TensorView};

/// Scans every element that `view` describes, in one pass.
///
/// # Safety
/// Every element that the view's sizes and strides reach from its data pointer must be readable for the length of the call.
pub unsafe fn scan(view: &TensorView<'_>) -> Stats {
    // SAFETY: the caller's promise, passed on.
    unsafe { stats::scan_naive(view) }
}

/// Scans `new - old`, element by element, without storing the difference.
///
/// `old` is a copy of the memory of `new`'s tensor, dense, in the same order and dtype. Half and bfloat16 differences are taken
/// in `f32` (exact), so the result's exponents may lie below the format's own range.
///
/// # Safety
/// As for [`scan`]; and `new` must be dense and `old` hold as many bytes as `new` does.
pub unsafe fn scan_difference(new: &TensorView<'_>, old: &[u8]) -> Stats {
    // SAFETY: the caller's promise, passed on.
    unsafe { stats::scan_difference_naive(new, old) }
}
