//! A regression with `backward_step_clip`: backward, clipping by value and the optimizer's step in one call.
//!
//! `cargo run --release -p ampdoctor-torch --example clipped`
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(9);
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::seq()
        .add(nn::linear(vs.root() / "fc1", 4, 32, Default::default()))
        .add_fn(|xs| xs.tanh())
        .add(nn::linear(vs.root() / "fc2", 32, 1, Default::default()));
    let mut opt = nn::RmsProp::default().build(&vs, 1e-3)?;

    let mut doctor = ampdoctor_torch::Doctor::attach(&vs); // ampdoctor: line one
    for step in 1..=60 {
        let xs = Tensor::randn([32, 4], (Kind::Float, Device::Cpu));
        let ys = xs.sum_dim_intlist(1, true, Kind::Float).sin();
        let loss = net.forward(&xs).mse_loss(&ys, tch::Reduction::Mean);
        opt.backward_step_clip(&loss, 0.5);
        doctor.step(&loss); // ampdoctor: line two
        if step % 20 == 0 {
            println!("step {step}, loss {:.3}", loss.double_value(&[]));
        }
    }
    if let Some(path) = std::env::args().nth(1) {
        vs.save(path)?;
    }
    Ok(())
}
