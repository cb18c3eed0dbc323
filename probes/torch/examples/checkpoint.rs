//! A store that is loaded, frozen for an evaluation and cast to FP16 while a doctor is attached; the FP16 weights have FP32 masters.
//!
//! `cargo run --release -p ampdoctor-torch --example checkpoint`
use ampdoctor_torch::{GradScaler, MasterWeights, MasteredOptimizer};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

fn batch(kind: Kind) -> (Tensor, Tensor) {
    let xs = Tensor::randn([32, 8], (Kind::Float, Device::Cpu));
    let ys = xs.narrow(1, 0, 4).argmax(-1, false);
    (xs.to_kind(kind), ys)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(13);
    tch::set_num_threads(1);
    let mut vs = nn::VarStore::new(Device::Cpu);
    let net = nn::seq()
        .add(nn::linear(vs.root() / "fc1", 8, 32, Default::default()))
        .add_fn(|xs| xs.relu())
        .add(nn::linear(vs.root() / "fc2", 32, 4, Default::default()));
    let file = std::env::temp_dir().join(format!("checkpoint-{}.ot", std::process::id()));
    vs.save(&file)?;

    let mut doctor = ampdoctor_torch::Doctor::attach(&vs); // ampdoctor: line one
    vs.load(&file)?;
    std::fs::remove_file(&file)?;
    let mut opt = nn::Adam::default().build(&vs, 3e-3)?;
    let mut fp16: Option<(MasteredOptimizer, GradScaler)> = None;
    for step in 1..=60 {
        if step == 21 {
            vs.freeze();
            let (xs, ys) = batch(Kind::Float);
            println!("accuracy {:.2}", net.forward(&xs).accuracy_for_logits(&ys).double_value(&[]));
            vs.unfreeze();
        }
        if step == 31 {
            vs.half();
            fp16 = Some((MasterWeights::new(&vs)?.build(nn::Adam::default(), 1e-3)?, GradScaler::default()));
        }
        let (xs, ys) = batch(if fp16.is_some() { Kind::Half } else { Kind::Float });
        let loss = net.forward(&xs).to_kind(Kind::Float).cross_entropy_for_logits(&ys);
        match &mut fp16 {
            None => opt.backward_step(&loss),
            Some((opt, scaler)) => {
                opt.zero_grad();
                scaler.backward(&loss);
                scaler.step(opt)?;
                scaler.update()?;
            }
        }
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
