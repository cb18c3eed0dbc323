//! What looks like a fault and is none: a doctor that speaks of it raises a false alarm.

use tch::{Kind, Tensor};

use super::Fault;

/// Share of the elements that dropout drops.
const DROPPED: f64 = 0.2;

/// What is done to a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Harmless {
    /// A part of the output is dropped at random.
    Dropout,
    /// The layer and all before it get no gradient.
    Frozen,
    /// The output is multiplied by a gate that opens at the fault's step.
    Gate,
    /// A classifier that nobody has trained: its bias is zero.
    ZeroBias,
    /// The head that is tied to an embedding does not train it: rows whose characters are not in the batch get no gradient.
    FrozenHead,
}

impl Fault for Harmless {
    fn name(&self) -> &'static str {
        match self {
            Self::Dropout => "dropout",
            Self::Frozen => "frozen",
            Self::Gate => "closed-gate",
            Self::ZeroBias => "zero-bias",
            Self::FrozenHead => "frozen-head",
        }
    }

    fn about(&self) -> &'static str {
        match self {
            Self::Dropout => "no fault: a fifth of the output of LAYER is dropped at random",
            Self::Frozen => "no fault: LAYER and the layers before it are frozen",
            Self::Gate => {
                "no fault: LAYER stands behind a gate that is zero until the step; for a layer with a residual around it"
            }
            Self::ZeroBias => "no fault: the bias of LAYER is zero when it begins, as that of a fresh classifier",
            Self::FrozenHead => {
                "no fault: the head does not train the embedding that it is tied to, whose rows then get a gradient only where their character is in the batch; transformer"
            }
        }
    }

    fn needs_layer(&self) -> bool {
        *self != Self::FrozenHead
    }

    fn is_setting(&self) -> bool {
        *self != Self::Gate
    }

    fn output(&self, output: Tensor, active: bool, _by_hand: Kind) -> Tensor {
        match self {
            Self::Dropout if active => output.dropout(DROPPED, true),
            Self::Frozen if active => output.detach(),
            Self::Gate => output * if active { 1.0 } else { 0.0 },
            _ => output,
        }
    }

    fn bias_factor(&self) -> Option<f64> {
        (*self == Self::ZeroBias).then_some(0.0)
    }

    fn tied(&self, embedding: Tensor) -> Tensor {
        if *self == Self::FrozenHead { embedding.detach() } else { embedding }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    fn gradient(fault: Harmless, active: bool) -> Option<Tensor> {
        let x = Tensor::ones([100], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let sum = fault.output(x.shallow_clone(), active, Kind::Half).sum(Kind::Float);
        sum.requires_grad().then(|| {
            sum.backward();
            x.grad()
        })
    }

    #[test]
    fn a_frozen_layer_has_no_gradient_and_a_closed_gate_one_of_zero() {
        assert!(gradient(Harmless::Frozen, true).is_none());
        assert!(gradient(Harmless::Frozen, false).is_some());
        let sum = |gradient: Option<Tensor>| f64::try_from(gradient.unwrap().sum(Kind::Float)).unwrap();
        assert_eq!((sum(gradient(Harmless::Gate, false)), sum(gradient(Harmless::Gate, true))), (0.0, 100.0));
        let kept = sum(gradient(Harmless::Dropout, true));
        assert!((70.0..130.0).contains(&kept), "{kept}");
    }
}
