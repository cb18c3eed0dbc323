//! The loss that the doctor was given, against the losses that were scaled.

use super::Mistake;
use crate::observation::{Act, Product, Step};

/// How far the two may lie apart: sums and means of a few micro-batches in FP32.
const NEAR: f64 = 1e-4;

/// Compares them; nothing is kept from step to step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReportedLoss;

impl ReportedLoss {
    pub(super) fn push(self, step: &Step) -> Option<Mistake> {
        let scale = step.loss_scale.filter(|&scale| scale > 1.0)?;
        let reported = step.loss.filter(|loss| loss.is_finite() && *loss != 0.0)?;
        let scaled = step.recipe.iter().filter_map(|event| match event.act {
            Act::Backward { product: Some(Product { loss, factor, .. }), .. } if factor == scale => Some(loss),
            _ => None,
        });
        let losses: Vec<f64> = scaled.collect();
        let last = *losses.last()?;
        let sum: f64 = losses.iter().sum();
        let loss = [last, sum, sum / losses.len() as f64].into_iter().find(|&loss| {
            let expected = loss * scale;
            (reported - expected).abs() <= NEAR * expected.abs()
        })?;
        Some(Mistake::ScaledLossReported { reported, loss, scale })
    }
}
