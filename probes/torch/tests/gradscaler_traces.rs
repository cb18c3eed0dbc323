//! `GradScaler` against 24 recorded runs of `torch.amp.GradScaler`, step by step.

mod common;

use ampdoctor_torch::GradScaler;
use common::Run;
use serde::Deserialize;
use tch::{Kind, Tensor};

const TRACES: &str = include_str!("../../../fixtures/gradscaler/traces.json");

#[derive(Deserialize)]
struct Recording {
    traces: Vec<Trace>,
}

#[derive(Deserialize)]
struct Trace {
    config: Config,
    steps: Vec<Recorded>,
}

#[derive(Deserialize)]
struct Config {
    init_scale: f64,
    growth_factor: f64,
    backoff_factor: f64,
    growth_interval: u64,
}

#[derive(Deserialize)]
struct Recorded {
    grad: [f32; 3],
    fault: String,
    scale_used: f64,
    applied: bool,
    scale_after: f64,
    growth_tracker: u64,
    param: [f32; 3],
}

fn traces() -> Vec<Trace> {
    serde_json::from_str::<Recording>(TRACES).unwrap().traces
}

fn run_of(config: &Config) -> Run {
    let scaler = GradScaler::builder()
        .init_scale(config.init_scale)
        .growth_factor(config.growth_factor)
        .backoff_factor(config.backoff_factor)
        .growth_interval(config.growth_interval)
        .build()
        .unwrap();
    Run::new(&[1.0, -2.0, 0.5], 0.125, scaler)
}

/// One step as the recording was made; whether it was applied. The fault goes into one element of the gradient, each in turn.
fn take(run: &mut Run, step: &Recorded, index: usize) -> bool {
    run.optimizer.zero_grad();
    run.scaler.backward(&(&run.parameter * Tensor::from_slice(&step.grad)).sum(Kind::Float));
    let planted = match step.fault.as_str() {
        "ok" => None,
        "inf" => Some(f64::INFINITY),
        "nan" => Some(f64::NAN),
        other => panic!("a fault this test does not know: {other}"),
    };
    if let Some(value) = planted {
        let _ = run.parameter.grad().get(index as i64 % 3).fill_(value);
    }
    let applied = run.scaler.step(&mut run.optimizer).unwrap().applied();
    run.scaler.update().unwrap();
    applied
}

fn take_and_compare(run: &mut Run, step: &Recorded, trace: usize, index: usize) {
    // The scale is held in FP32 from the start; PyTorch does so from the first loss on.
    assert_eq!(run.scaler.get_scale() as f32, step.scale_used as f32, "scale used, trace {trace} step {index}");
    let applied = take(run, step, index);
    assert_eq!(applied, step.applied, "applied, trace {trace} step {index}");
    assert_eq!(run.scaler.get_scale(), step.scale_after, "scale, trace {trace} step {index}");
    assert_eq!(run.scaler.get_growth_tracker(), step.growth_tracker, "tracker, trace {trace} step {index}");
    assert_eq!(bits(&run.values()), bits(&step.param), "parameter, trace {trace} step {index}");
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_recorded_run_is_reproduced_bit_for_bit() {
    let traces = traces();
    assert_eq!(traces.len(), 24);
    for (number, trace) in traces.iter().enumerate() {
        assert_eq!(trace.steps.len(), 60);
        let mut run = run_of(&trace.config);
        for (index, step) in trace.steps.iter().enumerate() {
            take_and_compare(&mut run, step, number, index);
        }
    }
}

#[test]
fn a_run_goes_on_identically_from_a_state_saved_in_its_middle() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scaler.json");
    for (number, trace) in traces().iter().enumerate() {
        let mut run = run_of(&trace.config);
        for (index, step) in trace.steps.iter().enumerate() {
            if index % 7 == 3 {
                run.scaler.save(&file).unwrap();
                run.scaler = GradScaler::builder().init_scale(7.0).growth_interval(9).build().unwrap();
                run.scaler.load(&file).unwrap();
            }
            take_and_compare(&mut run, step, number, index);
        }
    }
}
