//! From the payload of a frame to what it means. Total: whatever the bytes, the answer is a record or what is wrong with them.

use std::collections::HashMap;

use prost::Message;

use super::error::{DecodeError, Flaw};
use super::schema::{self, record::Kind, run, scaler_event};
use super::{FORMAT, FORMAT_VERSION, recipe};
use crate::observation::{
    Cost, End, EndReason, Note, NoteKind, Observation, Parameter, Probe, Provenance, Record, Rounding, RunInfo,
    Sampling, ScalerConfig, ScalerEvent, Shadow, ShadowGradient, Site, SiteId, Step, Tier,
};
use crate::scan::{Dtype, ExponentHistogram, Fidelity, Likeness, Scaled, Stats};

/// Exponents that a finite non-zero `f64` can have.
const EXPONENTS: std::ops::RangeInclusive<i64> = -1074..=1023;
/// Powers of two that a sum can have lie well within: squares of `f64` reach 2^2048, and 2^64 elements add 64. What is computed from
/// them must not overflow.
const SUM_EXPONENT: u32 = 1 << 16;
/// Site numbers lie below this. Readers keep tables by site number; a number out of a broken producer must not become a
/// table of billions. No model comes near: a thousand layers make some ten thousand sites.
const MAX_SITES: u32 = 1 << 20;

/// The sites defined so far, by number.
pub(super) type Sites = HashMap<u32, Site>;

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
            match sites.get(&id.0) {
                Some(known) if *known == site => return Ok(Decoded::Repeated),
                Some(_) => return Err(Nonsense(format!("site {} is defined twice, differently", id.0)).into()),
                None => sites.insert(id.0, site.clone()),
            };
            Record::Site(id, site)
        }
        Some(Kind::Scaler(s)) => Record::Scaler(scaler(s)),
        Some(Kind::Step(s)) => {
            let (step, lost) = step(s, sites)?;
            return Ok(Decoded::Record(Record::Step(step), lost));
        }
        Some(Kind::Shadow(s)) => {
            let (shadow, lost) = shadow(s, sites)?;
            return Ok(Decoded::Record(Record::Shadow(shadow), lost));
        }
        Some(Kind::Note(n)) => Record::Note(note(n)?),
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

/// The step without the observations of sites that nobody defined, and these sites: their definition may have stood in a
/// damaged part, and that is no reason to lose the loss and the scale.
fn step(s: schema::Step, sites: &Sites) -> Result<(Step, Lost), Nonsense> {
    let tier = tier(s.tier)?;
    let mut lost = Lost::default();
    let mut observations = Vec::with_capacity(s.observations.len());
    for o in s.observations {
        if !sites.contains_key(&o.site) {
            lost.sites.push(o.site);
            lost.observations += 1;
            continue;
        }
        let via = o.via.filter(|via| {
            let known = sites.contains_key(via);
            if !known {
                lost.sites.push(*via);
            }
            known
        });
        let here = |Nonsense(what)| Nonsense(format!("step {}, site {}: {what}", s.index, o.site));
        observations.push(Observation {
            site: SiteId(o.site),
            stats: stats(o.stats.unwrap_or_default()).map_err(here)?,
            inherited: o.inherited,
            via: via.map(SiteId),
            rounding: o.rounding.map(rounding).transpose().map_err(here)?.map(Box::new),
            provenance: o.provenance.map(|p| Box::new(provenance(p, sites))),
        });
    }
    let step = Step {
        index: s.index,
        time_ns: s.time_ns,
        tier,
        observations,
        loss: s.loss,
        loss_scale: s.loss_scale,
        scaler: s.scaler.into_iter().filter_map(scaler_event).collect(),
        recipe: s.recipe.into_iter().filter_map(recipe::decode).collect(),
        lr: s.lr,
        metrics: s.metrics.into_iter().map(|m| (m.name, m.value)).collect(),
        cost: cost(s.cost.unwrap_or_default()),
    };
    Ok((step, lost))
}

/// A site that nobody defined is an input that was not observed.
fn provenance(p: schema::Provenance, sites: &Sites) -> Provenance {
    let input = |number: u32| number.checked_sub(1).filter(|id| sites.contains_key(id)).map(SiteId);
    Provenance { inputs: p.inputs.into_iter().map(input).collect(), argument: p.argument, inexact: p.inexact }
}

fn tier(value: i32) -> Result<Tier, Nonsense> {
    Ok(match schema::Tier::try_from(value) {
        Ok(schema::Tier::Off) => Tier::Off,
        Ok(schema::Tier::Light) => Tier::Light,
        Ok(schema::Tier::Full) => Tier::Full,
        Ok(schema::Tier::Unspecified) | Err(_) => return Err(unknown("tier", value)),
    })
}

fn stats(s: schema::Stats) -> Result<Stats, Nonsense> {
    let mut parts = [s.zeros, s.nan, s.pos_inf, s.neg_inf].into_iter().chain(s.exponent_counts.iter().copied());
    let counted = parts.try_fold(0u64, u64::checked_add);
    if counted != Some(s.count) {
        return Err(Nonsense(format!("the parts of a tensor's count do not add up to {}", s.count)));
    }
    let exponents = histogram(s.first_exponent, s.exponent_counts)?;
    let smallest = if exponents.total() > 0 { f64::from_bits(1) } else { 0.0 };
    let ordered = smallest <= s.min_abs && s.min_abs <= s.max_abs && s.max_abs.is_finite();
    if !ordered || (smallest == 0.0 && s.max_abs > 0.0) {
        let (count, min, max) = (exponents.total(), s.min_abs, s.max_abs);
        return Err(Nonsense(format!("magnitudes from {min} to {max} of {count} non-zero elements")));
    }
    Ok(Stats {
        count: s.count,
        zeros: s.zeros,
        nan: s.nan,
        pos_inf: s.pos_inf,
        neg_inf: s.neg_inf,
        min_abs: s.min_abs,
        max_abs: s.max_abs,
        sum: scaled(s.sum.unwrap_or_default())?,
        sum_squares: scaled(s.sum_squares.unwrap_or_default())?,
        exponents,
    })
}

fn rounding(r: schema::Rounding) -> Result<Rounding, Nonsense> {
    Ok(Rounding {
        stepped: r.stepped.map(fidelity).transpose()?,
        without_masters: r.without_masters.map(fidelity).transpose()?,
        decay: r.decay.map(fidelity).transpose()?,
        unlike_master: r.unlike_master,
    })
}

fn fidelity(f: schema::Fidelity) -> Result<Fidelity, Nonsense> {
    let schema::Fidelity { intended, dead, non_finite, dot, energy } = f;
    if dead > intended || !dot.is_finite() || !energy.is_finite() || energy < 0.0 {
        return Err(Nonsense(format!(
            "an update of energy {energy} and product {dot}, {dead} of {intended} elements unmoved"
        )));
    }
    Ok(Fidelity { intended, dead, non_finite, dot, energy })
}

fn histogram(first: i32, counts: Vec<u64>) -> Result<ExponentHistogram, Nonsense> {
    let last = i64::from(first) + counts.len().max(1) as i64 - 1;
    if !EXPONENTS.contains(&i64::from(first)) || !EXPONENTS.contains(&last) {
        return Err(Nonsense(format!("a histogram of exponents from {first} to {last}, outside -1074 to 1023")));
    }
    Ok(ExponentHistogram::from_counts(first, counts))
}

fn scaled(schema::Scaled { value, exponent }: schema::Scaled) -> Result<Scaled, Nonsense> {
    if exponent.unsigned_abs() > SUM_EXPONENT {
        return Err(Nonsense(format!("a sum of {value} * 2^{exponent}")));
    }
    Ok(Scaled { value, exponent })
}

/// `None` for a kind of event that this version does not know.
fn scaler_event(event: schema::ScalerEvent) -> Option<ScalerEvent> {
    use scaler_event::Kind;
    Some(match event.kind? {
        Kind::LossScaled(schema::LossScaled { scale }) => ScalerEvent::Scaled { scale },
        Kind::Unscaled(schema::Unscaled { optimizer, scale, found_inf }) => {
            ScalerEvent::Unscaled { optimizer, scale, found_inf }
        }
        Kind::Stepped(schema::Stepped { optimizer, applied }) => ScalerEvent::Stepped { optimizer, applied },
        Kind::Updated(schema::Updated { from, to, growth_tracker }) => {
            ScalerEvent::Updated { from, to, growth_tracker }
        }
    })
}

fn cost(schema::Cost { step_ns, probe_ns, dropped_steps, unscanned }: schema::Cost) -> Cost {
    Cost { step_ns, probe_ns, dropped_steps, unscanned }
}

/// The shadow without the gradients of sites that nobody defined, and these sites.
fn shadow(s: schema::Shadow, sites: &Sites) -> Result<(Shadow, Lost), Nonsense> {
    let mut lost = Lost::default();
    let mut gradients = Vec::with_capacity(s.gradients.len());
    for g in s.gradients {
        if !sites.contains_key(&g.site) {
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
