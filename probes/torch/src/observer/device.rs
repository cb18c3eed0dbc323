//! Numbers of tensors in memory that only their device reads: enqueued there when a tensor is met, fetched once, at the end of the step.

use std::ffi::{c_int, c_void};

use ampdoctor::scan::{Dtype, ExponentHistogram, Fidelity, Scaled, Stats};

use super::border::RawTensor;
use super::intended::Intention;
use crate::shim::{ShimError, check};

/// Where a number will be, once it is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(i64);

/// Statistics that are still to be fetched.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatsTicket {
    ticket: Ticket,
    form: RawForm,
}

/// The numbers of one step, on all devices.
#[derive(Default)]
pub(super) struct Reductions {
    /// Made when the first tensor of a device is met.
    raw: Option<Raw>,
    /// Why the numbers of this step could not be fetched.
    failure: Option<ShimError>,
}

/// The shim's numbers, owned.
struct Raw(*mut RawReductions);

// Used behind the lock of the observer's state, by one thread at a time.
unsafe impl Send for Raw {}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: owned, and not used again.
        unsafe { ampd_reductions_delete(self.0) }
    }
}

/// A tensor of our own on a device.
pub(super) struct Held(*mut c_void);

// A handle; its reference count is atomic.
unsafe impl Send for Held {}

impl Held {
    /// A copy of a tensor as it is now.
    pub(super) fn copy_of(t: &RawTensor) -> Result<Self, ShimError> {
        // SAFETY: the shim describes a live tensor.
        Self::own(unsafe { ampd_copy_tensor(t.impl_) })
    }

    /// Zeros of its shape, in `f32`.
    pub(super) fn zeros_like(t: &RawTensor) -> Result<Self, ShimError> {
        // SAFETY: as above.
        Self::own(unsafe { ampd_zeros_like(t.impl_) })
    }

    /// The tensor itself, for as long as this lives.
    pub(super) fn itself(t: &RawTensor) -> Result<Self, ShimError> {
        // SAFETY: as above.
        Self::own(unsafe { ampd_hold_tensor(t.impl_) })
    }

    fn own(raw: *mut c_void) -> Result<Self, ShimError> {
        check(c_int::from(raw.is_null())).map(|()| Self(raw))
    }

    fn impl_(&self) -> *const c_void {
        // SAFETY: a live tensor of our own.
        unsafe { ampd_impl(self.0) }
    }

    /// Adds to this sum what an operator is meant to add to a tensor.
    pub(super) fn add_intention(&mut self, t: &RawTensor, change: &Intention<'_>) -> Result<(), ShimError> {
        let (kind, a, b, factor) = change.parts();
        let [a, b] = [a, b].map(|operand| operand.map_or(std::ptr::null(), |operand| operand.impl_));
        // SAFETY: all are live tensors, or null where the kind takes none.
        check(unsafe { ampd_intend(self.0, t.impl_, kind, a, b, factor) })
    }

    /// Adds to this sum what moves a copy towards a tensor.
    pub(super) fn add_move(&mut self, from: &Held, to: &RawTensor, share: f64) -> Result<(), ShimError> {
        let (kind, ..) = Intention::Towards(to, share).parts();
        // SAFETY: as above.
        check(unsafe { ampd_intend(self.0, from.impl_(), kind, to.impl_, std::ptr::null(), share) })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: owned, and not used again.
        unsafe { ampd_drop_tensor(self.0) }
    }
}

impl<'a> Intention<'a> {
    /// `enum ampd_intention`, the operands, and the factor.
    fn parts(&self) -> (c_int, Option<&'a RawTensor>, Option<&'a RawTensor>, f64) {
        match *self {
            Self::Adds(a, factor) => (0, Some(a), None, factor),
            Self::AddsNumber(number) => (1, None, None, number),
            Self::AddsQuotient(a, b, factor) => (2, Some(a), Some(b), factor),
            Self::AddsProduct(a, b, factor) => (3, Some(a), Some(b), factor),
            Self::Scales(factor) => (4, None, None, factor),
            Self::Multiplies(a) => (5, Some(a), None, 1.0),
            Self::Divides(a) => (6, Some(a), None, 1.0),
            Self::Towards(a, share) => (7, Some(a), None, share),
        }
    }
}

impl Reductions {
    /// The statistics of a tensor.
    pub(super) fn statistics(&mut self, t: &RawTensor) -> Result<StatsTicket, ShimError> {
        let mut form = RawForm::default();
        // SAFETY: the shim describes a live tensor, and fills `form` where it gives a ticket.
        let ticket = self.ticket(|raw| unsafe { ampd_reduce_statistics(raw, t.impl_, &mut form) })?;
        Ok(StatsTicket { ticket, form })
    }

    /// The statistics of a tensor less an earlier copy of it.
    pub(super) fn difference(&mut self, now: &RawTensor, before: &Held) -> Result<StatsTicket, ShimError> {
        let mut form = RawForm::default();
        // SAFETY: as above.
        let ticket = self.ticket(|raw| unsafe { ampd_reduce_difference(raw, now.impl_, before.impl_(), &mut form) })?;
        Ok(StatsTicket { ticket, form })
    }

    /// The value of a tensor of one element.
    pub(super) fn number(&mut self, t: &RawTensor) -> Result<Ticket, ShimError> {
        // SAFETY: as above.
        self.ticket(|raw| unsafe { ampd_reduce_number(raw, t.impl_) })
    }

    /// The value of a tensor of our own that has one element.
    pub(super) fn number_of(&mut self, held: &Held) -> Result<Ticket, ShimError> {
        // SAFETY: as above.
        self.ticket(|raw| unsafe { ampd_reduce_number(raw, held.impl_()) })
    }

    /// Of integers: those that FP16 does not hold, those that BF16 does not, and elements that are none.
    pub(super) fn integers(&mut self, t: &RawTensor) -> Result<Ticket, ShimError> {
        // SAFETY: as above.
        self.ticket(|raw| unsafe { ampd_reduce_integers(raw, t.impl_) })
    }

    /// Of a tensor in 16 bits: elements that are no integers, and pairs of equal neighbours below `reach` and beyond it.
    pub(super) fn neighbours(&mut self, t: &RawTensor, reach: f64) -> Result<Ticket, ShimError> {
        // SAFETY: as above.
        self.ticket(|raw| unsafe { ampd_reduce_neighbours(raw, t.impl_, reach) })
    }

    /// Elements of a copy that are not what its master rounds to.
    pub(super) fn unlike(&mut self, copy: &RawTensor, master: &RawTensor) -> Result<Ticket, ShimError> {
        // SAFETY: as above.
        self.ticket(|raw| unsafe { ampd_reduce_unlike(raw, copy.impl_, master.impl_) })
    }

    /// What a tensor's format left of what was intended.
    pub(super) fn fidelity(&mut self, before: &Held, after: &RawTensor, intended: &Held) -> Result<Ticket, ShimError> {
        // SAFETY: as above.
        self.ticket(|raw| unsafe { ampd_reduce_fidelity(raw, before.impl_(), after.impl_, intended.impl_()) })
    }

    /// What a format would have left of the change.
    pub(super) fn fidelity_in(&mut self, dtype: Dtype, before: &Held, after: &RawTensor) -> Result<Ticket, ShimError> {
        let dtype = i32::from(dtype == Dtype::Bf16);
        // SAFETY: as above.
        self.ticket(|raw| unsafe { ampd_reduce_fidelity_in(raw, before.impl_(), after.impl_, dtype) })
    }

    fn ticket(&mut self, reduce: impl FnOnce(*mut RawReductions) -> i64) -> Result<Ticket, ShimError> {
        if self.raw.is_none() {
            // SAFETY: takes nothing.
            let raw = unsafe { ampd_reductions_new() };
            check(c_int::from(raw.is_null()))?;
            self.raw = Some(Raw(raw));
        }
        let Some(Raw(raw)) = &self.raw else { return Ok(Ticket(-1)) };
        let ticket = reduce(*raw);
        check(c_int::from(ticket < 0)).map(|()| Ticket(ticket))
    }

    /// Waits for the devices, where numbers were asked of any.
    pub(super) fn fetch(&mut self) -> Result<(), ShimError> {
        let Some(Raw(raw)) = &self.raw else { return Ok(()) };
        // SAFETY: owned.
        let fetched = unsafe {
            if ampd_reductions_count(*raw) == 0 {
                return Ok(());
            }
            check(ampd_reductions_fetch(*raw))
        };
        self.failure = fetched.as_ref().err().cloned();
        fetched
    }

    /// Forgets what was asked for in this step.
    pub(super) fn begin_step(&mut self) {
        self.failure = None;
        if let Some(Raw(raw)) = &self.raw {
            // SAFETY: owned.
            unsafe { ampd_reductions_clear(*raw) }
        }
    }

    /// The numbers of a ticket; `None` before they were fetched, and where that failed.
    pub(super) fn numbers(&self, ticket: Ticket) -> Option<&[f64]> {
        let Raw(raw) = self.raw.as_ref().filter(|_| self.failure.is_none())?;
        let mut count = 0;
        // SAFETY: owned; the numbers live until the next fetch or clear, which take `&mut self`.
        unsafe {
            let numbers = ampd_reductions_numbers(*raw, ticket.0, &mut count);
            (!numbers.is_null()).then(|| std::slice::from_raw_parts(numbers, count))
        }
    }

    /// The one number of a ticket.
    pub(super) fn one(&self, ticket: Ticket) -> Option<f64> {
        self.numbers(ticket)?.first().copied()
    }

    /// The statistics of a ticket.
    pub(super) fn stats(&self, waiting: &StatsTicket) -> Option<Stats> {
        let form = &waiting.form;
        if form.elements == 0 {
            return Some(Stats::default());
        }
        let width = STATISTICS + form.exponents as usize + MARKS;
        let mut stats = Stats::default();
        let mut left = form.elements;
        for row in self.numbers(waiting.ticket)?.chunks_exact(width) {
            let elements = left.min(CHUNK);
            left -= elements;
            stats.merge(&form.stats(row, elements)?);
        }
        (left == 0).then(|| stats.repeated(form.multiplicity))
    }

    /// The fidelity of a ticket, and the energy that was meant for elements which did not move, where it was asked for.
    pub(super) fn fidelity_at(&self, ticket: Ticket) -> Option<(Fidelity, Option<f64>)> {
        let [intended, dead, non_finite, dot, energy, rest @ ..] = self.numbers(ticket)? else { return None };
        let [intended, dead, non_finite] = [intended, dead, non_finite].map(|n| *n as u64);
        Some((Fidelity { intended, dead, non_finite, dot: *dot, energy: *energy }, rest.first().copied()))
    }
}

/// The first numbers of a row: `AMPD_STATISTICS`.
const STATISTICS: usize = 4;

/// Those at its end: NaN, +inf, -inf.
const MARKS: usize = 3;

/// Elements of a row: `AMPD_CHUNK`.
const CHUNK: u64 = 1 << 22;

impl RawForm {
    /// The statistics of a row over so many elements.
    fn stats(&self, row: &[f64], elements: u64) -> Option<Stats> {
        let [min_abs, max_abs, sum, norm, counts @ ..] = row else { return None };
        let (exponents, marks) = counts.split_at_checked(self.exponents as usize)?;
        let [nan, pos_inf, neg_inf] = *marks else { return None };
        let exponents: Vec<u64> = exponents.iter().map(|&n| n as u64).collect();
        let counted = exponents.iter().sum::<u64>() + (nan + pos_inf + neg_inf) as u64;
        let scaled_by = if self.scaled != 0 { scale_of(*max_abs) } else { 0 };
        Some(Stats {
            count: elements,
            zeros: elements.checked_sub(counted)?,
            nan: nan as u64,
            pos_inf: pos_inf as u64,
            neg_inf: neg_inf as u64,
            // Where nothing is finite and non-zero, what was found is larger than any such number.
            min_abs: if *max_abs > 0.0 { *min_abs } else { 0.0 },
            max_abs: *max_abs,
            sum: Scaled::new(*sum, scaled_by),
            sum_squares: Scaled::new(norm * norm, 2 * scaled_by),
            exponents: ExponentHistogram::from_counts(self.first, exponents),
        })
    }
}

/// The power of two that the elements of a row of `f64` were divided by: that of the largest, held within 2^-1000 and 2^1000.
fn scale_of(largest: f64) -> i32 {
    ((largest.to_bits() >> 52) as i32 - 1023).clamp(-1000, 1000)
}

/// Mirrors `ampd_reductions`.
#[repr(C)]
struct RawReductions {
    _private: [u8; 0],
}

/// Mirrors `ampd_statistics_form`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct RawForm {
    first: i32,
    exponents: i32,
    scaled: u8,
    elements: u64,
    multiplicity: u64,
}

unsafe extern "C" {
    fn ampd_reductions_new() -> *mut RawReductions;
    fn ampd_reductions_delete(reductions: *mut RawReductions);
    fn ampd_reduce_statistics(reductions: *mut RawReductions, tensor: *const c_void, form: *mut RawForm) -> i64;
    fn ampd_reduce_difference(
        reductions: *mut RawReductions,
        now: *const c_void,
        before: *const c_void,
        form: *mut RawForm,
    ) -> i64;
    fn ampd_reduce_number(reductions: *mut RawReductions, tensor: *const c_void) -> i64;
    fn ampd_reduce_integers(reductions: *mut RawReductions, tensor: *const c_void) -> i64;
    fn ampd_reduce_neighbours(reductions: *mut RawReductions, tensor: *const c_void, reach: f64) -> i64;
    fn ampd_reduce_unlike(reductions: *mut RawReductions, copy: *const c_void, master: *const c_void) -> i64;
    fn ampd_reduce_fidelity(
        reductions: *mut RawReductions,
        before: *const c_void,
        after: *const c_void,
        intended: *const c_void,
    ) -> i64;
    fn ampd_reduce_fidelity_in(
        reductions: *mut RawReductions,
        before: *const c_void,
        after: *const c_void,
        dtype: i32,
    ) -> i64;
    fn ampd_intend(
        sum: *mut c_void,
        tensor: *const c_void,
        intention: c_int,
        a: *const c_void,
        b: *const c_void,
        factor: f64,
    ) -> c_int;
    fn ampd_copy_tensor(tensor: *const c_void) -> *mut c_void;
    fn ampd_zeros_like(tensor: *const c_void) -> *mut c_void;
    fn ampd_hold_tensor(tensor: *const c_void) -> *mut c_void;
    fn ampd_impl(owned: *const c_void) -> *const c_void;
    fn ampd_drop_tensor(owned: *mut c_void);
    fn ampd_reductions_fetch(reductions: *mut RawReductions) -> c_int;
    fn ampd_reductions_numbers(reductions: *const RawReductions, ticket: i64, count: *mut usize) -> *const f64;
    fn ampd_reductions_count(reductions: *const RawReductions) -> usize;
    fn ampd_reductions_clear(reductions: *mut RawReductions);
    fn ampd_treat_host_as_device(on: c_int);
    #[cfg(test)]
    fn ampd_count_without_atomics(on: c_int);
}

/// Tensors in host memory take the way of a device's from now on, in the whole process: for tests, where what is found both ways can be compared.
pub(crate) fn treat_host_as_device(on: bool) {
    // SAFETY: stores a flag.
    unsafe { ampd_treat_host_as_device(c_int::from(on)) }
}

#[cfg(test)]
mod tests;
