//! A tensor as the scan sees it: a pointer, a dtype, sizes and strides.

use super::layout;

/// A floating-point element type that can be scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dtype {
    /// IEEE binary16.
    F16,
    /// bfloat16: the exponents of `f32`, 8 bits of significand.
    Bf16,
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
}

impl Dtype {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 => 4,
            Dtype::F64 => 8,
        }
    }

    /// The name used in recordings and reports: `f16`, `bf16`, `f32`, `f64`.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
        }
    }

    /// The exponent of the smallest normal number: -14 for `f16`.
    pub fn min_normal_exponent(self) -> i32 {
        match self {
            Dtype::F16 => -14,
            Dtype::Bf16 | Dtype::F32 => -126,
            Dtype::F64 => -1022,
        }
    }
}

/// A Rust type that is an element type of tensors.
pub trait Element: Copy + sealed::Sealed {
    /// The dtype of a tensor of such elements.
    const DTYPE: Dtype;
}

mod sealed {
    /// Keeps [`super::Element`] to the types without padding and without invalid bit patterns below.
    pub trait Sealed {}
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}

elements!(half::f16 => F16, half::bf16 => Bf16, f32 => F32, f64 => F64);

/// Borrowed tensor memory with any layout. Sizes and strides are counted in elements; both are empty for a zero-dimensional tensor.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// The first element; it need not be aligned, and may be null when the tensor is empty.
    pub data: *const u8,
    /// The element type.
    pub dtype: Dtype,
    /// Length of each dimension.
    pub sizes: &'a [i64],
    /// Distance between neighbours along each dimension; 0 repeats one element, a negative one runs backwards.
    pub strides: &'a [i64],
}

/// A shape that no tensor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// One stride must stand for each size.
    #[error("a tensor view has {sizes} sizes but {strides} strides; pass one stride, in elements, for each dimension")]
    Ranks {
        /// Number of sizes.
        sizes: usize,
        /// Number of strides.
        strides: usize,
    },
    /// A dimension cannot have fewer than no elements.
    #[error(
        "dimension {dimension} of a tensor view has the negative size {size}; sizes are counts of elements, 0 or more"
    )]
    NegativeSize {
        /// Index of the dimension.
        dimension: usize,
        /// Its size.
        size: i64,
    },
}

impl<'a> TensorView<'a> {
    /// A view whose shape has been checked, so that no scan of it panics over the shape.
    ///
    /// # Errors
    /// [`ViewError`] where sizes and strides differ in number or a size is negative.
    pub fn new(data: *const u8, dtype: Dtype, sizes: &'a [i64], strides: &'a [i64]) -> Result<Self, ViewError> {
        let view = Self { data, dtype, sizes, strides };
        view.check().map(|()| view)
    }

    /// Whether the shape is one that a tensor can have.
    ///
    /// # Errors
    /// As [`TensorView::new`].
    pub fn check(&self) -> Result<(), ViewError> {
        if self.sizes.len() != self.strides.len() {
            return Err(ViewError::Ranks { sizes: self.sizes.len(), strides: self.strides.len() });
        }
        match self.sizes.iter().position(|&n| n < 0) {
            Some(dimension) => Err(ViewError::NegativeSize { dimension, size: self.sizes[dimension] }),
            None => Ok(()),
        }
    }

    /// Number of logical elements, repeated ones included; 0 for a negative size, at most `u64::MAX`.
    pub fn count(&self) -> u64 {
        if self.sizes.iter().any(|&n| n <= 0) {
            return 0;
        }
        self.sizes.iter().fold(1, |count, &n| count.saturating_mul(n as u64))
    }

    /// Whether each element lies right behind the one before, in the order of the indices: the usual case, told at no cost.
    pub(super) fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.sizes.iter().zip(self.strides).rev().all(|(&size, &stride)| {
            let follows = size == 1 || stride == expected;
            expected = expected.saturating_mul(size);
            follows
        })
    }

    /// The tensor's memory as one run of bytes, where its elements fill such a run each exactly once, in whatever order
    /// (contiguous, transposed, channels-last, reversed); `None` for any other layout. Length 0 and no address for an empty tensor.
    ///
    /// What a copy of the tensor for [`super::scan_difference`] is to hold.
    pub fn dense_bytes(&self) -> Option<(*const u8, usize)> {
        self.check().ok()?;
        layout::Layout::of(self).dense().map(|(start, elements)| {
            (self.data.wrapping_offset(start * self.dtype.size() as isize), elements * self.dtype.size())
        })
    }
}
