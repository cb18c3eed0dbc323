//! A run with one of everything, for the tests of the formats.

use super::{Rank, Run};
use crate::aggregate::Aggregate;
use crate::observation::{
    Cost, End, EndReason, Note, NoteKind, Observation, Parameter, Probe, Record, Rounding, RunInfo, Sampling,
    ScalerConfig, ScalerEvent, Shadow, ShadowGradient, Site, SiteId, Step, Thinned, Tier,
};
use crate::recording::{Decoder, Integrity, ReadError, encode_frame};
use crate::rules::{
    Accepted, Allow, Doubt, Evidence, Finding, Health, Level, Limit, Limits, Omitted, Pattern, Policy, Remedy,
    Severity, Threshold, Value,
};
use crate::scan::{Dtype, ExponentHistogram, Fidelity, Stats, likeness};

/// What a [`Run`] borrows from.
pub(super) struct Fixture {
    aggregate: Aggregate,
    pub(super) findings: Vec<Finding>,
    doubts: Vec<Doubt>,
    omitted: [Omitted; 1],
    accepted: [Accepted; 1],
    policy: Policy,
    integrity: Integrity,
    stopped: ReadError,
    unreadable: [ReadError; 1],
}

impl Fixture {
    /// Two steps of a network of one layer, the second non-finite and skipped; three findings and a doubt.
    pub fn sick() -> Self {
        let mut aggregate = Aggregate::default();
        records().into_iter().for_each(|record| aggregate.apply(record));
        Self {
            aggregate,
            findings: findings(),
            doubts: doubts(),
            omitted: [Omitted { code: "AMP201", layers: 5 }],
            accepted: accepted(),
            policy: policy(),
            integrity: damaged(),
            stopped: broken(0),
            unreadable: [broken(2)],
        }
    }

    /// The run as one rank that ended in order.
    pub fn run(&self) -> Run<'_> {
        Run::single(self.rank())
    }

    /// The same rank twice, the second time out of a damaged file that could not be read to its end, and a third rank that could
    /// not be read at all.
    pub fn three_ranks(&self) -> Run<'_> {
        let damaged = Rank { integrity: Some(&self.integrity), stopped: Some(&self.stopped), ..self.rank() };
        Run::of(vec![self.rank(), damaged], &self.unreadable)
    }

    fn rank(&self) -> Rank<'_> {
        let Self { aggregate, findings, doubts, omitted, accepted, policy, .. } = self;
        let (file, health) = ("rank-0.amprec", Health::Findings);
        let (integrity, stopped, process_ended) = (None, None, false);
        Rank { file, integrity, stopped, process_ended, aggregate, findings, doubts, omitted, accepted, policy, health }
    }
}

pub(super) fn run_info(sampling: Sampling) -> RunInfo {
    let parameter =
        |name: &str, trainable| Parameter { name: name.into(), dtype: "f32".into(), shape: vec![10, 64], trainable };
    RunInfo {
        name: "digits".into(),
        command: vec!["trainer".into(), "--precision".into(), "fp16".into()],
        started_unix_ms: 1_700_000_000_000,
        pid: 4711,
        rank: 0,
        world_size: None,
        producer: "test 1.0".into(),
        framework: "LibTorch 2.13.0".into(),
        device: "cpu".into(),
        threads: 1,
        sampling,
        parameters: vec![parameter("fc.bias", false), parameter("fc.weight", true)],
    }
}

fn records() -> Vec<Record> {
    let site = |operator: &str, tensor: &str, probe, dtype| Site {
        layer: "fc".into(),
        operator: operator.into(),
        tensor: tensor.into(),
        probe,
        dtype,
    };
    vec![
        Record::Run(run_info(Sampling::Every(1))),
        Record::Scaler(ScalerConfig {
            init_scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            min_scale: Some(1.0),
            max_scale: None,
            hysteresis: 1,
            foreign: false,
        }),
        Record::Site(SiteId(0), site("linear", "", Probe::Activation, Dtype::F16)),
        Record::Site(SiteId(1), site("", "weight", Probe::ParamGrad, Dtype::F32)),
        Record::Site(SiteId(2), site("add_", "weight", Probe::Update, Dtype::F16)),
        Record::Site(SiteId(3), site("", "weight", Probe::Param, Dtype::F16)),
        Record::Step(step(0, Some(2.5), finite(), true)),
        Record::Step(step(1, Some(f64::NAN), Stats { count: 4, nan: 3, neg_inf: 1, ..Stats::default() }, false)),
        Record::Shadow(shadow()),
        Record::Shadow(Shadow {
            step: 1,
            time_ns: 100_000,
            failure: Some("the closure panicked: no".into()),
            ..Shadow::default()
        }),
        Record::Thinned(Thinned { limit_bytes: 1 << 20, until: 1, stride: 2, ..Thinned::default() }),
        Record::Note(Note { step: 1, kind: NoteKind::BlindSpot, text: "A sparse tensor was not scanned.".into() }),
        Record::End(End { steps: 2, dropped_steps: 0, reason: EndReason::Finished }),
    ]
}

/// Half of the weight's gradient is lost.
fn shadow() -> Shadow {
    let held: Vec<u8> = [2.0f32, 0.0, 0.0, 4e-5].into_iter().flat_map(f32::to_ne_bytes).collect();
    let likeness = likeness(Dtype::F32, &held, 2.0, &[1.0, 1e-9, 0.5, 2e-5]);
    let gradients = vec![ShadowGradient { site: SiteId(1), likeness }];
    Shadow { step: 1, loss_scale: Some(2.0), loss: Some(2.25), time_ns: 300_000, gradients, ..Shadow::default() }
}

fn finite() -> Stats {
    let exponents = ExponentHistogram::from_counts(-26, [1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    Stats { count: 4, zeros: 1, min_abs: 2f64.powi(-26), max_abs: 2f64.powi(-15), exponents, ..Stats::default() }
}

fn step(index: u64, loss: Option<f64>, stats: Stats, applied: bool) -> Step {
    let scale = 65536.0;
    let to = if applied { scale } else { scale / 2.0 };
    Step {
        index,
        time_ns: 1_000_000 * (index + 1),
        tier: Tier::Full,
        observations: observations(stats, applied),
        loss,
        loss_scale: Some(scale),
        recipe: Vec::new(),
        scaler: vec![
            ScalerEvent::Stepped { optimizer: 0, applied },
            ScalerEvent::Updated { from: scale, to, growth_tracker: 0 },
        ],
        lr: Some(0.1),
        metrics: Vec::new(),
        cost: Cost { step_ns: 1_000_000, probe_ns: 10_000, dropped_steps: 0, unscanned: 1 },
    }
}

/// Where the step is applied, a weight that is both stepped itself and written back from a copy, so that there is one of everything.
fn observations(stats: Stats, applied: bool) -> Vec<Observation> {
    let with = |site, rounding| Observation { rounding: Some(Box::new(rounding)), ..Observation::new(site, finite()) };
    let kept = |dead, dot| Some(Fidelity { intended: 4, dead, non_finite: 0, dot, energy: 1.0 });
    let (stepped, without_masters, decay) = (kept(1, 0.75), kept(3, 0.25), kept(4, 0.0));
    let update = with(SiteId(2), Rounding { stepped, without_masters, decay, ..Rounding::default() });
    let param = with(SiteId(3), Rounding { unlike_master: Some(1), ..Rounding::default() });
    let mut all = vec![Observation::new(SiteId(0), stats)];
    if applied {
        all.extend([update, param]);
    }
    all
}

fn finding(code: &'static str, severity: Severity, onset_step: u64, layer: &str) -> Finding {
    let evidence = vec![
        Evidence { name: "max_abs", value: Value::Number(f64::INFINITY) },
        Evidence { name: "lost_share_estimate", value: Value::Number(0.381) },
        Evidence { name: "samples", value: Value::Count(3) },
        Evidence { name: "input", value: Value::Text("finite".into()) },
    ];
    Finding {
        code,
        name: "made-up",
        severity,
        layer: layer.into(),
        operator: "linear".into(),
        probe: Some(Probe::Activation),
        onset_step,
        last_step: 1,
        evidence,
        explanation: "The output of this layer is not finite.".into(),
        remedy: Remedy::from("Keep the layer in FP32.").set("fp32_layers", "fc"),
        consequences: Vec::new(),
    }
}

fn findings() -> Vec<Finding> {
    let mut ruined = finding("AMP501", Severity::Error, 1, "fc");
    ruined.consequences.push(finding("AMP502", Severity::Error, 1, "bn"));
    let whole_run = Finding {
        operator: String::new(),
        probe: None,
        evidence: Vec::new(),
        ..finding("AMP303", Severity::Info, 0, "")
    };
    vec![ruined, finding("AMP201", Severity::Warning, 0, "fc"), whole_run]
}

/// The second of two acceptances was of no use.
fn policy() -> Policy {
    let threshold =
        Threshold { rule: "made-up", name: "most", default: 0.5, unit: "share of steps", reason: "made up" };
    let mut limits = Limits::default();
    limits.set(Limit { threshold, layers: Some(Pattern::new("fc*")), value: 0.25 });
    let allow = |code, reason: &str| Allow { code, layers: None, reason: reason.into() };
    Policy {
        file: Some("ampdoctor.toml".into()),
        limits,
        levels: vec![Level { code: "AMP101", name: "made-up", layers: None, severity: None }],
        allow: vec![allow("AMP202", "The head is retrained."), allow("AMP203", "Nobody knows.")],
    }
}

fn accepted() -> [Accepted; 1] {
    let finding = finding("AMP202", Severity::Warning, 0, "head");
    [Accepted { finding, reason: "The head is retrained.".into(), by: 0 }]
}

fn doubts() -> Vec<Doubt> {
    vec![Doubt { code: "AMP701", name: "unsure", reason: "The learning rate is not known; call `doctor.lr`.".into() }]
}

/// What is left to be said of a recording out of whose middle a byte was changed.
fn damaged() -> Integrity {
    let mut bytes = Vec::new();
    records().iter().for_each(|record| encode_frame(record, &mut bytes));
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let mut decoder = Decoder::new();
    decoder.push(&bytes);
    while decoder.next_record().expect("it begins like a recording").is_some() {}
    decoder.integrity().clone()
}

fn broken(rank: u32) -> ReadError {
    ReadError::Io { source: std::io::Error::other("the disk is broken"), path: format!("rank-{rank}.amprec").into() }
}
