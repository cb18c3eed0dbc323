//! The change of a parameter from its first in-place operator of a step to its last.
//!
//! Optimizers step one parameter after the other, so a copy of one parameter at a time is enough: when an operator changes
//! another parameter, the previous one is done.

use ampdoctor::observation::Rounding;
use ampdoctor::scan::{Dtype, Fidelity, TensorView, fidelity, fidelity_in, scan, scan_difference};

use super::border::{RawOp, dense_memory};
use super::device_updates::DeviceUpdates;
use super::intended::{Intended, is_decay};
use super::later::Scanned;
use super::trace::RoundingLater;

/// A parameter while it is being changed.
struct Open {
    param: usize,
    operator: String,
    /// The format of the model's weights, where this is an FP32 copy of some.
    rounds_to: Option<Dtype>,
    /// Whether the change that was intended is known; only followed in half precision.
    intended: bool,
    /// Whether the only operator so far was the decay.
    decaying: bool,
    decay: Option<Fidelity>,
}

/// What a finished change was: the parameter after it, and the change itself.
pub(super) struct Update {
    pub param: usize,
    /// The last operator that changed it: `addcdiv_`.
    pub operator: String,
    pub value: Scanned,
    pub change: Scanned,
    /// What low precision did to it, where there is something to say.
    pub rounding: Option<Rounding>,
    /// The part of it that is to be fetched.
    pub rounding_later: Option<Box<RoundingLater>>,
}

/// An operator that is about to change a parameter.
pub(super) struct Change<'a> {
    pub param: usize,
    pub name: &'a str,
    pub op: &'a RawOp,
    /// The parameter's memory.
    pub now: TensorView<'a>,
    /// The format of the model's weights, where the parameter is an FP32 copy of some.
    pub rounds_to: Option<Dtype>,
}

/// The parameter being changed now, and the memory it had before.
#[derive(Default)]
pub(super) struct Updates {
    before: Vec<u8>,
    intended: Intended,
    open: Option<Open>,
    /// Where parameters live on devices.
    pub on_device: DeviceUpdates,
}

impl Updates {
    /// The parameter being changed now.
    pub(super) fn open_param(&self) -> Option<usize> {
        self.open.as_ref().map(|open| open.param).or_else(|| self.on_device.open_param())
    }

    /// An operator is about to change a parameter. Another open parameter must have been closed. True where it is the first one to
    /// change it.
    pub(super) fn begin(&mut self, change: &Change<'_>) -> bool {
        let first = self.open_param() != Some(change.param);
        let known = if first { self.open(change) } else { self.go_on(change) };
        if known {
            self.intend(change);
        }
        first && known
    }

    /// The first operator that changes a parameter; false where its memory cannot be followed.
    fn open(&mut self, change: &Change<'_>) -> bool {
        if !copy_dense(&change.now, &mut self.before) {
            return false;
        }
        let half = matches!(change.now.dtype, Dtype::F16 | Dtype::Bf16);
        if half {
            self.intended.begin(self.before.len() / change.now.dtype.size());
        }
        self.open = Some(Open {
            param: change.param,
            operator: change.name.to_owned(),
            rounds_to: change.rounds_to,
            intended: half,
            decaying: half && is_decay(change.name, change.op),
            decay: None,
        });
        true
    }

    /// Another operator on the open parameter: if all before it was the decay, that is done.
    fn go_on(&mut self, change: &Change<'_>) -> bool {
        let decaying = self.open.as_ref().is_some_and(|open| open.decaying && open.intended);
        let decay = if decaying { self.fidelity(&change.now) } else { None };
        if let Some(open) = &mut self.open {
            open.operator = change.name.to_owned();
            open.decaying = false;
            open.decay = decay.or(open.decay);
        }
        true
    }

    /// Adds what the operator means to add to what its parameter is to be changed by.
    fn intend(&mut self, change: &Change<'_>) {
        if let Some(open) = self.open.as_mut().filter(|open| open.intended) {
            open.intended = self.intended.add(change.name, change.op);
        }
    }

    /// What became of what was intended so far, in the parameter's own format.
    fn fidelity(&self, now: &TensorView<'_>) -> Option<Fidelity> {
        let bytes = self.bytes_now(now)?;
        Some(fidelity(now.dtype, &self.before, bytes, self.intended.sum()))
    }

    /// The memory of the open parameter; `None` where it is no longer the memory that it was.
    fn bytes_now<'a>(&self, now: &TensorView<'a>) -> Option<&'a [u8]> {
        // SAFETY: `now` is the memory of a live parameter, which no operator changes during a callback.
        unsafe { dense_memory(now) }.filter(|bytes| bytes.len() == self.before.len())
    }

    /// The open parameter is done; `now` is its memory.
    pub(super) fn close(&mut self, now: &TensorView<'_>) -> Option<Update> {
        let open = self.open.take()?;
        let bytes = self.bytes_now(now)?;
        // SAFETY: `now` is the memory of a live parameter, dense, and the copy is as long.
        let (value, change) = unsafe { (scan(now), scan_difference(now, &self.before)) };
        let rounding = Rounding {
            stepped: if open.intended { self.fidelity(now) } else { None },
            without_masters: open.rounds_to.map(|weights| fidelity_in(weights, &self.before, bytes)),
            decay: open.decay,
            unlike_master: None,
            unmoved: None,
        };
        let rounding = (rounding != Rounding::default()).then_some(rounding);
        let (value, change) = (Scanned::Now(value), Scanned::Now(change));
        Some(Update { param: open.param, operator: open.operator, value, change, rounding, rounding_later: None })
    }

    /// Forgets the open parameter.
    pub(super) fn abandon(&mut self) {
        self.open = None;
        self.on_device.abandon();
    }
}

/// Copies a dense tensor's memory in the order in which it lies; false where it is not dense.
fn copy_dense(view: &TensorView<'_>, into: &mut Vec<u8>) -> bool {
    // SAFETY: the view is a live parameter's, which no operator changes during a callback.
    let Some(memory) = (unsafe { dense_memory(view) }) else { return false };
    into.clear();
    into.extend_from_slice(memory);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view<'a>(data: &'a [f32], sizes: &'a [i64], strides: &'a [i64]) -> TensorView<'a> {
        TensorView { data: data.as_ptr().cast(), dtype: Dtype::F32, sizes, strides }
    }

    fn begin(updates: &mut Updates, param: usize, name: &str, now: TensorView<'_>) -> bool {
        updates.begin(&Change { param, name, op: &RawOp::empty(), now, rounds_to: None })
    }

    #[test]
    fn a_parameter_that_is_no_dense_memory_is_left_alone() {
        let mut updates = Updates::default();
        assert!(!begin(&mut updates, 0, "add_", view(&[0.0; 6], &[2], &[3])));
        assert_eq!(updates.open_param(), None);
        assert!(begin(&mut updates, 0, "add_", view(&[0.0; 6], &[3, 2], &[1, 3])));
    }

    #[test]
    fn the_update_spans_the_first_operator_to_the_last() {
        let mut updates = Updates::default();
        let (sizes, strides) = ([2], [1]);
        begin(&mut updates, 7, "mul_", view(&[1.0, 2.0], &sizes, &strides));
        begin(&mut updates, 7, "addcdiv_", view(&[0.5, 1.0], &sizes, &strides));
        let done = updates.close(&view(&[0.25, 2.0], &sizes, &strides)).expect("an open parameter closes");
        assert_eq!((done.param, done.operator.as_str()), (7, "addcdiv_"));
        let (Scanned::Now(change), Scanned::Now(value)) = (done.change, done.value) else {
            panic!("what host memory holds is known at once")
        };
        assert_eq!((change.max_abs, change.zeros), (0.75, 1));
        assert_eq!(value.max_abs, 2.0);
        assert_eq!(done.rounding, None, "FP32 that is nobody's copy loses nothing worth a word");
        assert!(updates.close(&view(&[0.0, 0.0], &sizes, &strides)).is_none());
    }
}
