//! The document: what comparisons with FP32 showed.

use serde::Serialize;

use super::super::LayerShadow;
use super::super::number::Number;
use crate::aggregate::Shadows;
use crate::scan::Likeness;

/// The comparisons of a rank; their time is in no other number.
#[derive(Serialize)]
pub(super) struct ShadowsDocument<'a> {
    taken: u64,
    /// Those for which the mixed-precision gradient was computed anew.
    recomputed: u64,
    failed: u64,
    last_failure: Option<&'a str>,
    time_ns: u64,
    first_step: Option<u64>,
    last_step: Option<u64>,
    /// All gradients as one.
    latest: Option<LikenessDocument>,
}

/// A layer, all ranks together.
#[derive(Serialize)]
pub(super) struct LayerShadowDocument {
    comparisons: u64,
    likeness: LikenessDocument,
}

/// A gradient beside FP32's; null where one of them is zero.
#[derive(Serialize)]
struct LikenessDocument {
    cosine: Option<Number>,
    norm_ratio: Option<Number>,
    lost_share: Option<Number>,
    lost_energy_share: Option<Number>,
    fading_share: Option<Number>,
    sign_bias: Option<Number>,
    fp32_sign_bias: Option<Number>,
    non_finite: u64,
    fp32_non_finite: u64,
}

impl<'a> ShadowsDocument<'a> {
    /// `None` where none was asked for.
    pub(super) fn of(shadows: &'a Shadows) -> Option<Self> {
        (shadows.taken + shadows.failed > 0).then(|| Self {
            taken: shadows.taken,
            recomputed: shadows.recomputed,
            failed: shadows.failed,
            last_failure: shadows.last_failure.as_ref().map(|(_, why)| why.as_str()),
            time_ns: shadows.time_ns,
            first_step: shadows.steps.map(|s| s.0),
            last_step: shadows.steps.map(|s| s.1),
            latest: shadows.recent.back().map(|s| LikenessDocument::of(&s.likeness)),
        })
    }
}

impl LayerShadowDocument {
    pub(super) fn of(of: &LayerShadow) -> Self {
        Self { comparisons: of.shadows, likeness: LikenessDocument::of(&of.likeness) }
    }
}

impl LikenessDocument {
    fn of(likeness: &Likeness) -> Self {
        let bias = likeness.sign_bias();
        Self {
            cosine: likeness.cosine().map(Number),
            norm_ratio: likeness.norm_ratio().map(Number),
            lost_share: likeness.lost_share().map(Number),
            lost_energy_share: likeness.lost_energy_share().map(Number),
            fading_share: likeness.fading_share().map(Number),
            sign_bias: bias.map(|b| Number(b.0)),
            fp32_sign_bias: bias.map(|b| Number(b.1)),
            non_finite: likeness.non_finite,
            fp32_non_finite: likeness.non_finite_in_fp32,
        }
    }
}
