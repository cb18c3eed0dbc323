//! Two runs side by side, for machines. `docs/compare.schema.json` describes the document.

use serde::Serialize;

use super::super::number::Number;
use super::{Comparison, Judgement, LayerChange, LayerState, Outcome};
use crate::report::json::shallow;
use crate::rules::Finding;

/// The version of the document; it changes when a reader of the old one could misread the new one, not when keys are added.
pub const COMPARE_SCHEMA_VERSION: u32 = 1;

/// The comparison as JSON, ending in a line break. The same recordings give the same bytes.
pub fn compare_json(comparison: &Comparison<'_>) -> String {
    shallow(&Document::of(comparison))
}

#[derive(Serialize)]
struct Document<'a> {
    schema_version: u32,
    generator: &'static str,
    judgement: &'static str,
    base: OutcomeDocument<'a>,
    run: OutcomeDocument<'a>,
    findings: FindingsDocument<'a>,
    layers: Vec<LayerDocument<'a>>,
    settings: Vec<SettingDocument<'a>>,
}

#[derive(Serialize)]
struct OutcomeDocument<'a> {
    name: &'a str,
    health: &'static str,
    errors: usize,
    warnings: usize,
    infos: usize,
    steps: u64,
    loss: Option<LossDocument>,
    loss_scale: Option<Number>,
    skipped_steps: u64,
}

#[derive(Serialize)]
struct LossDocument {
    mean: Number,
    spread: Number,
    losses: u64,
    non_finite: u64,
}

#[derive(Serialize)]
struct FindingsDocument<'a> {
    new: Vec<FindingDocument<'a>>,
    gone: Vec<FindingDocument<'a>>,
    remaining: Vec<FindingDocument<'a>>,
}

#[derive(Serialize)]
struct FindingDocument<'a> {
    code: &'a str,
    name: &'a str,
    severity: &'a str,
    layer: &'a str,
    operator: &'a str,
    onset_step: u64,
}

#[derive(Serialize)]
struct LayerDocument<'a> {
    layer: &'a str,
    base: StateDocument,
    run: StateDocument,
}

#[derive(Serialize)]
struct StateDocument {
    fading_gradient_share: Option<Number>,
    gradient_headroom_bits: Option<Number>,
    activation_headroom_bits: Option<Number>,
    non_finite_share: Option<Number>,
}

#[derive(Serialize)]
struct SettingDocument<'a> {
    name: &'a str,
    base: Option<&'a str>,
    run: Option<&'a str>,
}

impl<'a> Document<'a> {
    fn of(comparison: &'a Comparison<'a>) -> Self {
        let findings = &comparison.findings;
        let all = |of: &[&'a Finding]| of.iter().map(|finding| FindingDocument::of(finding)).collect();
        let settings = comparison.settings.iter().map(|setting| SettingDocument {
            name: &setting.name,
            base: setting.base.as_deref(),
            run: setting.run.as_deref(),
        });
        Self {
            schema_version: COMPARE_SCHEMA_VERSION,
            generator: concat!("ampdoctor ", env!("CARGO_PKG_VERSION")),
            judgement: match comparison.judgement() {
                Judgement::Worse => "worse",
                Judgement::Unknown => "unknown",
                Judgement::NoWorse => "no_worse",
            },
            base: OutcomeDocument::of(&comparison.base),
            run: OutcomeDocument::of(&comparison.run),
            findings: FindingsDocument {
                new: all(&findings.new),
                gone: all(&findings.gone),
                remaining: all(&findings.remaining),
            },
            layers: comparison.layers.iter().map(LayerDocument::of).collect(),
            settings: settings.collect(),
        }
    }
}

impl<'a> OutcomeDocument<'a> {
    fn of(outcome: &'a Outcome) -> Self {
        let loss = outcome.loss.map(|loss| LossDocument {
            mean: Number(loss.mean),
            spread: Number(loss.spread),
            losses: loss.losses,
            non_finite: loss.non_finite,
        });
        Self {
            name: &outcome.name,
            health: outcome.health.name(),
            errors: outcome.counts.errors,
            warnings: outcome.counts.warnings,
            infos: outcome.counts.infos,
            steps: outcome.steps,
            loss,
            loss_scale: outcome.loss_scale.map(Number),
            skipped_steps: outcome.skipped_steps,
        }
    }
}

impl<'a> FindingDocument<'a> {
    fn of(finding: &'a Finding) -> Self {
        Self {
            code: finding.code,
            name: finding.name,
            severity: finding.severity.name(),
            layer: &finding.layer,
            operator: &finding.operator,
            onset_step: finding.onset_step,
        }
    }
}

impl<'a> LayerDocument<'a> {
    fn of(change: &LayerChange<'a>) -> Self {
        Self { layer: change.layer, base: StateDocument::of(change.base), run: StateDocument::of(change.run) }
    }
}

impl StateDocument {
    fn of(state: LayerState) -> Self {
        Self {
            fading_gradient_share: state.fading_gradient_share.map(Number),
            gradient_headroom_bits: state.gradient_headroom_bits.map(Number),
            activation_headroom_bits: state.activation_headroom_bits.map(Number),
            non_finite_share: state.non_finite_share.map(Number),
        }
    }
}
