//! What was decided about the rules, in words: which file, and what differs from the defaults.

use super::number::readable;
use crate::rules::{Allow, Level, Limit, Pattern, Policy};

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
    use crate::rules::{Limits, Severity, Threshold};

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
