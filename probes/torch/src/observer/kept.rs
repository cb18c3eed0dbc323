//! Numbers of the training that stay on their device until something waits for it anyway.

use tch::Tensor;

use super::border::tensor;
use super::device::{Held, Reductions};
use crate::shim::ShimError;

/// A number on a device, as it was when it was kept.
pub(crate) struct Kept(Held);

impl Kept {
    /// A copy, on its device, of a tensor of one floating-point element. `None` for any other, for one that the host reads without waiting, and where the device refuses.
    pub(crate) fn copy_of(t: &Tensor) -> Option<Self> {
        let described = tensor::describe(t)?;
        let waits = described.is_on_device() && described.dtype().is_some() && described.count() == 1;
        waits.then(|| Held::copy_of(&described).ok().map(Self)).flatten()
    }
}

/// Reads what was kept: several numbers in one copy from each device.
#[derive(Default)]
pub(crate) struct KeptReader(Reductions);

impl KeptReader {
    /// The numbers, in the order given. Waits for their devices.
    pub(crate) fn read<'a>(&mut self, kept: impl Iterator<Item = &'a Kept>) -> Result<Vec<Option<f64>>, ShimError> {
        self.0.begin_step();
        let tickets = kept.map(|Kept(held)| self.0.number_of(held)).collect::<Result<Vec<_>, _>>()?;
        self.0.fetch()?;
        Ok(tickets.into_iter().map(|ticket| self.0.one(ticket)).collect())
    }
}
