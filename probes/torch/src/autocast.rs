//! Mixed precision for a closure: `torch.autocast` for `tch`, on the CPU and on CUDA.
//!
//! `tch::autocast` switches CUDA's autocast only, does nothing without CUDA, and leaves it on when its closure panics.
//! Autocast is a state of the thread: other threads, and closures handed to them, are not in it.

use std::ffi::c_int;
use std::marker::PhantomData;

use tch::{Device, Kind};

use crate::shadow;
use crate::shim::{self, ShimError};

/// Why autocast could not be entered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AutocastError {
    /// Autocast has no such dtype.
    #[error(
        "autocast to {0:?} does not exist: it casts to a 16-bit float. \
         Use Kind::Half or Kind::BFloat16, or Kind::Float to run without autocast"
    )]
    Dtype(Kind),
    /// Autocast has no such device here.
    #[error(
        "autocast on {0:?} is not supported: it is known for Device::Cpu and Device::Cuda. Run this closure without autocast"
    )]
    Device(Device),
    /// LibTorch refused.
    #[error("LibTorch refused to switch autocast: {0}")]
    LibTorch(#[from] ShimError),
}

/// Runs `body` under autocast: matrix products and convolutions on `device` take their operands in `kind`.
///
/// `kind` is [`Kind::Half`] or [`Kind::BFloat16`]; [`Kind::Float`] runs `body` with autocast switched off, so that a precision
/// can be a setting. Parameters stay in FP32; the casts belong to the graph, so backward runs *outside* of the closure. Calls nest, and
/// the state before is restored however `body` ends, by a panic too. Leaving the outermost call frees the cast copies
/// of the weights.
///
/// On the CPU, autocast to Half leaves softmax, layer norm, exp, log, pow and sums in Half, where CUDA's runs them in FP32;
/// [`no_autocast`] makes an FP32 island. The CUDA path is the same code with the other device, and has not been run on a GPU.
///
/// # Panics
/// For another `kind` or `device`, with the text of [`AutocastError`]; [`f_autocast`] returns it.
///
/// ```no_run
/// use ampdoctor_torch::autocast;
/// use tch::{Device, Kind, Tensor};
///
/// let (x, w) = (Tensor::ones([2, 3], (Kind::Float, Device::Cpu)), Tensor::ones([4, 3], (Kind::Float, Device::Cpu)));
/// let y = autocast(Device::Cpu, Kind::Half, || x.linear(&w, None::<&Tensor>));
/// assert_eq!(y.kind(), Kind::Half);
/// ```
pub fn autocast<T>(device: Device, kind: Kind, body: impl FnOnce() -> T) -> T {
    f_autocast(device, kind, body).unwrap_or_else(|error| panic!("{error}"))
}

/// [`autocast`] where `enabled`; otherwise `body` runs with autocast switched off on `device`, whatever surrounds it.
///
/// # Panics
/// As [`autocast`]; `kind` is not looked at where autocast is not enabled.
pub fn autocast_if<T>(enabled: bool, device: Device, kind: Kind, body: impl FnOnce() -> T) -> T {
    autocast(device, if enabled { kind } else { Kind::Float }, body)
}

/// [`autocast`] that returns what is wrong with its arguments, before `body` runs.
pub fn f_autocast<T>(device: Device, kind: Kind, body: impl FnOnce() -> T) -> Result<T, AutocastError> {
    let device = AutocastDevice::of(device)?;
    // In an FP32 shadow the same closure runs without.
    let dtype = dtype_code(kind)?.filter(|_| !shadow::in_fp32());
    let _level = Level::enter(device, dtype)?;
    Ok(body())
}

/// Runs `body` with autocast switched off on every device: an FP32 island inside [`autocast`].
///
/// Tensors that are FP16 already stay FP16: cast what enters the island, `x.to_kind(Kind::Float)`.
///
/// # Panics
/// Where LibTorch refuses to switch autocast, which it has no reason for.
pub fn no_autocast<T>(body: impl FnOnce() -> T) -> T {
    let enter = |device| Level::enter(device, None).unwrap_or_else(|error| panic!("{error}"));
    let _levels = (enter(AutocastDevice::Cpu), enter(AutocastDevice::Cuda));
    body()
}

/// Whether operators on `device` run under autocast on this thread now; `false` for devices that have none.
pub fn is_autocast_enabled(device: Device) -> bool {
    AutocastDevice::of(device).ok().and_then(|device| get(device).ok()).is_some_and(|state| state.enabled != 0)
}

/// The number by which LibTorch calls FP32.
const FLOAT: i32 = 6;

/// The number by which LibTorch calls a dtype to cast to; `None` to switch autocast off.
fn dtype_code(kind: Kind) -> Result<Option<i32>, AutocastError> {
    match kind {
        Kind::Half => Ok(Some(5)),
        Kind::BFloat16 => Ok(Some(15)),
        Kind::Float => Ok(None),
        other => Err(AutocastError::Dtype(other)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AutocastDevice {
    Cpu = 0,
    Cuda = 1,
}

impl AutocastDevice {
    fn of(device: Device) -> Result<AutocastDevice, AutocastError> {
        match device {
            Device::Cpu => Ok(AutocastDevice::Cpu),
            Device::Cuda(_) => Ok(AutocastDevice::Cuda),
            other => Err(AutocastError::Device(other)),
        }
    }
}

/// The autocast state of a thread for one kind of device; as in `shim/amp.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    enabled: i32,
    dtype: i32,
}

/// One level of autocast on this thread; dropping it restores what was before.
pub(crate) struct Level {
    device: AutocastDevice,
    before: State,
    cast_differs: bool,
    /// The state belongs to the thread, so the level must be left on the thread that entered it.
    not_send: PhantomData<*const ()>,
}

impl Level {
    /// Both kinds of device without autocast, the CPU's first; what switches it on again by a way of its own casts to FP32.
    ///
    /// The casts that a surrounding level has made are kept.
    pub(crate) fn fp32() -> Result<[Level; 2], ShimError> {
        let off = |device| {
            let before = get(device)?;
            enter(false)?;
            let level = Level { device, before, cast_differs: false, not_send: PhantomData };
            set(device, State { enabled: 0, dtype: FLOAT })?;
            Ok(level)
        };
        Ok([off(AutocastDevice::Cpu)?, off(AutocastDevice::Cuda)?])
    }

    fn enter(device: AutocastDevice, dtype: Option<i32>) -> Result<Level, ShimError> {
        let before = get(device)?;
        let now = State { enabled: i32::from(dtype.is_some()), dtype: dtype.unwrap_or(before.dtype) };
        // The cache of cast weights does not look at the dtype: an inner level would be served the outer one's copies.
        let cast_differs = now.dtype != before.dtype;
        enter(cast_differs)?;
        let level = Level { device, before, cast_differs, not_send: PhantomData };
        set(device, now)?;
        Ok(level)
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        let left = leave(self.cast_differs).and(set(self.device, self.before));
        if let Err(error) = left
            && !std::thread::panicking()
        {
            panic!("the autocast state of this thread could not be restored: {error}");
        }
    }
}

unsafe extern "C" {
    fn ampdoctor_autocast_get(device: i32, state: *mut State) -> c_int;
    fn ampdoctor_autocast_set(device: i32, state: State) -> c_int;
    fn ampdoctor_autocast_enter(clear_cache: c_int) -> c_int;
    fn ampdoctor_autocast_leave(clear_cache: c_int) -> c_int;
}

fn get(device: AutocastDevice) -> Result<State, ShimError> {
    let mut state = State { enabled: 0, dtype: 0 };
    // SAFETY: `state` outlives the call and has the layout that the shim declares.
    shim::check(unsafe { ampdoctor_autocast_get(device as i32, &mut state) })?;
    Ok(state)
}

fn set(device: AutocastDevice, state: State) -> Result<(), ShimError> {
    // SAFETY: plain values; the dtypes come from `dtype_code` or from LibTorch itself.
    shim::check(unsafe { ampdoctor_autocast_set(device as i32, state) })
}

fn enter(clear_cache: bool) -> Result<(), ShimError> {
    // SAFETY: no pointers; every level entered is left by `Level::drop`.
    shim::check(unsafe { ampdoctor_autocast_enter(c_int::from(clear_cache)) })
}

fn leave(clear_cache: bool) -> Result<(), ShimError> {
    // SAFETY: no pointers; called once for each `enter`.
    shim::check(unsafe { ampdoctor_autocast_leave(c_int::from(clear_cache)) })
}
