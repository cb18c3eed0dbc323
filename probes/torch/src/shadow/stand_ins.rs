//! What the closure's operators are given in place of the model's tensors.

use std::collections::HashSet;
use std::ffi::{c_int, c_void};

use tch::{Kind, Tensor};

use super::{Original, compare::first_line};
use crate::scaler::optimizer::identity;
use crate::shim;

/// How the closure is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Everything in FP32.
    Fp32,
    /// In the dtypes of the run.
    AsItIs,
}

/// One stand-in for each original, in their order; tied parameters share the first one's.
pub(super) struct StandIns<'a> {
    originals: &'a [Original],
    mode: Mode,
    tensors: Vec<Tensor>,
    /// Whether it is the first of its tensor.
    first: Vec<bool>,
}

impl<'a> StandIns<'a> {
    /// Parameters are aliases of the memory that they stand for, where the dtype is right; else, and for buffers, which forward changes, copies.
    pub(super) fn new(originals: &'a [Original], mode: Mode) -> Result<Self, String> {
        let mut seen = HashSet::new();
        let first = originals.iter().map(|original| seen.insert(identity(&original.tensor))).collect();
        let tensors: Result<Vec<Tensor>, tch::TchError> = originals.iter().map(|o| stand_in(o, mode)).collect();
        Ok(Self { originals, mode, tensors: tensors.map_err(|e| first_line(&e))?, first })
    }

    /// From here on operators of this thread are given the stand-ins, until what is returned is left or dropped.
    pub(super) fn enter(&self) -> Result<Entered, String> {
        let chosen = || self.originals.iter().zip(&self.tensors).zip(&self.first).filter(|(_, first)| **first);
        let originals: Vec<*const c_void> = chosen().map(|((o, _), _)| o.tensor.as_ptr().cast()).collect();
        let stand_ins: Vec<*const c_void> = chosen().map(|((_, t), _)| t.as_ptr().cast()).collect();
        let writable: Vec<u8> = chosen().map(|((o, _), _)| u8::from(!o.parameter)).collect();
        let widen = c_int::from(self.mode == Mode::Fp32);
        // SAFETY: three arrays of one length, of handles that outlive the shadow: they are borrowed by what is returned to the caller's scope.
        let code = unsafe {
            ampdoctor_shadow_enter(originals.as_ptr(), stand_ins.as_ptr(), writable.as_ptr(), originals.len(), widen)
        };
        shim::check(code).map_err(|e| e.to_string())?;
        Ok(Entered { left: false })
    }

    /// The gradient of `loss` times `scale` for each original; `None` for buffers, frozen parameters, second names of tied ones, and where the loss does not
    /// depend on it.
    pub(super) fn gradients(&self, loss: &Tensor, scale: f64) -> Result<Vec<Option<Tensor>>, String> {
        let asked: Vec<usize> =
            (0..self.tensors.len()).filter(|&i| self.first[i] && self.tensors[i].requires_grad()).collect();
        let inputs: Vec<*const c_void> = asked.iter().map(|&i| self.tensors[i].as_ptr().cast()).collect();
        let mut found: Vec<Tensor> = asked.iter().map(|_| Tensor::new()).collect();
        let out: Vec<*mut c_void> = found.iter_mut().map(|t| t.as_mut_ptr().cast()).collect();
        // SAFETY: two arrays of one length; every handle lives through the call, and those of `out` are written to by nobody else.
        let code =
            unsafe { ampdoctor_gradients(loss.as_ptr().cast(), scale, inputs.as_ptr(), inputs.len(), out.as_ptr()) };
        shim::check(code).map_err(|e| e.to_string())?;
        let mut gradients: Vec<Option<Tensor>> = self.tensors.iter().map(|_| None).collect();
        for (index, gradient) in asked.into_iter().zip(found) {
            gradients[index] = gradient.defined().then_some(gradient);
        }
        Ok(gradients)
    }
}

fn stand_in(original: &Original, mode: Mode) -> Result<Tensor, tch::TchError> {
    let widens = |t: &Tensor| mode == Mode::Fp32 && matches!(t.kind(), Kind::Half | Kind::BFloat16);
    let source = match (&original.master, mode) {
        (Some(master), Mode::Fp32) => master,
        _ => &original.tensor,
    };
    let alias = source.f_detach()?;
    let stand_in = match original.parameter {
        _ if widens(&alias) => alias.f_to_kind(Kind::Float)?,
        true => alias,
        false => alias.f_to_dtype(alias.kind(), false, true)?,
    };
    match original.tensor.requires_grad() {
        true => stand_in.f_set_requires_grad(true),
        false => Ok(stand_in),
    }
}

/// A thread whose operators are given stand-ins.
pub(super) struct Entered {
    left: bool,
}

impl Entered {
    /// Ends it; how often a stand-in was read.
    pub(super) fn leave(mut self) -> u64 {
        self.left = true;
        // SAFETY: changes this thread's state only.
        unsafe { ampdoctor_shadow_leave() }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if !self.left {
            // SAFETY: as above.
            unsafe { ampdoctor_shadow_leave() };
        }
    }
}

unsafe extern "C" {
    fn ampdoctor_shadow_enter(
        originals: *const *const c_void,
        stand_ins: *const *const c_void,
        writable: *const u8,
        count: usize,
        widen: i32,
    ) -> c_int;
    fn ampdoctor_shadow_leave() -> u64;
    fn ampdoctor_gradients(
        loss: *const c_void,
        scale: f64,
        inputs: *const *const c_void,
        count: usize,
        gradients: *const *mut c_void,
    ) -> c_int;
}
