//! Recordings of small runs: two FP16 linear layers under a loss scale of 1024.

use std::path::Path;

use ampdoctor::observation::{
    Cost, EndReason, Observation, Parameter, Probe, RunInfo, Sampling, ScalerConfig, ScalerEvent, Site, Step, Tier,
};
use ampdoctor::recording::Recorder;
use ampdoctor::scan::{Dtype, ExponentHistogram, Stats};

/// The first step at which [`overflowing`] overflows.
pub const ONSET: u64 = 10;

const STEPS: u64 = 40;
const SCALE: f64 = 1024.0;

/// A run: what is seen at each step of each of [`sites`].
pub struct Script {
    tier: Tier,
    onset: u64,
}

/// Values around 1 in all places, at every step.
pub fn healthy() -> Script {
    Script { tier: Tier::Full, onset: u64::MAX }
}

/// From step [`ONSET`] on the output of `fc2` has infinities, the loss is NaN and each step is skipped.
pub fn overflowing() -> Script {
    Script { tier: Tier::Full, onset: ONSET }
}

/// No tensor is scanned at any step.
pub fn nothing_scanned() -> Script {
    Script { tier: Tier::Light, onset: u64::MAX }
}

/// Records the run into a directory, whose name it gets.
pub fn record(dir: &Path, rank: u32, script: &Script) {
    let mut recorder = Recorder::create(dir, &info(dir, rank)).expect("a recorder");
    recorder.scaler(ScalerConfig {
        init_scale: SCALE,
        growth_factor: 2.0,
        backoff_factor: 0.5,
        growth_interval: 2000,
        min_scale: None,
        max_scale: None,
        hysteresis: 1,
        foreign: false,
    });
    let ids: Vec<_> = sites().iter().map(|site| recorder.intern(site)).collect();
    for index in 0..STEPS {
        let mut observations = Vec::new();
        if script.tier == Tier::Full {
            let bad = index >= script.onset;
            let stats = seen(bad);
            observations = ids
                .iter()
                .zip(stats)
                .map(|(&site, (stats, inherited))| Observation { inherited, ..Observation::new(site, stats) })
                .collect();
        }
        assert!(recorder.step(step(index, script, observations)), "the queue is longer than this run");
    }
    recorder.finish(EndReason::Finished).expect("a finished recording");
}

fn info(dir: &Path, rank: u32) -> RunInfo {
    let parameter =
        |name: &str| Parameter { name: name.into(), dtype: "f32".into(), shape: vec![64, 64], trainable: true };
    RunInfo {
        name: dir.file_name().expect("a name").to_string_lossy().into_owned(),
        command: vec!["trainer".into()],
        started_unix_ms: 1_700_000_000_000,
        pid: 1,
        rank,
        world_size: None,
        producer: "test 1.0".into(),
        framework: "LibTorch 2.13.0".into(),
        device: "cpu".into(),
        threads: 1,
        sampling: Sampling::Every(1),
        parameters: vec![parameter("fc1.weight"), parameter("fc2.weight")],
    }
}

fn sites() -> Vec<Site> {
    let site = |layer: &str, operator: &str, tensor: &str, probe, dtype| Site {
        layer: layer.into(),
        operator: operator.into(),
        tensor: tensor.into(),
        probe,
        dtype,
    };
    vec![
        site("fc1", "linear", "", Probe::Activation, Dtype::F16),
        site("fc2", "linear", "", Probe::Activation, Dtype::F16),
        site("fc2", "linear", "", Probe::ActivationGrad, Dtype::F16),
        site("fc1", "linear", "", Probe::ActivationGrad, Dtype::F16),
        site("fc2", "", "weight", Probe::ParamGrad, Dtype::F32),
        site("fc1", "", "weight", Probe::ParamGrad, Dtype::F32),
    ]
}

/// What is seen at each site, and whether a non-finite value there came from elsewhere.
fn seen(bad: bool) -> [(Stats, bool); 6] {
    let good = || (around_one(), false);
    if !bad {
        return [good(), good(), good(), good(), good(), good()];
    }
    let nan = || (Stats { count: 4096, nan: 4096, ..Stats::default() }, true);
    let infinite = Stats { count: 4097, pos_inf: 1, ..around_one() };
    [good(), (Stats { max_abs: 60000.0, ..infinite }, false), nan(), nan(), nan(), nan()]
}

/// 4096 elements from 2^-8 to 2^4.
fn around_one() -> Stats {
    let counts = [16, 32, 64, 128, 256, 512, 1024, 1024, 512, 256, 128, 128, 16];
    let exponents = ExponentHistogram::from_counts(-8, counts);
    Stats { count: 4096, min_abs: 2f64.powi(-8), max_abs: 16.0, exponents, ..Stats::default() }
}

fn step(index: u64, script: &Script, observations: Vec<Observation>) -> Step {
    let bad = index >= script.onset;
    let scale = SCALE * 0.5f64.powi(index.saturating_sub(script.onset) as i32);
    let to = if bad { scale / 2.0 } else { scale };
    Step {
        index,
        time_ns: (index + 1) * 1_000_000,
        tier: script.tier,
        observations,
        loss: Some(if bad { f64::NAN } else { 2.0 / (index + 1) as f64 }),
        loss_scale: Some(scale),
        recipe: Vec::new(),
        scaler: vec![
            ScalerEvent::Unscaled { optimizer: 0, scale, found_inf: bad },
            ScalerEvent::Stepped { optimizer: 0, applied: !bad },
            ScalerEvent::Updated { from: scale, to, growth_tracker: if bad { 0 } else { index + 1 } },
        ],
        lr: Some(0.1),
        metrics: Vec::new(),
        cost: Cost { step_ns: 1_000_000, probe_ns: 10_000, dropped_steps: 0, unscanned: 0 },
    }
}
