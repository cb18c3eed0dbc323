//! A variational auto-encoder: two heads on one hidden layer, noise drawn in the model, a loss that is a sum of two.
//!
//! `cargo run --release -p ampdoctor-torch --example vae`
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor};

const PIXELS: i64 = 64;

struct Vae {
    fc1: nn::Linear,
    mu: nn::Linear,
    logvar: nn::Linear,
    fc3: nn::Linear,
    fc4: nn::Linear,
}

impl Vae {
    fn new(vs: &nn::Path) -> Self {
        let linear = |name: &str, i, o| nn::linear(vs / name, i, o, Default::default());
        Self {
            fc1: linear("fc1", PIXELS, 32),
            mu: linear("mu", 32, 4),
            logvar: linear("logvar", 32, 4),
            fc3: linear("fc3", 4, 32),
            fc4: linear("fc4", 32, PIXELS),
        }
    }

    fn encode(&self, xs: &Tensor) -> (Tensor, Tensor) {
        let hidden = xs.apply(&self.fc1).relu();
        (self.mu.forward(&hidden), self.logvar.forward(&hidden))
    }

    fn decode(&self, zs: &Tensor) -> Tensor {
        zs.apply(&self.fc3).relu().apply(&self.fc4).sigmoid()
    }

    fn forward(&self, xs: &Tensor) -> (Tensor, Tensor, Tensor) {
        let (mu, logvar) = self.encode(xs);
        let std = (&logvar * 0.5).exp();
        let eps = std.randn_like();
        (self.decode(&(&mu + eps * std)), mu, logvar)
    }
}

/// Reconstruction and the divergence from the prior, summed over elements and batch.
fn loss(recon: &Tensor, xs: &Tensor, mu: &Tensor, logvar: &Tensor) -> Tensor {
    let bce = recon.binary_cross_entropy::<Tensor>(xs, None, Reduction::Sum);
    let kld = -0.5 * (1i64 + logvar - mu.pow_tensor_scalar(2) - logvar.exp()).sum(Kind::Float);
    bce + kld
}

/// Images with one bright row each.
fn images(count: i64) -> Tensor {
    let rows = Tensor::randint(8, [count], tch::kind::INT64_CPU).onehot(8).unsqueeze(-1);
    let noise = Tensor::rand([count, 8, 8], (Kind::Float, Device::Cpu));
    (rows * 0.9 + noise * 0.05).view([-1, PIXELS])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(4);
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let vae = Vae::new(&vs.root());
    let mut opt = nn::Adam::default().build(&vs, 3e-3)?;

    let mut doctor = ampdoctor_torch::Doctor::attach(&vs); // ampdoctor: line one
    for epoch in 1..=4 {
        let mut sum = 0.0;
        for _ in 0..12 {
            let xs = images(32);
            let (recon, mu, logvar) = vae.forward(&xs);
            let loss = loss(&recon, &xs, &mu, &logvar);
            opt.backward_step(&loss);
            doctor.step(&loss); // ampdoctor: line two
            sum += loss.double_value(&[]);
        }
        let samples = vae.decode(&Tensor::randn([8, 4], (Kind::Float, Device::Cpu)));
        println!("epoch {epoch}, loss {:.1}, samples up to {:.2}", sum / 12.0, samples.max().double_value(&[]));
    }
    if let Some(path) = std::env::args().nth(1) {
        vs.save(path)?;
    }
    Ok(())
}
