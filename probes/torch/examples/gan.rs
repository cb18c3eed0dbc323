//! A generative adversarial net: two networks in two VarStores, two optimizers, a detached fake batch for the discriminator.
//!
//! `cargo run --release -p ampdoctor-torch --example gan -- DIRECTORY` saves both networks there.
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor};

const LATENT: i64 = 4;
const BATCH: i64 = 32;

fn generator(p: nn::Path) -> impl Module {
    nn::seq()
        .add(nn::linear(&p / "fc1", LATENT, 32, Default::default()))
        .add_fn(|xs| xs.relu())
        .add(nn::linear(&p / "fc2", 32, 8, Default::default()))
        .add_fn(|xs| xs.tanh())
}

fn discriminator(p: nn::Path) -> impl Module {
    nn::seq()
        .add(nn::linear(&p / "fc1", 8, 32, Default::default()))
        .add_fn(|xs| xs.maximum(&(xs * 0.2)))
        .add(nn::linear(&p / "fc2", 32, 1, Default::default()))
}

/// Points on a curve.
fn real() -> Tensor {
    let t = Tensor::rand([BATCH, 1], (Kind::Float, Device::Cpu)) * std::f64::consts::TAU;
    let phases = Tensor::arange(8, (Kind::Float, Device::Cpu)) * 0.4;
    (t + phases).sin() * 0.8
}

/// How far the discriminator is from calling a batch real, or fake.
fn loss(says: &Tensor, real: bool) -> Tensor {
    let label = if real { says.ones_like() } else { says.zeros_like() };
    says.binary_cross_entropy_with_logits::<Tensor>(&label, None, None, Reduction::Mean)
}

fn noise() -> Tensor {
    Tensor::randn([BATCH, LATENT], (Kind::Float, Device::Cpu))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(5);
    tch::set_num_threads(1);
    let generator_vs = nn::VarStore::new(Device::Cpu);
    let generator = generator(generator_vs.root());
    let mut opt_g = nn::adam(0.5, 0.999, 0.).build(&generator_vs, 1e-3)?;
    let discriminator_vs = nn::VarStore::new(Device::Cpu);
    let discriminator = discriminator(discriminator_vs.root());
    let mut opt_d = nn::adam(0.5, 0.999, 0.).build(&discriminator_vs, 1e-3)?;

    let mut doctor = ampdoctor_torch::Doctor::builder().attach_all(&[&generator_vs, &discriminator_vs]); // ampdoctor: line one
    for step in 1..=60 {
        let fake = generator.forward(&noise());
        let loss_d = loss(&discriminator.forward(&real()), true) + loss(&discriminator.forward(&fake.detach()), false);
        opt_d.backward_step(&loss_d);

        let loss_g = loss(&discriminator.forward(&fake), true);
        opt_g.backward_step(&loss_g);
        doctor.step(&loss_g); // ampdoctor: line two
        if step % 20 == 0 {
            println!(
                "step {step}, discriminator {:.3}, generator {:.3}",
                loss_d.double_value(&[]),
                loss_g.double_value(&[])
            );
        }
    }
    if let Some(dir) = std::env::args().nth(1).map(std::path::PathBuf::from) {
        generator_vs.save(dir.join("generator.safetensors"))?;
        discriminator_vs.save(dir.join("discriminator.safetensors"))?;
    }
    Ok(())
}
