//! A step of training under the doctor, against the same step alone.

use std::time::Instant;

use ampdoctor_torch::Doctor;
use anyhow::{Context, Result, ensure};
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Tensor};

use crate::clock::{Took, median, time};
use crate::models::Shape;

/// The titles of the columns.
pub(crate) const TITLES: &[&str] =
    &["shape, doctor", "CPU ratio", "least", "most", "fastest step", "it says", "ms a step", "to reach"];

/// A contestant runs about this long in each round, and long enough for a budget to space its full steps.
const TURN_SECONDS: f64 = 3.0;
const TURN_STEPS: std::ops::RangeInclusive<usize> = 40..=200;
/// Steps before the clock runs: the caches warm, and the budget finds its spacing.
const WARM_UP: usize = 2;

/// About how long [`measure`] takes on a machine of its own.
pub(crate) fn seconds(rounds: u32) -> u32 {
    (TURN_SECONDS * 1.1) as u32 * rounds * Contestant::ALL.len() as u32
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Contestant {
    None,
    Control,
    Off,
    Default,
    Full,
}

impl Contestant {
    const ALL: [Self; 5] = [Self::None, Self::Control, Self::Off, Self::Default, Self::Full];

    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Control => "none again",
            Self::Off => "off",
            Self::Default => "default",
            Self::Full => "full",
        }
    }

    /// The ratio of processor time to reach.
    fn target(self, shape: &Shape) -> Option<f64> {
        match self {
            Self::None | Self::Control => None,
            Self::Off => Some(1.00),
            Self::Default => Some(1.02),
            Self::Full => Some(shape.full_target),
        }
    }

    fn attach(self, vs: &nn::VarStore, run: &std::path::Path) -> Result<Option<Doctor>> {
        let builder = Doctor::builder().run(run);
        let doctor = match self {
            Self::None | Self::Control => return Ok(None),
            Self::Off => builder.off(),
            Self::Default => builder,
            Self::Full => builder.every(1),
        }
        .attach(vs);
        ensure!(doctor.is_attached(), "the doctor could not attach, so there is nothing to measure");
        Ok(Some(doctor))
    }
}

/// The rows for one shape.
pub(crate) fn measure(shape: &Shape, rounds: u32) -> Result<Vec<Vec<String>>> {
    tch::manual_seed(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let mut bench = Bench {
        loss: (shape.build)(&vs.root()),
        optimizer: nn::Adam::default().build(&vs, 1e-4)?,
        vs,
        runs: tempfile::tempdir().context("a folder for the recordings could not be made")?,
    };
    let steps = bench.steps_per_turn();
    let mut turns: Vec<Vec<Turn>> = Vec::new();
    for round in 0..rounds {
        // The order turns, so that nobody always runs behind the same other.
        let mut of_round = vec![Turn::default(); Contestant::ALL.len()];
        for offset in 0..Contestant::ALL.len() {
            let index = (offset + round as usize) % Contestant::ALL.len();
            of_round[index] = bench.turn(Contestant::ALL[index], steps)?;
        }
        turns.push(of_round);
    }
    Ok(Contestant::ALL
        .iter()
        .enumerate()
        .map(|(index, &who)| row(shape, who, &column(&turns, index), &column(&turns, 0)))
        .collect())
}

struct Bench {
    loss: Box<dyn Fn() -> Tensor>,
    optimizer: nn::Optimizer,
    vs: nn::VarStore,
    runs: tempfile::TempDir,
}

/// What one contestant took in one round.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// Processor seconds a step, the mean of the turn.
    cpu: f64,
    /// Wall seconds of the fastest step.
    fastest: f64,
    /// What the doctor itself says that it took, as a share of the time of the training alone.
    told: f64,
}

impl Bench {
    fn steps_per_turn(&mut self) -> usize {
        self.step(&mut None);
        let began = Instant::now();
        self.step(&mut None);
        let steps = TURN_SECONDS / began.elapsed().as_secs_f64().max(1e-6);
        (steps as usize).clamp(*TURN_STEPS.start(), *TURN_STEPS.end())
    }

    fn turn(&mut self, who: Contestant, steps: usize) -> Result<Turn> {
        let mut doctor = who.attach(&self.vs, self.runs.path())?;
        for _ in 0..WARM_UP {
            self.step(&mut doctor);
        }
        let took: Vec<Took> = (0..steps).map(|_| time(|| self.step(&mut doctor))).collect();
        let told = doctor.map(told).transpose()?.unwrap_or(0.0);
        Ok(Turn {
            told,
            cpu: took.iter().map(|step| step.cpu).sum::<f64>() / steps as f64,
            fastest: took.iter().map(|step| step.wall).fold(f64::INFINITY, f64::min),
        })
    }

    fn step(&mut self, doctor: &mut Option<Doctor>) {
        let loss = (self.loss)();
        self.optimizer.backward_step(&loss);
        if let Some(doctor) = doctor {
            doctor.step(&loss);
        }
    }
}

/// The share that the doctor's recording names, over the steps that were timed.
fn told(doctor: Doctor) -> Result<f64> {
    let report = doctor.finish();
    let path = report.recording().context("there is no recording")?;
    let (mut probe, mut work) = (0, 0);
    for record in ampdoctor::recording::read_run(path)? {
        if let ampdoctor::observation::Record::Step(step) = record?
            && step.index >= WARM_UP as u64
        {
            probe += step.cost.probe_ns;
            work += step.cost.step_ns.saturating_sub(step.cost.probe_ns);
        }
    }
    Ok(probe as f64 / work.max(1) as f64)
}

fn column(turns: &[Vec<Turn>], index: usize) -> Vec<Turn> {
    turns.iter().map(|round| round[index]).collect()
}

fn row(shape: &Shape, who: Contestant, turns: &[Turn], alone: &[Turn]) -> Vec<String> {
    let ratios: Vec<f64> = turns.iter().zip(alone).map(|(turn, alone)| turn.cpu / alone.cpu).collect();
    let (least, most) = extremes(&ratios);
    let fastest = |turns: &[Turn]| turns.iter().map(|turn| turn.fastest).fold(f64::INFINITY, f64::min);
    let ratio = |x: f64| format!("{x:.3}");
    vec![
        format!("{}, {}", shape.name, who.name()),
        ratio(median(ratios)),
        ratio(least),
        ratio(most),
        ratio(fastest(turns) / fastest(alone)),
        ratio(1.0 + median(turns.iter().map(|turn| turn.told).collect())),
        format!("{:.2}", 1e3 * median(turns.iter().map(|turn| turn.cpu).collect())),
        who.target(shape).map_or(String::new(), |target| format!("{target:.2}")),
    ]
}

fn extremes(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), &value| (least.min(value), most.max(value)))
}
