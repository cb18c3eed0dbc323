//! A critic with a gradient penalty: the gradient of its output by its input is part of the loss, so backward goes through backward.
//!
//! `cargo run --release -p ampdoctor-torch --example gradient_penalty`
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

const BATCH: i64 = 32;

/// How far the norm of the critic's gradient is from 1, between real and fake.
fn penalty(critic: &impl Module, real: &Tensor, fake: &Tensor) -> Tensor {
    let share = Tensor::rand([BATCH, 1], (Kind::Float, Device::Cpu));
    let between = (real * &share + fake * (1i64 - &share)).detach().set_requires_grad(true);
    let score = critic.forward(&between).sum(Kind::Float);
    let gradient = Tensor::run_backward(&[&score], &[&between], true, true);
    let norm = (gradient[0].square().sum_dim_intlist(1, false, Kind::Float) + 1e-12).sqrt();
    (norm - 1.0).square().mean(Kind::Float)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(11);
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let critic = nn::seq()
        .add(nn::linear(vs.root() / "fc1", 8, 32, Default::default()))
        .add_fn(|xs| xs.softplus())
        .add(nn::linear(vs.root() / "fc2", 32, 32, Default::default()))
        .add_fn(|xs| xs.softplus())
        .add(nn::linear(vs.root() / "fc3", 32, 1, Default::default()));
    let mut opt = nn::adam(0.5, 0.9, 0.).build(&vs, 1e-3)?;

    let mut doctor = ampdoctor_torch::Doctor::attach(&vs); // ampdoctor: line one
    for step in 1..=40 {
        let real = Tensor::randn([BATCH, 8], (Kind::Float, Device::Cpu)) + 1.0;
        let fake = Tensor::randn([BATCH, 8], (Kind::Float, Device::Cpu));
        let distance = critic.forward(&fake).mean(Kind::Float) - critic.forward(&real).mean(Kind::Float);
        let loss = distance + penalty(&critic, &real, &fake) * 10.0;
        opt.backward_step(&loss);
        doctor.step(&loss); // ampdoctor: line two
        if step % 10 == 0 {
            println!("step {step}, loss {:.3}", loss.double_value(&[]));
        }
    }
    if let Some(path) = std::env::args().nth(1) {
        vs.save(path)?;
    }
    Ok(())
}
