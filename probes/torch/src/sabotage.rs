//! What tests do to the observer: failures planted in its callbacks, to show that they never reach the training, and the way of a GPU's tensors for those
//! of the CPU, to show that both find the same.

use crate::Doctor;
use crate::observer::{self, Callback, Planted};

/// A callback of the observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// An operator begins.
    Start,
    /// An operator has ended.
    End,
    /// The gradient of an activation.
    Gradient,
    /// Backward begins.
    Backward,
    /// Our own scaler reports.
    Scaler,
}

impl Place {
    fn callback(self) -> Callback {
        match self {
            Place::Start => Callback::Start,
            Place::End => Callback::End,
            Place::Gradient => Callback::Gradient,
            Place::Backward => Callback::Backward,
            Place::Scaler => Callback::Scaler,
        }
    }
}

/// Every callback of the process panics from now on at this place.
pub fn plant_panic(place: Place) {
    observer::plant(Planted::Panic(place.callback()));
}

/// Every callback of the process throws a C++ exception from now on at this place; `Backward` and `Scaler` have no C++ code.
pub fn plant_exception(place: Place) {
    observer::plant(Planted::Exception(place.callback()));
}

/// Tensors in host memory take the way of a GPU's from now on, in the whole process, or no longer.
pub fn treat_host_as_device(on: bool) {
    observer::treat_host_as_device(on);
}

/// The step that goes on begins now, for the doctor's clock: what passed since the last one is no time of the training. For measurements in which a training
/// waits while another has its turn.
pub fn restart_clock(doctor: &mut Doctor) {
    doctor.restart_clock();
}

/// Plants nothing any more.
pub fn clear() {
    observer::plant(Planted::Nothing);
}
