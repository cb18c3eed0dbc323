//! Which instructions a scan uses.

use std::sync::LazyLock;

use super::wide::{self, Tables};
use super::{Dtype, Stats, portable};

/// An implementation of the scan that this processor can run. All of them return the same, bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl Kernel {
    /// Runs everywhere.
    pub const PORTABLE: Self = Self(Kind::Portable);

    /// The kernel for AVX2 with FMA and F16C, where the processor has them all.
    pub fn avx2() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
            return Some(Self(Kind::Avx2));
        }
        None
    }

    /// The fastest here; the processor is asked once.
    pub fn best() -> Self {
        static BEST: LazyLock<Kernel> = LazyLock::new(|| Kernel::avx2().unwrap_or(Kernel::PORTABLE));
        *BEST
    }

    /// `avx2` or `portable`.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            Kind::Portable => "portable",
        }
    }

    /// Scans one block of elements that fit `f32`, with or without their exponents.
    pub(super) fn narrow<const HISTOGRAM: bool>(self, dtype: Dtype, new: &[u8], old: Option<&[u8]>, stats: &mut Stats) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Kernel` of this kind comes only from `avx2`, which asked the processor.
            Kind::Avx2 => unsafe { super::avx2::block::<HISTOGRAM>(dtype, new, old, stats) },
            Kind::Portable => portable::block::<HISTOGRAM>(dtype, new, old, stats),
        }
    }

    /// Scans one block of `f64`, with or without their exponents.
    pub(super) fn wide<const HISTOGRAM: bool>(
        self,
        new: &[u8],
        old: Option<&[u8]>,
        tables: &mut Tables,
        stats: &mut Stats,
    ) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Kernel` of this kind comes only from `avx2`, which asked the processor.
            Kind::Avx2 => unsafe { super::avx2::wide_block::<HISTOGRAM>(new, old, tables, stats) },
            Kind::Portable => wide::block::<HISTOGRAM>(new, old, tables, stats),
        }
    }
}
