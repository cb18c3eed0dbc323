//! A TorchScript module, made elsewhere and trained on here: tch puts its parameters into a VarStore.
//!
//! `cargo run --release -p ampdoctor-torch --example torchscript`
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Tensor, TrainableCModule};

const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/fixtures/classifier.pt");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(18);
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let mut net = TrainableCModule::load(MODULE, vs.root())?;
    net.set_train();
    let mut opt = nn::Adam::default().build(&vs, 3e-3)?;

    let mut doctor = ampdoctor_torch::Doctor::attach(&vs); // ampdoctor: line one
    for step in 1..=50 {
        let xs = Tensor::randn([32, 16], (Kind::Float, Device::Cpu));
        let ys = xs.narrow(1, 0, 4).argmax(-1, false);
        let loss = net.forward_t(&xs, true).cross_entropy_for_logits(&ys);
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
