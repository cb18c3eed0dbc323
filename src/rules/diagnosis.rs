//! The engine: feeds records to the aggregate and the rules, and keeps what they find.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use super::causes::{explain, under_their_causes, weigh};
use super::policy::Parted;
use super::sight::judge;
use super::{Accepted, Evidence, Finding, Firing, Policy, Remedy, RuleInfo, Severity, Verdict, all, find, flat_loss};
use crate::aggregate::Aggregate;
use crate::observation::Record;

/// The answer to "is this run numerically healthy?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Observed, and nothing found.
    Healthy,
    /// A warning or an error was found.
    Findings,
    /// Not enough was observed to say.
    Unknown,
}

impl Health {
    /// As documents for machines have it: `healthy`, `findings` or `unknown`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Findings => "findings",
            Self::Unknown => "unknown",
        }
    }
}

/// A rule that could not tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The rule's code.
    pub code: &'static str,
    /// The rule's name.
    pub name: &'static str,
    /// Why it could not tell, and what to do so that it can.
    pub reason: String,
}

/// Layers in which a rule fired beyond those that were kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Omitted {
    /// The rule's code.
    pub code: &'static str,
    /// How many layers.
    pub layers: u64,
}

/// The same recording always gives the same diagnosis, live, offline and in CI.
///
/// A finding is latched: once a rule fired for a layer it stays, with its onset, the last step at which it was seen, and the evidence of the
/// step at which it was gravest. At most [`Diagnosis::MAX_LAYERS`] layers are kept of each rule, the first to fire; the rest are counted.
///
/// Findings that follow from another stand under it. In a run that goes on, one may come to stand under a cause that is found later.
#[derive(Clone, Default)]
pub struct Diagnosis {
    aggregate: Aggregate,
    policy: Policy,
    /// Made anew when it is asked for and something has changed.
    findings: OnceLock<Parted>,
    doubts: Vec<Doubt>,
    latched: BTreeMap<(&'static str, String), Latched>,
    omitted_layers: BTreeSet<(&'static str, String)>,
    omitted: Vec<Omitted>,
}

#[derive(Clone)]
struct Latched {
    finding: Finding,
    strength: f64,
}

impl Diagnosis {
    /// Layers kept of each rule.
    pub const MAX_LAYERS: usize = 16;

    /// A diagnosis of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A diagnosis of nothing yet, under what somebody decided about the rules.
    pub fn under(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// What was decided about the rules.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Adds one record; after a step, a note and the end, every rule is asked.
    pub fn apply(&mut self, record: Record) {
        let speaks = matches!(record, Record::Step(_) | Record::Note(_) | Record::End(_));
        self.aggregate.apply(record);
        if speaks {
            self.evaluate();
        }
    }

    /// What is known of the run.
    pub fn aggregate(&self) -> &Aggregate {
        &self.aggregate
    }

    /// What was found, without what follows from another finding: gravest first, then by onset, code and layer.
    pub fn findings(&self) -> &[Finding] {
        &self.parted().standing
    }

    /// What was found and is accepted, in the order of the findings.
    pub fn accepted(&self) -> &[Accepted] {
        &self.parted().accepted
    }

    fn parted(&self) -> &Parted {
        self.findings.get_or_init(|| {
            let found = self.latched.values().map(|l| self.up_to_date(&l.finding)).collect();
            let mut parted = self.policy.part(under_their_causes(found, &self.aggregate));
            parted.standing.iter_mut().for_each(weigh);
            parted.standing.sort_by(|a, b| by_gravity(a).cmp(&by_gravity(b)));
            parted.accepted.sort_by(|a, b| by_gravity(&a.finding).cmp(&by_gravity(&b.finding)));
            parted
        })
    }

    fn up_to_date(&self, finding: &Finding) -> Finding {
        let mut finding = finding.clone();
        if let Some(rule) = find(finding.code) {
            rule.follow(&mut finding, &self.aggregate);
            let decided = self.policy.severity(finding.code, &finding.layer, finding.severity);
            finding.severity = decided.unwrap_or(finding.severity);
        }
        finding
    }

    /// Rules that cannot tell, by code.
    pub fn doubts(&self) -> &[Doubt] {
        &self.doubts
    }

    /// Rules that fired in more layers than are kept, by code.
    pub fn omitted(&self) -> &[Omitted] {
        &self.omitted
    }

    /// The verdict on the run. A doubt of the instrument's family (0xx) makes it unknown; findings come first.
    pub fn health(&self) -> Health {
        if self.findings().iter().any(|f| f.severity >= Severity::Warning) {
            Health::Findings
        } else if self.aggregate.instrument.full_steps == 0 || self.doubts.iter().any(|d| d.code.starts_with("AMP0")) {
            Health::Unknown
        } else {
            Health::Healthy
        }
    }

    fn evaluate(&mut self) {
        self.doubts.clear();
        // Where the layers lie, by which causes are found, may have become known.
        self.findings.take();
        let now = self.aggregate.latest.as_ref().map_or(0, |s| s.index);
        for rule in all() {
            if self.policy.is_off(rule.info().code) {
                continue;
            }
            let seen = rule.latest_event(&self.aggregate).unwrap_or(now);
            for verdict in judge(*rule, &self.aggregate, &self.policy.limits) {
                match verdict {
                    Verdict::Quiet => {}
                    Verdict::Unsure(reason) => {
                        let RuleInfo { code, name, .. } = *rule.info();
                        self.doubts.push(Doubt { code, name, reason });
                    }
                    Verdict::Firing(firing) => {
                        self.latch(rule.info(), *firing, seen);
                    }
                }
            }
        }
        // That nothing explains a flat loss is no doubt where something does.
        if explain(self.latched.values().map(|l| &l.finding), flat_loss::CODE) {
            self.doubts.retain(|doubt| doubt.code != flat_loss::CODE);
        }
    }

    fn latch(&mut self, info: &RuleInfo, mut firing: Firing, now: u64) {
        let Some(severity) = self.policy.severity(info.code, &firing.layer, firing.severity) else { return };
        firing.severity = severity;
        let key = (info.code, firing.layer.clone());
        if let Some(latched) = self.latched.get_mut(&key) {
            return latched.renew(info, firing, now);
        }
        if self.latched.keys().filter(|(code, _)| *code == info.code).count() >= Self::MAX_LAYERS {
            self.omitted_layers.insert(key);
            self.count_omitted();
            return;
        }
        let strength = firing.strength;
        let onset = firing.since;
        self.latched.insert(key, Latched { finding: finding(info, firing, onset, now), strength });
    }

    fn count_omitted(&mut self) {
        let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
        self.omitted_layers.iter().for_each(|(code, _)| *counts.entry(code).or_default() += 1);
        self.omitted = counts.into_iter().map(|(code, layers)| Omitted { code, layers }).collect();
    }
}

/// Gravest first, then by onset, code and layer.
fn by_gravity(finding: &Finding) -> (Reverse<Severity>, u64, &str, &str) {
    (Reverse(finding.severity), finding.onset_step, finding.code, &finding.layer)
}

impl Latched {
    /// Keeps the onset; takes the new evidence where it is graver, or as grave and stronger.
    fn renew(&mut self, info: &RuleInfo, firing: Firing, now: u64) {
        let onset = self.finding.onset_step.min(firing.since);
        let stronger = (firing.severity, firing.strength) > (self.finding.severity, self.strength);
        if stronger {
            self.strength = firing.strength;
            self.finding = finding(info, firing, onset, now);
        } else {
            self.finding.last_step = now;
            self.finding.onset_step = onset;
            if firing.severity == self.finding.severity {
                self.follow_scale(firing);
            }
        }
    }

    /// A loss scale that is recommended is that of all that was seen, as what-if shows it, and not that of the gravest step: gradients that came later may
    /// be larger.
    fn follow_scale(&mut self, firing: Firing) {
        let names = |remedy: &Remedy| remedy.set.iter().map(|setting| setting.name).collect::<Vec<_>>();
        let (old, new) = (&self.finding.remedy, &firing.remedy);
        let recommends = |evidence: &[Evidence]| evidence.iter().any(|e| OF_SCALE.contains(&e.name));
        let both = recommends(&self.finding.evidence) && recommends(&firing.evidence);
        if !both || names(old) != names(new) || old.set == new.set {
            return;
        }
        self.finding.remedy = firing.remedy;
        for new in firing.evidence.into_iter().filter(|e| OF_SCALE.contains(&e.name)) {
            if let Some(old) = self.finding.evidence.iter_mut().find(|old| old.name == new.name) {
                *old = new;
            }
        }
    }
}

/// Evidence that goes with the loss scale that is to be set.
const OF_SCALE: [&str; 2] = ["recommended_loss_scale", "headroom_bits_at_recommended"];

pub(super) fn finding(info: &RuleInfo, firing: Firing, onset_step: u64, last_step: u64) -> Finding {
    Finding {
        code: info.code,
        name: info.name,
        severity: firing.severity,
        layer: firing.layer,
        operator: firing.operator,
        probe: firing.probe,
        onset_step,
        last_step,
        evidence: firing.evidence,
        explanation: firing.explanation,
        remedy: firing.remedy,
        consequences: Vec::new(),
    }
}
