//! In-place activations and in-place residual sums, to save memory, under FP16 autocast.
//!
//! `cargo run --release -p ampdoctor-torch --example in_place`
use ampdoctor_torch::{GradScaler, autocast};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(15);
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let linear = |name: &str, i, o| nn::linear(vs.root() / name, i, o, Default::default());
    let (fc1, fc2, fc3) = (linear("fc1", 8, 32), linear("fc2", 32, 32), linear("fc3", 32, 4));
    let mut opt = nn::Adam::default().build(&vs, 3e-3)?;
    let mut scaler = GradScaler::default();

    let mut doctor = ampdoctor_torch::Doctor::attach(&vs); // ampdoctor: line one
    for step in 1..=50 {
        let xs = Tensor::randn([32, 8], (Kind::Float, Device::Cpu));
        let ys = xs.narrow(1, 0, 4).argmax(-1, false);
        let loss = autocast(Device::Cpu, Kind::Half, || {
            let hidden = fc1.forward(&xs).dropout_(0.1, true).relu_();
            let mut sum = fc2.forward(&hidden);
            sum += &hidden;
            fc3.forward(&sum.leaky_relu_()).cross_entropy_for_logits(&ys)
        });
        opt.zero_grad();
        scaler.backward(&loss);
        scaler.step(&mut opt)?;
        scaler.update()?;
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
