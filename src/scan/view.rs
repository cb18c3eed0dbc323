//! A tensor as the scan sees it: a pointer, a dtype, sizes and strides.

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

/// Borrowed tensor memory with any layout. Sizes and strides are counted in elements; both are empty for a zero-dimensional tensor.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// The first element; it need not be aligned, and may be null when the tensor is empty.
    pub data: *const u8,
    /// The element type.
    pub dtype: Dtype,
    /// Length of each dimension.
    pub sizes: &'a [i64],
    /// Distance between neighbours along each dimension; 0 repeats one element.
    pub strides: &'a [i64],
}

impl TensorView<'_> {
    /// Number of logical elements.
    pub fn count(&self) -> u64 {
        self.sizes.iter().map(|&n| n.max(0) as u64).product()
    }
}
