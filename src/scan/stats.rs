//! What one scan returns.

use super::{Dtype, ExponentHistogram, Scaled, TensorView};

/// The statistics of one tensor. Extremes, sums and the histogram are over its finite elements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// All elements: zeros, finite, non-finite.
    pub count: u64,
    /// Elements equal to zero, of either sign.
    pub zeros: u64,
    /// Elements that are NaN.
    pub nan: u64,
    /// Elements that are +inf.
    pub pos_inf: u64,
    /// Elements that are -inf.
    pub neg_inf: u64,
    /// Smallest magnitude of the finite non-zero elements; 0 when there is none.
    pub min_abs: f64,
    /// Largest magnitude of the finite elements; 0 when there is none.
    pub max_abs: f64,
    /// Sum of the finite elements.
    pub sum: Scaled,
    /// Sum of the squares of the finite elements.
    pub sum_squares: Scaled,
    /// Exponents of the finite non-zero elements.
    pub exponents: ExponentHistogram,
}

impl Stats {
    /// Elements that are NaN or infinite.
    pub fn non_finite(&self) -> u64 {
        self.nan + self.pos_inf + self.neg_inf
    }

    /// Finite elements, zeros included.
    pub fn finite(&self) -> u64 {
        self.count - self.non_finite()
    }

    /// Root mean square of the finite elements, or `None` when there is none.
    pub fn rms(&self) -> Option<f64> {
        let n = self.finite();
        (n > 0)
            .then(|| Scaled { value: self.sum_squares.value / n as f64, ..self.sum_squares })
            .map(|mean| mean.log2().map_or(0.0, |l| (l / 2.0).exp2()))
    }

    /// Adds one element.
    fn push(&mut self, x: f64) {
        self.count += 1;
        if x.is_nan() {
            self.nan += 1;
        } else if x == f64::INFINITY {
            self.pos_inf += 1;
        } else if x == f64::NEG_INFINITY {
            self.neg_inf += 1;
        } else if x == 0.0 {
            self.zeros += 1;
        } else {
            let a = x.abs();
            self.min_abs = if self.min_abs == 0.0 { a } else { self.min_abs.min(a) };
            self.max_abs = self.max_abs.max(a);
            let scaled = |value: f64| Scaled { value, exponent: 0 };
            self.sum = self.sum + scaled(x);
            self.sum_squares = self.sum_squares + scaled(x * x);
            let bits = a.to_bits();
            let field = (bits >> 52) as i32;
            self.exponents.add(if field == 0 { -1011 - bits.leading_zeros() as i32 } else { field - 1023 }, 1);
        }
    }
}

unsafe fn read(data: *const u8, dtype: Dtype) -> f64 {
    // SAFETY: the caller promises a readable element.
    unsafe {
        match dtype {
            Dtype::F16 => data.cast::<half::f16>().read_unaligned().to_f64(),
            Dtype::Bf16 => data.cast::<half::bf16>().read_unaligned().to_f64(),
            Dtype::F32 => f64::from(data.cast::<f32>().read_unaligned()),
            Dtype::F64 => data.cast::<f64>().read_unaligned(),
        }
    }
}

pub(super) unsafe fn scan_naive(view: &TensorView<'_>) -> Stats {
    let mut stats = Stats::default();
    for flat in 0..view.count() {
        let mut rest = flat as i64;
        let mut offset = 0;
        for (&n, &stride) in view.sizes.iter().zip(view.strides).rev() {
            offset += rest % n * stride;
            rest /= n;
        }
        // SAFETY: the caller promises that every element is readable.
        stats.push(unsafe { read(view.data.offset(offset as isize * view.dtype.size() as isize), view.dtype) });
    }
    stats
}

pub(super) unsafe fn scan_difference_naive(new: &TensorView<'_>, old: &[u8]) -> Stats {
    let mut stats = Stats::default();
    let size = new.dtype.size();
    for i in 0..new.count() as usize {
        // SAFETY: the caller promises that `new` is dense and `old` as long.
        let (n, o) = unsafe { (read(new.data.add(i * size), new.dtype), read(old.as_ptr().add(i * size), new.dtype)) };
        let d = if new.dtype == Dtype::F64 { n - o } else { f64::from(n as f32 - o as f32) };
        stats.push(d);
    }
    stats
}
