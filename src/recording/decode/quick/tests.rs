//! The quick way against the general one, over payloads as recorders write them and over damaged ones.

use proptest::prelude::*;

use super::super::{Decoded, Lost, Refusal, Sites, decode_any};
use super::{Nonsense, step};
use crate::observation::scenario::{Scenario, StepBuilder, normal};
use crate::observation::{Act, Record, Rounding, ScalerEvent, Step, Tier};
use crate::recording::error::Flaw;
use crate::recording::{encode_frame, frame};
use crate::scan::Dtype::{Bf16, F16, F32};
use crate::scan::Fidelity;

/// A run that has something in every field of a step, and its payloads.
fn run() -> (Sites, Vec<Vec<u8>>) {
    let mut run = Scenario::new();
    run.dynamic_scaler(1024.0).steps(4, |s, i| {
        s.loss(1.5 - i as f64).lr(1e-3).metric("accuracy", 0.5).moved(1024.0, 2048.0).dropped(i);
        s.event(ScalerEvent::Unscaled { optimizer: 1, scale: 1024.0, found_inf: i == 1 });
        s.act(Act::Cleared { gradients: 4 });
        observed(s, i);
    });
    run.step(|s| {
        s.tier(Tier::Off).loss(f64::NAN);
    });
    let mut sites = Sites::default();
    let mut steps = Vec::new();
    for record in run.records() {
        let payload = payload_of(record);
        decode_any(&payload, &mut sites).expect("it is whole");
        if matches!(record, Record::Step(_)) {
            steps.push(payload);
        }
    }
    (sites, steps)
}

fn payload_of(record: &Record) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_frame(record, &mut frame);
    frame[frame::HEADER..frame.len() - frame::TRAILER].to_vec()
}

fn observed(s: &mut StepBuilder<'_>, i: u64) {
    let rounding = Rounding {
        stepped: Some(Fidelity { intended: 9, dead: 3, non_finite: 1, dot: -1e-9, energy: 1e-8 }),
        unlike_master: Some(7),
        unmoved: Some(1e-9),
        ..Rounding::default()
    };
    s.activation("fc1", "linear", F16, &normal(4096, 2.0, i)).from(&["fc1.weight"]).argument(0.5).inexact(300);
    s.activation("fc2", "linear", Bf16, &[0.0, f64::NAN, f64::INFINITY, -1e30, 1e-30]).inherited();
    s.gradient("fc2", "linear", F16, &[0.0; 70]);
    s.gradient("fc1", "linear", F16, &normal(300, 1e-6, i)).via("fc2", "linear", Bf16);
    s.param("fc1", "weight", F32, &normal(64, 1e-3, i)).rounding(rounding);
    s.update("fc1", "add_", "weight", &normal(64, 1e-300, i));
}

/// What both ways have in common: a step, or why it makes no sense.
type Outcome = Result<(Step, Lost), String>;

fn quickly(payload: &[u8], sites: &Sites) -> Option<Outcome> {
    step(payload, sites).map(|outcome| outcome.map_err(|Nonsense(what)| what))
}

fn generally(payload: &[u8], sites: &mut Sites) -> Option<Outcome> {
    match decode_any(payload, sites) {
        Ok(Decoded::Record(Record::Step(step), lost)) => Some(Ok((step, lost))),
        Err(Refusal::Frame(Flaw::Nonsense(what))) => Some(Err(what)),
        _ => None,
    }
}

/// Told, for a NaN is not equal to itself.
fn told(outcome: &Outcome) -> String {
    format!("{outcome:?}")
}

fn agree(payload: &[u8], sites: &mut Sites) -> bool {
    let Some(quick) = quickly(payload, sites) else { return false };
    let general = generally(payload, sites).expect("what is read quickly can be read");
    assert_eq!(told(&quick), told(&general));
    true
}

#[test]
fn what_a_recorder_writes_is_read_quickly_and_means_the_same() {
    let (mut sites, steps) = run();
    assert!(steps.iter().all(|payload| agree(payload, &mut sites)));
}

#[test]
fn observations_of_sites_that_nobody_defined_are_left_out_and_counted() {
    let (_, steps) = run();
    let mut none = Sites::default();
    assert!(agree(&steps[0], &mut none));
    let (step, lost) = quickly(&steps[0], &none).expect("plain").expect("a step");
    assert_eq!((step.observations.len(), lost.observations), (0, 6));
    assert_eq!(step.loss, Some(1.5));
}

#[test]
fn records_of_other_kinds_and_unknown_fields_are_left_to_the_general_way() {
    let (mut sites, steps) = run();
    assert!(quickly(&payload_of(Scenario::new().records().first().expect("the run")), &sites).is_none());
    // Field 99 of the step's record, a varint: a newer recorder's.
    let newer = [&steps[0][..], &[0x98, 0x06, 0x01]].concat();
    assert!(quickly(&newer, &sites).is_none() && generally(&newer, &mut sites).is_some());
    // The same step twice: the general way takes both as one, as the format has it.
    let twice = steps[0].repeat(2);
    assert!(quickly(&twice, &sites).is_none() && generally(&twice, &mut sites).is_some());
}

proptest! {
    #[test]
    fn damage_is_never_read_as_something_else(which in 0..5usize, at: prop::sample::Index, byte: u8, cut: bool) {
        let (mut sites, steps) = run();
        let mut payload = steps[which].clone();
        let at = at.index(payload.len());
        if cut {
            payload.drain(at..payload.len().min(at + 1 + usize::from(byte) % 7));
        } else {
            payload[at] = byte;
        }
        agree(&payload, &mut sites);
    }
}
