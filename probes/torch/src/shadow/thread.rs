//! The state of the thread that a shadow changes, each part restored when its guard is dropped.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;

use tch::{Device, Tensor};

use crate::autocast::Level;
use crate::shim::{self, ShimError};

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
    static FP32: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a shadow: what scalers do in it is no event of the run.
pub(crate) fn is_on() -> bool {
    ON.try_with(Cell::get).unwrap_or(false)
}

/// Whether this thread runs one in FP32, in which nobody enters autocast.
pub(crate) fn in_fp32() -> bool {
    FP32.try_with(Cell::get).unwrap_or(false)
}

/// A shadow, from its beginning to its end.
pub(super) struct On(PhantomData<*const ()>);

impl On {
    pub(super) fn new() -> Self {
        ON.set(true);
        Self(PhantomData)
    }
}

impl Drop for On {
    fn drop(&mut self) {
        ON.set(false);
    }
}

/// The part of it that is FP32.
pub(super) struct Fp32(PhantomData<*const ()>);

impl Fp32 {
    pub(super) fn veto() -> Self {
        FP32.set(true);
        Self(PhantomData)
    }
}

impl Drop for Fp32 {
    fn drop(&mut self) {
        FP32.set(false);
    }
}

/// Autograd records, whatever surrounds the shadow.
pub(super) struct GradMode {
    before: c_int,
    not_send: PhantomData<*const ()>,
}

impl GradMode {
    pub(super) fn enable() -> Self {
        // SAFETY: sets a flag of this thread and returns the one before.
        Self { before: unsafe { torch_sys::at_grad_set_enabled(1) }, not_send: PhantomData }
    }
}

impl Drop for GradMode {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { torch_sys::at_grad_set_enabled(self.before) };
    }
}

/// Autocast off, on every kind of device; and what switches it on by a way of its own casts to FP32, which changes nothing.
pub(super) struct Autocast {
    _levels: [Level; 2],
}

impl Autocast {
    pub(super) fn off() -> Result<Self, ShimError> {
        let [cpu, cuda] = Level::fp32()?;
        Ok(Self { _levels: [cuda, cpu] })
    }
}

/// The random numbers of some devices, as they were.
pub(super) struct Random {
    states: Vec<(i32, Tensor)>,
}

impl Random {
    pub(super) fn save(devices: &[Device]) -> Result<Self, String> {
        let number = |device: &Device| if let Device::Cuda(index) = device { *index as i32 } else { -1 };
        let states: Result<Vec<_>, ShimError> = devices.iter().map(number).map(|d| Ok((d, state(d)?))).collect();
        Ok(Self { states: states.map_err(|e| e.to_string())? })
    }

    /// Whether a random number was drawn since they were saved.
    pub(super) fn has_moved(&self) -> Result<bool, String> {
        for (device, before) in &self.states {
            if state(*device).map_err(|e| e.to_string())? != *before {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn restore(&self) -> Result<(), String> {
        self.states.iter().try_for_each(|(device, before)| set_state(*device, before)).map_err(|e| e.to_string())
    }
}

impl Drop for Random {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            eprintln!(
                "ampdoctor: the random numbers could not be set back after a shadow; the run draws others from here on: {error}"
            );
        }
    }
}

fn state(device: i32) -> Result<Tensor, ShimError> {
    let mut state = Tensor::new();
    // SAFETY: a handle that nobody else has.
    shim::check(unsafe { ampdoctor_random_state(device, state.as_mut_ptr().cast()) })?;
    Ok(state)
}

fn set_state(device: i32, state: &Tensor) -> Result<(), ShimError> {
    // SAFETY: a state that the shim gave.
    shim::check(unsafe { ampdoctor_set_random_state(device, state.as_ptr().cast()) })
}

unsafe extern "C" {
    fn ampdoctor_random_state(device: i32, state: *mut c_void) -> c_int;
    fn ampdoctor_set_random_state(device: i32, state: *const c_void) -> c_int;
}
