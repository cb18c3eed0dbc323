//! A mask that leaves nothing of a row.

use tch::{Kind, Tensor};

use super::Fault;

pub(super) struct MaskedRow;

impl Fault for MaskedRow {
    fn name(&self) -> &'static str {
        "masked-row"
    }

    fn about(&self) -> &'static str {
        "behind LAYER a softmax in FP16 with a mask of -1e9, which is -inf there: the first row is masked as a whole"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn is_felt_in_fp16_alone(&self) -> bool {
        true
    }

    fn output(&self, output: Tensor, active: bool, by_hand: Kind) -> Tensor {
        let scores = output.to_kind(by_hand);
        let mask = scores.detach().zeros_like().to_kind(Kind::Float);
        // One element of every row is masked always: a mask is no fault.
        let _ = mask.select(-1, 0).fill_(-1e9);
        if active {
            let _ = mask.select(0, 0).fill_(-1e9);
        }
        output + (scores + mask.to_kind(by_hand)).softmax(-1, by_hand)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_row_alone_becomes_nan() {
        let x = Tensor::ones([2, 3], (Kind::Half, tch::Device::Cpu));
        let nan = |active| {
            f64::try_from(MaskedRow.output(x.shallow_clone(), active, Kind::Half).isnan().sum(Kind::Float)).unwrap()
        };
        assert_eq!((nan(false), nan(true)), (0.0, 3.0));
    }
}
