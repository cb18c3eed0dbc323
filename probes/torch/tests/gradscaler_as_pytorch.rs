//! `GradScaler` against recordings of `torch.amp.GradScaler`: 24 runs step by step, and every order of calls.

use ampdoctor_torch::GradScaler;
use serde::Deserialize;
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Kind, Tensor};

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

/// One parameter under SGD, and the scaler that is tried on it.
struct Run {
    parameter: Tensor,
    optimizer: nn::Optimizer,
    scaler: GradScaler,
    /// Owns the parameter.
    _vs: nn::VarStore,
}

impl Run {
    fn new(start: &[f32], lr: f64, scaler: GradScaler) -> Run {
        tch::set_num_threads(1);
        let vs = nn::VarStore::new(Device::Cpu);
        let parameter = vs.root().var_copy("p", &Tensor::from_slice(start));
        let optimizer = nn::Sgd::default().build(&vs, lr).unwrap();
        Run { parameter, optimizer, scaler, _vs: vs }
    }

    fn of(config: &Config) -> Run {
        let scaler = GradScaler::builder()
            .init_scale(config.init_scale)
            .growth_factor(config.growth_factor)
            .backoff_factor(config.backoff_factor)
            .growth_interval(config.growth_interval)
            .build()
            .unwrap();
        Run::new(&[1.0, -2.0, 0.5], 0.125, scaler)
    }

    /// One step as the recording was made; whether it was applied.
    fn take(&mut self, step: &Recorded, index: usize) -> bool {
        self.optimizer.zero_grad();
        let loss = (&self.parameter * Tensor::from_slice(&step.grad)).sum(Kind::Float);
        self.scaler.backward(&loss);
        let planted = match step.fault.as_str() {
            "ok" => None,
            "inf" => Some(f64::INFINITY),
            "nan" => Some(f64::NAN),
            other => panic!("a fault this test does not know: {other}"),
        };
        if let Some(value) = planted {
            let _ = self.parameter.grad().get(index as i64 % 3).fill_(value);
        }
        let applied = self.scaler.step(&mut self.optimizer).unwrap().applied();
        self.scaler.update().unwrap();
        applied
    }

    fn check(&mut self, step: &Recorded, at: (usize, usize)) {
        let (trace, index) = at;
        if index > 0 {
            assert_eq!(self.scaler.get_scale(), step.scale_used, "scale used, trace {trace} step {index}");
        }
        let applied = self.take(step, index);
        assert_eq!(applied, step.applied, "applied, trace {trace} step {index}");
        assert_eq!(self.scaler.get_scale(), step.scale_after, "scale, trace {trace} step {index}");
        assert_eq!(self.scaler.get_growth_tracker(), step.growth_tracker, "tracker, trace {trace} step {index}");
        assert_eq!(bits(&self.values()), bits(&step.param), "parameter, trace {trace} step {index}");
    }

    fn values(&self) -> Vec<f32> {
        Vec::try_from(&self.parameter).unwrap()
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn traces() -> Vec<Trace> {
    serde_json::from_str::<Recording>(TRACES).unwrap().traces
}

#[test]
fn every_recorded_run_is_reproduced_bit_for_bit() {
    let traces = traces();
    assert_eq!(traces.len(), 24);
    for (number, trace) in traces.iter().enumerate() {
        assert_eq!(trace.steps.len(), 60);
        let mut run = Run::of(&trace.config);
        for (index, step) in trace.steps.iter().enumerate() {
            run.check(step, (number, index));
        }
    }
}

#[test]
fn a_run_goes_on_identically_from_a_state_saved_in_its_middle() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scaler.json");
    for (number, trace) in traces().iter().enumerate() {
        let mut run = Run::of(&trace.config);
        for (index, step) in trace.steps.iter().enumerate() {
            if index % 7 == 3 {
                run.scaler.save(&file).unwrap();
                run.scaler = GradScaler::builder().init_scale(7.0).growth_interval(9).build().unwrap();
                run.scaler.load(&file).unwrap();
            }
            run.check(step, (number, index));
        }
    }
}
