//! A training loop in FP16 with a doctor attached: `cargo run --release -p ampdoctor-torch --example attach`.
use ampdoctor_torch::{Doctor, GradScaler, autocast};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::seq()
        .add(nn::linear(&vs.root() / "fc1", 16, 32, Default::default()))
        .add_fn(|x| x.relu())
        .add(nn::linear(&vs.root() / "fc2", 32, 4, Default::default()));
    let mut opt = nn::Adam::default().build(&vs, 1e-3)?;

    let mut doctor = Doctor::attach(&vs); // line one
    let mut scaler = GradScaler::default();
    for _ in 0..200 {
        let x = Tensor::randn([64, 16], (Kind::Float, Device::Cpu));
        let y = x.narrow(1, 0, 4).argmax(1, false);
        let loss = autocast(Device::Cpu, Kind::Half, || net.forward(&x).cross_entropy_for_logits(&y));
        opt.zero_grad();
        scaler.backward(&loss);
        scaler.unscale(&mut opt)?;
        opt.clip_grad_norm(1.0);
        scaler.step(&mut opt)?;
        scaler.update()?;
        doctor.step(&loss); // line two
    }
    let report = doctor.finish();
    if let Some(path) = report.recording() {
        println!("{} steps; now: ampdoctor check {}", report.steps(), path.display());
    }
    Ok(())
}
