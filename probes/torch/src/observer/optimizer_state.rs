//! The optimizer's own tensors (moments, momentum), as they go into the update of a parameter: written down only where they are not finite.
//!
//! The optimizer keeps them to itself; but the operator that changes the parameter is given them.

use ampdoctor::observation::Probe;
use ampdoctor::scan::{Dtype, TensorView};

use super::border::{RawOp, RawTensor, dense_memory, tensor};
use super::state::State;
use super::trace::Entry;

impl State {
    /// What goes into the update of a parameter besides itself and its gradient.
    pub(super) fn look_at_optimizer_state(&mut self, param: usize, name: &str, op: &RawOp) {
        let Some(param) = self.params.get(param) else { return };
        let (layer, label) = (param.layer, param.tensor_name.to_string());
        let gradient = tensor::gradient(&param.tensor).map_or(0, |gradient| gradient.storage);
        for operand in op.tensors().iter().skip(1) {
            let is_known = operand.storage == gradient || self.params.find(operand.place()).is_some();
            // On a device it takes a scan to tell, and the end of the step to drop what is finite.
            if is_known || operand.dtype().is_none() || !operand.is_on_device() && is_finite(operand) {
                continue;
            }
            let (Some(dtype), Some(scanned)) = (operand.dtype(), self.scan(operand)) else { continue };
            let mut entry = Entry::new(layer, Probe::OptimizerState, dtype, scanned);
            entry.operator = name.to_owned();
            entry.tensor = label.clone();
            self.trace.push(entry);
        }
    }
}

/// Whether every element is finite, at the speed of reading; also true of what is no floating-point data. False where it takes a scan to tell.
fn is_finite(t: &RawTensor) -> bool {
    let Some(view) = t.view() else { return true };
    // SAFETY: the shim describes live memory, which no operator changes during a callback.
    unsafe { dense_memory(&view) }.is_some_and(|bytes| are_finite(&view, bytes))
}

fn are_finite(view: &TensorView<'_>, bytes: &[u8]) -> bool {
    match view.dtype {
        Dtype::F16 => none(bytes, |b: [u8; 2]| u16::from_ne_bytes(b) & 0x7c00 == 0x7c00),
        Dtype::Bf16 => none(bytes, |b: [u8; 2]| u16::from_ne_bytes(b) & 0x7f80 == 0x7f80),
        Dtype::F32 => none(bytes, |b: [u8; 4]| u32::from_ne_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
        Dtype::F64 => none(bytes, |b: [u8; 8]| !f64::from_ne_bytes(b).is_finite()),
    }
}

/// Whether no element is bad. Without a branch within a stretch, so that the compiler makes vectors of it.
fn none<const N: usize>(bytes: &[u8], is_bad: impl Fn([u8; N]) -> bool) -> bool {
    let (elements, _) = bytes.as_chunks::<N>();
    elements.chunks(4096).all(|stretch| !stretch.iter().fold(false, |bad, &element| bad | is_bad(element)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finite(dtype: Dtype, bytes: &[u8], count: i64) -> bool {
        let (sizes, strides) = ([count], [1]);
        let view = TensorView::new(bytes.as_ptr(), dtype, &sizes, &strides).unwrap();
        are_finite(&view, bytes)
    }

    #[test]
    fn one_infinity_among_many_numbers_is_seen_in_every_format() {
        for at in [0, 4095, 4096, 9999] {
            let mut f32s = vec![1.0f32; 10_000];
            let bytes = |all: &[f32]| all.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
            assert!(finite(Dtype::F32, &bytes(&f32s), 10_000));
            f32s[at] = f32::NEG_INFINITY;
            assert!(!finite(Dtype::F32, &bytes(&f32s), 10_000), "{at}");
        }
        for (dtype, largest, infinite) in [(Dtype::F16, 0x7bffu16, 0xfc00u16), (Dtype::Bf16, 0x7f7f, 0x7fc0)] {
            assert!(finite(dtype, &largest.to_ne_bytes(), 1));
            assert!(!finite(dtype, &infinite.to_ne_bytes(), 1));
        }
        assert!(finite(Dtype::F64, &1e308f64.to_ne_bytes(), 1) && !finite(Dtype::F64, &f64::NAN.to_ne_bytes(), 1));
    }
}
