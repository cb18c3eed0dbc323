//! The loss scales that serve all layers.

use std::collections::BTreeSet;

use super::Held;
use crate::aggregate::Aggregate;
use crate::numerics::ScaleWindow;
use crate::observation::Site;
use crate::rules::scale_advice::{Blamed, ScaleAdvice};

/// The loss scales that serve all layers, and the layers that limit them.
#[derive(Clone, Debug)]
pub struct Window<'a> {
    /// The exponents of the lowest and the highest good scale.
    pub scales: ScaleWindow,
    /// The exponent of the scale to set, as rules advise it; `None` when no scale is good for all layers.
    pub recommended: Option<i32>,
    /// The gradient that needs the highest scale; `None` where nothing that could underflow was seen non-zero.
    pub lowest: Option<&'a Site>,
    /// The gradient that overflows first.
    pub highest: &'a Site,
    /// Whether a gradient was all zero lately, so that nothing of it could be asked: the lower end is then a lower bound.
    pub incomplete: bool,
    /// Whether no scale was good at all steps, though one is for the gradients as they are now: the window is of these.
    pub shrank: bool,
    /// Whether no scale was good at all steps though one is for the gradients as they are now, and the scaler is dynamic and follows them: no layer is to
    /// blame.
    pub is_followed: bool,
    /// Whether gradients were infinite at a static scale, so that how large they were is a guess, and with it the upper end.
    pub high_is_guess: bool,
    /// Whether gradients overflow at every scale that can be meant, so that none is to be set.
    pub overflows_at_all: bool,
    /// Where steps were skipped at scales that the scanned gradients would bear, and none has been taken there since: the lowest, as an exponent. The window
    /// ends below it.
    pub refused_from: Option<i32>,
    /// The few steps whose gradients stand so far above all others that the window leaves them out.
    pub outliers: Vec<u64>,
    /// The scale above which the largest gradient of all steps overflows, as an exponent: lower than the window's upper end where there are outliers.
    pub high_with_outliers: i32,
    /// Where no scale is good for all layers: the layers that conflict, and which one to change; `None` where the scaler follows them.
    pub fix: Option<String>,
}

impl<'a> Window<'a> {
    /// The window of all ranks together; `None` where no gradient had a non-zero element.
    pub(super) fn of(ranks: &[&'a Aggregate], held: Held) -> Option<Self> {
        let advise = |rank: &&'a Aggregate| match held {
            Held::Fp16 => ScaleAdvice::of(rank),
            Held::Bf16 | Held::Fp32 => ScaleAdvice::as_if_in_fp16(rank),
        };
        let advices: Vec<ScaleAdvice<'a>> = ranks.iter().filter_map(advise).collect();
        let lowest = advices.iter().max_by_key(|advice| advice.window.low)?;
        let highest = advices.iter().min_by_key(|advice| advice.window.high)?;
        let scales = ScaleWindow { low: lowest.window.low, high: highest.window.high };
        let outliers: BTreeSet<u64> = advices.iter().flat_map(|advice| advice.outliers.steps.iter().copied()).collect();
        let recommended = advices.iter().map(ScaleAdvice::exponent).min().flatten();
        Some(Self {
            scales,
            recommended: recommended.filter(|_| !scales.is_empty()).map(|e| e.clamp(scales.low, scales.high)),
            lowest: lowest.lowest.map(|s| &s.site),
            highest: &highest.highest.site,
            incomplete: advices.iter().any(|advice| advice.incomplete),
            shrank: advices.iter().any(|advice| advice.shrank),
            is_followed: scales.is_empty()
                && advices.iter().all(|advice| advice.is_followed || !advice.window.is_empty()),
            high_is_guess: advices.iter().any(|advice| advice.high_is_guess),
            overflows_at_all: advices.iter().any(ScaleAdvice::overflows_at_all),
            refused_from: advices.iter().filter_map(|advice| advice.refused_from).min(),
            outliers: outliers.into_iter().collect(),
            high_with_outliers: advices.iter().map(|advice| advice.high_with_outliers).min().unwrap_or(scales.high),
            fix: advices
                .iter()
                .find(|advice| advice.window.is_empty() && !advice.is_followed)
                .map(|advice| advice.layer_to_fix(Blamed::Nobody).text),
        })
    }
}
