//! A step of training under the doctor, against the same step alone.

use std::time::Instant;

use ampdoctor::observation::Record;
use ampdoctor::recording::{encode_frame, read_run};
use ampdoctor_torch::Doctor;
use anyhow::{Context, Result, ensure};
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Tensor};

use crate::clock::{Took, median, time};
use crate::models::Shape;
use crate::page::Page;

/// The titles of the columns.
pub(crate) const TITLES: &[&str] =
    &["shape, doctor", "CPU ratio", "least", "most", "fastest step", "it says", "ms a step", "to reach"];

/// The titles of the columns of what was recorded.
pub(crate) const RECORDING_TITLES: &[&str] = &[
    "shape",
    "observations a step",
    "bytes an observation",
    "to reach",
    "bytes a step beside them",
    "bytes of the names",
];

/// A contestant runs about this long in each round.
const TURN_SECONDS: f64 = 5.0;
/// A turn has as many steps, however fast or slow they are: enough for a mean.
const TURN_STEPS: std::ops::RangeInclusive<usize> = 10..=200;
/// Under a budget it has at least so many: the full steps are spaced, and the first of them, the dearest, is waited off.
const BUDGET_STEPS: usize = 60;
/// Steps before the clock runs: the caches warm, and the budget finds its spacing.
const WARM_UP: usize = 2;
/// Bytes that an observation is to take at most.
const BYTES_TO_REACH: u32 = 60;

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

    /// How many steps it is timed for, where a step takes so many seconds.
    fn steps(self, step_seconds: f64) -> usize {
        let steps = ((TURN_SECONDS / step_seconds) as usize).clamp(*TURN_STEPS.start(), *TURN_STEPS.end());
        if self == Self::Default { steps.max(BUDGET_STEPS) } else { steps }
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

/// What was measured of one shape.
pub(crate) struct Measured {
    /// The rows of its contestants.
    pub(crate) rows: Vec<Vec<String>>,
    /// The row of what a full step records.
    pub(crate) recording: Vec<String>,
}

/// Measures one shape.
pub(crate) fn measure(shape: &Shape, rounds: u32, page: &Page) -> Result<Measured> {
    tch::manual_seed(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let mut bench = Bench {
        loss: (shape.build)(&vs.root()),
        optimizer: nn::Adam::default().build(&vs, 1e-4)?,
        vs,
        runs: tempfile::tempdir().context("a folder for the recordings could not be made")?,
    };
    let step_seconds = bench.step_seconds();
    let total = seconds(step_seconds, rounds);
    page.begin(&format!("{}: {:.0} ms a step, about {total:.0} s", shape.name, 1e3 * step_seconds));
    let began = Instant::now();
    let mut turns: Vec<Vec<Turn>> = Vec::new();
    for round in 0..rounds {
        // The order turns, so that nobody always runs behind the same other.
        let mut of_round = vec![Turn::default(); Contestant::ALL.len()];
        for offset in 0..Contestant::ALL.len() {
            let index = (offset + round as usize) % Contestant::ALL.len();
            let (who, passed) = (Contestant::ALL[index], began.elapsed().as_secs());
            page.progress(&format!(
                "round {} of {rounds}: {}, {passed} s of about {total:.0} s",
                round + 1,
                who.name()
            ));
            of_round[index] = bench.turn(who, who.steps(step_seconds))?;
        }
        turns.push(of_round);
    }
    let columns = || Contestant::ALL.iter().enumerate().map(|(index, &who)| (who, column(&turns, index)));
    let alone = column(&turns, 0);
    let full = columns().filter(|(who, _)| *who == Contestant::Full).flat_map(|(_, turns)| turns);
    Ok(Measured {
        rows: columns().map(|(who, turns)| row(shape, who, &turns, &alone)).collect(),
        recording: recording_row(shape, &full.map(|turn| turn.recorded).collect::<Vec<_>>()),
    })
}

/// About how long [`measure`] takes on a machine of its own.
fn seconds(step_seconds: f64, rounds: u32) -> f64 {
    let steps: usize = Contestant::ALL.iter().map(|who| who.steps(step_seconds) + WARM_UP).sum();
    // Those that watch take a little longer than those that do not.
    1.05 * f64::from(rounds) * steps as f64 * step_seconds
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
    /// What the doctor wrote down.
    recorded: Recorded,
}

/// The size of recordings.
#[derive(Clone, Copy, Default)]
struct Recorded {
    steps: usize,
    observations: usize,
    /// Bytes of the observations alone.
    bytes: usize,
    /// What the steps take beside them.
    beside: usize,
    /// What stands there once: the run and its sites.
    once: usize,
}

impl Recorded {
    fn add(&mut self, record: Record) {
        let whole = bytes_of(&record);
        let Record::Step(mut step) = record else {
            self.once += whole;
            return;
        };
        self.steps += 1;
        self.observations += step.observations.len();
        step.observations.clear();
        let beside = bytes_of(&Record::Step(step));
        self.beside += beside;
        self.bytes += whole - beside;
    }
}

/// What a record takes in the file, its frame included.
fn bytes_of(record: &Record) -> usize {
    let mut frame = Vec::new();
    encode_frame(record, &mut frame);
    frame.len()
}

impl Bench {
    /// Seconds that a step takes, about: the fastest of three, after one to warm up.
    fn step_seconds(&mut self) -> f64 {
        self.step(&mut None);
        let seconds = (0..3).map(|_| time(|| self.step(&mut None)).wall);
        seconds.fold(f64::INFINITY, f64::min).max(1e-6)
    }

    fn turn(&mut self, who: Contestant, steps: usize) -> Result<Turn> {
        let mut doctor = who.attach(&self.vs, self.runs.path())?;
        for _ in 0..WARM_UP {
            self.step(&mut doctor);
        }
        let took: Vec<Took> = (0..steps).map(|_| time(|| self.step(&mut doctor))).collect();
        let (told, recorded) = doctor.map(told).transpose()?.unwrap_or_default();
        Ok(Turn {
            told,
            recorded,
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

/// The share that the doctor's recording names, over the steps that were timed, and its size.
fn told(doctor: Doctor) -> Result<(f64, Recorded)> {
    let report = doctor.finish();
    let path = report.recording().context("there is no recording")?;
    let (mut probe, mut work) = (0, 0);
    let mut recorded = Recorded::default();
    for record in read_run(path)? {
        let record = record?;
        if let Record::Step(step) = &record
            && step.index >= WARM_UP as u64
        {
            probe += step.cost.probe_ns;
            work += step.cost.step_ns.saturating_sub(step.cost.probe_ns);
        }
        recorded.add(record);
    }
    Ok((probe as f64 / work.max(1) as f64, recorded))
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

/// What full steps took, over all recordings of them.
fn recording_row(shape: &Shape, recorded: &[Recorded]) -> Vec<String> {
    let sum = |of: fn(&Recorded) -> usize| recorded.iter().map(of).sum::<usize>() as f64;
    let (steps, observations) = (sum(|r| r.steps), sum(|r| r.observations));
    vec![
        shape.name.to_owned(),
        format!("{:.0}", observations / steps),
        format!("{:.1}", sum(|r| r.bytes) / observations),
        BYTES_TO_REACH.to_string(),
        format!("{:.0}", sum(|r| r.beside) / steps),
        format!("{:.0}", sum(|r| r.once) / recorded.len() as f64),
    ]
}

fn extremes(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), &value| (least.min(value), most.max(value)))
}
