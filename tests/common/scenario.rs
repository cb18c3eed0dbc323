//! Runs made up from a few numbers, as the records that a probe would write: for tests of everything behind the recording.

use ampdoctor::observation::{
    Cost, End, EndReason, Observation, Parameter, Probe, Record, RunInfo, Sampling, ScalerConfig, ScalerEvent, Site,
    SiteId, Step, Tier,
};
use ampdoctor::scan::{Dtype, ExponentHistogram, Scaled, Stats};

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The gradient of `layer` lies mostly in the subnormals from step 40 on.
    Underflow(&'static str),
    /// `layer` makes a NaN in forward from step 60 on.
    Nan(&'static str),
}

/// The layers of the model, in forward order, with the base-2 logarithm of a typical gradient at scale 1.
const LAYERS: [(&str, &str, f64); 6] = [
    ("conv1", "conv2d", -15.0),
    ("conv2", "conv2d", -14.0),
    ("block.0.attn.qk", "linear", -13.0),
    ("block.0.attn.out", "linear", -12.0),
    ("block.0.fc", "linear", -12.5),
    ("head", "linear", -11.0),
];

/// Elements of each tensor.
const ELEMENTS: u64 = 4096;

/// The head of a run called `name`.
pub fn run_info(name: &str) -> RunInfo {
    let parameter = |layer: &str, tensor: &str, shape: &[i64]| Parameter {
        name: format!("{layer}.{tensor}"),
        dtype: "f32".into(),
        shape: shape.to_vec(),
        trainable: true,
    };
    RunInfo {
        name: name.into(),
        command: ["trainer", "--model", "conv", "--precision", "fp16"].map(String::from).into(),
        started_unix_ms: 1_700_000_000_000,
        pid: 4242,
        rank: 0,
        world_size: None,
        producer: "ampdoctor-torch 0.1.0".into(),
        framework: "LibTorch 2.13.0".into(),
        device: "cpu".into(),
        threads: 1,
        sampling: Sampling::Every(1),
        parameters: LAYERS
            .iter()
            .flat_map(|l| [parameter(l.0, "bias", &[64]), parameter(l.0, "weight", &[64, 64])])
            .collect(),
    }
}

/// A step of which nothing was scanned.
pub fn step(index: u64) -> Step {
    Step {
        index,
        time_ns: index * 26_000_000,
        tier: Tier::Full,
        observations: Vec::new(),
        loss: None,
        loss_scale: None,
        scaler: Vec::new(),
        recipe: Vec::new(),
        lr: None,
        metrics: Vec::new(),
        cost: Cost { step_ns: 26_000_000, probe_ns: 2_100_000, ..Cost::default() },
    }
}

/// A tensor whose magnitudes lie around `2^centre`, half of them within `spread` octaves; `zeros` of its elements are zero.
/// Held in FP16, what lies below 2^-24 is zero.
pub fn tensor(centre: f64, spread: f64, zeros: f64, dtype: Dtype) -> Stats {
    let mut stats = Stats { count: ELEMENTS, ..Stats::default() };
    let live = ELEMENTS as f64 * (1.0 - zeros);
    let weight = |e: i32| (-((f64::from(e) - centre) / spread).powi(2)).exp();
    let sum: f64 = (-60..40).map(weight).sum();
    for e in -60..40 {
        let n = (live * weight(e) / sum).round() as u64;
        if dtype != Dtype::F16 || e >= -24 {
            stats.exponents.add(e, n);
        }
    }
    finish(&mut stats);
    stats
}

fn finish(stats: &mut Stats) {
    stats.exponents = trimmed(&stats.exponents);
    stats.zeros = stats.count.saturating_sub(stats.exponents.total());
    stats.min_abs = stats.exponents.lowest().map_or(0.0, |e| 2f64.powi(e));
    stats.max_abs = stats.exponents.highest().map_or(0.0, |e| 1.5 * 2f64.powi(e));
    let squares: f64 = stats.exponents.iter().map(|(e, n)| n as f64 * 1.5 * 4f64.powi(e)).sum();
    stats.sum_squares = Scaled { value: squares, exponent: 0 };
}

fn trimmed(histogram: &ExponentHistogram) -> ExponentHistogram {
    let (first, counts) = histogram.parts();
    ExponentHistogram::from_counts(first, counts)
}

/// The whole run, `steps` long; its end is written where `ended`.
pub fn records(name: &str, fault: Fault, steps: u64, ended: bool) -> Vec<Record> {
    let mut records = vec![Record::Run(run_info(name))];
    records.extend(sites().into_iter().enumerate().map(|(i, site)| Record::Site(SiteId(i as u32), site)));
    records.push(Record::Scaler(ScalerConfig {
        init_scale: 65536.0,
        growth_factor: 2.0,
        backoff_factor: 0.5,
        growth_interval: 50,
        min_scale: None,
        max_scale: None,
        hysteresis: 1,
        foreign: false,
    }));
    let mut scale = 65536.0;
    let mut clean = 0;
    for index in 0..steps {
        let step = scenario_step(fault, index, &mut scale, &mut clean);
        records.push(Record::Step(step));
    }
    if ended {
        records.push(Record::End(End { steps, dropped_steps: 0, reason: EndReason::Finished }));
    }
    records
}

/// The sites, in the order in which they are numbered: per layer the output, its gradient, and the weight's gradient.
pub fn sites() -> Vec<Site> {
    let site = |layer: &str, operator: &str, tensor: &str, probe, dtype| Site {
        layer: layer.into(),
        operator: operator.into(),
        tensor: tensor.into(),
        probe,
        dtype,
    };
    let of = |&(layer, operator, _): &(&str, &str, f64)| {
        [
            site(layer, operator, "", Probe::Activation, Dtype::F16),
            site(layer, operator, "", Probe::ActivationGrad, Dtype::F16),
            site(layer, "", "weight", Probe::ParamGrad, Dtype::F32),
        ]
    };
    LAYERS.iter().flat_map(of).collect()
}

fn scenario_step(fault: Fault, index: u64, scale: &mut f64, clean: &mut u64) -> Step {
    let nan_from = LAYERS.iter().position(|l| fault == Fault::Nan(l.0)).filter(|_| index >= 60);
    // Calibration: the gradients overflow at the first two scales; and the scaler probes its ceiling now and then.
    let overflow = *scale > 20_000.0 || nan_from.is_some();
    let mut observations = Vec::new();
    for (i, &(layer, ..)) in LAYERS.iter().enumerate() {
        let poisoned = nan_from.filter(|&from| i >= from);
        observations.push(observe(3 * i, activation(i, poisoned.is_some()), poisoned.is_some_and(|from| i > from)));
        let starved = fault == Fault::Underflow(layer) && index >= 40;
        let gradient = gradient(i, *scale, starved, overflow, Dtype::F16);
        observations.push(observe(3 * i + 1, gradient, overflow && i < LAYERS.len() - 1));
        observations.push(observe(3 * i + 2, self::gradient(i, *scale, starved, overflow, Dtype::F32), overflow));
    }
    let noise = ((index * 2_654_435_761) % 97) as f64 / 97.0;
    let loss = if nan_from.is_some() { f64::NAN } else { 2.3 * (-(index as f64) / 60.0).exp() + 0.08 + 0.05 * noise };
    let before = *scale;
    advance(scale, clean, overflow);
    Step {
        observations,
        loss: Some(loss),
        loss_scale: Some(before),
        recipe: Vec::new(),
        scaler: vec![
            ScalerEvent::Scaled { scale: before },
            ScalerEvent::Unscaled { optimizer: 0, scale: before, found_inf: overflow },
            ScalerEvent::Stepped { optimizer: 0, applied: !overflow },
            ScalerEvent::Updated { from: before, to: *scale, growth_tracker: *clean },
        ],
        ..step(index)
    }
}

fn advance(scale: &mut f64, clean: &mut u64, overflow: bool) {
    *clean = if overflow { 0 } else { *clean + 1 };
    if overflow {
        *scale /= 2.0;
    } else if *clean == 50 {
        *scale *= 2.0;
        *clean = 0;
    }
}

fn observe(site: usize, stats: Stats, inherited: bool) -> Observation {
    Observation { inherited, ..Observation::new(SiteId(site as u32), stats) }
}

fn activation(layer: usize, poisoned: bool) -> Stats {
    let mut stats = tensor(layer as f64 / 2.0, 3.0, 0.3, Dtype::F16);
    if poisoned {
        stats.nan = 64;
        stats.count += 64;
    }
    stats
}

fn gradient(layer: usize, scale: f64, starved: bool, overflow: bool, dtype: Dtype) -> Stats {
    let centre = if starved { -22.0 } else { LAYERS[layer].2 + scale.log2() - 8.0 };
    let mut stats = tensor(centre, 3.5, 0.4, dtype);
    if overflow {
        stats.pos_inf = 16;
        stats.count += 16;
    }
    stats
}
