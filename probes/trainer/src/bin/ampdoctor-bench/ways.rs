//! Ways to use the doctor, beside a VarStore and a plain loop: each under a scan of every step, against the same loop alone.

use ampdoctor_torch::{Doctor, sabotage};
use anyhow::{Context, Result, ensure};
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Kind, Tensor, no_grad};

use crate::clock::{Took, median, time};
use crate::models::Shape;

/// The titles of the columns.
pub(crate) const TITLES: &[&str] = &["conv, what is done", "CPU ratio, default", "CPU ratio, full", "ms a step alone"];

/// Steps that a turn takes, and before the clock runs.
const STEPS: usize = 40;
const WARM_UP: usize = 2;
/// The decay of the averages.
const DECAY: f64 = 0.999;

/// What a loop does beside its steps, and how the doctor is attached to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Store,
    Tensors,
    Averages,
    Untracked,
    AsDevice,
}

impl Way {
    const ALL: [Self; 5] = [Self::Store, Self::Tensors, Self::Averages, Self::Untracked, Self::AsDevice];

    fn name(self) -> &'static str {
        match self {
            Self::Store => "attached to a VarStore",
            Self::Tensors => "attached to plain tensors",
            Self::Averages => "a moving average of each parameter in BF16",
            Self::Untracked => "another forward that autograd does not follow, added to the loss",
            Self::AsDevice => "all tensors read by their device's operators, on the CPU",
        }
    }
}

/// How closely it is watched.
#[derive(Clone, Copy)]
enum Watch {
    Alone,
    Default,
    Full,
}

/// The names of the ways.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    Way::ALL.into_iter().map(Way::name)
}

/// The rows, one for each way.
pub(crate) fn measure(shape: &Shape, rounds: u32) -> Result<Vec<Vec<String>>> {
    tch::manual_seed(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let mut bench = Bench {
        loss: (shape.build)(&vs.root()),
        optimizer: nn::Adam::default().build(&vs, 1e-4)?,
        averages: averages(&vs),
        vs,
        runs: tempfile::tempdir().context("a folder for the recordings could not be made")?,
    };
    let mut ratios = vec![[Vec::new(), Vec::new()]; Way::ALL.len()];
    let mut alone_ms = vec![Vec::new(); Way::ALL.len()];
    for round in 0..rounds {
        for (index, way) in Way::ALL.into_iter().enumerate() {
            // Who comes first turns, so that nobody always runs behind the same other.
            let mut turns = [(Watch::Alone, 0.0), (Watch::Default, 0.0), (Watch::Full, 0.0)];
            for offset in 0..turns.len() {
                let (watch, cpu) = &mut turns[(offset + round as usize) % 3];
                *cpu = bench.turn(way, *watch)?;
            }
            let [alone, default, full] = turns.map(|(_, cpu)| cpu);
            ratios[index][0].push(default / alone);
            ratios[index][1].push(full / alone);
            alone_ms[index].push(1e3 * alone);
        }
    }
    let rows = Way::ALL.iter().zip(ratios).zip(alone_ms).map(|((way, [default, full]), alone)| {
        let ratio = |ratios: Vec<f64>| format!("{:.3}", median(ratios));
        vec![way.name().to_owned(), ratio(default), ratio(full), format!("{:.2}", median(alone))]
    });
    Ok(rows.collect())
}

fn averages(vs: &nn::VarStore) -> Vec<(Tensor, Tensor)> {
    let copy = |w: Tensor| (w.detach().to_kind(Kind::BFloat16), w);
    vs.trainable_variables().into_iter().map(copy).collect()
}

struct Bench {
    loss: Box<dyn Fn() -> Tensor>,
    optimizer: nn::Optimizer,
    averages: Vec<(Tensor, Tensor)>,
    vs: nn::VarStore,
    runs: tempfile::TempDir,
}

impl Bench {
    /// Processor seconds a step.
    fn turn(&mut self, way: Way, watch: Watch) -> Result<f64> {
        sabotage::treat_host_as_device(way == Way::AsDevice);
        let mut doctor = self.attach(way, watch)?;
        for _ in 0..WARM_UP {
            self.step(way, &mut doctor);
        }
        let took: Vec<Took> = (0..STEPS).map(|_| time(|| self.step(way, &mut doctor))).collect();
        drop(doctor);
        sabotage::treat_host_as_device(false);
        Ok(took.iter().map(|step| step.cpu).sum::<f64>() / STEPS as f64)
    }

    fn attach(&self, way: Way, watch: Watch) -> Result<Option<Doctor>> {
        let builder = Doctor::builder().run(self.runs.path());
        let builder = match watch {
            Watch::Alone => return Ok(None),
            Watch::Default => builder,
            Watch::Full => builder.every(1),
        };
        let doctor = if way == Way::Tensors {
            let variables = self.vs.variables();
            let named: Vec<(&str, &Tensor)> = variables.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
            builder.attach_tensors(&named)
        } else {
            builder.attach(&self.vs)
        };
        ensure!(doctor.is_attached(), "the doctor could not attach, so there is nothing to measure");
        Ok(Some(doctor))
    }

    fn step(&mut self, way: Way, doctor: &mut Option<Doctor>) {
        let mut loss = (self.loss)();
        if way == Way::Untracked {
            loss += no_grad(|| (self.loss)()) * 0.1;
        }
        self.optimizer.backward_step(&loss);
        if way == Way::Averages {
            no_grad(|| {
                for (average, parameter) in &mut self.averages {
                    let _ = average.lerp_(&parameter.to_kind(Kind::BFloat16), 1.0 - DECAY);
                }
            });
        }
        if let Some(doctor) = doctor {
            doctor.step(&loss);
        }
    }
}
