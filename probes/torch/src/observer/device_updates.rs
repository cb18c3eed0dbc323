//! The change of a parameter on a device, from its first in-place operator of a step to its last: as in `updates`, with the copy of what it was kept on the
//! device, and everything that follows from it computed there.

use ampdoctor::scan::Dtype;

use super::border::{RawOp, RawTensor};
use super::device::{Held, Reductions, Ticket};
use super::intended::{intention, is_decay};
use super::later::Scanned;
use super::trace::RoundingLater;
use super::updates::Update;
use crate::shim::ShimError;

/// A parameter while it is being changed.
struct Open {
    param: usize,
    operator: String,
    before: Held,
    dtype: Option<Dtype>,
    sizes: Vec<i64>,
    /// The format of the model's weights, where this is an FP32 copy of some.
    rounds_to: Option<Dtype>,
    /// The change that was intended so far, where it is known; only followed in half precision.
    intended: Option<Held>,
    /// Whether the only operator so far was the decay.
    decaying: bool,
    decay: Option<Ticket>,
}

/// An operator that is about to change a parameter.
pub(super) struct DeviceChange<'a> {
    pub param: usize,
    pub name: &'a str,
    pub op: &'a RawOp,
    pub now: &'a RawTensor,
    pub rounds_to: Option<Dtype>,
}

/// The parameter being changed now.
#[derive(Default)]
pub(super) struct DeviceUpdates {
    open: Option<Open>,
}

impl DeviceUpdates {
    /// The parameter being changed now.
    pub(super) fn open_param(&self) -> Option<usize> {
        self.open.as_ref().map(|open| open.param)
    }

    /// An operator is about to change a parameter. Another open parameter must have been closed. True where it is the first one to change it.
    pub(super) fn begin(&mut self, change: &DeviceChange<'_>, device: &mut Reductions) -> Result<bool, ShimError> {
        let first = self.open_param() != Some(change.param);
        if first {
            self.open = Some(Open::new(change)?);
        } else if let Some(open) = &mut self.open {
            open.go_on(change, device)?;
        }
        if let Some(open) = &mut self.open {
            open.intend(change)?;
        }
        Ok(first)
    }

    /// The open parameter is done; `None` where it is no longer what it was.
    pub(super) fn close(&mut self, now: &RawTensor, device: &mut Reductions) -> Result<Option<Update>, ShimError> {
        let Some(open) = self.open.take() else { return Ok(None) };
        if open.dtype != now.dtype() || open.sizes != now.sizes() {
            return Ok(None);
        }
        let stepped = open.intended.as_ref().map(|sum| device.fidelity(&open.before, now, sum)).transpose()?;
        let weights = open.rounds_to.filter(|_| open.dtype == Some(Dtype::F32));
        let without_masters = weights.map(|dtype| device.fidelity_in(dtype, &open.before, now)).transpose()?;
        let later = RoundingLater { stepped, without_masters, decay: open.decay, ..RoundingLater::default() };
        Ok(Some(Update {
            param: open.param,
            operator: open.operator,
            value: Scanned::Later(device.statistics(now)?),
            change: Scanned::Later(device.difference(now, &open.before)?),
            rounding: None,
            rounding_later: Some(Box::new(later)),
        }))
    }

    /// Forgets the open parameter.
    pub(super) fn abandon(&mut self) {
        self.open = None;
    }
}

impl Open {
    fn new(change: &DeviceChange<'_>) -> Result<Self, ShimError> {
        let dtype = change.now.dtype();
        let half = matches!(dtype, Some(Dtype::F16 | Dtype::Bf16));
        Ok(Self {
            param: change.param,
            operator: change.name.to_owned(),
            before: Held::copy_of(change.now)?,
            dtype,
            sizes: change.now.sizes().to_vec(),
            rounds_to: change.rounds_to,
            intended: half.then(|| Held::zeros_like(change.now)).transpose()?,
            decaying: half && is_decay(change.name, change.op),
            decay: None,
        })
    }

    /// Another operator on it: if all before it was the decay, that is done.
    fn go_on(&mut self, change: &DeviceChange<'_>, device: &mut Reductions) -> Result<(), ShimError> {
        if let Some(sum) = self.intended.as_ref().filter(|_| self.decaying) {
            self.decay = Some(device.fidelity(&self.before, change.now, sum)?);
        }
        self.operator = change.name.to_owned();
        self.decaying = false;
        Ok(())
    }

    /// Adds what the operator means to add; what it does not tell, nobody knows from here on.
    fn intend(&mut self, change: &DeviceChange<'_>) -> Result<(), ShimError> {
        let Some(sum) = &mut self.intended else { return Ok(()) };
        match intention(change.name, change.op) {
            Some(intention) => sum.add_intention(change.now, &intention),
            None => {
                self.intended = None;
                Ok(())
            }
        }
    }
}
