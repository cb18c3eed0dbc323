//! The change of a parameter from its first in-place operator of a step to its last.
//!
//! Optimizers step one parameter after the other, so a copy of one parameter at a time is enough: when an operator changes
//! another parameter, the previous one is done.

use ampdoctor::scan::{Stats, TensorView, scan, scan_difference};

/// A parameter while it is being changed.
struct Open {
    param: usize,
    operator: String,
}

/// What a finished change was: the parameter after it, and the change itself.
pub(super) struct Update {
    pub param: usize,
    /// The last operator that changed it: `addcdiv_`.
    pub operator: String,
    pub value: Stats,
    pub change: Stats,
}

/// The parameter being changed now, and the memory it had before.
#[derive(Default)]
pub(super) struct Updates {
    before: Vec<u8>,
    open: Option<Open>,
}

impl Updates {
    /// The parameter being changed now.
    pub(super) fn open_param(&self) -> Option<usize> {
        self.open.as_ref().map(|open| open.param)
    }

    /// An operator is about to change `param`, of which `now` is the memory. Another open parameter must have been closed. True
    /// where it is the first one to change it.
    pub(super) fn begin(&mut self, param: usize, operator: &str, now: &TensorView<'_>) -> bool {
        match &mut self.open {
            Some(open) if open.param == param => {
                open.operator = operator.to_owned();
                false
            }
            _ if copy_dense(now, &mut self.before) => {
                self.open = Some(Open { param, operator: operator.to_owned() });
                true
            }
            _ => false,
        }
    }

    /// The open parameter is done; `now` is its memory.
    pub(super) fn close(&mut self, now: &TensorView<'_>) -> Option<Update> {
        let open = self.open.take()?;
        if now.dense_bytes().is_none_or(|(_, bytes)| bytes != self.before.len()) {
            return None;
        }
        // SAFETY: `now` is the memory of a live parameter, dense, and the copy is as long.
        let (value, change) = unsafe { (scan(now), scan_difference(now, &self.before)) };
        Some(Update { param: open.param, operator: open.operator, value, change })
    }

    /// Forgets the open parameter.
    pub(super) fn abandon(&mut self) {
        self.open = None;
    }
}

/// Copies a dense tensor's memory in the order in which it lies; false where it is not dense.
fn copy_dense(view: &TensorView<'_>, into: &mut Vec<u8>) -> bool {
    let Some((data, bytes)) = view.dense_bytes() else { return false };
    into.clear();
    if bytes > 0 {
        // SAFETY: the view is a live parameter's, and its elements are exactly these bytes.
        into.extend_from_slice(unsafe { std::slice::from_raw_parts(data, bytes) });
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampdoctor::scan::Dtype;

    fn view<'a>(data: &'a [f32], sizes: &'a [i64], strides: &'a [i64]) -> TensorView<'a> {
        TensorView { data: data.as_ptr().cast(), dtype: Dtype::F32, sizes, strides }
    }

    #[test]
    fn a_parameter_that_is_no_dense_memory_is_left_alone() {
        let mut updates = Updates::default();
        assert!(!updates.begin(0, "add_", &view(&[0.0; 6], &[2], &[3])));
        assert_eq!(updates.open_param(), None);
        assert!(updates.begin(0, "add_", &view(&[0.0; 6], &[3, 2], &[1, 3])));
    }

    #[test]
    fn the_update_spans_the_first_operator_to_the_last() {
        let mut updates = Updates::default();
        let (sizes, strides) = ([2], [1]);
        updates.begin(7, "mul_", &view(&[1.0, 2.0], &sizes, &strides));
        updates.begin(7, "addcdiv_", &view(&[0.5, 1.0], &sizes, &strides));
        let done = updates.close(&view(&[0.25, 2.0], &sizes, &strides)).expect("an open parameter closes");
        assert_eq!((done.param, done.operator.as_str()), (7, "addcdiv_"));
        assert_eq!(done.change.max_abs, 0.75);
        assert_eq!(done.change.zeros, 1);
        assert_eq!(done.value.max_abs, 2.0);
        assert!(updates.close(&view(&[0.0, 0.0], &sizes, &strides)).is_none());
    }
}
