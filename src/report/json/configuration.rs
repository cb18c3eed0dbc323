//! The document: what was decided about the rules.

use serde::Serialize;

use super::super::Run;
use super::super::number::Number;
use super::super::policy::unmatched_patterns;
use crate::rules::{Allow, Level, Limit, Pattern, Policy};

/// The file in force and what differs from the defaults; empty where there is no file.
#[derive(Serialize, Default)]
pub(super) struct ConfigurationDocument<'a> {
    file: Option<&'a str>,
    thresholds: Vec<ThresholdDocument>,
    levels: Vec<LevelDocument>,
    allow: Vec<AllowDocument<'a>>,
    /// Patterns that no layer of the run matches.
    unmatched_layers: Vec<String>,
}

#[derive(Serialize)]
struct ThresholdDocument {
    rule: &'static str,
    name: &'static str,
    /// Null for the whole run.
    layers: Option<String>,
    value: Number,
    default: Number,
    unit: &'static str,
}

#[derive(Serialize)]
struct LevelDocument {
    code: &'static str,
    name: &'static str,
    layers: Option<String>,
    level: &'static str,
}

#[derive(Serialize)]
struct AllowDocument<'a> {
    code: &'static str,
    layers: Option<String>,
    reason: &'a str,
    /// Whether something that was found was accepted by it.
    used: bool,
}

impl<'a> ConfigurationDocument<'a> {
    pub(super) fn of(run: &Run<'a>) -> Self {
        let Some(policy) = run.policy() else { return Self::default() };
        let Policy { file, limits, levels, .. } = policy;
        Self {
            file: file.as_deref(),
            thresholds: limits.changed().iter().map(ThresholdDocument::of).collect(),
            levels: levels.iter().map(LevelDocument::of).collect(),
            allow: run.allowances().into_iter().map(AllowDocument::of).collect(),
            unmatched_layers: unmatched_patterns(run).into_iter().map(|(pattern, _)| pattern).collect(),
        }
    }
}

impl ThresholdDocument {
    fn of(limit: &Limit) -> Self {
        let Limit { threshold, layers, value } = limit;
        Self {
            rule: threshold.rule,
            name: threshold.name,
            layers: layers.as_ref().map(Pattern::to_string),
            value: Number(*value),
            default: Number(threshold.default),
            unit: threshold.unit,
        }
    }
}

impl LevelDocument {
    fn of(level: &Level) -> Self {
        let Level { code, name, layers, severity } = level;
        Self {
            code,
            name,
            layers: layers.as_ref().map(Pattern::to_string),
            level: severity.map_or("off", |s| s.name()),
        }
    }
}

impl<'a> AllowDocument<'a> {
    fn of((allow, used): (&'a Allow, bool)) -> Self {
        Self { code: allow.code, layers: allow.layers.as_ref().map(Pattern::to_string), reason: &allow.reason, used }
    }
}
