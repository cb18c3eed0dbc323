//! Parameters that are written back from FP32 copies, against these copies.

use ampdoctor::scan::{Dtype, unlike_rounded};

use super::border::{RawTensor, dense_memory, tensor};
use super::later::Number;
use super::state::State;

impl State {
    /// Compares each parameter that has an FP32 copy with what the copy rounds to; once a step.
    ///
    /// When forward reads them, since that is when they must agree, wherever in the loop the write-back and `doctor.step` stand.
    pub(super) fn compare_masters(&mut self) {
        if std::mem::replace(&mut self.masters_compared, true) {
            return;
        }
        for index in 0..self.params.len() {
            let Some(copy) = self.params.master_of(index) else { continue };
            let tensors = [index, copy].map(|i| self.params.get(i).and_then(|p| tensor::describe(&p.tensor)));
            let [Some(param), Some(copy)] = &tensors else { continue };
            if let Some(unlike) = self.unlike(param, copy) {
                self.unlike_masters.insert(index, unlike);
            }
        }
    }

    /// What the comparison of a parameter found, to be told once.
    pub(super) fn unlike_master(&mut self, index: usize) -> Option<Number> {
        self.unlike_masters.remove(&index)
    }

    fn unlike(&mut self, param: &RawTensor, copy: &RawTensor) -> Option<Number> {
        if !param.is_on_device() || !copy.is_on_device() {
            return unlike(param, copy).map(|n| Number::Known(n as f64));
        }
        let lie_alike =
            copy.dtype() == Some(Dtype::F32) && param.sizes() == copy.sizes() && param.strides() == copy.strides();
        if !lie_alike || param.dtype().is_none() {
            return None;
        }
        let ticket = self.device.unlike(param, copy);
        self.asked(ticket).map(Number::Later)
    }
}

/// Elements of a parameter that are not what its copy rounds to; `None` where the two do not lie alike in memory.
fn unlike(param: &RawTensor, copy: &RawTensor) -> Option<u64> {
    let (param, copy) = (param.view()?, copy.view()?);
    let lie_alike = copy.dtype == Dtype::F32 && param.sizes == copy.sizes && param.strides == copy.strides;
    // SAFETY: both views are of live parameters, and nothing runs beside this callback.
    let (of_param, of_copy) = unsafe { (dense_memory(&param)?, dense_memory(&copy)?) };
    lie_alike.then(|| unlike_rounded(param.dtype, of_param, of_copy))
}
