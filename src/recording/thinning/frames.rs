//! Frames of a recording as bytes: what a step needs to be thinned, without reading all of it.

use super::super::frame;
use crate::recording::decode::wire::{Value, fields, put_varint};

/// `Record.step`, `Record.thinned`.
const STEP: u64 = 4;
const THINNED: u64 = 8;
/// `Step.index`, `.tier`, `.observations`, `.cost`, `.columns`.
const INDEX: u64 = 1;
const TIER: u64 = 3;
const OBSERVATIONS: u64 = 4;
const COST: u64 = 10;
const COLUMNS: u64 = 12;
/// `Cost.step_ns`, `.probe_ns`.
const STEP_NS: u64 = 1;
const PROBE_NS: u64 = 2;
/// `TIER_LIGHT` and `TIER_FULL`.
const LIGHT: u64 = 2;
const FULL: u64 = 3;

/// What a frame's payload holds.
#[derive(Debug, PartialEq)]
pub(super) enum Kind<'a> {
    /// A step.
    Step(StepBytes<'a>),
    /// What was thinned before.
    Thinned,
    /// Anything else.
    Other,
}

/// A step, as bytes.
#[derive(Debug, Default, PartialEq)]
pub(super) struct StepBytes<'a> {
    /// Its message.
    body: &'a [u8],
    pub(super) index: u64,
    pub(super) is_full: bool,
    /// Bytes of what was scanned.
    pub(super) scanned: u64,
    pub(super) step_ns: u64,
    pub(super) probe_ns: u64,
}

/// What a payload holds; one that is not as a recorder writes it is something else, and stays as it is.
pub(super) fn kind(payload: &[u8]) -> Kind<'_> {
    let mut kind = Kind::Other;
    let read = fields(payload, |number, value| {
        match (number, value) {
            (STEP, Value::Bytes(body)) => kind = Kind::Step(step(body)?),
            (THINNED, _) => kind = Kind::Thinned,
            _ => {}
        }
        Some(())
    });
    if read.is_some() { kind } else { Kind::Other }
}

fn step(body: &[u8]) -> Option<StepBytes<'_>> {
    let mut step = StepBytes { body, ..StepBytes::default() };
    let mut cost: &[u8] = &[];
    fields(body, |number, value| {
        match (number, value) {
            (INDEX, Value::Varint(n)) => step.index = n,
            (TIER, Value::Varint(n)) => step.is_full = n == FULL,
            (OBSERVATIONS | COLUMNS, Value::Bytes(bytes)) => step.scanned += bytes.len() as u64,
            (COST, Value::Bytes(bytes)) => cost = bytes,
            _ => {}
        }
        Some(())
    })?;
    fields(cost, |number, value| {
        match (number, value) {
            (STEP_NS, Value::Varint(n)) => step.step_ns = n,
            (PROBE_NS, Value::Varint(n)) => step.probe_ns = n,
            _ => {}
        }
        Some(())
    })?;
    Some(step)
}

impl StepBytes<'_> {
    /// Appends the frame of this step without what was scanned.
    pub(super) fn append_light(&self, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        // It was read before: each field is there.
        let copied = fields(self.body, |number, value| {
            match (number, &value) {
                (OBSERVATIONS | COLUMNS, _) => {}
                (TIER, _) => put(&mut body, number, &Value::Varint(LIGHT)),
                _ => put(&mut body, number, &value),
            }
            Some(())
        });
        debug_assert!(copied.is_some(), "the step was read before");
        let mut payload = Vec::with_capacity(body.len() + 8);
        put(&mut payload, STEP, &Value::Bytes(&body));
        frame::append(out, &payload);
    }
}

fn put(out: &mut Vec<u8>, number: u64, value: &Value<'_>) {
    match value {
        Value::Varint(n) => {
            put_varint(out, number << 3);
            put_varint(out, *n);
        }
        Value::Double(x) => {
            put_varint(out, number << 3 | 1);
            out.extend(x.to_le_bytes());
        }
        Value::Bytes(bytes) => {
            put_varint(out, number << 3 | 2);
            put_varint(out, bytes.len() as u64);
            out.extend(*bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::scenario::{Scenario, normal};
    use crate::observation::{Record, Step, Tier};
    use crate::recording::{Decoder, encode_frame};
    use crate::scan::Dtype::F16;

    #[test]
    fn a_step_without_its_scans_is_the_same_step_in_all_else() {
        let mut run = Scenario::new();
        run.dynamic_scaler(1024.0).step(|s| {
            s.loss(f64::NAN).lr(1e-3).skipped(1024.0, 512.0).metric("accuracy", 0.5);
            s.activation("a", "linear", F16, &normal(99, 1.0, 1)).activation("b", "linear", F16, &[f64::NAN]);
        });
        let step = |record: &Record| if let Record::Step(step) = record { Some(step.clone()) } else { None };
        let whole = run.records().iter().find_map(step).expect("a step");
        let (mut decoder, mut bytes) = (Decoder::new(), Vec::new());
        for record in run.records() {
            let begin = bytes.len();
            encode_frame(record, &mut bytes);
            let payload = bytes[begin + frame::HEADER..bytes.len() - frame::TRAILER].to_vec();
            if let Kind::Step(step) = kind(&payload) {
                assert!(step.is_full && step.scanned > 50 && step.step_ns == whole.cost.step_ns, "{step:?}");
                bytes.truncate(begin);
                step.append_light(&mut bytes);
            }
        }
        decoder.push(&bytes);
        let records: Vec<Record> = std::iter::from_fn(|| decoder.next_record().expect("it is whole")).collect();
        let light = records.iter().find_map(step).expect("a step");
        let expected = Step { tier: Tier::Light, observations: Vec::new(), ..whole };
        assert_eq!(format!("{light:?}"), format!("{expected:?}"), "a NaN is not equal to itself");
    }

    #[test]
    fn what_is_no_step_stays_what_it_is() {
        assert_eq!(kind(b"\x0a\x00"), Kind::Other);
        assert_eq!(kind(b"\x22\x7f"), Kind::Other, "cut short");
        assert_eq!(kind(b"\x42\x00"), Kind::Thinned);
    }
}
