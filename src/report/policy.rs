//! What was decided about the rules, in words: which file, and what differs from the defaults.

use std::collections::BTreeSet;

use super::Run;
use super::number::readable;
use super::suggest::nearest;
use crate::rules::{Allow, Level, Limit, Pattern, Policy};

/// What a file sets, a line each: thresholds, levels and acceptances, in the order of the file within each.
pub fn settings_text(policy: &Policy) -> Vec<String> {
    let allow = policy.allow.iter().map(|allow| {
        let Allow { code, layers, reason } = allow;
        format!("{code}{} is accepted: {reason}", within(layers.as_ref()))
    });
    let levels = policy.levels.iter().map(|level| {
        let Level { code, name, layers, severity } = level;
        let severity = severity.map_or("off".into(), |severity| format!("level {}", severity.name()));
        format!("{code} {name}{}: {severity}", within(layers.as_ref()))
    });
    policy.limits.changed().iter().map(limit).chain(levels).chain(allow).collect()
}

/// Patterns of the file that no layer of this run matches, with the layer that may have been meant: no fault, for a file may serve several runs, but a slip
/// of the pen would otherwise be read and do nothing. Nothing where no layer is known.
pub(super) fn unmatched_patterns(run: &Run<'_>) -> Vec<(String, Option<String>)> {
    let layers = layers_of(run);
    let Some(policy) = run.policy().filter(|_| !layers.is_empty()) else { return Vec::new() };
    let Policy { limits, levels, allow, .. } = policy;
    let all = limits.changed().iter().map(|limit| &limit.layers);
    let all = all.chain(levels.iter().map(|level| &level.layers)).chain(allow.iter().map(|allow| &allow.layers));
    let mut told: Vec<(String, Option<String>)> = Vec::new();
    for pattern in all.flatten() {
        let name = pattern.to_string();
        let matches = pattern.matches("") || layers.iter().any(|layer| pattern.matches(layer));
        if !matches && told.iter().all(|(known, _)| *known != name) {
            let meant = meant(&name, &layers);
            told.push((name, meant));
        }
    }
    told
}

/// A sentence for each of [`unmatched_patterns`].
pub(super) fn unmatched_text(run: &Run<'_>) -> Vec<String> {
    let sentence = |(pattern, meant): (String, Option<String>)| {
        let meant = meant.map_or(String::new(), |meant| format!(" Did you mean `{meant}`?"));
        format!("note: no layer of this run matches `{pattern}` of the configuration.{meant}")
    };
    unmatched_patterns(run).into_iter().map(sentence).collect()
}

/// The layers of a run: those that were seen and those that have a parameter.
fn layers_of<'a>(run: &Run<'a>) -> BTreeSet<&'a str> {
    let ranks = || run.ranks.iter().map(|rank| rank.aggregate);
    let seen = ranks().flat_map(|of| of.sites.iter().map(|summary| summary.site.layer.as_str()));
    let parameters = ranks().flat_map(|of| of.run.iter().flat_map(|info| &info.parameters));
    let owners = parameters.filter_map(|parameter| Some(parameter.name.rsplit_once('.')?.0));
    seen.chain(owners).filter(|layer| !layer.is_empty()).collect()
}

/// The same pattern at any depth, where a layer matches that; else the nearest name.
fn meant(pattern: &str, layers: &BTreeSet<&str>) -> Option<String> {
    let deeper = format!("**.{pattern}");
    let is_met = layers.iter().any(|layer| Pattern::new(&deeper).matches(layer));
    if is_met { Some(deeper) } else { nearest(pattern, layers.iter().copied()).map(str::to_owned) }
}

/// The file in force and what in it differs from the defaults, in a sentence each; nothing where there is no file.
pub fn policy_text(policy: &Policy) -> Vec<String> {
    let Some(file) = &policy.file else { return Vec::new() };
    let differing: Vec<String> =
        policy.limits.changed().iter().map(limit).chain(policy.levels.iter().map(level)).collect();
    vec![match differing.is_empty() {
        true => format!("configuration {file}: thresholds and levels as by default"),
        false => format!("configuration {file}: {}", differing.join("; ")),
    }]
}

fn limit(limit: &Limit) -> String {
    let Limit { threshold, layers, value } = limit;
    let (value, default) = (readable(*value), readable(threshold.default));
    format!("{} {}{} = {value} (default {default})", threshold.rule, threshold.name, within(layers.as_ref()))
}

fn level(level: &Level) -> String {
    let severity = level.severity.map_or("off", |severity| severity.name());
    format!("{} {}{} {severity}", level.code, level.name, within(level.layers.as_ref()))
}

fn within(layers: Option<&Pattern>) -> String {
    layers.map_or(String::new(), |pattern| format!(" in {pattern}"))
}

/// An acceptance that nothing was accepted by.
pub(super) fn unused_text(allow: &Allow) -> String {
    format!(
        "{}{} matched nothing that was found; its reason was: {}",
        allow.code,
        within(allow.layers.as_ref()),
        allow.reason
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::scenario::{Scenario, normal};
    use crate::report::Rank;
    use crate::rules::Diagnosis;
    use crate::rules::{Limits, Severity, Threshold};
    use crate::scan::Dtype::F16;

    #[test]
    fn a_pattern_that_no_layer_matches_is_said_with_the_layer_that_may_have_been_meant() {
        let mut run = Scenario::new();
        run.steps(1, |s, i| {
            s.activation("block.0.attn", "linear", F16, &normal(8, 1.0, i)).activation("head", "linear", F16, &[1.0]);
        });
        let level = |layers: &str| Level {
            code: "AMP101",
            name: "activation-near-overflow",
            layers: Some(Pattern::new(layers)),
            severity: None,
        };
        let levels = ["head", "heads", "attn", "nosuch", "nosuch", "**"].map(level).to_vec();
        let mut diagnosis = Diagnosis::under(Policy { levels, ..Policy::default() });
        run.records().iter().cloned().for_each(|record| diagnosis.apply(record));
        assert_eq!(
            unmatched_text(&Run::single(Rank::of(&diagnosis))),
            [
                "note: no layer of this run matches `heads` of the configuration. Did you mean `head`?",
                "note: no layer of this run matches `attn` of the configuration. Did you mean `**.attn`?",
                "note: no layer of this run matches `nosuch` of the configuration.",
            ]
        );
        let nothing = Diagnosis::under(diagnosis.policy().clone());
        assert!(unmatched_text(&Run::single(Rank::of(&nothing))).is_empty(), "no layer is known");
    }

    #[test]
    fn it_tells_the_file_and_what_differs() {
        assert!(policy_text(&Policy::default()).is_empty());
        let mut limits = Limits::default();
        let threshold =
            Threshold { rule: "scale-thrash", name: "skip-share", default: 0.02, unit: "share", reason: "" };
        limits.set(Limit { threshold, layers: Some(Pattern::new("enc.*")), value: 0.05 });
        let off = Level { code: "AMP101", name: "activation-near-overflow", layers: None, severity: None };
        let levels = vec![off.clone(), Level { severity: Some(Severity::Info), ..off }];
        let file = Some("ampdoctor.toml".to_string());
        let told = policy_text(&Policy { file: file.clone(), limits, levels, allow: Vec::new() });
        assert_eq!(
            told,
            [
                "configuration ampdoctor.toml: scale-thrash skip-share in enc.* = 0.05 (default 0.02); AMP101 activation-near-overflow off; \
              AMP101 activation-near-overflow info"
            ]
        );
        assert_eq!(
            policy_text(&Policy { file, ..Policy::default() })[0],
            "configuration ampdoctor.toml: thresholds and levels as by default"
        );
    }
}
