//! The document: what is said of one rank.

use serde::Serialize;

use super::super::Rank;
use super::super::number::Number;
use super::magnitudes::MagnitudesDocument;
use super::shadows::ShadowsDocument;
use crate::aggregate::{Aggregate, Coverage, ScalerSummary, SiteSummary, Timeline};
use crate::numerics::{Format, Zones};
use crate::observation::{EndReason, Note, NoteKind, RunInfo, Sampling, ScalerConfig, Thinned};
use crate::recording::Damage;

#[derive(Serialize)]
pub(super) struct RankDocument<'a> {
    rank: u32,
    process: Option<ProcessDocument<'a>>,
    recording: RecordingDocument<'a>,
    instrument: InstrumentDocument<'a>,
    scaler: ScalerDocument,
    timeline: TimelineDocument,
    fp32_shadows: Option<ShadowsDocument<'a>>,
    sites: Vec<SiteDocument<'a>>,
}

#[derive(Serialize)]
struct ProcessDocument<'a> {
    pid: u32,
    device: &'a str,
    threads: u32,
    parameters: usize,
    trainable_parameters: usize,
}

#[derive(Serialize)]
struct RecordingDocument<'a> {
    file: &'a str,
    /// `finished`, `dropped`, `panicked`, `detached`; `cut` where the recording has no end.
    end: &'static str,
    /// It has no end though its process has ended.
    ended_early: bool,
    records: u64,
    /// Of kinds that only a later ampdoctor knows.
    unknown_records: u64,
    /// Of a record that is not whole, at the end of the file.
    tail_bytes: u64,
    damaged_bytes: u64,
    /// Over all steps, of sites whose definition was lost.
    lost_observations: u64,
    damage_count: u64,
    damage: Vec<DamageDocument>,
    /// Why reading stopped before the end of the file.
    stopped: Option<String>,
}

#[derive(Serialize)]
struct DamageDocument {
    offset: u64,
    bytes: u64,
    what: String,
}

#[derive(Serialize)]
struct InstrumentDocument<'a> {
    sampling: Option<SamplingDocument>,
    steps: u64,
    full_steps: u64,
    light_steps: u64,
    dropped_steps: u64,
    unscanned_tensors: u64,
    step_ns: u64,
    probe_ns: u64,
    probe_share: Option<Number>,
    notes: Vec<NoteDocument<'a>>,
    notes_dropped: u64,
    coverage: Option<CoverageDocument>,
    /// What the recording lost so that it stays below its size.
    thinned: Option<ThinnedDocument>,
}

/// What of the model was seen.
#[derive(Serialize)]
struct CoverageDocument {
    parameters: usize,
    parameters_seen: usize,
    layers: usize,
    layers_seen: usize,
    missing: Vec<String>,
}

#[derive(Serialize)]
struct ThinnedDocument {
    limit_bytes: u64,
    until: u64,
    stride: u64,
    lightened: u64,
    lightened_events: u64,
    removed: u64,
}

#[derive(Serialize)]
struct SamplingDocument {
    mode: &'static str,
    every: Option<u64>,
    budget_share: Option<Number>,
}

#[derive(Serialize)]
struct NoteDocument<'a> {
    step: u64,
    kind: &'static str,
    text: &'a str,
}

#[derive(Serialize)]
struct ScalerDocument {
    config: Option<ScalerConfigDocument>,
    applied: u64,
    skipped: u64,
    calibration_skips: u64,
    growths: u64,
    backoffs: u64,
    last_scale: Option<Number>,
}

#[derive(Serialize)]
struct ScalerConfigDocument {
    init_scale: Number,
    growth_factor: Number,
    backoff_factor: Number,
    growth_interval: u64,
    min_scale: Option<Number>,
    max_scale: Option<Number>,
    hysteresis: u64,
    is_static: bool,
    foreign: bool,
}

/// Columns of equal length; `stride` steps stand in one row, of which `loss` and `loss_scale` are the last known.
#[derive(Serialize)]
struct TimelineDocument {
    stride: u64,
    step: Vec<u64>,
    loss: Vec<Option<Number>>,
    loss_scale: Vec<Option<Number>>,
    skipped: Vec<u64>,
}

#[derive(Serialize)]
struct SiteDocument<'a> {
    layer: &'a str,
    operator: &'a str,
    tensor: &'a str,
    probe: &'static str,
    dtype: &'static str,
    samples: u64,
    first_step: Option<u64>,
    last_step: Option<u64>,
    non_finite_samples: u64,
    nonzero_samples: u64,
    count: u64,
    zeros: u64,
    nan: u64,
    inf: u64,
    min_abs: Option<Number>,
    max_abs: Option<Number>,
    max_unscaled: Option<Number>,
    step_max: Option<MagnitudesDocument>,
    step_min: Option<MagnitudesDocument>,
    fp16: Option<Fp16Document>,
    exponents: ExponentsDocument<'a>,
}

/// Shares of the finite non-zero elements, held in FP16 as they were recorded (a gradient with its loss scale).
#[derive(Serialize)]
struct Fp16Document {
    zero_share: Number,
    subnormal_share: Number,
    overflow_share: Number,
}

/// `counts[i]` elements have the binary exponent `first + i`.
#[derive(Serialize)]
struct ExponentsDocument<'a> {
    first: i32,
    counts: &'a [u64],
}

impl<'a> RankDocument<'a> {
    pub(super) fn of(rank: &Rank<'a>) -> Self {
        let aggregate = rank.aggregate;
        Self {
            rank: rank.number(),
            process: aggregate.run.as_ref().map(ProcessDocument::of),
            recording: RecordingDocument::of(rank),
            instrument: InstrumentDocument::of(aggregate),
            scaler: ScalerDocument::of(aggregate),
            timeline: TimelineDocument::of(&aggregate.timeline),
            fp32_shadows: ShadowsDocument::of(&aggregate.shadows),
            sites: aggregate.sites.iter().map(SiteDocument::of).collect(),
        }
    }
}

impl<'a> ProcessDocument<'a> {
    fn of(run: &'a RunInfo) -> Self {
        Self {
            pid: run.pid,
            device: &run.device,
            threads: run.threads,
            parameters: run.parameters.len(),
            trainable_parameters: run.parameters.iter().filter(|parameter| parameter.trainable).count(),
        }
    }
}

impl<'a> RecordingDocument<'a> {
    fn of(rank: &Rank<'a>) -> Self {
        let end = match rank.aggregate.end.as_ref().map(|end| end.reason) {
            Some(EndReason::Finished) => "finished",
            Some(EndReason::Dropped) => "dropped",
            Some(EndReason::Panicked) => "panicked",
            Some(EndReason::Detached) => "detached",
            None => "cut",
        };
        let integrity = rank.integrity.cloned().unwrap_or_default();
        Self {
            file: rank.file,
            end,
            ended_early: rank.ended_early(),
            records: integrity.records,
            unknown_records: integrity.unknown_records,
            tail_bytes: integrity.tail_bytes,
            damaged_bytes: integrity.damaged_bytes,
            lost_observations: integrity.lost_observations,
            damage_count: integrity.damage_count,
            damage: integrity.damage().iter().map(DamageDocument::of).collect(),
            stopped: rank.stopped.map(ToString::to_string),
        }
    }
}

impl DamageDocument {
    fn of(damage: &Damage) -> Self {
        Self { offset: damage.offset, bytes: damage.bytes, what: damage.what.to_string() }
    }
}

impl CoverageDocument {
    fn of(coverage: &Coverage) -> Self {
        Self {
            parameters: coverage.parameters.len(),
            parameters_seen: coverage.seen_parameters(),
            layers: coverage.layers.len(),
            layers_seen: coverage.seen_layers(),
            missing: coverage.missing(),
        }
    }
}

impl<'a> InstrumentDocument<'a> {
    fn of(aggregate: &'a Aggregate) -> Self {
        let (instrument, run) = (&aggregate.instrument, aggregate.run.as_ref());
        let timed = instrument.step_ns > 0;
        Self {
            sampling: run.map(|run| SamplingDocument::of(run.sampling)),
            steps: instrument.steps,
            full_steps: instrument.full_steps,
            light_steps: instrument.light_steps,
            dropped_steps: instrument.dropped_steps,
            unscanned_tensors: instrument.unscanned,
            step_ns: instrument.step_ns,
            probe_ns: instrument.probe_ns,
            probe_share: timed.then(|| Number(instrument.probe_ns as f64 / instrument.step_ns as f64)),
            notes: instrument.notes.iter().map(NoteDocument::of).collect(),
            notes_dropped: instrument.notes_dropped,
            coverage: Coverage::of(aggregate).as_ref().map(CoverageDocument::of),
            thinned: instrument.thinned.as_ref().map(ThinnedDocument::of),
        }
    }
}

impl ThinnedDocument {
    fn of(thinned: &Thinned) -> Self {
        Self {
            limit_bytes: thinned.limit_bytes,
            until: thinned.until,
            stride: thinned.stride,
            lightened: thinned.lightened,
            lightened_events: thinned.lightened_events,
            removed: thinned.removed,
        }
    }
}

impl SamplingDocument {
    fn of(sampling: Sampling) -> Self {
        match sampling {
            Sampling::Every(n) => Self { mode: "every", every: Some(n), budget_share: None },
            Sampling::Budget(share) => Self { mode: "budget", every: None, budget_share: Some(Number(share)) },
            Sampling::Off => Self { mode: "off", every: None, budget_share: None },
        }
    }
}

impl<'a> NoteDocument<'a> {
    fn of(note: &'a Note) -> Self {
        let kind = match note.kind {
            NoteKind::BlindSpot => "blind_spot",
            NoteKind::Detached => "detached",
            NoteKind::Dropped => "dropped",
            NoteKind::Information => "information",
        };
        Self { step: note.step, kind, text: &note.text }
    }
}

impl ScalerDocument {
    fn of(aggregate: &Aggregate) -> Self {
        let ScalerSummary { applied, skipped, growths, backoffs, calibration_skips } = aggregate.scaler;
        let last_scale = aggregate.scale_in_force().map(Number);
        let config = aggregate.scaler_config.as_ref().map(ScalerConfigDocument::of);
        Self { config, applied, skipped, calibration_skips, growths, backoffs, last_scale }
    }
}

impl ScalerConfigDocument {
    fn of(config: &ScalerConfig) -> Self {
        Self {
            init_scale: Number(config.init_scale),
            growth_factor: Number(config.growth_factor),
            backoff_factor: Number(config.backoff_factor),
            growth_interval: config.growth_interval,
            min_scale: config.min_scale.map(Number),
            max_scale: config.max_scale.map(Number),
            hysteresis: config.hysteresis,
            is_static: config.is_static(),
            foreign: config.foreign,
        }
    }
}

impl TimelineDocument {
    fn of(timeline: &Timeline) -> Self {
        let points = &timeline.points;
        Self {
            stride: timeline.stride,
            step: points.iter().map(|point| point.step).collect(),
            loss: points.iter().map(|point| point.loss.map(Number)).collect(),
            loss_scale: points.iter().map(|point| point.loss_scale.map(Number)).collect(),
            skipped: points.iter().map(|point| point.skipped).collect(),
        }
    }
}

impl<'a> SiteDocument<'a> {
    fn of(summary: &'a SiteSummary) -> Self {
        let (first, counts) = summary.exponents.parts();
        let known = |x: f64| (summary.nonzero_samples > 0).then_some(Number(x));
        Self {
            layer: &summary.site.layer,
            operator: &summary.site.operator,
            tensor: &summary.site.tensor,
            probe: summary.site.probe.name(),
            dtype: summary.site.dtype.name(),
            samples: summary.samples,
            first_step: summary.first_step,
            last_step: summary.latest().map(|sample| sample.step),
            non_finite_samples: summary.non_finite_samples,
            nonzero_samples: summary.nonzero_samples,
            count: summary.count,
            zeros: summary.zeros,
            nan: summary.nan,
            inf: summary.inf,
            min_abs: known(summary.min_abs),
            max_abs: known(summary.max_abs),
            max_unscaled: known(summary.max_unscaled),
            step_max: MagnitudesDocument::of(&summary.step_max),
            step_min: MagnitudesDocument::of(&summary.step_min),
            fp16: Fp16Document::of(summary),
            exponents: ExponentsDocument { first, counts },
        }
    }
}

impl Fp16Document {
    /// `None` where no element was finite and non-zero.
    fn of(summary: &SiteSummary) -> Option<Self> {
        let zones = Zones::of(&summary.exponents, Format::F16, 0);
        (zones.total() > 0).then(|| Self {
            zero_share: Number(zones.share(zones.lost)),
            subnormal_share: Number(zones.share(zones.fading)),
            overflow_share: Number(zones.share(zones.overflow)),
        })
    }
}
