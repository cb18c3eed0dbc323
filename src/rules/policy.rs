//! What somebody decided about the rules: thresholds, levels, and findings that are accepted.

use super::{Finding, Limits, Pattern, Severity};

/// What somebody decided about the rules; by default nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// The file that says so, as it was named; `None` where nobody decided anything.
    pub file: Option<String>,
    /// The thresholds in force.
    pub limits: Limits,
    /// Levels of rules, in the order of the file: of several that hold the last one counts, and one for named layers before one for the run.
    pub levels: Vec<Level>,
    /// Findings that are accepted.
    pub allow: Vec<Allow>,
}

/// The severity that the findings of a rule get.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// The rule's code.
    pub code: &'static str,
    /// The rule's name.
    pub name: &'static str,
    /// The layers it holds in; `None` for the whole run.
    pub layers: Option<Pattern>,
    /// The severity; `None` where the rule is off.
    pub severity: Option<Severity>,
}

/// Findings that somebody knows of and accepts.
#[derive(Clone, Debug, PartialEq)]
pub struct Allow {
    /// The rule's code.
    pub code: &'static str,
    /// The layers; `None` for any, and for the run as a whole.
    pub layers: Option<Pattern>,
    /// Why, in the words of the one who accepts it.
    pub reason: String,
}

/// A finding that was accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// The finding, with what follows from it.
    pub finding: Finding,
    /// Why it was accepted.
    pub reason: String,
    /// The place of what accepts it among [`Policy::allow`].
    pub by: usize,
}

impl Policy {
    /// The severity of a finding of this rule in `layer` that the rule calls `severity`; `None` where it is off.
    pub(super) fn severity(&self, code: &str, layer: &str, severity: Severity) -> Option<Severity> {
        let here = |level: &&Level| level.layers.as_ref().is_some_and(|pattern| pattern.matches(layer));
        let mut of_rule = self.levels.iter().rev().filter(|level| level.code == code);
        let level = of_rule.clone().find(here).or_else(|| of_rule.find(|level| level.layers.is_none()));
        level.map_or(Some(severity), |level| level.severity)
    }

    /// Whether a rule is off in the whole run.
    pub(super) fn is_off(&self, code: &str) -> bool {
        let of_rule = || self.levels.iter().filter(|level| level.code == code);
        of_rule().any(|level| level.layers.is_none()) && of_rule().all(|level| level.severity.is_none())
    }

    /// Why this finding is accepted, where it is: the place among [`Policy::allow`].
    fn accepts(&self, finding: &Finding) -> Option<usize> {
        let is_meant = |allow: &Allow| {
            allow.code == finding.code && allow.layers.as_ref().is_none_or(|pattern| pattern.matches(&finding.layer))
        };
        self.allow.iter().position(is_meant)
    }

    /// Parts findings into those that stand and those that are accepted; an accepted one takes along what follows from it.
    pub(super) fn part(&self, findings: Vec<Finding>) -> Parted {
        let mut parted = Parted::default();
        for mut finding in findings {
            if let Some(at) = self.accepts(&finding) {
                parted.accept(self, at, finding);
                continue;
            }
            for follower in std::mem::take(&mut finding.consequences) {
                match self.accepts(&follower) {
                    Some(at) => parted.accept(self, at, follower),
                    None => finding.consequences.push(follower),
                }
            }
            parted.standing.push(finding);
        }
        parted
    }
}

/// What stands, and what is accepted.
#[derive(Clone, Debug, Default)]
pub(super) struct Parted {
    pub standing: Vec<Finding>,
    pub accepted: Vec<Accepted>,
}

impl Parted {
    fn accept(&mut self, policy: &Policy, by: usize, finding: Finding) {
        self.accepted.push(Accepted { finding, reason: policy.allow[by].reason.clone(), by });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::{Diagnosis, Health};
    use crate::scan::Dtype::F16;

    fn level(layers: Option<&str>, severity: Option<Severity>) -> Level {
        Level { code: "AMP102", name: "activation-overflow", layers: layers.map(Pattern::new), severity }
    }

    fn allow(code: &'static str, layers: Option<&str>) -> Allow {
        Allow { code, layers: layers.map(Pattern::new), reason: "known".into() }
    }

    /// Two layers that overflow side by side; what is said of it under a policy.
    fn diagnose(policy: Policy) -> Diagnosis {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).steps(5, |s, i| {
            let scale = 65536.0 * (-(i as f64)).exp2();
            s.loss(f64::INFINITY).skipped(scale, scale / 2.0);
            for layer in ["enc.0", "head"] {
                s.activation(layer, "linear", F16, &[f64::INFINITY; 8]).gradient(
                    layer,
                    "linear",
                    F16,
                    &normal(64, 1.0, i),
                );
            }
        });
        let mut diagnosis = Diagnosis::under(policy);
        run.records().iter().cloned().for_each(|record| diagnosis.apply(record));
        diagnosis
    }

    fn told(diagnosis: &Diagnosis) -> Vec<(&str, &str, Severity)> {
        let all = diagnosis.findings().iter().flat_map(Finding::with_consequences);
        all.map(|f| (f.code, f.layer.as_str(), f.severity)).collect()
    }

    #[test]
    fn a_level_is_the_severity_of_what_a_rule_finds_and_one_for_a_layer_comes_first() {
        let levels = vec![level(Some("enc.*"), Some(Severity::Info)), level(None, Some(Severity::Warning))];
        let policy = Policy { levels, ..Policy::default() };
        let severity = |code, layer| policy.severity(code, layer, Severity::Error);
        assert_eq!(severity("AMP102", "enc.0"), Some(Severity::Info));
        assert_eq!([severity("AMP102", "head"), severity("AMP102", "")], [Some(Severity::Warning); 2]);
        assert_eq!(severity("AMP101", "enc.0"), Some(Severity::Error));
        let d = diagnose(policy);
        assert!(told(&d).contains(&("AMP102", "enc.0", Severity::Info)), "{:?}", told(&d));
    }

    #[test]
    fn a_rule_that_is_off_says_nothing_and_neither_does_one_that_is_off_in_a_layer() {
        let off = diagnose(Policy { levels: vec![level(None, None)], ..Policy::default() });
        assert!(told(&off).iter().all(|(code, ..)| *code != "AMP102") && !told(&off).is_empty());
        let here = diagnose(Policy { levels: vec![level(Some("head"), None)], ..Policy::default() });
        let layers: Vec<_> =
            told(&here).into_iter().filter(|(code, ..)| *code == "AMP102").map(|(_, layer, _)| layer).collect();
        assert_eq!(layers, ["enc.0"]);
    }

    #[test]
    fn an_accepted_finding_fails_no_check_and_takes_along_what_follows_from_it() {
        let plain = diagnose(Policy::default());
        assert_eq!((plain.health(), plain.accepted().len()), (Health::Findings, 0));
        let d = diagnose(Policy {
            allow: vec![allow("AMP201", None), allow("AMP102", Some("enc.*"))],
            ..Policy::default()
        });
        assert!(d.findings().is_empty(), "{:#?}", told(&d));
        assert_eq!(d.health(), Health::Healthy, "{:?}", d.doubts());
        let [accepted] = d.accepted() else { panic!("{:#?}", d.accepted()) };
        assert_eq!((accepted.finding.layer.as_str(), accepted.reason.as_str(), accepted.by), ("enc.0", "known", 1));
        assert!(!accepted.finding.consequences.is_empty());
    }

    #[test]
    fn what_follows_can_be_accepted_alone_and_another_layer_is_not_meant() {
        let d = diagnose(Policy { allow: vec![allow("AMP102", Some("head"))], ..Policy::default() });
        assert_eq!(d.findings()[0].layer, "enc.0");
        assert_eq!(d.accepted().iter().map(|a| a.finding.layer.as_str()).collect::<Vec<_>>(), ["head"]);
        assert_eq!(d.health(), Health::Findings);
    }
}
