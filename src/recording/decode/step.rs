//! A step: what its messages mean, and what in them makes no sense.

use super::{Lost, Nonsense, Sites, unknown};
use crate::observation::{Cost, Observation, Provenance, Rounding, ScalerEvent, SiteId, Step, Tier};
use crate::recording::schema::{self, scaler_event};
use crate::recording::{columns, recipe};
use crate::scan::{ExponentHistogram, Fidelity, Scaled, Stats};

/// Exponents that a finite non-zero `f64` can have.
const EXPONENTS: std::ops::RangeInclusive<i64> = -1074..=1023;
/// Powers of two that a sum can have lie well within: squares of `f64` reach 2^2048, and 2^64 elements add 64. What is computed from
/// them must not overflow.
const SUM_EXPONENT: u32 = 1 << 16;

/// The step without the observations of sites that nobody defined, and these sites: their definition may have stood in a
/// damaged part, and that is no reason to lose the loss and the scale.
pub(super) fn step(mut s: schema::Step, sites: &Sites) -> Result<(Step, Lost), Nonsense> {
    let mut messages = std::mem::take(&mut s.observations);
    messages.extend(s.columns.take().map(columns::decode).transpose()?.unwrap_or_default());
    let mut lost = Lost::default();
    let mut observations = Vec::with_capacity(messages.len());
    for message in messages {
        observations.extend(observation(message, s.index, sites, &mut lost)?);
    }
    Ok((around(s, observations)?, lost))
}

/// The step with these observations, and all else from its message.
pub(super) fn around(s: schema::Step, observations: Vec<Observation>) -> Result<Step, Nonsense> {
    Ok(Step {
        index: s.index,
        time_ns: s.time_ns,
        tier: tier(s.tier)?,
        observations,
        loss: s.loss,
        loss_scale: s.loss_scale,
        scaler: s.scaler.into_iter().filter_map(scaler_event).collect(),
        recipe: s.recipe.into_iter().filter_map(recipe::decode).collect(),
        lr: s.lr,
        metrics: s.metrics.into_iter().map(|m| (m.name, m.value)).collect(),
        cost: cost(s.cost.unwrap_or_default()),
    })
}

/// An observation of step `index`; `None` for one of a site that nobody defined.
pub(super) fn observation(
    o: schema::Observation,
    index: u64,
    sites: &Sites,
    lost: &mut Lost,
) -> Result<Option<Observation>, Nonsense> {
    if !sites.has(o.site) {
        lost.sites.push(o.site);
        lost.observations += 1;
        return Ok(None);
    }
    let (via, unheard) =
        o.via.map_or((None, None), |via| if sites.has(via) { (Some(via), None) } else { (None, Some(via)) });
    lost.sites.extend(unheard);
    let here = |Nonsense(what)| Nonsense(format!("step {index}, site {}: {what}", o.site));
    Ok(Some(Observation {
        site: SiteId(o.site),
        stats: stats(o.stats.unwrap_or_default()).map_err(here)?,
        inherited: o.inherited,
        via: via.map(SiteId),
        rounding: o.rounding.map(rounding).transpose().map_err(here)?.map(Box::new),
        provenance: o.provenance.map(|p| Box::new(provenance(p, sites))),
    }))
}

/// A site that nobody defined is an input that was not observed.
fn provenance(p: schema::Provenance, sites: &Sites) -> Provenance {
    let input = |number: u32| number.checked_sub(1).filter(|id| sites.has(*id)).map(SiteId);
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

/// A sum that a double holds.
pub(in crate::recording) fn plain(value: f64) -> schema::Scaled {
    schema::Scaled { value, exponent: 0 }
}

fn rounding(r: schema::Rounding) -> Result<Rounding, Nonsense> {
    if r.unmoved.is_some_and(|unmoved| !unmoved.is_finite() || unmoved < 0.0) {
        return Err(Nonsense(format!("energy of {:?} that moved nothing", r.unmoved)));
    }
    Ok(Rounding {
        stepped: r.stepped.map(fidelity).transpose()?,
        without_masters: r.without_masters.map(fidelity).transpose()?,
        decay: r.decay.map(fidelity).transpose()?,
        unlike_master: r.unlike_master,
        unmoved: r.unmoved,
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
