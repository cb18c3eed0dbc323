//! Gradient beside gradient, parameter by parameter.

use ampdoctor::observation::{Probe, Site};
use ampdoctor::scan::{Dtype, Likeness, likeness};
use tch::{Device, Kind, TchError, Tensor};

use super::{Original, Outcome};
use crate::observer;

/// A gradient in mixed precision beside FP32's.
pub(crate) struct Pair {
    /// Where the observer sees it, too.
    pub site: Site,
    pub likeness: Likeness,
}

/// From here on the two point the same way, so that their lengths can be compared.
const SAME_DIRECTION: f64 = 0.9;
/// Octaves between two lengths that no rounding explains, where the direction is the same.
const NO_ROUNDING: f64 = 1.5;

pub(super) fn outcome(
    originals: &[Original],
    loss: f64,
    loss_scale: Option<f64>,
    recomputed: bool,
    exact: &[Option<Tensor>],
    mixed: &[Option<Tensor>],
) -> Result<Outcome, String> {
    let mut pairs = Vec::new();
    for (original, (exact, mixed)) in originals.iter().zip(exact.iter().zip(mixed)) {
        if exact.is_some() || mixed.is_some() {
            let pair = pair(original, loss_scale.unwrap_or(1.0), exact.as_ref(), mixed.as_ref());
            pairs.push(pair.map_err(|e| format!("{}.{}: {}", original.layer, original.name, first_line(&e)))?);
        }
    }
    let mut loss_scale = loss_scale;
    if let (None, false) = (loss_scale, recomputed) {
        loss_scale = factor(&pairs);
        let scale = loss_scale.unwrap_or(1.0);
        pairs.iter_mut().for_each(|pair| pair.likeness = pair.likeness.unscaled(scale));
    }
    Ok(Outcome { loss, loss_scale, recomputed, pairs })
}

/// The factor by which a loop without a known scaler multiplies its loss: what all gradients together are longer than FP32's, where they point the same way
/// and the factor is no matter of rounding.
fn factor(pairs: &[Pair]) -> Option<f64> {
    let mut all = Likeness::default();
    pairs.iter().for_each(|pair| all.merge(&pair.likeness));
    let same = all.cosine().is_some_and(|cosine| cosine > SAME_DIRECTION);
    let factor = all.dot / all.fp32_energy;
    (same && factor.log2().abs() > NO_ROUNDING).then(|| nearest_power(factor))
}

/// A factor within a tenth of a power of two is meant to be one.
fn nearest_power(factor: f64) -> f64 {
    let power = factor.log2().round().exp2();
    if (factor / power - 1.0).abs() < 0.1 { power } else { factor }
}

fn pair(original: &Original, scale: f64, exact: Option<&Tensor>, mixed: Option<&Tensor>) -> Result<Pair, TchError> {
    let kind = mixed.map_or_else(|| original.tensor.kind(), Tensor::kind);
    let dtype = match kind {
        Kind::Half => Dtype::F16,
        Kind::BFloat16 => Dtype::Bf16,
        Kind::Double => Dtype::F64,
        _ => Dtype::F32,
    };
    let fp32 = match exact {
        Some(exact) => Vec::<f32>::try_from(host(exact)?.f_to_kind(Kind::Float)?.f_flatten(0, -1)?)?,
        None => vec![0.0; original.tensor.numel()],
    };
    let likeness = match mixed {
        None => likeness(dtype, &[], scale, &fp32),
        Some(mixed) => {
            let mixed = host(mixed)?;
            let bytes = observer::contiguous_bytes(&mixed);
            likeness(dtype, bytes.unwrap_or(&[]), scale, &fp32)
        }
    };
    let (layer, tensor) = (original.layer.clone(), original.name.clone());
    Ok(Pair { site: Site { layer, operator: String::new(), tensor, probe: Probe::ParamGrad, dtype }, likeness })
}

/// Dense, in host memory, in the order of its indices.
fn host(gradient: &Tensor) -> Result<Tensor, TchError> {
    let gradient = gradient.f_detach()?;
    let dense = if gradient.is_sparse() { gradient.f_to_dense(None, false)? } else { gradient };
    dense.f_to_device(Device::Cpu)?.f_contiguous()
}

/// LibTorch's reason, without its stack trace.
pub(super) fn first_line(error: &TchError) -> String {
    first_paragraph(&error.to_string())
}

/// The text up to LibTorch's stack trace.
pub(super) fn first_paragraph(text: &str) -> String {
    let text = text.split("\nException raised from").next().unwrap_or(text);
    let text = text.replace("called `Result::unwrap()` on an `Err` value: ", "");
    text.replace("Torch(\"", "").split("\\nException raised from").next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_trace_of_a_panic_is_left_out() {
        let text = "called `Result::unwrap()` on an `Err` value: Torch(\"mat1 and mat2 shapes\\nException raised from f at x.cpp\")";
        assert_eq!(first_paragraph(text), "mat1 and mat2 shapes");
        assert_eq!(first_paragraph("planted"), "planted");
    }

    #[test]
    fn a_factor_near_a_power_of_two_is_one() {
        assert_eq!((nearest_power(1023.0), nearest_power(0.0625)), (1024.0, 0.0625));
        assert_eq!(nearest_power(100.0), 100.0);
    }
}
