//! A source of NaN that no loss scale can help: the logarithm of a negative number.

use tch::{Kind, Tensor};

use super::Fault;

pub(super) struct NanSource;

impl Fault for NanSource {
    fn name(&self) -> &'static str {
        "nan"
    }

    fn about(&self) -> &'static str {
        "the output of LAYER is NaN, by the logarithm of a negative number; in any precision"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn output(&self, output: Tensor, active: bool, _by_hand: Kind) -> Tensor {
        if !active {
            return output;
        }
        let negative: Tensor = -output.abs() - 1.0;
        output + negative.log()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_nan_in_every_precision() {
        for kind in [Kind::Float, Kind::Half, Kind::BFloat16] {
            let y = NanSource.output(Tensor::from_slice(&[0.0f32, -3.0, 5.0]).to_kind(kind), true, Kind::Half);
            assert_eq!(f64::try_from(y.isnan().all()).unwrap(), 1.0, "{kind:?}");
        }
    }
}
