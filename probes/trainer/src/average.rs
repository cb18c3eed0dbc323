//! A moving average of the weights, as loops keep one to evaluate and save in place of the last weights.

use tch::{Kind, Tensor, nn};

/// How the average is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Averaging {
    /// In what numbers.
    pub kind: Kind,
    /// The share of itself that it keeps at each step.
    pub decay: f64,
}

/// A moving average of all trained parameters.
pub struct WeightAverage {
    how: Averaging,
    /// Each average, and its parameter.
    pairs: Vec<(Tensor, Tensor)>,
}

impl WeightAverage {
    /// An average that begins where the weights are.
    pub fn new(vs: &nn::VarStore, how: Averaging) -> Self {
        let copy = |weight: Tensor| (weight.detach().to_kind(how.kind).copy(), weight);
        Self { how, pairs: vs.trainable_variables().into_iter().map(copy).collect() }
    }

    /// A step towards the weights as they are now.
    pub fn update(&mut self) {
        let Averaging { kind, decay } = self.how;
        tch::no_grad(|| {
            for (average, weight) in &mut self.pairs {
                let _average = average.lerp_(&weight.to_kind(kind), 1.0 - decay);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    /// Where an average that began at 1 is after `steps` steps towards 0.
    fn after(kind: Kind, decay: f64, steps: usize) -> f64 {
        let vs = nn::VarStore::new(Device::Cpu);
        let mut weight = vs.root().var_copy("w", &Tensor::from_slice(&[1.0f32]));
        let mut average = WeightAverage::new(&vs, Averaging { kind, decay });
        let _weight = tch::no_grad(|| weight.zero_());
        (0..steps).for_each(|_| average.update());
        average.pairs[0].0.double_value(&[0])
    }

    #[test]
    fn fp32_follows_the_weights_and_16_bits_stand_still() {
        let right = after(Kind::Float, 0.9999, 10_000);
        assert!((right - (-1.0f64).exp()).abs() < 1e-3, "{right}");
        assert_eq!((after(Kind::Half, 0.9999, 1000), after(Kind::BFloat16, 0.999, 1000)), (1.0, 1.0));
        assert!(after(Kind::BFloat16, 0.9, 100) < 0.05);
    }
}
