//! What `Doctor::step` takes as the loss.

use tch::Tensor;

use crate::observer;

/// A loss: a tensor of one element, a number, or `()` where there is none.
pub trait Loss {
    /// Its value; `None` where there is none, or the tensor has not exactly one floating-point element.
    fn value(&self) -> Option<f64>;

    /// The tensor that it is read from, where it is one: a doctor may read it later.
    #[doc(hidden)]
    fn tensor(&self) -> Option<&Tensor> {
        None
    }
}

impl Loss for &Tensor {
    fn value(&self) -> Option<f64> {
        observer::single_value(self)
    }

    fn tensor(&self) -> Option<&Tensor> {
        Some(self)
    }
}

impl Loss for f64 {
    fn value(&self) -> Option<f64> {
        Some(*self)
    }
}

impl Loss for f32 {
    fn value(&self) -> Option<f64> {
        Some(f64::from(*self))
    }
}

impl Loss for () {
    fn value(&self) -> Option<f64> {
        None
    }
}

impl<L: Loss> Loss for Option<L> {
    fn value(&self) -> Option<f64> {
        self.as_ref().and_then(Loss::value)
    }

    fn tensor(&self) -> Option<&Tensor> {
        self.as_ref().and_then(Loss::tensor)
    }
}
