//! The training loop.

use std::collections::VecDeque;
use std::time::Instant;

use ampdoctor_torch::Doctor;
use anyhow::{Context, Result};
use clap::ValueEnum;
use tch::{Device, Kind, Tensor, nn};

use crate::amp::Scaling;
use crate::data::{Batches, Digits, Set};
use crate::fault::Plant;
use crate::fingerprint::fingerprint;
use crate::model::Model;
use crate::options::Options;
use crate::progress::Progress;
use crate::summary::Summary;

/// How many of the last losses the summary's loss is the mean of.
const LAST_LOSSES: usize = 50;

/// Trains as the options say; `command` is what the recording says was run.
pub fn train(options: &Options, command: Vec<String>) -> Result<Summary> {
    tch::set_num_threads(options.threads);
    tch::manual_seed(options.seed as i64);
    let digits = Digits::load()?;
    let vs = nn::VarStore::new(Device::Cpu);
    let model = options.model.build(&vs.root());
    let plant = plant(options)?;
    let doctor = (!options.no_doctor).then(|| attach(options, command, &vs));

    let began = Instant::now();
    let mut run = Run::new(options, &vs, &digits, doctor)?;
    for step in 0..options.steps {
        run.step(step, model.as_ref(), &plant)?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let recorded = run.finish();
    // Drawn before the evaluation, which must not matter to it.
    let params_sha256 = fingerprint(&vs)?;
    let accuracy = accuracy(options, model.as_ref(), &digits.test, &plant);

    Ok(Summary {
        model: name(&options.model),
        precision: options.precision.to_string(),
        optimizer: name(&options.optimizer),
        seed: options.seed,
        accuracy,
        loss: recorded.loss,
        steps: options.steps,
        skips: recorded.skips,
        scale: recorded.scale,
        seconds,
        run: recorded.run,
        params_sha256,
    })
}

fn plant(options: &Options) -> Result<Plant> {
    match &options.fault {
        Some(spec) => Ok(spec.plant(options.model, options.steps)?),
        None => Ok(Plant::none()),
    }
}

fn attach(options: &Options, command: Vec<String>, vs: &nn::VarStore) -> Doctor {
    let builder = Doctor::builder().every(options.every).command(command);
    match &options.run {
        Some(dir) => builder.run(dir),
        None => builder,
    }
    .attach(vs)
}

/// What changes from step to step.
struct Run<'a> {
    options: &'a Options,
    train: &'a Set,
    batches: Batches,
    optimizer: nn::Optimizer,
    scaling: Scaling,
    doctor: Option<Doctor>,
    progress: Progress,
    losses: VecDeque<f64>,
    skips: u64,
}

/// What is left of it.
struct Recorded {
    loss: f64,
    skips: u64,
    scale: Option<f64>,
    run: Option<String>,
}

impl<'a> Run<'a> {
    fn new(options: &'a Options, vs: &nn::VarStore, digits: &'a Digits, doctor: Option<Doctor>) -> Result<Self> {
        Ok(Self {
            options,
            train: &digits.train,
            batches: Batches::new(digits.train.len(), options.batch as usize, options.seed),
            optimizer: options.optimizer.build(vs, options.learning_rate())?,
            scaling: Scaling::new(options)?,
            doctor,
            progress: Progress::new(options.steps),
            losses: VecDeque::with_capacity(LAST_LOSSES),
            skips: 0,
        })
    }

    fn step(&mut self, step: u64, model: &dyn Model, plant: &Plant) -> Result<()> {
        plant.begin_step(step);
        if let Some(scale) = plant.scale() {
            self.scaling.hold(scale)?;
        }
        let (images, labels) = self.train.batch(self.batches.next_indices());
        let loss = self.options.precision.run(|| model.forward(&images, true, plant).cross_entropy_for_logits(&labels));
        let applied =
            self.scaling.step(&mut self.optimizer, &loss).with_context(|| format!("step {step} could not be taken"))?;
        self.skips += u64::from(!applied);
        if let Some(doctor) = &mut self.doctor {
            doctor.lr(self.options.learning_rate());
            doctor.step(&loss);
        }
        self.note(step, &loss)
    }

    fn note(&mut self, step: u64, loss: &Tensor) -> Result<()> {
        let loss = f64::try_from(loss)?;
        if self.losses.len() == LAST_LOSSES {
            self.losses.pop_front();
        }
        self.losses.push_back(loss);
        self.progress.at(step + 1, loss, self.scaling.scale());
        Ok(())
    }

    /// Ends the recording: what comes after it is not part of the run.
    fn finish(self) -> Recorded {
        let loss = self.losses.iter().sum::<f64>() / self.losses.len() as f64;
        let run = self.doctor.and_then(|doctor| doctor.finish().recording().map(|path| path.display().to_string()));
        Recorded { loss, skips: self.skips, scale: self.scaling.scale(), run }
    }
}

fn accuracy(options: &Options, model: &dyn Model, test: &Set, plant: &Plant) -> f64 {
    tch::no_grad(|| {
        let logits = options.precision.run(|| model.forward(&test.images, false, plant));
        // A NaN is no answer, whatever place argmax gives it.
        let answered = logits.isfinite().all_dim(1, false);
        let right = logits.argmax(1, false).eq_tensor(&test.labels).logical_and(&answered);
        right.to_kind(Kind::Double).mean(Kind::Double).double_value(&[])
    })
}

fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}
