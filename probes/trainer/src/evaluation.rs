//! What a model has learned, by the examples that were held out.

use tch::{Kind, Tensor};

use crate::data::Set;
use crate::fault::Plant;
use crate::model::{Fp32Layers, Model, Pass};
use crate::precision::{Precision, cross_entropy};

/// How well a model does on a set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Share of the targets that it says right.
    pub accuracy: f64,
    /// Mean cross-entropy.
    pub loss: f64,
}

/// Judges a model by a set, without gradients and with the statistics that it has gathered.
pub fn evaluate(model: &dyn Model, pass: &Pass<'_>, set: &Set) -> Evaluation {
    tch::no_grad(|| {
        let (inputs, targets) = set.all();
        let logits = pass.plant().evaluated(pass.precision().logits(inputs, |x| model.forward(x, false, pass)));
        Evaluation { accuracy: accuracy(&logits, targets), loss: cross_entropy(&logits, targets).double_value(&[]) }
    })
}

/// The same in FP32 and without a fault, of a model whose parameters are FP32: what `evaluate` is held against.
pub fn evaluate_in_fp32(model: &dyn Model, set: &Set) -> Evaluation {
    evaluate(model, &Pass::new(Precision::Fp32, &Fp32Layers::none(), &Plant::none()), set)
}

fn accuracy(logits: &Tensor, targets: &Tensor) -> f64 {
    // A NaN is no answer, whatever place argmax gives it.
    let answered = logits.isfinite().all_dim(-1, false);
    let right = logits.argmax(-1, false).eq_tensor(targets).logical_and(&answered);
    right.to_kind(Kind::Double).mean(Kind::Double).double_value(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nan_is_no_right_answer() {
        let logits = Tensor::from_slice(&[0.0, 1.0, f32::NAN, 0.0, 1.0, 0.0]).view([3, 2]);
        let targets = Tensor::from_slice(&[1i64, 0, 1]);
        assert_eq!(accuracy(&logits, &targets), 1.0 / 3.0);
    }
}
