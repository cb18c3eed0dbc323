//! Positions held in FP16.

use tch::{Device, Kind, Tensor};

use super::Fault;

pub(super) struct HalfPositions;

impl Fault for HalfPositions {
    fn name(&self) -> &'static str {
        "half-positions"
    }

    fn about(&self) -> &'static str {
        "LAYER is told positions beyond 5000, cast to FP16, which holds every fourth of them"
    }

    fn needs_layer(&self) -> bool {
        true
    }

    fn is_felt_in_fp16_alone(&self) -> bool {
        true
    }

    fn output(&self, output: Tensor, active: bool, by_hand: Kind) -> Tensor {
        let width = output.size().last().copied().unwrap_or(1);
        let first = if active { 5000 } else { 0 };
        let positions = Tensor::arange_start(first, first + width, (Kind::Int64, Device::Cpu));
        output + positions.to_kind(by_hand) * 1e-4
    }
}
