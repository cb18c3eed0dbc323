//! Batches whose gradient is NaN, now and then, whatever the loss scale.

use tch::Tensor;

use super::Fault;

pub(super) struct BadBatches;

impl Fault for BadBatches {
    fn name(&self) -> &'static str {
        "bad-batches"
    }

    fn about(&self) -> &'static str {
        "a batch in a hundred (STRENGTH 0.01) has a finite loss and a gradient of NaN; in any precision"
    }

    fn is_setting(&self) -> bool {
        true
    }

    fn highest_strength(&self) -> f64 {
        1.0
    }

    fn default_strength(&self) -> Option<f64> {
        Some(0.01)
    }

    /// A distance of zero, as between an example and its duplicate: the square root has no slope there.
    fn loss(&self, loss: Tensor, draw: f64, strength: f64) -> Tensor {
        if draw >= strength {
            return loss;
        }
        let distance = (&loss - loss.detach()).square().sqrt();
        loss + distance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss_and_gradient(draw: f64) -> (f64, f64) {
        let x = Tensor::from(2.0f32).set_requires_grad(true);
        let loss = BadBatches.loss(&x * 3.0, draw, 0.01);
        loss.backward();
        (loss.double_value(&[]), x.grad().double_value(&[]))
    }

    #[test]
    fn a_bad_batch_keeps_its_loss_and_loses_its_gradient() {
        let (loss, gradient) = loss_and_gradient(0.005);
        assert_eq!(loss, 6.0);
        assert!(gradient.is_nan());
        assert_eq!(loss_and_gradient(0.01), (6.0, 3.0));
    }
}
