//! Which memory a view covers, and how often: the order of elements does not matter to a scan.

use super::TensorView;

/// The distinct elements of a view, as nested runs of rising distance, and how often each counts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Offset of the lowest element from the view's data pointer, in elements.
    pub start: isize,
    /// How often each element counts: the product of the sizes whose stride is 0.
    pub multiplicity: u64,
    /// Dimensions in the order of their strides, all positive, each with at least two elements; neighbours that continue each
    /// other are joined.
    pub dims: Vec<Dim>,
    /// No element at all.
    pub empty: bool,
}

/// One dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dim {
    pub size: usize,
    pub stride: usize,
}

impl Layout {
    /// The layout of a view that passes [`TensorView::check`].
    pub fn of(view: &TensorView<'_>) -> Self {
        let mut layout = Self { start: 0, multiplicity: 1, dims: Vec::new(), empty: view.count() == 0 };
        if layout.empty {
            return layout;
        }
        for (&size, &stride) in view.sizes.iter().zip(view.strides).rev() {
            layout.add(size as usize, stride as isize);
        }
        if !layout.dims.is_sorted_by_key(|dim| dim.stride) {
            layout.dims.sort_by_key(|dim| dim.stride);
        }
        layout.join();
        layout
    }

    /// The start and the length of the one run that the elements fill, each exactly once; `None` where they do not.
    pub fn dense(&self) -> Option<(isize, usize)> {
        (self.multiplicity == 1).then(|| self.run()).flatten()
    }

    /// The same whatever the multiplicity.
    pub fn run(&self) -> Option<(isize, usize)> {
        match self.dims[..] {
            _ if self.empty => Some((0, 0)),
            [] => Some((self.start, 1)),
            [Dim { size, stride: 1 }] => Some((self.start, size)),
            _ => None,
        }
    }

    fn add(&mut self, size: usize, stride: isize) {
        match (size, stride) {
            (1, _) => {}
            (_, 0) => self.multiplicity = self.multiplicity.saturating_mul(size as u64),
            _ => {
                if stride < 0 {
                    self.start += stride * (size as isize - 1);
                }
                self.dims.push(Dim { size, stride: stride.unsigned_abs() });
            }
        }
    }

    fn join(&mut self) {
        self.dims.dedup_by(|outer, inner| {
            let continues = inner.size.checked_mul(inner.stride) == Some(outer.stride);
            if continues {
                inner.size *= outer.size;
            }
            continues
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Dtype, ViewError};
    use super::*;

    fn view<'a>(sizes: &'a [i64], strides: &'a [i64]) -> TensorView<'a> {
        TensorView::new(std::ptr::null(), Dtype::F32, sizes, strides).unwrap()
    }

    #[test]
    fn permuted_dense_memory_is_one_run() {
        for (sizes, strides) in [
            (&[2, 3, 4, 5][..], &[60, 20, 5, 1][..]),
            (&[2, 3, 4, 5], &[60, 1, 15, 3]),
            (&[5, 4], &[1, 5]),
            (&[3, 1, 2], &[2, 77, 1]),
            (&[6], &[1]),
        ] {
            let count = sizes.iter().product::<i64>() as usize;
            assert_eq!(Layout::of(&view(sizes, strides)).dense(), Some((0, count)), "{sizes:?} {strides:?}");
        }
    }

    #[test]
    fn backward_strides_start_at_the_lowest_element() {
        assert_eq!(Layout::of(&view(&[3, 4], &[4, -1])).dense(), Some((-3, 12)));
        assert_eq!(Layout::of(&view(&[3, 4], &[-4, -1])).dense(), Some((-11, 12)));
    }

    #[test]
    fn gaps_overlaps_and_repeats_are_not_dense() {
        for (sizes, strides) in
            [(&[3, 4][..], &[5, 1][..]), (&[4], &[2]), (&[3, 3], &[1, 1]), (&[3, 2], &[0, 1]), (&[7], &[0])]
        {
            assert_eq!(Layout::of(&view(sizes, strides)).dense(), None, "{sizes:?} {strides:?}");
        }
    }

    #[test]
    fn stride_zero_is_multiplicity() {
        let layout = Layout::of(&view(&[7, 3, 5], &[0, 1, 0]));
        assert_eq!((layout.multiplicity, layout.run()), (35, Some((0, 3))));
    }

    #[test]
    fn an_empty_view_covers_nothing_and_a_scalar_one_element() {
        assert_eq!(Layout::of(&view(&[4, 0], &[1, 1])).dense(), Some((0, 0)));
        assert_eq!(Layout::of(&view(&[], &[])).dense(), Some((0, 1)));
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let new = |sizes, strides| TensorView::new(std::ptr::null(), Dtype::F32, sizes, strides).err();
        assert_eq!(new(&[2, -3], &[1, 1]), Some(ViewError::NegativeSize { dimension: 1, size: -3 }));
        assert_eq!(new(&[2, 3], &[1]), Some(ViewError::Ranks { sizes: 2, strides: 1 }));
    }
}
