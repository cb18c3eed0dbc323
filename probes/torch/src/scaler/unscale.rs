//! Dividing gradients by the scale, and finding those that are not finite, with ATen's own operator.

use std::ffi::{c_int, c_void};

use tch::{Device, Kind, Tensor};

use super::ScalerError;
use crate::shim;

/// Divides `gradients` by `scale` in place; whether one of them was not finite before, or is not after.
///
/// One operator for each device and dtype, one host synchronisation for each device. Must not be empty.
pub(super) fn unscale(gradients: &[Tensor], scale: f32) -> Result<bool, ScalerError> {
    let inverse = (1.0 / f64::from(scale)) as f32;
    let groups = by_device_and_kind(gradients);
    let mut checks: Vec<Tensor> = Vec::new();
    for (device, group) in &groups {
        let found_inf = check_of(&mut checks, *device)?;
        multiply_and_check(group, found_inf, inverse)?;
        // The operator looks before it multiplies. A factor of at most 1 cannot make an infinity of a finite gradient; a larger one
        // can, and then 1 as the factor makes it look once more and change nothing.
        if inverse > 1.0 {
            multiply_and_check(group, found_inf, 1.0)?;
        }
    }
    let mut found = false;
    for check in &checks {
        found |= f64::try_from(check)? != 0.0;
    }
    Ok(found)
}

/// The dense tensor that holds a gradient's numbers: for a sparse one its values, which share its memory.
pub(super) fn values(gradient: Tensor) -> Result<Tensor, ScalerError> {
    Ok(if gradient.is_sparse() { gradient.f_internal_values()? } else { gradient })
}

/// The operator wants one device and one dtype at a time.
fn by_device_and_kind(gradients: &[Tensor]) -> Vec<(Device, Vec<&Tensor>)> {
    let mut groups: Vec<((Device, Kind), Vec<&Tensor>)> = Vec::new();
    for gradient in gradients {
        let key = (gradient.device(), gradient.kind());
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, group)) => group.push(gradient),
            None => groups.push((key, vec![gradient])),
        }
    }
    groups.into_iter().map(|((device, _), group)| (device, group)).collect()
}

/// The flag of one device, 0 at first.
fn check_of(checks: &mut Vec<Tensor>, device: Device) -> Result<&mut Tensor, ScalerError> {
    let index = match checks.iter().position(|check| check.device() == device) {
        Some(index) => index,
        None => {
            checks.push(Tensor::f_zeros([1], (Kind::Float, device))?);
            checks.len() - 1
        }
    };
    Ok(&mut checks[index])
}

unsafe extern "C" {
    fn ampdoctor_unscale(
        gradients: *const *mut c_void,
        count: usize,
        found_inf: *mut c_void,
        inv_scale: *const c_void,
    ) -> c_int;
}

fn multiply_and_check(gradients: &[&Tensor], found_inf: &mut Tensor, factor: f32) -> Result<(), ScalerError> {
    let factor = Tensor::f_full([1], f64::from(factor), (Kind::Float, found_inf.device()))?;
    let handles: Vec<*mut c_void> = gradients.iter().map(|gradient| gradient.as_ptr().cast_mut().cast()).collect();
    // SAFETY: all handles are at::Tensor that live through the call. What is written is the tensors' memory, which LibTorch owns and
    // tch lets be written through shared handles everywhere.
    let code = unsafe {
        ampdoctor_unscale(handles.as_ptr(), handles.len(), found_inf.as_mut_ptr().cast(), factor.as_ptr().cast())
    };
    Ok(shim::check(code)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libtorch_refuses_comes_back_as_an_error_without_its_stack_trace() {
        tch::set_num_threads(1);
        let error = unscale(&[Tensor::from_slice(&[1i64, 2])], 2.0).unwrap_err().to_string();
        assert!(error.starts_with("LibTorch refused: ") && error.contains("Long"), "{error}");
        assert!(!error.contains("frame #"), "{error}");
    }

    #[test]
    fn every_fp32_magnitude_is_checked_before_and_after() {
        tch::set_num_threads(1);
        for exponent in -149..=127 {
            for scale_exponent in [-149, -140, -126, -1, 0, 1, 126, 127] {
                let (value, scale) = (2f64.powi(exponent) as f32, 2f64.powi(scale_exponent) as f32);
                let gradient = Tensor::from_slice(&[value, 0.0]);
                let found = unscale(&[gradient.shallow_clone()], scale).unwrap();
                let expected = [value * (1.0 / scale), 0.0 * (1.0 / scale)];
                let whole = expected.iter().all(|value| value.is_finite());
                assert_eq!(found, !whole, "2^{exponent} / 2^{scale_exponent}");
                if whole {
                    assert_eq!(Vec::<f32>::try_from(&gradient).unwrap(), expected, "2^{exponent} / 2^{scale_exponent}");
                }
            }
        }
    }
}
