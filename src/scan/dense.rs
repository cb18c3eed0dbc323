//! Scans of one run of memory, block by block.

use super::block::BLOCK;
use super::float_control::DefaultFloatControl;
use super::wide::{Tables, WIDE_BLOCK};
use super::{Dtype, Kernel, Stats};

/// The statistics of memory that is fed to it in pieces.
pub(super) struct Scanner {
    kernel: Kernel,
    dtype: Dtype,
    histogram: bool,
    tables: Tables,
    stats: Stats,
    _control: DefaultFloatControl,
}

impl Scanner {
    /// For complete statistics.
    #[inline]
    pub fn complete(kernel: Kernel, dtype: Dtype) -> Self {
        Self::new(kernel, dtype, true)
    }

    /// For statistics whose histogram stays empty.
    #[inline]
    pub fn summary(kernel: Kernel, dtype: Dtype) -> Self {
        Self::new(kernel, dtype, false)
    }

    #[inline]
    fn new(kernel: Kernel, dtype: Dtype, histogram: bool) -> Self {
        let (tables, stats) = (Tables::new(), Stats::default());
        Self { kernel, dtype, histogram, tables, stats, _control: DefaultFloatControl::enter() }
    }

    /// What the elements are taken to be.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Bytes of the pieces that [`Scanner::feed`] works in; whatever is fed should be a multiple of it, or the last.
    pub fn block_bytes(dtype: Dtype) -> usize {
        dtype.size() * if dtype == Dtype::F64 { WIDE_BLOCK } else { BLOCK }
    }

    /// Takes in the elements of `new`, or of `new - old` (as long as `new`).
    pub fn feed(&mut self, new: &[u8], old: Option<&[u8]>) {
        let size = Self::block_bytes(self.dtype);
        for (at, new) in new.chunks(size).enumerate() {
            let old = old.map(|old| &old[at * size..at * size + new.len()]);
            match (self.dtype, self.histogram) {
                (Dtype::F64, true) => self.kernel.wide::<true>(new, old, &mut self.tables, &mut self.stats),
                (Dtype::F64, false) => self.kernel.wide::<false>(new, old, &mut self.tables, &mut self.stats),
                (dtype, true) => self.kernel.narrow::<true>(dtype, new, old, &mut self.stats),
                (dtype, false) => self.kernel.narrow::<false>(dtype, new, old, &mut self.stats),
            }
        }
    }

    pub fn finish(self) -> Stats {
        self.stats
    }
}

/// The statistics of whole elements that lie one behind the other.
#[inline]
pub(super) fn scan(mut scanner: Scanner, bytes: &[u8]) -> Stats {
    scanner.feed(bytes, None);
    scanner.finish()
}

/// The statistics of `new - old`.
pub(super) fn difference(kernel: Kernel, dtype: Dtype, new: &[u8], old: &[u8]) -> Stats {
    let mut scanner = Scanner::complete(kernel, dtype);
    scanner.feed(new, Some(old));
    scanner.finish()
}
