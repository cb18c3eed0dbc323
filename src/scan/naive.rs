//! The oracle of the tests: the statistics by their definition, one element at a time.

use super::{Dtype, Scaled, Stats, TensorView};

/// What [`super::scan`] must return, up to the rounding of the two sums.
pub(super) unsafe fn scan(view: &TensorView<'_>) -> Stats {
    // SAFETY: the caller promises that every element is readable.
    of(offsets(view).into_iter().map(|at| unsafe { read(view.data, at, view.dtype) }))
}

/// What [`super::scan_difference`] must return for two runs of dense memory.
pub(super) fn scan_difference(dtype: Dtype, new: &[u8], old: &[u8]) -> Stats {
    let count = new.len() / dtype.size();
    of((0..count as i64).map(|at| {
        // SAFETY: both slices hold `count` elements.
        let (n, o) = unsafe { (read(new.as_ptr(), at, dtype), read(old.as_ptr(), at, dtype)) };
        if dtype == Dtype::F64 { n - o } else { f64::from(n as f32 - o as f32) }
    }))
}

/// The statistics of some numbers.
pub(super) fn of(elements: impl Iterator<Item = f64>) -> Stats {
    let mut stats = Stats::default();
    elements.for_each(|x| push(&mut stats, x));
    stats
}

fn push(stats: &mut Stats, x: f64) {
    stats.count += 1;
    if x.is_nan() {
        stats.nan += 1;
    } else if x == f64::INFINITY {
        stats.pos_inf += 1;
    } else if x == f64::NEG_INFINITY {
        stats.neg_inf += 1;
    } else if x == 0.0 {
        stats.zeros += 1;
    } else {
        stats.min_abs = if stats.min_abs == 0.0 { x.abs() } else { stats.min_abs.min(x.abs()) };
        stats.max_abs = stats.max_abs.max(x.abs());
        stats.sum = stats.sum + Scaled::from(x);
        stats.sum_squares = stats.sum_squares + Scaled::from(x) * x;
        stats.exponents.add(floor_log2(x.abs()), 1);
    }
}

/// The exponent by repeated doubling and halving, which are exact.
fn floor_log2(mut x: f64) -> i32 {
    let mut exponent = 0;
    while x < 1.0 {
        (x, exponent) = (x * 2.0, exponent - 1);
    }
    while x >= 2.0 {
        (x, exponent) = (x / 2.0, exponent + 1);
    }
    exponent
}

/// The offset of every logical element, in elements.
fn offsets(view: &TensorView<'_>) -> Vec<i64> {
    let mut all = vec![0];
    for (&n, &stride) in view.sizes.iter().zip(view.strides) {
        all = all.iter().flat_map(|&at| (0..n).map(move |i| at + i * stride)).collect();
    }
    all
}

unsafe fn read(data: *const u8, at: i64, dtype: Dtype) -> f64 {
    // SAFETY: the caller promises a readable element.
    unsafe {
        let element = data.offset(at as isize * dtype.size() as isize);
        match dtype {
            Dtype::F16 => element.cast::<half::f16>().read_unaligned().to_f64(),
            Dtype::Bf16 => element.cast::<half::bf16>().read_unaligned().to_f64(),
            Dtype::F32 => f64::from(element.cast::<f32>().read_unaligned()),
            Dtype::F64 => element.cast::<f64>().read_unaligned(),
        }
    }
}
