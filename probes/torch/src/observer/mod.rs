//! Follows the operators of a training step, scans what they make, and hands the step over as observations.
//!
//! `border` is the C border to the shim; `attachment` takes the callbacks, catches what fails in them and keeps the time; `state` is
//! what the observer knows during a step, and `forward`, `backward` and `optimizer` are what the events of each do to it; `trace` is what
//! the step showed.

mod attachment;
mod averages;
mod backward;
mod border;
mod device;
mod device_updates;
mod foreign;
mod forward;
mod integers;
mod intended;
mod kept;
mod later;
mod layers;
mod masters;
mod names;
mod optimizer;
mod optimizer_state;
mod params;
mod provenance;
mod recipe;
mod shadow;
mod sites;
mod state;
mod strangers;
mod trace;
mod updates;

use std::ffi::CStr;

use tch::Tensor;

pub(crate) use device::treat_host_as_device;

pub(crate) use attachment::{Attachment, Callback, Planted, StepTrace, Watching, plant};
pub(crate) use kept::{Kept, KeptReader};

use border::RawObserver;

/// Set to 1, it makes tensors in host memory take the way of a GPU's: what that way finds can be tried, and compared, where there is none.
const HOST_AS_DEVICE: &str = "AMPDOCTOR_HOST_AS_DEVICE";

/// The shim's observer of one thread, owned.
pub(crate) struct Observer {
    raw: *mut RawObserver,
}

// The shim's functions may be called from any thread; those that act on a thread's callbacks do nothing on another one.
unsafe impl Send for Observer {}

impl Observer {
    /// Observes the calling thread for `attachment`; `None` where LibTorch refused.
    pub(crate) fn install(attachment: &std::sync::Arc<Attachment>) -> Option<Self> {
        if std::env::var_os(HOST_AS_DEVICE).is_some_and(|value| value == "1") {
            treat_host_as_device(true);
        }
        // SAFETY: the shim takes over one weak reference and gives it back through ampd_release_attachment.
        let raw = unsafe { border::ampd_observer_install(Attachment::into_weak_handle(attachment)) };
        (!raw.is_null()).then_some(Self { raw })
    }

    /// Whether any observer is at work on the calling thread.
    pub(crate) fn thread_is_observed() -> bool {
        // SAFETY: reads a thread-local of the shim.
        unsafe { border::ampd_thread_is_observed() != 0 }
    }

    /// Whether this observer observes the calling thread.
    pub(crate) fn is_here(&self) -> bool {
        // SAFETY: `raw` is valid until drop.
        unsafe { border::ampd_observer_is_here(self.raw) != 0 }
    }

    /// Switches the callbacks of the observed thread; has no effect on another thread.
    pub(crate) fn enable(&self, enabled: bool) {
        // SAFETY: `raw` is valid until drop.
        unsafe { border::ampd_observer_enable(self.raw, i32::from(enabled)) };
    }

    /// Nanoseconds spent in the shim's callbacks since this was last asked, ours within them included.
    pub(crate) fn take_ns(&self) -> u64 {
        // SAFETY: `raw` is valid until drop.
        unsafe { border::ampd_observer_take_ns(self.raw) }
    }

    /// Lets go of what was remembered for the step.
    pub(crate) fn end_step(&self) {
        // SAFETY: `raw` is valid until drop.
        unsafe { border::ampd_observer_step(self.raw) };
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        // SAFETY: `raw` is valid and not used again.
        unsafe { border::ampd_observer_remove(self.raw) };
    }
}

/// The framework observed: `LibTorch 2.13.0`.
pub(crate) fn framework() -> String {
    // SAFETY: a static C string.
    let version = unsafe { CStr::from_ptr(border::ampd_framework_version()) };
    format!("LibTorch {}", version.to_string_lossy())
}

/// The memory of a contiguous tensor on the host; `None` for any other.
pub(crate) fn contiguous_bytes(tensor: &Tensor) -> Option<&[u8]> {
    let described = border::tensor::on_host(tensor)?;
    let view = described.view()?;
    // SAFETY: the tensor lives as long as what is borrowed of it, and nobody changes a tensor that is borrowed here.
    let bytes = unsafe { border::dense_memory(&view) }?;
    // SAFETY: as above; the length of the borrow is that of the tensor, not of its description.
    Some(unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) })
}

/// The value of a floating-point tensor of one element, read from its memory without running an operator; `None` for any other.
pub(crate) fn single_value(tensor: &Tensor) -> Option<f64> {
    let described = border::tensor::on_host(tensor)?;
    let value = described.number();
    // SAFETY: frees what was copied to the host for this call.
    unsafe { border::ampd_release_copies() };
    value
}
