//! From the payload of a frame to what it means. Total: whatever the bytes, the answer is a record or what is wrong with them.

mod quick;
mod sites;
mod step;
pub(super) mod wire;

use prost::Message;

use super::error::{DecodeError, Flaw};
use super::schema::{self, record::Kind, run};
use super::{FORMAT, FORMAT_VERSION};
use crate::observation::{
    End, EndReason, Note, NoteKind, Parameter, Probe, Record, RunInfo, Sampling, ScalerConfig, Shadow, ShadowGradient,
    Site, SiteId, Thinned,
};
use crate::scan::{Dtype, Likeness};

pub(super) use sites::Sites;
pub(super) use step::plain;

/// Site numbers lie below this. Readers keep tables by site number; a number out of a broken producer must not become a
/// table of billions. No model comes near: a thousand layers make some ten thousand sites.
const MAX_SITES: u32 = 1 << 20;

/// What a payload turned out to be.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "lives for one call, and is nearly always the large one")]
pub(super) enum Decoded {
    /// A record, and what of it was left out.
    Record(Record, Lost),
    /// A kind of record that this reader does not know.
    Unknown,
    /// A site that was defined before, in the same words.
    Repeated,
}

/// What a step refers to and nobody defined.
#[derive(Debug, Default)]
pub(super) struct Lost {
    /// The numbers of the sites.
    pub(super) sites: Vec<u32>,
    /// Observations at such a site; they were left out.
    pub(super) observations: u64,
}

/// Why a payload gave no record: `Flaw` for this frame alone, `DecodeError` for the whole recording.
#[derive(Debug)]
pub(super) enum Refusal {
    Frame(Flaw),
    Recording(DecodeError),
}

/// A record that decodes and makes no sense.
#[derive(Debug, PartialEq)]
pub(super) struct Nonsense(pub(super) String);

impl From<Nonsense> for Refusal {
    fn from(Nonsense(what): Nonsense) -> Self {
        Refusal::Frame(Flaw::Nonsense(what))
    }
}

/// The record of one payload. `sites` is what earlier records defined, and learns from this one.
pub(super) fn decode_payload(payload: &[u8], sites: &mut Sites) -> Result<Decoded, Refusal> {
    if let Some(plain) = quick::step(payload, sites) {
        let (step, lost) = plain?;
        return Ok(Decoded::Record(Record::Step(step), lost));
    }
    decode_any(payload, sites)
}

/// The same of a payload of any kind and form; the twin of the quick way.
fn decode_any(payload: &[u8], sites: &mut Sites) -> Result<Decoded, Refusal> {
    let message =
        schema::Record::decode(payload).map_err(|error| Refusal::Frame(Flaw::Undecodable(error.to_string())))?;
    let record = match message.kind {
        None => return Ok(Decoded::Unknown),
        Some(Kind::Run(run)) => {
            check_format(&run).map_err(Refusal::Recording)?;
            Record::Run(run_info(run)?)
        }
        Some(Kind::Site(s)) => {
            let (id, site) = site(s)?;
            match sites.get(id.0) {
                Some(known) if *known == site => return Ok(Decoded::Repeated),
                Some(_) => return Err(Nonsense(format!("site {} is defined twice, differently", id.0)).into()),
                None => sites.define(id.0, site.clone()),
            };
            Record::Site(id, site)
        }
        Some(Kind::Scaler(s)) => Record::Scaler(scaler(s)),
        Some(Kind::Step(s)) => {
            let (step, lost) = step::step(s, sites)?;
            return Ok(Decoded::Record(Record::Step(step), lost));
        }
        Some(Kind::Shadow(s)) => {
            let (shadow, lost) = shadow(s, sites)?;
            return Ok(Decoded::Record(Record::Shadow(shadow), lost));
        }
        Some(Kind::Note(n)) => Record::Note(note(n)?),
        Some(Kind::Thinned(t)) => Record::Thinned(thinned(t)),
        Some(Kind::End(e)) => Record::End(end(e)?),
    };
    Ok(Decoded::Record(record, Lost::default()))
}

fn check_format(run: &schema::Run) -> Result<(), DecodeError> {
    if run.format != FORMAT {
        let why = "its first record does not carry the mark of one".into();
        return Err(DecodeError::NotOurs { why });
    }
    if run.version > FORMAT_VERSION {
        let producer = if run.producer.is_empty() { "an unnamed program" } else { &run.producer };
        return Err(DecodeError::TooNew { version: run.version, producer: producer.into() });
    }
    Ok(())
}

fn run_info(run: schema::Run) -> Result<RunInfo, Nonsense> {
    let sampling = match run.sampling {
        Some(run::Sampling::Every(n)) => Sampling::Every(n),
        Some(run::Sampling::Budget(share)) => Sampling::Budget(share),
        Some(run::Sampling::Off(_)) => Sampling::Off,
        None => return Err(Nonsense("the run does not say how it is sampled".into())),
    };
    Ok(RunInfo {
        name: run.name,
        command: run.command,
        started_unix_ms: run.started_unix_ms,
        pid: run.pid,
        rank: run.rank,
        world_size: run.world_size,
        producer: run.producer,
        framework: run.framework,
        device: run.device,
        threads: run.threads,
        sampling,
        parameters: run.parameters.into_iter().map(parameter).collect(),
    })
}

fn parameter(p: schema::Parameter) -> Parameter {
    let schema::Parameter { name, dtype, shape, trainable } = p;
    Parameter { name, dtype, shape, trainable }
}

fn site(s: schema::Site) -> Result<(SiteId, Site), Nonsense> {
    if s.id >= MAX_SITES {
        return Err(Nonsense(format!("site number {} is not below {MAX_SITES}", s.id)));
    }
    let (probe, dtype) = (probe(s.probe)?, dtype(s.dtype)?);
    Ok((SiteId(s.id), Site { layer: s.layer, operator: s.operator, tensor: s.tensor, probe, dtype }))
}

fn unknown(what: &str, value: i32) -> Nonsense {
    Nonsense(format!("{value} is no {what} that this version knows"))
}

fn probe(value: i32) -> Result<Probe, Nonsense> {
    Ok(match schema::Probe::try_from(value) {
        Ok(schema::Probe::Activation) => Probe::Activation,
        Ok(schema::Probe::ActivationGrad) => Probe::ActivationGrad,
        Ok(schema::Probe::CastGrad) => Probe::CastGrad,
        Ok(schema::Probe::ParamGrad) => Probe::ParamGrad,
        Ok(schema::Probe::Param) => Probe::Param,
        Ok(schema::Probe::Update) => Probe::Update,
        Ok(schema::Probe::Buffer) => Probe::Buffer,
        Ok(schema::Probe::OptimizerState) => Probe::OptimizerState,
        Ok(schema::Probe::Average) => Probe::Average,
        Ok(schema::Probe::Unspecified) | Err(_) => return Err(unknown("probe", value)),
    })
}

pub(super) fn dtype(value: i32) -> Result<Dtype, Nonsense> {
    Ok(match schema::Dtype::try_from(value) {
        Ok(schema::Dtype::F16) => Dtype::F16,
        Ok(schema::Dtype::Bf16) => Dtype::Bf16,
        Ok(schema::Dtype::F32) => Dtype::F32,
        Ok(schema::Dtype::F64) => Dtype::F64,
        Ok(schema::Dtype::Unspecified) | Err(_) => return Err(unknown("dtype", value)),
    })
}

fn scaler(s: schema::Scaler) -> ScalerConfig {
    ScalerConfig {
        init_scale: s.init_scale,
        growth_factor: s.growth_factor,
        backoff_factor: s.backoff_factor,
        growth_interval: s.growth_interval,
        min_scale: s.min_scale,
        max_scale: s.max_scale,
        hysteresis: s.hysteresis,
        foreign: s.foreign,
    }
}

/// The shadow without the gradients of sites that nobody defined, and these sites.
fn shadow(s: schema::Shadow, sites: &Sites) -> Result<(Shadow, Lost), Nonsense> {
    let mut lost = Lost::default();
    let mut gradients = Vec::with_capacity(s.gradients.len());
    for g in s.gradients {
        if !sites.has(g.site) {
            lost.sites.push(g.site);
            lost.observations += 1;
            continue;
        }
        let here = |Nonsense(what)| Nonsense(format!("shadow of step {}, site {}: {what}", s.step, g.site));
        let likeness = likeness(g.likeness.unwrap_or_default()).map_err(here)?;
        gradients.push(ShadowGradient { site: SiteId(g.site), likeness });
    }
    let shadow = Shadow {
        step: s.step,
        loss_scale: s.loss_scale,
        loss: s.loss,
        recomputed: s.recomputed,
        time_ns: s.time_ns,
        gradients,
        failure: s.failure,
    };
    Ok((shadow, lost))
}

fn likeness(l: schema::Likeness) -> Result<Likeness, Nonsense> {
    let counts = [l.nonzero, l.kept, l.non_finite, l.non_finite_in_fp32];
    let squares = [l.energy, l.fp32_energy, l.lost_energy, l.magnitude, l.fp32_magnitude];
    let counted = l.lost <= l.nonzero && l.fading <= l.kept && counts.iter().all(|&n| n <= l.count);
    let summed = squares.iter().all(|&x| x.is_finite() && x >= 0.0) && l.lost_energy <= l.fp32_energy;
    if !counted || !summed || ![l.dot, l.sum, l.fp32_sum].iter().all(|x| x.is_finite()) {
        return Err(Nonsense(format!("a gradient and FP32's whose numbers contradict each other: {l:?}")));
    }
    Ok(Likeness {
        count: l.count,
        nonzero: l.nonzero,
        lost: l.lost,
        kept: l.kept,
        fading: l.fading,
        non_finite: l.non_finite,
        non_finite_in_fp32: l.non_finite_in_fp32,
        dot: l.dot,
        energy: l.energy,
        fp32_energy: l.fp32_energy,
        lost_energy: l.lost_energy,
        sum: l.sum,
        magnitude: l.magnitude,
        fp32_sum: l.fp32_sum,
        fp32_magnitude: l.fp32_magnitude,
    })
}

fn thinned(t: schema::Thinned) -> Thinned {
    Thinned {
        limit_bytes: t.limit_bytes,
        until: t.until,
        stride: t.stride,
        lightened: t.lightened,
        removed: t.removed,
        lightened_events: t.lightened_events,
        removed_step_ns: t.removed_step_ns,
        removed_probe_ns: t.removed_probe_ns,
    }
}

fn note(n: schema::Note) -> Result<Note, Nonsense> {
    let kind = match schema::NoteKind::try_from(n.kind) {
        Ok(schema::NoteKind::BlindSpot) => NoteKind::BlindSpot,
        Ok(schema::NoteKind::Detached) => NoteKind::Detached,
        Ok(schema::NoteKind::Dropped) => NoteKind::Dropped,
        Ok(schema::NoteKind::Information) => NoteKind::Information,
        Ok(schema::NoteKind::Unspecified) | Err(_) => return Err(unknown("kind of note", n.kind)),
    };
    Ok(Note { step: n.step, kind, text: n.text })
}

fn end(e: schema::End) -> Result<End, Nonsense> {
    let reason = match schema::EndReason::try_from(e.reason) {
        Ok(schema::EndReason::Finished) => EndReason::Finished,
        Ok(schema::EndReason::Dropped) => EndReason::Dropped,
        Ok(schema::EndReason::Panicked) => EndReason::Panicked,
        Ok(schema::EndReason::Detached) => EndReason::Detached,
        Ok(schema::EndReason::Unspecified) | Err(_) => return Err(unknown("reason to end", e.reason)),
    };
    Ok(End { steps: e.steps, dropped_steps: e.dropped_steps, reason })
}
