//! Word vectors with sparse gradients, in a bag-of-words classifier; a hand-written optimizer steps only the rows that were used.
//!
//! `cargo run --release -p ampdoctor-torch --example sparse_embedding`
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

const WORDS: i64 = 500;

/// SGD on the rows that have a gradient.
fn step_rows(weight: &mut Tensor, lr: f64) {
    tch::no_grad(|| {
        let grad = weight.grad().coalesce();
        let _ = weight.index_add_(0, &grad.indices().squeeze(), &(grad.values() * -lr));
    });
    weight.zero_grad();
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(16);
    tch::set_num_threads(1);
    let vectors_vs = nn::VarStore::new(Device::Cpu);
    let config = nn::EmbeddingConfig { sparse: true, ..Default::default() };
    let mut vectors = nn::embedding(vectors_vs.root() / "vectors", WORDS, 16, config);
    let vs = nn::VarStore::new(Device::Cpu);
    let head = nn::linear(vs.root() / "head", 16, 2, Default::default());
    let mut opt = nn::Sgd::default().build(&vs, 0.5)?;

    let mut doctor = ampdoctor_torch::Doctor::builder().attach_all(&[&vectors_vs, &vs]); // ampdoctor: line one
    for step in 1..=60 {
        let words = Tensor::randint(WORDS, [32, 12], tch::kind::INT64_CPU);
        let ys = words.lt(WORDS / 2).sum_dim_intlist(1, false, Kind::Int64).gt(6).to_kind(Kind::Int64);
        let bag = vectors.forward(&words).mean_dim(1, false, Kind::Float);
        let loss = head.forward(&bag).cross_entropy_for_logits(&ys);
        opt.backward_step(&loss);
        step_rows(&mut vectors.ws, 5.0);
        doctor.step(&loss); // ampdoctor: line two
        if step % 20 == 0 {
            println!("step {step}, loss {:.3}", loss.double_value(&[]));
        }
    }
    if let Some(dir) = std::env::args().nth(1).map(std::path::PathBuf::from) {
        vectors_vs.save(dir.join("vectors.safetensors"))?;
        vs.save(dir.join("head.safetensors"))?;
    }
    Ok(())
}
