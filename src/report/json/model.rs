//! The document: what is said of the run as a whole.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::super::layers::layer_magnitudes;
use super::super::number::Number;
use super::super::whatif::WhatIfSummary;
use super::super::{Attributed, Run};
use super::SCHEMA_VERSION;
use super::configuration::ConfigurationDocument;
use super::magnitudes::LayerDocument;
use super::rank::RankDocument;
use crate::rules::{Accepted, Doubt, Evidence, Finding, Omitted, Remedy, Setting, Value};

/// The report.
#[derive(Serialize)]
pub(super) struct Document<'a> {
    schema_version: u32,
    /// Who made the report.
    generator: &'static str,
    run: RunDocument<'a>,
    verdict: VerdictDocument,
    configuration: ConfigurationDocument<'a>,
    findings: Vec<FindingDocument<'a>>,
    accepted: Vec<AcceptedDocument<'a>>,
    omitted: Vec<OmittedDocument>,
    doubts: Vec<DoubtDocument<'a>>,
    /// All ranks together.
    layers: Vec<LayerDocument<'a>>,
    /// All ranks together.
    whatif: WhatIfSummary,
    ranks: Vec<RankDocument<'a>>,
    /// Recordings of which nothing could be read.
    unreadable: Vec<String>,
}

/// What all ranks share; null or empty where no recording got so far.
#[derive(Serialize)]
struct RunDocument<'a> {
    name: Option<&'a str>,
    command: &'a [String],
    framework: Option<&'a str>,
    recorder: Option<&'a str>,
    started_unix_ms: Option<u64>,
    /// Of the rank that got furthest.
    steps: u64,
    ranks: usize,
    /// As many as the launcher said there are.
    world_size: Option<u32>,
    /// The rank with the gravest finding, of several.
    worst_rank: Option<u32>,
    /// Whether every rank said that it ended and had not failed.
    ended_in_order: bool,
}

#[derive(Serialize)]
struct VerdictDocument {
    health: &'static str,
    errors: usize,
    warnings: usize,
    infos: usize,
    consequences: usize,
    doubts: usize,
}

#[derive(Serialize)]
struct FindingDocument<'a> {
    code: &'a str,
    name: &'a str,
    severity: &'a str,
    rank: u32,
    layer: &'a str,
    operator: &'a str,
    probe: Option<&'a str>,
    onset_step: u64,
    last_step: u64,
    evidence: EvidenceMap<'a>,
    explanation: &'a str,
    remedy: RemedyDocument<'a>,
    consequences: Vec<FindingDocument<'a>>,
}

#[derive(Serialize)]
struct RemedyDocument<'a> {
    text: &'a str,
    set: SettingMap<'a>,
}

/// A finding that somebody knows of.
#[derive(Serialize)]
struct AcceptedDocument<'a> {
    reason: &'a str,
    finding: FindingDocument<'a>,
}

impl<'a> AcceptedDocument<'a> {
    fn of(of: &Attributed<'a, Accepted>) -> Self {
        let finding = Attributed { rank: of.rank, item: &of.item.finding };
        Self { reason: &of.item.reason, finding: FindingDocument::of(&finding) }
    }
}

/// A rule that fired in more layers than are listed.
#[derive(Serialize)]
struct OmittedDocument {
    code: &'static str,
    rank: u32,
    layers: u64,
}

#[derive(Serialize)]
struct DoubtDocument<'a> {
    code: &'a str,
    name: &'a str,
    rank: u32,
    reason: &'a str,
}

impl<'a> Document<'a> {
    pub(super) fn of(run: &'a Run<'a>) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            generator: concat!("ampdoctor ", env!("CARGO_PKG_VERSION")),
            run: RunDocument::of(run),
            verdict: VerdictDocument::of(run),
            configuration: ConfigurationDocument::of(run),
            findings: run.findings().iter().map(FindingDocument::of).collect(),
            accepted: run.accepted().iter().map(AcceptedDocument::of).collect(),
            omitted: run.omitted().iter().map(OmittedDocument::of).collect(),
            doubts: run.doubts().iter().map(DoubtDocument::of).collect(),
            layers: layer_magnitudes(run).iter().map(LayerDocument::of).collect(),
            whatif: WhatIfSummary::of_run(run),
            ranks: run.ranks.iter().map(RankDocument::of).collect(),
            unreadable: run.unreadable.iter().map(ToString::to_string).collect(),
        }
    }
}

impl<'a> RunDocument<'a> {
    fn of(run: &Run<'a>) -> Self {
        let info = run.ranks.iter().find_map(|rank| rank.aggregate.run.as_ref());
        Self {
            name: info.map(|info| info.name.as_str()),
            command: info.map_or(&[], |info| &info.command),
            framework: info.map(|info| info.framework.as_str()),
            recorder: info.map(|info| info.producer.as_str()),
            started_unix_ms: info.map(|info| info.started_unix_ms),
            steps: run.ranks.iter().map(|rank| rank.steps()).max().unwrap_or(0),
            ranks: run.ranks.len(),
            world_size: run.world_size(),
            worst_rank: run.worst_rank(),
            ended_in_order: run.ended_in_order(),
        }
    }
}

impl VerdictDocument {
    fn of(run: &Run<'_>) -> Self {
        let counts = run.counts();
        Self {
            health: run.health().name(),
            errors: counts.errors,
            warnings: counts.warnings,
            infos: counts.infos,
            consequences: counts.consequences,
            doubts: run.doubts().len(),
        }
    }
}

impl<'a> FindingDocument<'a> {
    fn of(of: &Attributed<'a, Finding>) -> Self {
        let finding = of.item;
        Self {
            code: finding.code,
            name: finding.name,
            severity: finding.severity.name(),
            rank: of.rank,
            layer: &finding.layer,
            operator: &finding.operator,
            probe: finding.probe.map(|probe| probe.name()),
            onset_step: finding.onset_step,
            last_step: finding.last_step,
            evidence: EvidenceMap(&finding.evidence),
            explanation: &finding.explanation,
            remedy: RemedyDocument::of(&finding.remedy),
            consequences: finding
                .consequences
                .iter()
                .map(|item| Self::of(&Attributed { rank: of.rank, item }))
                .collect(),
        }
    }
}

impl<'a> RemedyDocument<'a> {
    fn of(remedy: &'a Remedy) -> Self {
        Self { text: &remedy.text, set: SettingMap(&remedy.set) }
    }
}

impl OmittedDocument {
    fn of(of: &Attributed<'_, Omitted>) -> Self {
        Self { code: of.item.code, rank: of.rank, layers: of.item.layers }
    }
}

impl<'a> DoubtDocument<'a> {
    fn of(of: &Attributed<'a, Doubt>) -> Self {
        Self { code: of.item.code, name: of.item.name, rank: of.rank, reason: &of.item.reason }
    }
}

/// Evidence as an object, in the rule's order.
struct EvidenceMap<'a>(&'a [Evidence]);

impl Serialize for EvidenceMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (at, evidence) in self.0.iter().enumerate() {
            let key = self.key(at, evidence.name);
            map.serialize_entry(&key, &ValueDocument(&evidence.value))?;
        }
        map.end()
    }
}

impl EvidenceMap<'_> {
    /// The name; a second evidence of the same name becomes `name_2`, for an object holds a key once.
    fn key(&self, at: usize, name: &str) -> String {
        let before = self.0.iter().take(at).filter(|other| other.name == name).count();
        if before == 0 { name.to_string() } else { format!("{name}_{}", before + 1) }
    }
}

/// The settings of a remedy as an object, in their order.
struct SettingMap<'a>(&'a [Setting]);

impl Serialize for SettingMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for setting in self.0 {
            map.serialize_entry(setting.name, &ValueDocument(&setting.value))?;
        }
        map.end()
    }
}

struct ValueDocument<'a>(&'a Value);

impl Serialize for ValueDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Number(x) => Number(*x).serialize(serializer),
            Value::Count(n) => n.serialize(serializer),
            Value::Text(text) => text.serialize(serializer),
        }
    }
}
