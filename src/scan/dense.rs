//! Scans of one run of memory, block by block.

use super::block::BLOCK;
use super::float_control::DefaultFloatControl;
use super::wide::{Tables, WIDE_BLOCK};
use super::{Dtype, Kernel, Stats};

/// The statistics of memory that is fed to it in pieces.
pub(super) struct Scanner {
    kernel: Kernel,
    dtype: Dtype,
    tables: Tables,
    stats: Stats,
    _control: DefaultFloatControl,
}

impl Scanner {
    pub fn new(kernel: Kernel, dtype: Dtype) -> Self {
        Self { kernel, dtype, tables: Tables::new(), stats: Stats::default(), _control: DefaultFloatControl::enter() }
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
            if self.dtype == Dtype::F64 {
                self.kernel.wide(new, old, &mut self.tables, &mut self.stats);
            } else {
                self.kernel.narrow(self.dtype, new, old, &mut self.stats);
            }
        }
    }

    pub fn finish(self) -> Stats {
        self.stats
    }
}

/// The statistics of whole elements that lie one behind the other.
pub(super) fn scan(kernel: Kernel, dtype: Dtype, bytes: &[u8]) -> Stats {
    let mut scanner = Scanner::new(kernel, dtype);
    scanner.feed(bytes, None);
    scanner.finish()
}

/// The statistics of `new - old`.
pub(super) fn difference(kernel: Kernel, dtype: Dtype, new: &[u8], old: &[u8]) -> Stats {
    let mut scanner = Scanner::new(kernel, dtype);
    scanner.feed(new, Some(old));
    scanner.finish()
}
