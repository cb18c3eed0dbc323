//! Gradient accumulation in FP16: four micro-batches to one optimizer step, one loss scale for all of them.
//!
//! `cargo run --release -p ampdoctor-torch --example accumulation`
use ampdoctor_torch::{GradScaler, autocast};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

const MICRO_BATCHES: i64 = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(7);
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::seq()
        .add(nn::linear(vs.root() / "fc1", 16, 32, Default::default()))
        .add_fn(|xs| xs.relu())
        .add(nn::linear(vs.root() / "fc2", 32, 32, Default::default()))
        .add_fn(|xs| xs.relu())
        .add(nn::linear(vs.root() / "fc3", 32, 4, Default::default()));
    let mut opt = nn::Adam::default().build(&vs, 3e-3)?;
    let mut scaler = GradScaler::default();

    let mut doctor = ampdoctor_torch::Doctor::attach(&vs); // ampdoctor: line one
    for step in 1..=40 {
        let mut sum = 0.0;
        opt.zero_grad();
        for _ in 0..MICRO_BATCHES {
            let xs = Tensor::randn([16, 16], (Kind::Float, Device::Cpu));
            let ys = xs.narrow(1, 0, 4).argmax(-1, false);
            let loss = autocast(Device::Cpu, Kind::Half, || net.forward(&xs).cross_entropy_for_logits(&ys));
            let loss = loss / MICRO_BATCHES as f64;
            scaler.backward(&loss);
            sum += loss.double_value(&[]);
        }
        scaler.unscale(&mut opt)?;
        opt.clip_grad_norm(1.0);
        scaler.step(&mut opt)?;
        scaler.update()?;
        doctor.step(sum); // ampdoctor: line two
        if step % 10 == 0 {
            println!("step {step}, loss {sum:.3}");
        }
    }
    if let Some(path) = std::env::args().nth(1) {
        vs.save(path)?;
    }
    Ok(())
}
