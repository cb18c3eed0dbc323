//! A model that is built after the doctor was attached, and grows a layer while it trains.
//!
//! `cargo run --release -p ampdoctor-torch --example late_variables`
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(12);
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let mut doctor = ampdoctor_torch::Doctor::attach(&vs); // ampdoctor: line one
    let first = nn::linear(vs.root() / "first", 8, 24, Default::default());
    let head = nn::linear(vs.root() / "head", 24, 4, Default::default());
    let mut grown = nn::seq();
    let mut opt = nn::Adam::default().build(&vs, 3e-3)?;

    for step in 1..=60 {
        if step == 21 {
            grown = grown.add(nn::linear(vs.root() / "grown", 24, 24, Default::default())).add_fn(|xs| xs.relu());
        }
        let xs = Tensor::randn([32, 8], (Kind::Float, Device::Cpu));
        let ys = xs.narrow(1, 0, 4).argmax(-1, false);
        let hidden = first.forward(&xs).relu();
        let hidden = if grown.is_empty() { hidden } else { &hidden + grown.forward(&hidden) };
        let loss = head.forward(&hidden).cross_entropy_for_logits(&ys);
        opt.backward_step(&loss);
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
