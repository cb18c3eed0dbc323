//! A generative adversarial net in one VarStore, in FP16: each optimizer has the variables below a path of its own, one scaler serves both.
//!
//! `cargo run --release -p ampdoctor-torch --example gan_one_store`
use ampdoctor_torch::{GradScaler, autocast};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor};

const DEVICE: Device = Device::Cpu;
const LATENT: i64 = 4;
const POINTS: i64 = 8;
const BATCH: i64 = 32;

fn generator(p: nn::Path) -> impl Module {
    nn::seq()
        .add(nn::linear(&p / "fc1", LATENT, 32, Default::default()))
        .add_fn(|xs| xs.relu())
        .add(nn::linear(&p / "fc2", 32, POINTS, Default::default()))
        .add_fn(|xs| xs.tanh())
}

fn discriminator(p: nn::Path) -> impl Module {
    nn::seq()
        .add(nn::linear(&p / "fc1", POINTS, 32, Default::default()))
        .add_fn(|xs| xs.maximum(&(xs * 0.2)))
        .add(nn::linear(&p / "fc2", 32, 1, Default::default()))
}

/// The variables below a path, as a store that an optimizer can be built for: they are the same tensors, not copies.
fn below(vs: &nn::VarStore, path: &str) -> nn::VarStore {
    let part = nn::VarStore::new(vs.device());
    let mut variables: Vec<_> = vs.variables().into_iter().filter(|(name, _)| name.starts_with(path)).collect();
    variables.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, variable) in variables {
        let _ = part.root().add(&name.replace('.', "_"), variable, true);
    }
    part
}

/// Points on a curve.
fn real() -> Tensor {
    let t = Tensor::rand([BATCH, 1], (Kind::Float, DEVICE)) * std::f64::consts::TAU;
    let phases = Tensor::arange(POINTS, (Kind::Float, DEVICE)) * 0.4;
    (t + phases).sin() * 0.8
}

/// How far the discriminator is from calling a batch real, or fake.
fn loss(says: &Tensor, real: bool) -> Tensor {
    let label = if real { says.ones_like() } else { says.zeros_like() };
    says.binary_cross_entropy_with_logits::<Tensor>(&label, None, None, Reduction::Mean)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(5);
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(DEVICE);
    let generator = generator(&vs.root() / "generator");
    let discriminator = discriminator(&vs.root() / "discriminator");
    let mut opt_g = nn::adam(0.5, 0.999, 0.).build(&below(&vs, "generator"), 1e-3)?;
    let mut opt_d = nn::adam(0.5, 0.999, 0.).build(&below(&vs, "discriminator"), 1e-3)?;
    let mut scaler = GradScaler::default();

    let mut doctor = ampdoctor_torch::Doctor::attach(&vs); // ampdoctor: line one
    for step in 1..=60 {
        let fake =
            autocast(DEVICE, Kind::Half, || generator.forward(&Tensor::randn([BATCH, LATENT], (Kind::Float, DEVICE))));
        let loss_d = autocast(DEVICE, Kind::Half, || {
            loss(&discriminator.forward(&real()), true) + loss(&discriminator.forward(&fake.detach()), false)
        });
        opt_d.zero_grad();
        scaler.backward(&loss_d);
        scaler.step(&mut opt_d)?;

        // Leaves gradients in the discriminator too; they are cleared before it is trained again.
        let loss_g = autocast(DEVICE, Kind::Half, || loss(&discriminator.forward(&fake), true));
        opt_g.zero_grad();
        scaler.backward(&loss_g);
        scaler.step(&mut opt_g)?;
        scaler.update()?;
        doctor.step(&loss_g); // ampdoctor: line two
        if step % 20 == 0 {
            println!(
                "step {step}, discriminator {:.3}, generator {:.3}",
                loss_d.double_value(&[]),
                loss_g.double_value(&[])
            );
        }
    }
    if let Some(path) = std::env::args().nth(1) {
        vs.save(path)?;
    }
    Ok(())
}
