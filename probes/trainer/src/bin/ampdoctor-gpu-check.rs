//! Whether the observer finds on a GPU what it finds on the CPU, and what it costs there. Run it by `make gpu-check`.
//!
//! It needs a LibTorch with CUDA, and says so where there is none; nothing is downloaded. Its parts, together meant for less than 5 minutes (the timing is cut off after half a
//! minute a way):
//! 1. the same training steps are recorded on the GPU and on the CPU from the same weights and the same data, in FP32: every site is there, and statistics agree as far as
//!    two processors agree;
//! 2. tensors whose content is known exactly (every pattern of 16 bits, subnormals, infinities, NaN) are recorded on both: counts, extremes and histograms are the same;
//! 3. a small transformer is timed without a doctor, with one that is off, with the default budget and with every step in full: the whole step, and the part of it before the
//!    program first waits for the GPU. If the observer waited for each tensor, that part would be nearly the whole step.
//!
//! `--rehearse-on-cpu` goes through all of it on the CPU, with the CPU's tensors taking the way of a GPU's: it tries the program, and says nothing of a GPU.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use ampdoctor::observation::{Observation, Probe, Record, Site, Step};
use ampdoctor::recording::read_run;
use ampdoctor::scan::disagreement;
use ampdoctor_torch::{Doctor, DoctorBuilder, sabotage};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Cuda, Device, Kind, Tensor};

/// Longest time that one way of the timing may take.
const LIMIT: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let rehearse = std::env::args().any(|argument| argument == "--rehearse-on-cpu");
    if !Cuda::is_available() && !rehearse {
        eprintln!(
            "gpu-check: LibTorch sees no GPU here, nothing was checked.\n\
             It takes an NVIDIA GPU with its driver, and a LibTorch with CUDA: set LIBTORCH to its folder (the one that holds lib/libtorch_cuda.so) and \
             build again. `--rehearse-on-cpu` tries this program without a GPU, and checks nothing of one."
        );
        std::process::exit(3);
    }
    if rehearse {
        // Barriers between threads would be all that is timed.
        tch::set_num_threads(1);
    }
    let device = if rehearse { Device::Cpu } else { Device::Cuda(0) };
    println!("device: {device:?}, GPUs: {}, LibTorch with cuDNN: {}", Cuda::device_count(), Cuda::cudnn_is_available());
    let mut faults = Vec::new();
    faults.extend(patterns(device)?);
    faults.extend(training(device)?);
    timing(device, if rehearse { 8 } else { 200 })?;
    for fault in &faults {
        println!("FAULT {fault}");
    }
    let place = if rehearse { "rehearsal, no GPU was checked" } else { "GPU" };
    let verdict = if faults.is_empty() { "the same is found as on the host" } else { "there are differences" };
    println!("verdict ({place}): {verdict}");
    std::process::exit(i32::from(!faults.is_empty()));
}

/// A recording.
struct Run {
    sites: Vec<Site>,
    steps: Vec<Step>,
}

impl Run {
    fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        let mut run = Self { sites: Vec::new(), steps: Vec::new() };
        for record in read_run(path)? {
            match record? {
                Record::Site(_, site) => run.sites.push(site),
                Record::Step(step) => run.steps.push(step),
                Record::Note(note) => println!("  note: {}", note.text),
                _ => {}
            }
        }
        Ok(run)
    }

    fn site(&self, observation: &Observation) -> &Site {
        &self.sites[observation.site.0 as usize]
    }
}

/// Where a run is recorded.
#[derive(Clone, Copy)]
enum Side {
    /// On the device that is checked.
    Checked(Device),
    /// On the host, by reading its memory.
    Host,
}

impl Side {
    fn device(self) -> Device {
        match self {
            Side::Checked(device) => device,
            Side::Host => Device::Cpu,
        }
    }
}

/// Records what `steps` does, every step in full.
fn record(side: Side, vs: &nn::VarStore, steps: &mut dyn FnMut(&mut Doctor)) -> Result<Run, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    sabotage::treat_host_as_device(matches!(side, Side::Checked(Device::Cpu)));
    let mut doctor = Doctor::builder().every(1).run(dir.path()).attach(vs);
    steps(&mut doctor);
    Run::read(doctor.finish().recording().ok_or("nothing was recorded")?)
}

/// Tensors of known bits, as parameters: their values are observed as they are.
fn patterns(device: Device) -> Result<Vec<String>, Box<dyn Error>> {
    let on = |side: Side| -> Result<Run, Box<dyn Error>> {
        let device = side.device();
        let vs = nn::VarStore::new(device);
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let singles: Vec<u8> = (0..200_000u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        let doubles: Vec<u8> =
            (0..100_000u64).flat_map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
        for (name, bytes, kind, size) in [
            ("f16", &all, Kind::Half, 2),
            ("bf16", &all, Kind::BFloat16, 2),
            ("f32", &singles, Kind::Float, 4),
            ("f64", &doubles, Kind::Double, 8),
        ] {
            let content = Tensor::from_data_size(bytes, &[(bytes.len() / size) as i64], kind).to_device(device);
            let mut held = vs.root().var_copy(name, &Tensor::zeros([content.numel() as i64], (Kind::Float, device)));
            held.set_data(&content);
        }
        record(side, &vs, &mut |doctor| doctor.step(()))
    };
    let (found, expected) = (on(Side::Checked(device))?, on(Side::Host)?);
    println!("patterns: {} tensors", expected.steps.iter().map(|s| s.observations.len()).sum::<usize>());
    Ok(compare(&found, &expected, true))
}

/// A few steps of a perceptron and of a transformer, from the same weights on the same data.
fn training(device: Device) -> Result<Vec<String>, Box<dyn Error>> {
    let on = |side: Side| -> Result<Run, Box<dyn Error>> {
        let device = side.device();
        tch::manual_seed(5);
        let mut vs = nn::VarStore::new(Device::Cpu);
        let net = Transformer::new(&vs.root(), 64, 2, 32);
        vs.set_device(device);
        let mut opt = nn::AdamW::default().build(&vs, 1e-3)?;
        record(side, &vs, &mut |doctor| {
            for step in 0..3i64 {
                let tokens = (Tensor::arange(4 * 16, (Kind::Int64, Device::Cpu)) * 7 + step)
                    .remainder(32)
                    .view([4, 16])
                    .to_device(device);
                let loss = net.loss(&tokens);
                opt.backward_step(&loss);
                doctor.step(&loss);
            }
        })
    };
    let (found, expected) = (on(Side::Checked(device))?, on(Side::Host)?);
    println!("training: {} observations", expected.steps.iter().map(|s| s.observations.len()).sum::<usize>());
    Ok(compare(&found, &expected, false))
}

/// Differences; `exactly` where both held the same bits.
fn compare(found: &Run, expected: &Run, exactly: bool) -> Vec<String> {
    let mut faults = Vec::new();
    if found.steps.len() != expected.steps.len() {
        return vec![format!("{} steps, not {}", found.steps.len(), expected.steps.len())];
    }
    for (a, b) in found.steps.iter().zip(&expected.steps) {
        if a.cost.unscanned != b.cost.unscanned {
            faults
                .push(format!("step {}: {} tensors not scanned, not {}", a.index, a.cost.unscanned, b.cost.unscanned));
        }
        for wanted in &b.observations {
            let site = expected.site(wanted);
            // Another processor may take another way through an operator; what a layer and a parameter hold is the same.
            let mut same = a.observations.iter().filter(|o| found.site(o) == site);
            match same.next() {
                None => {
                    faults.push(format!("step {}: {} {} was not observed", a.index, site.probe.name(), site.label()))
                }
                Some(got) if exactly && disagreement(site.dtype, &got.stats, &wanted.stats).is_some() => {
                    faults.push(format!(
                        "{} {}: {:?}\n  not {:?}",
                        site.probe.name(),
                        site.label(),
                        got.stats,
                        wanted.stats
                    ));
                }
                Some(got) if !exactly && !is_near(site, got, wanted) => {
                    let (got, wanted) = (&got.stats, &wanted.stats);
                    faults.push(format!(
                        "step {} {} {}: count {} max {} rms {:?}, not {} {} {:?}",
                        a.index,
                        site.probe.name(),
                        site.label(),
                        got.count,
                        got.max_abs,
                        got.rms(),
                        wanted.count,
                        wanted.max_abs,
                        wanted.rms()
                    ));
                }
                Some(_) => {}
            }
        }
    }
    faults
}

/// TF32 and another order of additions are allowed for.
fn is_near(site: &Site, found: &Observation, expected: &Observation) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() <= 0.05 * b.abs() + 1e-6;
    let rms = |o: &Observation| o.stats.rms().unwrap_or(0.0);
    // An optimizer's first steps are signs: where a gradient is rounding alone, so is the update.
    let updates = site.probe == Probe::Update;
    found.stats.count == expected.stats.count
        && found.stats.non_finite() == expected.stats.non_finite()
        && (updates || near(rms(found), rms(expected)))
}

/// A decoder of `blocks` blocks.
struct Transformer {
    embedding: nn::Embedding,
    blocks: Vec<[nn::Linear; 4]>,
    norms: Vec<[nn::LayerNorm; 2]>,
    width: i64,
    vocabulary: i64,
}

impl Transformer {
    fn new(root: &nn::Path<'_>, width: i64, blocks: i64, vocabulary: i64) -> Self {
        let linear = |path: nn::Path<'_>, a, b| nn::linear(path, a, b, Default::default());
        let norm = |path: nn::Path<'_>| nn::layer_norm(path, vec![width], Default::default());
        let block = |i: i64| root / "block" / i;
        Self {
            embedding: nn::embedding(root / "embed", vocabulary, width, Default::default()),
            blocks: (0..blocks)
                .map(|i| {
                    [
                        linear(block(i) / "qkv", width, 3 * width),
                        linear(block(i) / "proj", width, width),
                        linear(block(i) / "up", width, 4 * width),
                        linear(block(i) / "down", 4 * width, width),
                    ]
                })
                .collect(),
            norms: (0..blocks).map(|i| [norm(block(i) / "norm1"), norm(block(i) / "norm2")]).collect(),
            width,
            vocabulary,
        }
    }

    fn loss(&self, tokens: &Tensor) -> Tensor {
        let length = tokens.size()[1];
        let mut x = self.embedding.forward(tokens);
        let mask = Tensor::ones([length, length], (Kind::Bool, tokens.device())).tril(0).logical_not();
        for ([qkv, proj, up, down], [before, between]) in self.blocks.iter().zip(&self.norms) {
            let parts = qkv.forward(&before.forward(&x)).chunk(3, -1);
            let scores = parts[0].matmul(&parts[1].transpose(1, 2)) / (self.width as f64).sqrt();
            let weights = scores.masked_fill(&mask, f64::NEG_INFINITY).softmax(-1, Kind::Float);
            x = &x + proj.forward(&weights.matmul(&parts[2]));
            x = &x + down.forward(&up.forward(&between.forward(&x)).gelu("none"));
        }
        let logits = x.matmul(&self.embedding.ws.tr());
        logits.view([-1, self.vocabulary]).cross_entropy_for_logits(&tokens.view([-1]))
    }
}

/// The median; 0 of nothing.
fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// A way of watching: its name, and how the doctor is set; none at all where that is `None`.
type Way = (&'static str, Option<fn(DoctorBuilder) -> DoctorBuilder>);

/// Steps of a small transformer per way of watching.
fn timing(device: Device, steps: usize) -> Result<(), Box<dyn Error>> {
    let (width, blocks, batch, length) = if device.is_cuda() { (512, 6, 16, 256) } else { (64, 2, 4, 32) };
    let ways: [Way; 4] = [
        ("none", None),
        ("off", Some(DoctorBuilder::off)),
        ("default budget", Some(|builder| builder)),
        ("every step in full", Some(|builder| builder.every(1))),
    ];
    sabotage::treat_host_as_device(device == Device::Cpu);
    println!(
        "a transformer of {blocks} blocks, width {width}, {batch} x {length} tokens; milliseconds a step; all wait for the loss at its end"
    );
    let mut plain = None;
    for (name, watched) in ways {
        tch::manual_seed(1);
        let vs = nn::VarStore::new(device);
        let net = Transformer::new(&vs.root(), width, blocks, 1024);
        let mut opt = nn::AdamW::default().build(&vs, 1e-4)?;
        let tokens = Tensor::randint(1024, [batch, length], (Kind::Int64, device));
        let dir = tempfile::tempdir()?;
        let mut doctor = watched.map(|set| set(Doctor::builder()).run(dir.path()).attach(&vs));
        let (began, mut times, mut enqueued) = (Instant::now(), Vec::new(), Vec::new());
        for step in 0..steps + 5 {
            let start = Instant::now();
            let loss = net.loss(&tokens);
            opt.backward_step(&loss);
            let before_waiting = start.elapsed().as_secs_f64() * 1e3;
            let value = loss.double_value(&[]);
            if let Some(doctor) = &mut doctor {
                doctor.step(value);
            }
            if step >= 5 {
                times.push(start.elapsed().as_secs_f64() * 1e3);
                enqueued.push(before_waiting);
            }
            if began.elapsed() > LIMIT && !times.is_empty() {
                break;
            }
        }
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let median = middle(&mut times);
        let plain = *plain.get_or_insert((median, mean));
        println!(
            "  {name:<20} median {median:9.3} ({:5.2} of none), mean {mean:9.3} ({:5.2} of none), {:9.3} before it waits, {} steps",
            median / plain.0,
            mean / plain.1,
            middle(&mut enqueued),
            times.len()
        );
        drop(doctor);
    }
    Ok(())
}
