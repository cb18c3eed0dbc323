//! Transfer learning: the backbone is frozen at first, only the head is trained; later the backbone is unfrozen and trained along.
//!
//! `cargo run --release -p ampdoctor-torch --example transfer`
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

fn set_trainable(vs: &nn::VarStore, prefix: &str, trainable: bool) {
    for (name, variable) in vs.variables() {
        if name.starts_with(prefix) {
            let _ = variable.set_requires_grad(trainable);
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(6);
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let backbone = nn::seq()
        .add(nn::linear(vs.root() / "backbone" / "fc1", 16, 32, Default::default()))
        .add_fn(|xs| xs.gelu("none"))
        .add(nn::linear(vs.root() / "backbone" / "fc2", 32, 32, Default::default()))
        .add_fn(|xs| xs.gelu("none"));
    let head = nn::linear(vs.root() / "head", 32, 3, Default::default());
    let mut opt = nn::Adam::default().build(&vs, 3e-3)?;
    set_trainable(&vs, "backbone", false);

    let mut doctor = ampdoctor_torch::Doctor::attach(&vs); // ampdoctor: line one
    for step in 1..=50 {
        if step == 26 {
            set_trainable(&vs, "backbone", true);
            opt.set_lr(1e-3);
        }
        let xs = Tensor::randn([32, 16], (Kind::Float, Device::Cpu));
        let ys = xs.narrow(1, 0, 3).argmax(-1, false);
        let loss = head.forward(&backbone.forward(&xs)).cross_entropy_for_logits(&ys);
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
