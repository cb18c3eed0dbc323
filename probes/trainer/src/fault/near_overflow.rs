//! An intermediate result that comes near FP16's end.

use tch::{Kind, Tensor};

use super::Fault;

/// What the product may come up to; it comes up to half of that at least, which is within three bits of 65504.
const MOST: f64 = 32768.0;

pub(super) struct NearOverflow;

impl Fault for NearOverflow {
    fn name(&self) -> &'static str {
        "near-overflow"
    }

    fn about(&self) -> &'static str {
        "behind LAYER a product comes within three bits of 65504, and is divided again"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn is_felt_in_fp16_alone(&self) -> bool {
        true
    }

    fn output(&self, output: Tensor, active: bool, _by_hand: Kind) -> Tensor {
        let gain = if active { gain_of(&output) } else { 1.0 };
        output * gain / gain
    }
}

/// The power of two that brings this output near the end of FP16, however far the layer has grown, and never beyond it.
fn gain_of(output: &Tensor) -> f64 {
    let largest = tch::no_grad(|| output.detach().abs().max().double_value(&[]));
    if largest > 0.0 && largest.is_finite() { (MOST / largest).log2().floor().exp2() } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_stands_below_the_end_and_within_three_bits_of_it_whatever_the_layer_gives() {
        for largest in [1e-3, 0.9, 2.0, 13.1, 300.0] {
            let output = Tensor::from_slice(&[largest, -0.5 * largest]);
            let product = largest * gain_of(&output);
            assert!((8192.0..65504.0).contains(&product), "{largest}: {product}");
        }
        assert_eq!(gain_of(&Tensor::from_slice(&[0.0, f64::INFINITY])), 1.0);
    }
}
