//! A step in its plain form, read without a detour. Nearly all of a recording are observations, and the general decoder takes three
//! times as long for them: each of their numbers goes through a table of kinds, and each histogram grows by doubling.
//!
//! Plain is what a recorder writes: known fields, each at most once, every number within the bounds of its type. For anything else the answer is `None`, and
//! the general decoder, which knows all that the format allows, reads the frame anew and says what is wrong with it. So this can be wrong in one way
//! only, by reading another meaning out of the same bytes; the tests hold one against the other.

use prost::Message;

use super::step::{around, observation};
use super::wire::{Value, chunks, fields, packed, zigzag};
use super::{Lost, Nonsense, Sites};
use crate::observation::Step;
use crate::recording::{columns, schema};

/// `Record.step`.
const STEP: u64 = 4;
/// `Step.observations`.
const OBSERVATIONS: u64 = 4;
/// `Step.columns`.
const COLUMNS: u64 = 12;

/// The step of a payload in plain form, as [`step`](super::step::step) gives it; `None` for any other payload.
pub(super) fn step(payload: &[u8], sites: &Sites) -> Option<Result<(Step, Lost), Nonsense>> {
    let mut body = None;
    fields(payload, |number, value| match (number, value) {
        (STEP, Value::Bytes(bytes)) => once(&mut body, bytes),
        _ => None,
    })?;
    let Parts { message, observations, columns } = Parts::of(body?)?;
    let mut lost = Lost::default();
    let mut messages = observations.into_iter().map(observed).collect::<Option<Vec<_>>>()?;
    if let Some(bytes) = columns {
        match columns::decode(in_columns(bytes)?) {
            Ok(more) => messages.extend(more),
            Err(nonsense) => return Some(Err(nonsense)),
        }
    }
    let mut read = Vec::with_capacity(messages.len());
    for observed in messages {
        match observation(observed, message.index, sites, &mut lost) {
            Ok(one) => read.extend(one),
            Err(nonsense) => return Some(Err(nonsense)),
        }
    }
    Some(around(message, read).map(|step| (step, lost)))
}

/// The message of a step taken apart.
#[derive(Default)]
struct Parts<'a> {
    /// All but its observations.
    message: schema::Step,
    observations: Vec<&'a [u8]>,
    columns: Option<&'a [u8]>,
}

impl<'a> Parts<'a> {
    fn of(body: &'a [u8]) -> Option<Self> {
        let mut parts = Self::default();
        let s = &mut parts.message;
        fields(body, |number, value| {
            match (number, value) {
                (1, Value::Varint(n)) => s.index = n,
                (2, Value::Varint(n)) => s.time_ns = n,
                (3, Value::Varint(n)) => s.tier = i32::try_from(n).ok()?,
                (OBSERVATIONS, Value::Bytes(bytes)) => parts.observations.push(bytes),
                (5, Value::Double(x)) => s.loss = Some(x),
                (6, Value::Double(x)) => s.loss_scale = Some(x),
                (7, Value::Bytes(bytes)) => s.scaler.push(schema::ScalerEvent::decode(bytes).ok()?),
                (8, Value::Double(x)) => s.lr = Some(x),
                (9, Value::Bytes(bytes)) => s.metrics.push(schema::Metric::decode(bytes).ok()?),
                (10, Value::Bytes(bytes)) => return once(&mut s.cost, schema::Cost::decode(bytes).ok()?),
                (11, Value::Bytes(bytes)) => s.recipe.push(schema::RecipeEvent::decode(bytes).ok()?),
                (COLUMNS, Value::Bytes(bytes)) => return once(&mut parts.columns, bytes),
                _ => return None,
            }
            Some(())
        })?;
        Some(parts)
    }
}

/// Each column at most once; a repeated one would go on where it ended.
fn in_columns(bytes: &[u8]) -> Option<schema::Columns> {
    let mut c = schema::Columns::default();
    let number = |n: u64| u32::try_from(n).ok();
    fields(bytes, |field, value| {
        let Value::Bytes(bytes) = value else { return None };
        match field {
            1 => return fill(&mut c.site_steps, packed(bytes, zigzag)?),
            2 => return fill(&mut c.zeros, packed(bytes, Some)?),
            3 => return fill(&mut c.min_abs, chunks(bytes, f32::from_le_bytes)?),
            4 => return fill(&mut c.max_abs, chunks(bytes, f32::from_le_bytes)?),
            5 => return fill(&mut c.sum, chunks(bytes, f64::from_le_bytes)?),
            6 => return fill(&mut c.sum_squares, chunks(bytes, f64::from_le_bytes)?),
            7 => return fill(&mut c.exponent_counts, packed(bytes, Some)?),
            8 => return fill(&mut c.non_finite_at, packed(bytes, number)?),
            9 => return fill(&mut c.nan, packed(bytes, Some)?),
            10 => return fill(&mut c.pos_inf, packed(bytes, Some)?),
            11 => return fill(&mut c.neg_inf, packed(bytes, Some)?),
            12 => return fill(&mut c.inherited_at, packed(bytes, number)?),
            13 => return fill(&mut c.via_at, packed(bytes, number)?),
            14 => return fill(&mut c.via, packed(bytes, number)?),
            15 => return fill(&mut c.rounding_at, packed(bytes, number)?),
            16 => c.rounding.push(schema::Rounding::decode(bytes).ok()?),
            17 => return fill(&mut c.provenance_at, packed(bytes, number)?),
            18 => c.provenance.push(provenance(bytes)?),
            19 => return fill(&mut c.narrow_sum, chunks(bytes, f32::from_le_bytes)?),
            20 => return fill(&mut c.narrow_sum_squares, chunks(bytes, f32::from_le_bytes)?),
            _ => return None,
        }
        Some(())
    })?;
    Some(c)
}

fn observed(bytes: &[u8]) -> Option<schema::Observation> {
    let mut o = schema::Observation::default();
    fields(bytes, |number, value| {
        match (number, value) {
            (1, Value::Varint(n)) => o.site = u32::try_from(n).ok()?,
            (2, Value::Bytes(bytes)) => return once(&mut o.stats, stats(bytes)?),
            (3, Value::Varint(n)) => o.inherited = n != 0,
            (4, Value::Varint(n)) => o.via = Some(u32::try_from(n).ok()?),
            (5, Value::Bytes(bytes)) => return once(&mut o.rounding, schema::Rounding::decode(bytes).ok()?),
            (6, Value::Bytes(bytes)) => return once(&mut o.provenance, provenance(bytes)?),
            _ => return None,
        }
        Some(())
    })?;
    Some(o)
}

fn provenance(bytes: &[u8]) -> Option<schema::Provenance> {
    let mut p = schema::Provenance::default();
    fields(bytes, |number, value| {
        match (number, value) {
            (1, Value::Bytes(bytes)) if p.inputs.is_empty() => {
                p.inputs = packed(bytes, |n| u32::try_from(n).ok())?;
            }
            (2, Value::Double(x)) => p.argument = Some(x),
            (3, Value::Varint(n)) => p.inexact = Some(n),
            _ => return None,
        }
        Some(())
    })?;
    Some(p)
}

fn stats(bytes: &[u8]) -> Option<schema::Stats> {
    let mut s = schema::Stats::default();
    fields(bytes, |number, value| {
        match (number, value) {
            (1, Value::Varint(n)) => s.count = n,
            (2, Value::Varint(n)) => s.zeros = n,
            (3, Value::Varint(n)) => s.nan = n,
            (4, Value::Varint(n)) => s.pos_inf = n,
            (5, Value::Varint(n)) => s.neg_inf = n,
            (6, Value::Double(x)) => s.min_abs = x,
            (7, Value::Double(x)) => s.max_abs = x,
            (8, Value::Bytes(bytes)) => return once(&mut s.sum, scaled(bytes)?),
            (9, Value::Bytes(bytes)) => return once(&mut s.sum_squares, scaled(bytes)?),
            (10, Value::Varint(n)) => s.first_exponent = zigzag(n)?,
            (11, Value::Bytes(bytes)) if s.exponent_counts.is_empty() => s.exponent_counts = packed(bytes, Some)?,
            _ => return None,
        }
        Some(())
    })?;
    Some(s)
}

fn scaled(bytes: &[u8]) -> Option<schema::Scaled> {
    let mut s = schema::Scaled::default();
    fields(bytes, |number, value| {
        match (number, value) {
            (1, Value::Double(x)) => s.value = x,
            (2, Value::Varint(n)) => s.exponent = zigzag(n)?,
            _ => return None,
        }
        Some(())
    })?;
    Some(s)
}

/// Takes a column that is there for the first time.
fn fill<T>(place: &mut Vec<T>, values: Vec<T>) -> Option<()> {
    place.is_empty().then(|| *place = values)
}

/// Takes a field that is there for the first time; of one that is repeated only the general decoder knows what it means.
fn once<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.replace(value).is_none().then_some(())
}

#[cfg(test)]
mod tests;
