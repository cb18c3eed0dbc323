//! The training loop.

use std::collections::VecDeque;
use std::time::Instant;

use ampdoctor_torch::Doctor;
use anyhow::{Context, Result};
use clap::ValueEnum;
use tch::{Device, Tensor, nn};

use crate::average::WeightAverage;
use crate::data::{Batches, Data};
use crate::evaluation::{evaluate, evaluate_in_fp32};
use crate::fault::{BrokenRecipe, BrokenStepper, HandStepper, Plant, TwoSteppers};
use crate::fingerprint::fingerprint;
use crate::model::{Model, Pass};
use crate::options::Options;
use crate::progress::Progress;
use crate::scaling::Scaling;
use crate::stepper::{Stepper, sound_stepper};
use crate::summary::Summary;

/// How many of the last losses the summary's loss is the mean of.
const LAST_LOSSES: usize = 50;

/// Trains as the options say; `command` is what the recording says was run.
pub fn train(options: &Options, command: Vec<String>) -> Result<Summary> {
    tch::set_num_threads(options.threads);
    tch::manual_seed(options.seed as i64);
    let fp32 = options.fp32_layers()?;
    let data = Data::load(options.model.data())?;
    let mut vs = nn::VarStore::new(Device::Cpu);
    let model = options.model.build(&vs.root());
    options.precision.cast_model(&mut vs, options.model, &fp32);
    let plant = plant(options)?;
    let doctor = (!options.no_doctor).then(|| attach(options, command, &vs));

    let began = Instant::now();
    let mut run = Run::new(options, &vs, model.as_ref(), &data, Pass::new(options.precision, &fp32, &plant), doctor)?;
    for step in 0..options.steps {
        run.step(step)?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let recorded = run.finish();
    // Drawn before the evaluation, which must not matter to it.
    let copies = recorded.stepper.masters().map(|masters| masters.vars());
    let params_sha256 = fingerprint(&[&vs].into_iter().chain(copies).collect::<Vec<_>>())?;
    let end = evaluate(model.as_ref(), &Pass::new(options.precision, &fp32, &plant), &data.held_out);

    Ok(Summary {
        model: name(&options.model),
        precision: options.precision.to_string(),
        optimizer: name(&options.optimizer()),
        lr: options.learning_rate(),
        seed: options.seed,
        accuracy: end.accuracy,
        held_out_loss: end.loss,
        loss: recorded.loss,
        steps: options.steps,
        skips: recorded.skipped.len() as u64,
        skipped_steps: recorded.skipped,
        scale: recorded.scale,
        seconds,
        run: recorded.run,
        params_sha256,
    })
}

fn plant(options: &Options) -> Result<Plant> {
    match &options.fault {
        Some(spec) => Ok(spec.plant(options)?),
        None => Ok(Plant::none()),
    }
}

fn stepper(options: &Options, vs: &nn::VarStore, plant: &Plant) -> Result<Box<dyn Stepper>> {
    match (plant.breaks_masters(), plant.steps_by_hand()) {
        (Some(mistake), _) => Ok(Box::new(BrokenStepper::new(mistake, options, vs)?)),
        (_, Some(mistake)) => Ok(Box::new(HandStepper::new(mistake, options, vs)?)),
        _ if plant.splits_optimizer() => Ok(Box::new(TwoSteppers::new(options, vs)?)),
        _ => sound_stepper(options, vs),
    }
}

fn attach(options: &Options, command: Vec<String>, vs: &nn::VarStore) -> Doctor {
    let builder = Doctor::builder().command(command);
    let builder = match options.budget {
        Some(share) => builder.budget(share),
        None => builder.every(options.every),
    };
    let builder = match options.limit {
        Some(bytes) => builder.limit(bytes),
        None => builder,
    };
    match &options.run {
        Some(dir) => builder.run(dir),
        None => builder,
    }
    .attach(vs)
}

/// A run: what it is made of, and what changes from step to step.
struct Run<'a> {
    options: &'a Options,
    vs: &'a nn::VarStore,
    model: &'a dyn Model,
    data: &'a Data,
    pass: Pass<'a>,
    plant: &'a Plant,
    batches: Batches,
    average: Option<WeightAverage>,
    stepper: Box<dyn Stepper>,
    scaling: Scaling,
    doctor: Option<Doctor>,
    progress: Progress,
    losses: VecDeque<f64>,
    skipped: Vec<u64>,
}

/// What is left of it.
struct Recorded {
    stepper: Box<dyn Stepper>,
    loss: f64,
    skipped: Vec<u64>,
    scale: Option<f64>,
    run: Option<String>,
}

impl<'a> Run<'a> {
    fn new(
        options: &'a Options,
        vs: &'a nn::VarStore,
        model: &'a dyn Model,
        data: &'a Data,
        pass: Pass<'a>,
        doctor: Option<Doctor>,
    ) -> Result<Self> {
        let plant = pass.plant();
        Ok(Self {
            options,
            vs,
            model,
            data,
            pass,
            plant,
            average: plant.averages(options.precision).map(|how| WeightAverage::new(vs, how)),
            batches: Batches::new(data.train.examples(), options.batch() as usize, options.seed),
            stepper: stepper(options, vs, plant)?,
            scaling: Scaling::new(options, plant.adds_scaler())?,
            doctor,
            progress: Progress::new(options.steps),
            losses: VecDeque::with_capacity(LAST_LOSSES),
            skipped: Vec::new(),
        })
    }

    fn step(&mut self, step: u64) -> Result<()> {
        let lr = self.prepare(step)?;
        let loss = self.backward(step)?;
        let reported = self.reported(&loss);
        if !self.is_left_out(step) && !self.apply(step)? {
            self.skipped.push(step);
        }
        self.average.iter_mut().for_each(WeightAverage::update);
        self.evaluate_when_due(step + 1);
        if let Some(doctor) = &mut self.doctor {
            doctor.lr(lr);
            doctor.step(&reported);
        }
        self.note(step, &loss)
    }

    /// A scaler decides by itself which steps are skipped.
    fn is_left_out(&self, step: u64) -> bool {
        self.scaling.scale().is_none() && self.options.leave_out.contains(&step)
    }

    /// Steps the optimizer, unless the scaler skips it; whether it did not.
    fn apply(&mut self, step: u64) -> Result<bool> {
        self.scaling
            .step(self.stepper.as_mut(), self.options.clip, self.plant.breaks_recipe())
            .with_context(|| format!("step {step} could not be taken"))
    }

    /// Sets what the step needs otherwise; the learning rate in force.
    fn prepare(&mut self, step: u64) -> Result<f64> {
        self.plant.begin_step(step);
        self.stepper.begin_step(self.plant.is_active());
        if !self.options.keep_settings {
            self.set_scaler()?;
        }
        if self.plant.renews_scaler() {
            self.scaling = Scaling::new(self.options, self.plant.adds_scaler())?;
        }
        if self.plant.scale_factor() != 1.0 {
            self.scaling.multiply(self.plant.scale_factor())?;
        }
        self.set_parameters()?;
        let scheduled = self.options.learning_rate() * self.options.schedule.factor(step, self.options.steps);
        let lr = scheduled * self.plant.lr_factor();
        self.stepper.set_lr(lr);
        Ok(lr)
    }

    /// Sets parameters of the model as the fault has them, and their FP32 copies: what is set is no mistake between the two.
    fn set_parameters(&mut self) -> Result<()> {
        let weight = self.plant.weight_factor().map(|(layer, factor)| (layer, "weight", factor));
        let bias = self.plant.bias_factor().map(|(layer, factor)| (layer, "bias", factor));
        for (layer, name, factor) in weight.into_iter().chain(bias) {
            multiply(self.vs, layer, name, factor);
            if let Some(masters) = self.stepper.masters_mut() {
                masters.refresh_from_model()?;
            }
        }
        Ok(())
    }

    /// Sets the scaler as the fault has it.
    fn set_scaler(&mut self) -> Result<()> {
        if let Some(scale) = self.plant.scale() {
            self.scaling.hold(scale)?;
        }
        if let Some(steps) = self.plant.growth_interval() {
            self.scaling.grow_every(steps)?;
        }
        if self.plant.drops_scaler() {
            self.scaling.drop_scaler();
        }
        Ok(())
    }

    /// The gradients of all micro-batches; their mean loss.
    fn backward(&mut self, step: u64) -> Result<Tensor> {
        let mistake = self.plant.breaks_recipe();
        if mistake != Some(BrokenRecipe::NotCleared) {
            self.stepper.zero_grad();
        }
        let mut losses = Vec::new();
        for micro_batch in 1..=self.options.accumulate {
            if mistake == Some(BrokenRecipe::MovingScale) && micro_batch > 1 {
                self.scaling.disturb(micro_batch)?;
            }
            let (inputs, targets) = self.data.train.at(self.batches.next_indices());
            let targets = self.plant.labels(targets);
            let forward = |x: &Tensor| self.model.forward(x, true, &self.pass);
            let model_loss = || self.options.precision.loss(&inputs, &targets, forward);
            let loss = self.plant.loss(model_loss());
            let part = times(share(self.options, &loss), self.plant.gradient_factor());
            match mistake.and_then(|mistake| mistake.scaled_by_hand(&part)) {
                Some(scaled) => scaled.f_backward()?,
                None => self.scaling.backward(&part)?,
            }
            losses.push(loss.detach());
            if micro_batch == self.options.accumulate
                && self.is_shadow_due(step)
                && let Some(doctor) = &mut self.doctor
            {
                // A failure is said by the doctor, and training goes on.
                doctor.shadow(|| share(self.options, &model_loss()));
            }
        }
        Ok(if losses.len() == 1 { losses.remove(0) } else { Tensor::stack(&losses, 0).mean(None) })
    }

    /// The loss as the loop tells it: before the scaler moves.
    fn reported(&self, loss: &Tensor) -> Tensor {
        match self.scaling.scale() {
            Some(scale) if self.plant.breaks_recipe() == Some(BrokenRecipe::ScaledLoss) => loss * scale,
            _ => loss.shallow_clone(),
        }
    }

    fn is_shadow_due(&self, step: u64) -> bool {
        self.options.shadow_every.is_some_and(|every| step.is_multiple_of(every))
    }

    fn evaluate_when_due(&mut self, done: u64) {
        let due = self.options.eval_every.is_some_and(|every| done.is_multiple_of(every));
        if !due {
            return;
        }
        let now = evaluate(self.model, &self.pass, &self.data.held_out);
        if let Some(doctor) = &mut self.doctor {
            doctor.metric("accuracy", now.accuracy);
            doctor.metric("held_out_loss", now.loss);
            if let Some(reference) =
                self.options.precision.is_autocast().then(|| evaluate_in_fp32(self.model, &self.data.held_out))
            {
                doctor.metric("accuracy_fp32", reference.accuracy);
                doctor.metric("held_out_loss_fp32", reference.loss);
            }
        }
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
        Recorded { stepper: self.stepper, loss, skipped: self.skipped, scale: self.scaling.scale(), run }
    }
}

/// What a micro-batch adds to the loss of the step.
fn share(options: &Options, loss: &Tensor) -> Tensor {
    match options.accumulate {
        1 => loss.shallow_clone(),
        n => loss / n as f64,
    }
}

/// A loss whose gradient is `factor` times that of `loss`; the loss itself where that is 1.
fn times(loss: Tensor, factor: f64) -> Tensor {
    if factor == 1.0 { loss } else { loss * factor }
}

/// Multiplies a parameter of a layer in place, where it has one of this name.
fn multiply(vs: &nn::VarStore, layer: &str, name: &str, factor: f64) {
    if let Some(parameter) = vs.variables().get_mut(&format!("{layer}.{name}")) {
        let _parameter = tch::no_grad(|| parameter.g_mul_scalar_(factor));
    }
}

fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}
