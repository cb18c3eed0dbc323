//! Scans of views whose elements do not fill one run of memory.
//!
//! The elements are copied, a block at a time, to where they lie one behind the other in the first-level cache.

use super::dense::Scanner;
use super::layout::{Dim, Layout};
use super::{Dtype, Stats};

/// Scans each element of the layout once.
///
/// # Safety
/// Every element that the layout reaches from `data` is readable.
pub(super) unsafe fn scan(scanner: Scanner, data: *const u8, layout: &Layout) -> Stats {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        match scanner.dtype() {
            Dtype::F16 | Dtype::Bf16 => scan_sized::<2>(scanner, data, layout),
            Dtype::F32 => scan_sized::<4>(scanner, data, layout),
            Dtype::F64 => scan_sized::<8>(scanner, data, layout),
        }
    }
}

unsafe fn scan_sized<const SIZE: usize>(scanner: Scanner, data: *const u8, layout: &Layout) -> Stats {
    let mut staging = Staging::<SIZE>::new(scanner);
    let (inner, outer) = match layout.dims.split_first() {
        Some((&inner, outer)) => (inner, outer),
        None => (Dim { size: 1, stride: 1 }, &[][..]),
    };
    let mut odometer = Odometer::new(outer);
    loop {
        // SAFETY: the offset is that of an element of the layout, the first of a row.
        unsafe { staging.take_row(data.offset((layout.start + odometer.offset as isize) * SIZE as isize), inner) };
        if !odometer.advance() {
            return staging.finish();
        }
    }
}

/// The index of a row: one digit for each outer dimension.
struct Odometer<'a> {
    dims: &'a [Dim],
    digits: Vec<usize>,
    /// Offset of the row, in elements.
    offset: usize,
}

impl<'a> Odometer<'a> {
    fn new(dims: &'a [Dim]) -> Self {
        Self { dims, digits: vec![0; dims.len()], offset: 0 }
    }

    /// Goes to the next row; false after the last.
    fn advance(&mut self) -> bool {
        for (digit, dim) in self.digits.iter_mut().zip(self.dims) {
            *digit += 1;
            self.offset += dim.stride;
            if *digit < dim.size {
                return true;
            }
            self.offset -= dim.stride * dim.size;
            *digit = 0;
        }
        false
    }
}

/// Elements on their way to the scanner.
struct Staging<const SIZE: usize> {
    elements: Vec<[u8; SIZE]>,
    capacity: usize,
    scanner: Scanner,
}

impl<const SIZE: usize> Staging<SIZE> {
    fn new(scanner: Scanner) -> Self {
        let capacity = Scanner::block_bytes(scanner.dtype()) / SIZE;
        Self { elements: Vec::with_capacity(capacity), capacity, scanner }
    }

    /// # Safety
    /// `row.size` elements, `row.stride` apart, are readable from `from` on.
    unsafe fn take_row(&mut self, from: *const u8, row: Dim) {
        let mut done = 0;
        while done < row.size {
            let take = (row.size - done).min(self.capacity - self.elements.len());
            self.elements.extend((done..done + take).map(|i| {
                // SAFETY: `i` is below the row's size; an array of bytes needs no alignment.
                unsafe { from.add(i * row.stride * SIZE).cast::<[u8; SIZE]>().read() }
            }));
            done += take;
            if self.elements.len() == self.capacity {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        self.scanner.feed(self.elements.as_flattened(), None);
        self.elements.clear();
    }

    fn finish(mut self) -> Stats {
        self.flush();
        self.scanner.finish()
    }
}
