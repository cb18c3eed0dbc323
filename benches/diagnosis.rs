//! How fast a recording is diagnosed, decoding included, and whether memory stays the same whatever its length:
//! `cargo bench --bench diagnosis [-- STEPS]`.
//!
//! The recording is that of an FP16 run with a dynamic loss scale: 25 layers, of each an activation, its gradient, the gradient of
//! a parameter and its update, so 100 observations a step, from 32 different steps that recur. It is written to a temporary
//! file, half a GB for the 100,000 steps that are the default, and read on one thread, three times: decoded alone; decoded and aggregated; the whole
//! diagnosis, as `ampdoctor report` does it. Then it is recorded anew within the default limit, and what is left of it is counted. Told are processor time, and the peak of memory after a tenth of the steps and after all.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use ampdoctor::aggregate::Aggregate;
use ampdoctor::observation::scenario::{Scenario, StepBuilder, normal};
use ampdoctor::observation::{EndReason, Record, Step};
use ampdoctor::recording::{DEFAULT_LIMIT, Recorder, Records, encode_frame, recording_path};
use ampdoctor::rules::Diagnosis;
use ampdoctor::scan::Dtype::{F16, F32};

const STEPS: u64 = 100_000;
const LAYERS: u64 = 25;
const TEMPLATES: u64 = 32;
const SCALE: f64 = 65536.0;

fn main() -> std::io::Result<()> {
    // Cargo adds `--bench`.
    let typed = std::env::args().skip(1).find_map(|word| word.parse().ok());
    let steps = typed.unwrap_or(STEPS);
    let dir = tempfile::tempdir()?;
    let (short, long) = (dir.path().join("short.amprec"), dir.path().join("long.amprec"));
    write(&short, steps / 10)?;
    let bytes = write(&long, steps)?;
    let observations = steps * LAYERS * 4;
    println!("{steps} steps, {observations} observations, {:.1} bytes each", bytes as f64 / observations as f64);
    let decoded = seconds(|| read(&long, drop));
    told("decoded", decoded, observations);
    let aggregated = seconds(|| {
        let mut aggregate = Aggregate::default();
        read(&long, |record| aggregate.apply(record));
    });
    told("decoded and aggregated", aggregated, observations);
    let after_a_tenth = diagnose(&short);
    let mut peak = 0;
    let diagnosed = seconds(|| peak = diagnose(&long));
    told("diagnosed", diagnosed, observations);
    println!("peak of memory: {after_a_tenth} kB after a tenth of the steps, {peak} kB after all");
    within_limit(&dir.path().join("run"), steps)
}

/// Records the same run within the default limit, with a skip at every 1000th step, and tells what is left of it.
fn within_limit(dir: &Path, steps: u64) -> std::io::Result<()> {
    let mut run = Scenario::new();
    run.dynamic_scaler(SCALE).steps(TEMPLATES, step);
    let mut skip = Scenario::new();
    skip.dynamic_scaler(SCALE).step(|s| {
        step(s, 0);
        s.skipped(SCALE, SCALE);
    });
    let of =
        |run: &Scenario| run.records().iter().filter(|r| matches!(r, Record::Step(_))).cloned().collect::<Vec<_>>();
    let (templates, skips) = (of(&run), of(&skip));
    let Some(Record::Run(info)) = run.records().first() else { unreachable!("a run begins with itself") };
    let mut recorder = Recorder::create(dir, info).expect("a recorder");
    for record in run.records() {
        if let Record::Site(_, site) = record {
            recorder.intern(site);
        }
    }
    let recorded = seconds(|| {
        for index in 0..steps {
            let template = if is_event(index) { &skips[0] } else { &templates[index as usize % templates.len()] };
            let Record::Step(step) = at(template, index) else { unreachable!("a step stays one") };
            while !recorder.step(step.clone()) {
                std::thread::yield_now();
            }
        }
    });
    recorder.finish(EndReason::Finished).expect("written");
    let path = recording_path(dir, 0);
    let (mut aggregate, mut whole_events) = (Aggregate::default(), 0);
    read(&path, |record| {
        if let Record::Step(step) = &record {
            whole_events +=
                u64::from(is_event(step.index) && step.skipped() && step.observations.len() as u64 == 4 * LAYERS);
        }
        aggregate.apply(record);
    });
    let events = (0..steps).filter(|index| is_event(*index)).count();
    println!(
        "within the limit: {} bytes of {DEFAULT_LIMIT}, {whole_events} of {events} events whole, {} steps scanned of {}, {:?}",
        path.metadata()?.len(),
        aggregate.instrument.full_steps,
        aggregate.instrument.steps,
        aggregate.instrument.thinned
    );
    println!("recorded in {recorded:.1} s of the processor time of the side that trains");
    Ok(())
}

fn is_event(index: u64) -> bool {
    index % 1000 == 777
}

fn told(what: &str, seconds: f64, observations: u64) {
    println!(
        "{what:<24} {seconds:6.2} s of processor time, {:5.0} ns an observation",
        seconds * 1e9 / observations as f64
    );
}

fn read(path: &Path, mut each: impl FnMut(Record)) {
    let records = Records::open(path).expect("it was just written");
    records.for_each(|record| each(record.expect("it is whole")));
}

/// Diagnoses the run; the peak of the program's memory since then, in kB.
fn diagnose(path: &Path) -> u64 {
    // Forgets the peak so far; where that is not allowed the figure is that of the whole program.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let mut diagnosis = Diagnosis::new();
    read(path, |record| diagnosis.apply(record));
    assert!(diagnosis.findings().is_empty(), "the run is healthy: {:#?}", diagnosis.findings());
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Processor time that this thread took, in seconds.
fn seconds(work: impl FnOnce()) -> f64 {
    let before = on_cpu();
    work();
    (on_cpu() - before) as f64 / 1e9
}

fn on_cpu() -> u64 {
    let stat =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("processor time is read as Linux tells it");
    stat.split_whitespace().next().and_then(|ns| ns.parse().ok()).expect("nanoseconds come first")
}

/// Writes the run; its size in bytes.
fn write(path: &Path, steps: u64) -> std::io::Result<u64> {
    let mut run = Scenario::new();
    run.dynamic_scaler(SCALE).steps(TEMPLATES, step);
    let (head, templates): (Vec<_>, Vec<_>) =
        run.records().iter().cloned().partition(|r| !matches!(r, Record::Step(_)));
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut frame = Vec::new();
    let recurring = templates.iter().cycle().zip(0..steps).map(|(record, index)| at(record, index));
    for record in head.into_iter().chain(recurring) {
        frame.clear();
        encode_frame(&record, &mut frame);
        file.write_all(&frame)?;
    }
    file.flush()?;
    Ok(path.metadata()?.len())
}

fn at(record: &Record, index: u64) -> Record {
    let Record::Step(step) = record else { unreachable!("they were parted") };
    Record::Step(Step { index, time_ns: index * 100_000_000, loss: Some(loss(index)), ..step.clone() })
}

fn loss(index: u64) -> f64 {
    2.0 / (1.0 + index as f64 / 100.0) + 0.1 * (1.0 + 0.1 * (index as f64).sin())
}

fn step(s: &mut StepBuilder<'_>, i: u64) {
    s.applied(SCALE);
    for layer in 0..LAYERS {
        s.activation(&format!("block.{layer}"), "linear", F16, &normal(4096, 2.0, 101 * i + layer));
    }
    for layer in (0..LAYERS).rev() {
        s.gradient(&format!("block.{layer}"), "linear", F16, &normal(4096, 1e-4 * SCALE, 103 * i + layer));
    }
    for layer in 0..LAYERS {
        let name = format!("block.{layer}");
        s.param_grad(&name, "weight", F32, &normal(4096, 1e-4 * SCALE, 107 * i + layer));
        s.update(&name, "addcdiv_", "weight", &normal(4096, 1e-5, 109 * i + layer));
    }
}
