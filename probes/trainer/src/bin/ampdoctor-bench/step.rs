//! A step of training under the doctor, against the same step alone.

use std::time::Instant;

use anyhow::Result;

use crate::clock::{median, median_interval};
use crate::contestant::Contestant;
use crate::models::Shape;
use crate::page::Page;
use crate::recorded::Recorded;
use crate::worker::{Turn, Worker};

/// The titles of the columns.
pub(crate) const TITLES: &[&str] =
    &["shape, doctor", "CPU ratio", "from", "to", "fastest step", "it says", "ms a step", "to reach"];

/// The titles of the columns of what was recorded.
pub(crate) const RECORDING_TITLES: &[&str] = &[
    "shape",
    "observations a step",
    "bytes an observation",
    "to reach",
    "bytes a step beside them",
    "bytes of the names",
];

/// A turn is about this long: most of what disturbs a machine lasts longer, and meets the turns around it as well.
const TURN_SECONDS: f64 = 0.5;
/// A turn has at least so many steps: under a budget, a full one among them.
const TURN_STEPS: usize = 5;
/// A round is about this long, of all contestants together.
const ROUND_SECONDS: f64 = 60.0;
/// Bytes that an observation is to take at most.
const BYTES_TO_REACH: u32 = 60;

/// What was measured of one shape.
pub(crate) struct Measured {
    /// The rows of its contestants.
    pub(crate) rows: Vec<Vec<String>>,
    /// The row of what a full step records.
    pub(crate) recording: Vec<String>,
}

/// All turns of a contestant, over all rounds.
#[derive(Clone, Debug, Default)]
struct Column {
    /// Processor time against that of the step alone.
    ratios: Vec<f64>,
    turns: Vec<Turn>,
    /// What it recorded in each round.
    recorded: Vec<Recorded>,
}

/// Measures one shape. Each round has processes of its own: where their memory happens to lie makes steps faster or slower.
pub(crate) fn measure(shape: &Shape, rounds: u32, page: &Page) -> Result<Measured> {
    page.begin(shape.name);
    let began = Instant::now();
    let mut alone = Column::default();
    let mut columns = vec![Column::default(); Contestant::COMPARED.len()];
    for round in 0..rounds {
        let mut lanes = Lanes::start(shape)?;
        for cycle in 0..lanes.cycles {
            let done = f64::from(round) + f64::from(cycle) / f64::from(lanes.cycles);
            page.progress(&how_far(shape, done, rounds, began.elapsed().as_secs_f64()));
            lanes.cycle(&mut alone, &mut columns)?;
        }
        lanes.finish(&mut columns)?;
    }
    let rows = Contestant::COMPARED.iter().zip(&columns).map(|(&who, column)| row(shape, who, column, &alone));
    let full = &columns[Contestant::COMPARED.len() - 1];
    Ok(Measured {
        rows: std::iter::once(row_alone(shape, &alone)).chain(rows).collect(),
        recording: recording_row(shape, &full.recorded),
    })
}

fn how_far(shape: &Shape, done: f64, rounds: u32, passed: f64) -> String {
    let left = match done {
        0.0 => String::new(),
        done => format!(", about {:.0} s left", passed / done * (f64::from(rounds) - done)),
    };
    format!("{}, round {:.0} of {rounds}: {passed:.0} s{left}", shape.name, done.floor() + 1.0)
}

/// The processes of a round.
struct Lanes {
    alone: Worker,
    compared: Vec<Worker>,
    /// Steps that a turn has.
    steps: usize,
    /// Times that everyone has a turn.
    cycles: u32,
    /// The latest turn of the step alone.
    before: Turn,
}

impl Lanes {
    fn start(shape: &Shape) -> Result<Self> {
        let compared = Contestant::COMPARED.iter().map(|&who| Worker::start(shape, who)).collect::<Result<Vec<_>>>()?;
        let mut alone = Worker::start(shape, Contestant::None)?;
        let step_seconds = alone.turn(TURN_STEPS)?.fastest.max(1e-6);
        let steps = ((TURN_SECONDS / step_seconds) as usize).max(TURN_STEPS);
        let cycle_seconds = (compared.len() + 1) as f64 * steps as f64 * step_seconds;
        let cycles = (ROUND_SECONDS / cycle_seconds).ceil() as u32;
        let before = alone.turn(steps)?;
        Ok(Self { alone, compared, steps, cycles, before })
    }

    /// A turn for everyone, always in one order: then each has waited equally long, and its caches are equally cold.
    fn cycle(&mut self, alone: &mut Column, columns: &mut [Column]) -> Result<()> {
        let turns: Vec<Turn> = self.compared.iter_mut().map(|worker| worker.turn(self.steps)).collect::<Result<_>>()?;
        let after = self.alone.turn(self.steps)?;
        for (index, (turn, column)) in turns.into_iter().zip(columns).enumerate() {
            let passed = (index + 1) as f64 / (self.compared.len() + 1) as f64;
            column.ratios.push(turn.cpu / between(self.before.cpu, after.cpu, passed));
            column.turns.push(turn);
        }
        self.before = after;
        alone.turns.push(after);
        Ok(())
    }

    fn finish(self, columns: &mut [Column]) -> Result<()> {
        for (worker, column) in self.compared.into_iter().zip(columns) {
            column.recorded.push(worker.finish()?);
        }
        Ok(())
    }
}

/// What lies on the straight line from one value to another, when this share of the way has passed.
fn between(before: f64, after: f64, passed: f64) -> f64 {
    before + passed * (after - before)
}

fn row_alone(shape: &Shape, alone: &Column) -> Vec<String> {
    let one = || "1.000".to_owned();
    vec![
        format!("{}, {}", shape.name, Contestant::None.name()),
        one(),
        String::new(),
        String::new(),
        one(),
        String::new(),
        milliseconds(&alone.turns),
        String::new(),
    ]
}

fn row(shape: &Shape, who: Contestant, column: &Column, alone: &Column) -> Vec<String> {
    let (from, to) = median_interval(column.ratios.clone());
    let said = median(column.recorded.iter().map(Recorded::ratio).collect());
    let ratio = |x: f64| format!("{x:.3}");
    vec![
        format!("{}, {}", shape.name, who.name()),
        ratio(median(column.ratios.clone())),
        ratio(from),
        ratio(to),
        ratio(fastest(&column.turns) / fastest(&alone.turns)),
        if who == Contestant::Control { String::new() } else { ratio(said) },
        milliseconds(&column.turns),
        who.target(shape).map_or(String::new(), |target| format!("{target:.2}")),
    ]
}

fn fastest(turns: &[Turn]) -> f64 {
    turns.iter().map(|turn| turn.fastest).fold(f64::INFINITY, f64::min)
}

fn milliseconds(turns: &[Turn]) -> String {
    format!("{:.2}", 1e3 * median(turns.iter().map(|turn| turn.cpu).collect()))
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
