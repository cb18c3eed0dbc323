//! From what a record means to the bytes of its frame.

use prost::Message;

use super::schema::{self, record::Kind, run, scaler_event};
use super::{FORMAT, FORMAT_VERSION, columns, frame, recipe};
use crate::observation::{
    Cost, End, EndReason, Note, NoteKind, Observation, Parameter, Probe, Provenance, Record, Rounding, RunInfo,
    Sampling, ScalerConfig, ScalerEvent, Shadow, Site, SiteId, Step, Thinned, Tier,
};
use crate::scan::{Dtype, Fidelity, Likeness, Scaled, Stats};

/// Appends the frame of a record, exactly as it stands in a recording.
pub fn encode_frame(record: &Record, out: &mut Vec<u8>) {
    let message = schema::Record { kind: Some(kind(record)) };
    frame::append(out, &message.encode_to_vec());
}

fn kind(record: &Record) -> Kind {
    match record {
        Record::Run(info) => Kind::Run(run_info(info)),
        Record::Site(id, s) => Kind::Site(site(*id, s)),
        Record::Scaler(config) => Kind::Scaler(scaler(config)),
        Record::Step(s) => Kind::Step(step(s)),
        Record::Shadow(s) => Kind::Shadow(shadow(s)),
        Record::Note(n) => Kind::Note(note(n)),
        Record::Thinned(t) => Kind::Thinned(thinned(t)),
        Record::End(e) => Kind::End(end(e)),
    }
}

fn run_info(info: &RunInfo) -> schema::Run {
    schema::Run {
        format: FORMAT.into(),
        version: FORMAT_VERSION,
        name: info.name.clone(),
        command: info.command.clone(),
        started_unix_ms: info.started_unix_ms,
        pid: info.pid,
        rank: info.rank,
        world_size: info.world_size,
        producer: info.producer.clone(),
        framework: info.framework.clone(),
        device: info.device.clone(),
        threads: info.threads,
        sampling: Some(match info.sampling {
            Sampling::Every(n) => run::Sampling::Every(n),
            Sampling::Budget(share) => run::Sampling::Budget(share),
            Sampling::Off => run::Sampling::Off(true),
        }),
        parameters: info.parameters.iter().map(parameter).collect(),
    }
}

fn parameter(p: &Parameter) -> schema::Parameter {
    let Parameter { name, dtype, shape, trainable } = p.clone();
    schema::Parameter { name, dtype, shape, trainable }
}

fn site(SiteId(id): SiteId, site: &Site) -> schema::Site {
    let Site { layer, operator, tensor, probe: p, dtype: d } = site.clone();
    schema::Site { id, layer, operator, tensor, probe: probe(p).into(), dtype: dtype(d).into() }
}

fn probe(probe: Probe) -> schema::Probe {
    match probe {
        Probe::Activation => schema::Probe::Activation,
        Probe::ActivationGrad => schema::Probe::ActivationGrad,
        Probe::CastGrad => schema::Probe::CastGrad,
        Probe::ParamGrad => schema::Probe::ParamGrad,
        Probe::Param => schema::Probe::Param,
        Probe::Update => schema::Probe::Update,
        Probe::Buffer => schema::Probe::Buffer,
        Probe::OptimizerState => schema::Probe::OptimizerState,
        Probe::Average => schema::Probe::Average,
    }
}

pub(super) fn dtype(dtype: Dtype) -> schema::Dtype {
    match dtype {
        Dtype::F16 => schema::Dtype::F16,
        Dtype::Bf16 => schema::Dtype::Bf16,
        Dtype::F32 => schema::Dtype::F32,
        Dtype::F64 => schema::Dtype::F64,
    }
}

fn scaler(config: &ScalerConfig) -> schema::Scaler {
    schema::Scaler {
        init_scale: config.init_scale,
        growth_factor: config.growth_factor,
        backoff_factor: config.backoff_factor,
        growth_interval: config.growth_interval,
        min_scale: config.min_scale,
        max_scale: config.max_scale,
        hysteresis: config.hysteresis,
        foreign: config.foreign,
    }
}

fn step(step: &Step) -> schema::Step {
    let columns = columns::encode(&step.observations);
    let messages = if columns.is_some() { &[][..] } else { &step.observations };
    schema::Step {
        index: step.index,
        time_ns: step.time_ns,
        tier: tier(step.tier).into(),
        observations: messages.iter().map(observation).collect(),
        columns,
        loss: step.loss,
        loss_scale: step.loss_scale,
        scaler: step.scaler.iter().map(scaler_event).collect(),
        recipe: step.recipe.iter().map(recipe::encode).collect(),
        lr: step.lr,
        metrics: step
            .metrics
            .iter()
            .map(|(name, value)| schema::Metric { name: name.clone(), value: *value })
            .collect(),
        cost: Some(cost(step.cost)),
    }
}

fn tier(tier: Tier) -> schema::Tier {
    match tier {
        Tier::Off => schema::Tier::Off,
        Tier::Light => schema::Tier::Light,
        Tier::Full => schema::Tier::Full,
    }
}

fn observation(observation: &Observation) -> schema::Observation {
    schema::Observation {
        site: observation.site.0,
        stats: Some(stats(&observation.stats)),
        inherited: observation.inherited,
        via: observation.via.map(|site| site.0),
        rounding: observation.rounding.as_deref().map(rounding),
        provenance: observation.provenance.as_deref().map(provenance),
    }
}

pub(super) fn provenance(provenance: &Provenance) -> schema::Provenance {
    schema::Provenance {
        inputs: provenance.inputs.iter().map(|input| input.map_or(0, |site| site.0.saturating_add(1))).collect(),
        argument: provenance.argument,
        inexact: provenance.inexact,
    }
}

pub(super) fn rounding(rounding: &Rounding) -> schema::Rounding {
    schema::Rounding {
        stepped: rounding.stepped.map(fidelity),
        without_masters: rounding.without_masters.map(fidelity),
        decay: rounding.decay.map(fidelity),
        unlike_master: rounding.unlike_master,
        unmoved: rounding.unmoved,
    }
}

fn fidelity(Fidelity { intended, dead, non_finite, dot, energy }: Fidelity) -> schema::Fidelity {
    schema::Fidelity { intended, dead, non_finite, dot, energy }
}

fn stats(stats: &Stats) -> schema::Stats {
    let (first_exponent, counts) = stats.exponents.parts();
    schema::Stats {
        count: stats.count,
        zeros: stats.zeros,
        nan: stats.nan,
        pos_inf: stats.pos_inf,
        neg_inf: stats.neg_inf,
        min_abs: stats.min_abs,
        max_abs: stats.max_abs,
        sum: Some(scaled(stats.sum)),
        sum_squares: Some(scaled(stats.sum_squares)),
        first_exponent,
        exponent_counts: counts.to_vec(),
    }
}

fn scaled(Scaled { value, exponent }: Scaled) -> schema::Scaled {
    schema::Scaled { value, exponent }
}

fn scaler_event(event: &ScalerEvent) -> schema::ScalerEvent {
    use scaler_event::Kind;
    let kind = match *event {
        ScalerEvent::Scaled { scale } => Kind::LossScaled(schema::LossScaled { scale }),
        ScalerEvent::Unscaled { optimizer, scale, found_inf } => {
            Kind::Unscaled(schema::Unscaled { optimizer, scale, found_inf })
        }
        ScalerEvent::Stepped { optimizer, applied } => Kind::Stepped(schema::Stepped { optimizer, applied }),
        ScalerEvent::Updated { from, to, growth_tracker } => {
            Kind::Updated(schema::Updated { from, to, growth_tracker })
        }
    };
    schema::ScalerEvent { kind: Some(kind) }
}

fn cost(Cost { step_ns, probe_ns, dropped_steps, unscanned }: Cost) -> schema::Cost {
    schema::Cost { step_ns, probe_ns, dropped_steps, unscanned }
}

fn shadow(shadow: &Shadow) -> schema::Shadow {
    let gradients = shadow.gradients.iter();
    schema::Shadow {
        step: shadow.step,
        loss_scale: shadow.loss_scale,
        loss: shadow.loss,
        recomputed: shadow.recomputed,
        time_ns: shadow.time_ns,
        gradients: gradients
            .map(|g| schema::ShadowGradient { site: g.site.0, likeness: Some(likeness(g.likeness)) })
            .collect(),
        failure: shadow.failure.clone(),
    }
}

fn likeness(l: Likeness) -> schema::Likeness {
    schema::Likeness {
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
    }
}

fn thinned(thinned: &Thinned) -> schema::Thinned {
    schema::Thinned {
        limit_bytes: thinned.limit_bytes,
        until: thinned.until,
        stride: thinned.stride,
        lightened: thinned.lightened,
        removed: thinned.removed,
        lightened_events: thinned.lightened_events,
        removed_step_ns: thinned.removed_step_ns,
        removed_probe_ns: thinned.removed_probe_ns,
    }
}

fn note(note: &Note) -> schema::Note {
    let kind = match note.kind {
        NoteKind::BlindSpot => schema::NoteKind::BlindSpot,
        NoteKind::Detached => schema::NoteKind::Detached,
        NoteKind::Dropped => schema::NoteKind::Dropped,
        NoteKind::Information => schema::NoteKind::Information,
    };
    schema::Note { step: note.step, kind: kind.into(), text: note.text.clone() }
}

fn end(end: &End) -> schema::End {
    let reason = match end.reason {
        EndReason::Finished => schema::EndReason::Finished,
        EndReason::Dropped => schema::EndReason::Dropped,
        EndReason::Panicked => schema::EndReason::Panicked,
        EndReason::Detached => schema::EndReason::Detached,
    };
    schema::End { steps: end.steps, dropped_steps: end.dropped_steps, reason: reason.into() }
}
