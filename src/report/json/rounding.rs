//! The document: what low precision left of the optimizer's steps.

use serde::Serialize;

use super::super::TensorRounding;
use super::super::number::Number;
use crate::scan::Fidelity;

/// One parameter of the layer, all ranks together; null what there is nothing to say of.
#[derive(Serialize)]
pub(super) struct RoundingDocument<'a> {
    operator: &'a str,
    tensor: &'a str,
    probe: &'static str,
    dtype: &'static str,
    stepped: Option<FidelityDocument>,
    without_masters: Option<FidelityDocument>,
    decay: Option<FidelityDocument>,
    unlike_master_share: Option<Number>,
}

/// What was left of a change.
#[derive(Serialize)]
struct FidelityDocument {
    phi: Option<Number>,
    dead_share: Option<Number>,
    intended: u64,
    dead: u64,
    intended_non_finite: u64,
}

impl<'a> RoundingDocument<'a> {
    pub(super) fn of(of: &TensorRounding<'a>) -> Self {
        Self {
            operator: &of.site.operator,
            tensor: &of.site.tensor,
            probe: of.site.probe.name(),
            dtype: of.site.dtype.name(),
            stepped: of.rounding.stepped.map(FidelityDocument::of),
            without_masters: of.rounding.without_masters.map(FidelityDocument::of),
            decay: of.rounding.decay.map(FidelityDocument::of),
            unlike_master_share: of.unlike_master_share().map(Number),
        }
    }
}

impl FidelityDocument {
    fn of(fidelity: Fidelity) -> Self {
        Self {
            phi: fidelity.phi().map(Number),
            dead_share: fidelity.dead_share().map(Number),
            intended: fidelity.intended,
            dead: fidelity.dead,
            intended_non_finite: fidelity.non_finite,
        }
    }
}
