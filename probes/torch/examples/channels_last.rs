//! Tensors that are not contiguous: images and convolution weights in channels-last order, a projection kept transposed.
//!
//! `cargo run --release -p ampdoctor-torch --example channels_last`
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Kind, Tensor};

/// The same tensor with its channels innermost in memory.
fn channels_last(t: &Tensor) -> Tensor {
    t.permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2])
}

fn randn(size: &[i64], std: f64) -> Tensor {
    Tensor::randn(size, (Kind::Float, Device::Cpu)) * std
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(14);
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let root = vs.root();
    let conv1 = (&root / "conv1").add("weight", channels_last(&randn(&[8, 3, 3, 3], 0.2)), true);
    let conv2 = (&root / "conv2").add("weight", channels_last(&randn(&[16, 8, 3, 3], 0.1)), true);
    let proj = (&root / "proj").add("weight", randn(&[4, 16], 0.2).tr(), true);
    let mut opt = nn::AdamW::default().build(&vs, 3e-3)?;

    let mut doctor = ampdoctor_torch::Doctor::attach(&vs); // ampdoctor: line one
    for step in 1..=40 {
        let ys = Tensor::randint(4, [16], tch::kind::INT64_CPU);
        let level = ys.to_kind(Kind::Float).view([16, 1, 1, 1]) * 0.5;
        let xs = channels_last(&(randn(&[16, 3, 12, 12], 0.5) + level));
        let hidden = xs.conv2d::<Tensor>(&conv1, None, 2, 1, 1, 1).relu();
        let hidden = hidden.conv2d::<Tensor>(&conv2, None, 2, 1, 1, 1).relu();
        let loss =
            hidden.mean_dim([2i64, 3].as_slice(), false, Kind::Float).matmul(&proj).cross_entropy_for_logits(&ys);
        opt.backward_step(&loss);
        doctor.step(&loss); // ampdoctor: line two
        if step % 10 == 0 {
            println!("step {step}, loss {:.3}", loss.double_value(&[]));
        }
    }
    if let Some(path) = std::env::args().nth(1) {
        Tensor::write_safetensors(
            &[
                ("conv1.weight", &conv1.contiguous()),
                ("conv2.weight", &conv2.contiguous()),
                ("proj.weight", &proj.contiguous()),
            ],
            path,
        )?;
    }
    Ok(())
}
