//! A contestant in a process of its own, so that all processor time of the process is the contestant's, whoever's turn it is: the recorder's writer may
//! still be at work when the turn is over. It trains when it is told to and waits otherwise.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use ampdoctor_torch::{Doctor, sabotage};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Tensor};

use crate::clock::{cpu, time};
use crate::contestant::Contestant;
use crate::models::Shape;
use crate::recorded::Recorded;

/// What glibc's allocator is told, in the processes of all contestants alike (another one does not listen): to keep large blocks that are freed, instead of having their
/// pages mapped anew in each step, and to ask for huge pages. Without it a process is 1 or 2 % faster or slower than the next for as long as it lives, by where its
/// pages happen to lie.
const ALLOCATOR: [(&str, &str); 3] = [
    ("MALLOC_MMAP_THRESHOLD_", "1000000000"),
    ("MALLOC_TRIM_THRESHOLD_", "4000000000"),
    ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
];

/// What a turn took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Turn {
    /// Processor seconds a step since the turn before, of all threads.
    pub(crate) cpu: f64,
    /// Wall seconds of the fastest step.
    pub(crate) fastest: f64,
}

/// A contestant's process, as the one that measures has it.
pub(crate) struct Worker {
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts it; it is warm when this returns.
    pub(crate) fn start(shape: &Shape, who: Contestant) -> Result<Self> {
        let program = std::env::current_exe().context("the benchmark's own program has no path")?;
        let contestant = who.to_possible_value().context("a contestant has no name")?;
        let mut process = Command::new(program)
            .args(["--contestant", contestant.get_name(), "--only", shape.name])
            .envs(ALLOCATOR)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("a process for a contestant could not be started")?;
        let orders = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().context("a contestant has no output")?);
        let mut worker = Self { process, orders, answers };
        worker.turn(who.warm_up())?;
        Ok(worker)
    }

    /// Trains so many steps.
    pub(crate) fn turn(&mut self, steps: usize) -> Result<Turn> {
        let orders = self.orders.as_mut().context("the contestant was ended")?;
        writeln!(orders, "{steps}").context("a contestant's process has ended; what it said stands above")?;
        self.answer()
    }

    /// Ends it; what it recorded.
    pub(crate) fn finish(mut self) -> Result<Recorded> {
        self.orders = None;
        let recorded = self.answer()?;
        let status = self.process.wait()?;
        ensure!(status.success(), "a contestant's process failed: {status}");
        Ok(recorded)
    }

    fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        serde_json::from_str(&line).context("a contestant's process has ended; what it said stands above")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Without orders it ends by itself; where it was waited for already there is nothing left to wait for.
        self.orders = None;
        let _ = self.process.wait();
    }
}

/// The contestant's side: trains as it is told on standard input, until that ends.
pub(crate) fn work(shape: &Shape, who: Contestant) -> Result<()> {
    tch::manual_seed(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let loss = (shape.build)(&vs.root());
    let mut optimizer = nn::Adam::default().build(&vs, 1e-4)?;
    let runs = tempfile::tempdir().context("a folder for the recordings could not be made")?;
    let mut doctor = who.attach(&vs, runs.path())?;
    let mut before = cpu();
    for order in std::io::stdin().lines() {
        let steps: usize = order?.parse().context("a turn is a number of steps")?;
        // The others' turns are no time of this training.
        doctor.iter_mut().for_each(sabotage::restart_clock);
        let walls = (0..steps).map(|_| time(|| step(&*loss, &mut optimizer, &mut doctor)).wall);
        let fastest = walls.fold(f64::INFINITY, f64::min);
        let now = cpu();
        answer(&Turn { cpu: (now - before) / steps as f64, fastest })?;
        before = now;
    }
    answer(&doctor.map(|doctor| recorded(doctor, who)).transpose()?.unwrap_or_default())
}

fn step(loss: &dyn Fn() -> Tensor, optimizer: &mut nn::Optimizer, doctor: &mut Option<Doctor>) {
    let loss = loss();
    optimizer.backward_step(&loss);
    if let Some(doctor) = doctor {
        doctor.step(&loss);
    }
}

fn recorded(doctor: Doctor, who: Contestant) -> Result<Recorded> {
    let report = doctor.finish();
    Recorded::read(report.recording().context("there is no recording")?, who.warm_up())
}

fn answer(what: &impl Serialize) -> Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{}", serde_json::to_string(what)?)?)
}
