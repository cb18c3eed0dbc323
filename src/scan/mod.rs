//! One pass over a tensor's memory: counts, extremes, sums and the exact histogram of binary exponents.
//!
//! ```text
//! layout: drop stride 0 (it multiplies the counts), join dimensions that continue each other
//! one run of memory?  take it as it lies, transposed or not     else: copy the elements together, a block at a time
//! for each block of 4096 elements:                                                  (one pass over memory)
//!     for each 32 elements, as f32:                                                 (sweep)
//!         extremes: integer minimum and maximum of the bits without the sign; zero - 1 wraps round and is no minimum
//!         sums: x and x * x of two such 32 in f32, then in f64
//!         put down the exponent field, a byte each
//!     an element was not finite?  sweep again, counting and masking those (at once, where a block before had one)
//!     squares of the largest leave the range of f32?  add up once more, each element in f64
//!     histogram of the bytes between the block's extremes, 15 values a look         (count)
//!     the least is subnormal?  its field is 0 like that of zeros: number the subnormals as integers, count once more
//!     add the block to the 64-bit statistics
//! ```
//!
//! A summary is the same without the fields and the histogram, and counts the zeros, which the histogram would tell: one look at the
//! elements is all there is. In halves it first looks only whether there is a zero, and again where there is, or counts at once where most blocks had one.
//!
//! `f16` and `bf16` have a sweep of their own: extremes and fields sixteen at a time. In a block with subnormals of `f16` the fields are those of the elements as `f32`, where they are normal
//! numbers with exponents of their own. A difference is taken in registers and goes the way of `f32`. `f64` has its own loops in
//! `wide`, which scale each block so that no square overflows and none that matters underflows.
//!
//! Counts, extremes and histogram are exact. The sums are within 2^-21 of the sum of magnitudes (of squares); those of `f64`
//! within `n * 2^-50`. Every kernel does the same sums in the same order, so which of
//! them ran cannot be told from the result; nor can the alignment.
//!
//! What is suboptimal, and why it stays:
//! * The bytes are looked at once per 15 octaves of the block. Data over 90 octaves and more is counted in tables, at about a byte
//!   per cycle: gradients rarely spread over more than 40.
//! * The first block with a NaN or an infinity is swept twice, those of halves always, and so is a block whose largest element is
//!   below 2^-50 or above 2^58, where squares would leave `f32`: runs that have them are about to be looked at by a person.
//! * Views with gaps are copied together an element at a time: LibTorch hands over few of them.
//! * `f64` counts its exponents in tables: nobody trains in it.

mod block;
mod dense;
mod disagreement;
mod elements;
mod fidelity;
mod float_control;
mod gather;
mod histogram;
mod kernel;
mod layout;
mod likeness;
mod portable;
mod scaled;
mod stats;
mod summary;
mod view;
mod wide;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(test)]
mod naive;
#[cfg(test)]
mod tests;

pub use disagreement::disagreement;
pub use elements::elements_like;
pub use fidelity::{Fidelity, fidelity, fidelity_in, unlike_rounded, unmoved_energy};
pub use histogram::ExponentHistogram;
pub use kernel::Kernel;
pub use likeness::{Likeness, likeness};
pub use scaled::Scaled;
pub use stats::Stats;
pub use summary::Summary;
pub use view::{Dtype, Element, TensorView, ViewError};

use dense::Scanner;
use layout::Layout;

/// Scans every element that `view` describes, in one pass. Empty tensors have statistics of nothing: all counts 0.
///
/// # Panics
/// If the view's shape does not pass [`TensorView::check`]; a view from [`TensorView::new`] does.
///
/// # Safety
/// Every element that the view's sizes and strides reach from its data pointer must be readable for the length of the call.
pub unsafe fn scan(view: &TensorView<'_>) -> Stats {
    // SAFETY: the caller's promise, passed on.
    unsafe { scan_with(Kernel::best(), view) }
}

/// [`scan`] by a kernel of one's choice.
///
/// # Panics
/// As [`scan`].
///
/// # Safety
/// As for [`scan`].
pub unsafe fn scan_with(kernel: Kernel, view: &TensorView<'_>) -> Stats {
    // SAFETY: the caller's promise, passed on.
    unsafe { feed_all(Scanner::complete(kernel, view.dtype), view) }
}

/// A quick look at a tensor: [`scan`] without the histogram, at about the speed of reading. For whoever asks only whether it is finite, how
/// large it is or how many zeros it has. Empty tensors have a summary of nothing: all counts 0.
///
/// # Panics
/// As [`scan`].
///
/// # Safety
/// As for [`scan`].
pub unsafe fn summary(view: &TensorView<'_>) -> Summary {
    // SAFETY: the caller's promise, passed on.
    unsafe { summary_with(Kernel::best(), view) }
}

/// [`summary()`] by a kernel of one's choice.
///
/// # Panics
/// As [`scan`].
///
/// # Safety
/// As for [`scan`].
pub unsafe fn summary_with(kernel: Kernel, view: &TensorView<'_>) -> Summary {
    // SAFETY: the caller's promise, passed on.
    unsafe { feed_all(Scanner::summary(kernel, view.dtype), view) }.into()
}

/// The [`summary()`] of a slice.
pub fn summary_slice<T: Element>(elements: &[T]) -> Summary {
    dense::scan(Scanner::summary(Kernel::best(), T::DTYPE), bytes_of(elements)).into()
}

/// Gives the scanner all that the view describes.
///
/// # Safety
/// As for [`scan`].
unsafe fn feed_all(scanner: Scanner, view: &TensorView<'_>) -> Stats {
    if let Err(error) = view.check() {
        panic!("{error}");
    }
    if view.is_contiguous() {
        // SAFETY: a contiguous view consists of its first `count` elements, which the caller promises to be readable.
        return dense::scan(scanner, unsafe { run(view, 0, view.count() as usize) });
    }
    let layout = Layout::of(view);
    let once = match layout.run() {
        // SAFETY: the run consists of elements of the view, which the caller promises to be readable.
        Some((start, elements)) => dense::scan(scanner, unsafe { run(view, start, elements) }),
        // SAFETY: the layout reaches the elements of the view and no others.
        None => unsafe { gather::scan(scanner, view.data, &layout) },
    };
    once.repeated(layout.multiplicity)
}

/// Scans a slice.
pub fn scan_slice<T: Element>(elements: &[T]) -> Stats {
    dense::scan(Scanner::complete(Kernel::best(), T::DTYPE), bytes_of(elements))
}

/// Scans `new - old`, element by element, without storing the difference.
///
/// `old` is a copy of the memory of `new`'s tensor ([`TensorView::dense_bytes`]), in the same order and dtype. Differences of
/// `f16`, `bf16` and `f32` are rounded to `f32`, so their exponents may lie below the format's own range; those of `f64` to `f64`.
/// A difference that overflows there is an infinity, `inf - inf` a NaN.
///
/// # Panics
/// If the elements of `new` do not fill one run of memory, each once, or `old` has another length than that run.
///
/// # Safety
/// As for [`scan`].
pub unsafe fn scan_difference(new: &TensorView<'_>, old: &[u8]) -> Stats {
    // SAFETY: the caller's promise, passed on.
    let bytes = unsafe { bytes_like(new, old) };
    dense::difference(Kernel::best(), new.dtype, bytes, old)
}

/// The memory of a dense view that is as long as `old`.
///
/// # Safety
/// As for [`scan`].
unsafe fn bytes_like<'a>(new: &TensorView<'a>, old: &[u8]) -> &'a [u8] {
    if let Err(error) = new.check() {
        panic!("{error}");
    }
    let Some((start, elements)) = Layout::of(new).dense() else {
        panic!(
            "a difference was asked of a tensor that does not fill one run of memory (sizes {:?}, strides {:?}); scan a contiguous copy",
            new.sizes, new.strides
        );
    };
    // SAFETY: the run consists of elements of the view, which the caller promises to be readable.
    let bytes = unsafe { run(new, start, elements) };
    assert_eq!(
        bytes.len(),
        old.len(),
        "the copy of the old values has another length than the tensor; copy its dense bytes anew"
    );
    bytes
}

/// # Safety
/// `elements` elements from `start` on are readable for as long as the view lives.
unsafe fn run<'a>(view: &TensorView<'a>, start: isize, elements: usize) -> &'a [u8] {
    let size = view.dtype.size();
    if elements == 0 {
        return &[];
    }
    // SAFETY: readable, the caller says; bytes need no alignment and have no invalid patterns.
    unsafe { std::slice::from_raw_parts(view.data.offset(start * size as isize), elements * size) }
}

fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: the types that are `Element` have neither padding nor a part that is not initialised.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}
