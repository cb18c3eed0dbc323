//! Two models trained on two threads of one process, each with a doctor and a recording of its own.
//!
//! `cargo run --release -p ampdoctor-torch --example two_threads -- DIRECTORY` saves both models there.
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, TchError, Tensor};

/// A model, its data and its learning rate: all that one thread needs.
struct Job {
    name: &'static str,
    vs: nn::VarStore,
    net: nn::Sequential,
    batches: Vec<(Tensor, Tensor)>,
    lr: f64,
}

impl Job {
    /// The generator of random numbers belongs to all threads, so everything is drawn before they start.
    fn new(name: &'static str, width: i64, lr: f64) -> Self {
        let vs = nn::VarStore::new(Device::Cpu);
        let net = nn::seq()
            .add(nn::linear(vs.root() / "fc1", 8, width, Default::default()))
            .add_fn(|xs| xs.relu())
            .add(nn::linear(vs.root() / "fc2", width, 4, Default::default()));
        let batch = |_| {
            let xs = Tensor::randn([32, 8], (Kind::Float, Device::Cpu));
            let ys = xs.narrow(1, 0, 4).argmax(-1, false);
            (xs, ys)
        };
        Self { name, vs, net, batches: (0..80).map(batch).collect(), lr }
    }

    fn train(self) -> Result<Self, TchError> {
        let mut opt = nn::Adam::default().build(&self.vs, self.lr)?;
        let mut doctor = ampdoctor_torch::Doctor::attach(&self.vs); // ampdoctor: line one
        for (xs, ys) in &self.batches {
            let loss = self.net.forward(xs).cross_entropy_for_logits(ys);
            opt.backward_step(&loss);
            doctor.step(&loss); // ampdoctor: line two
        }
        Ok(self)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(10);
    tch::set_num_threads(1);
    let jobs = [Job::new("narrow", 16, 3e-3), Job::new("wide", 64, 1e-3)];
    let threads = jobs.map(|job| std::thread::spawn(move || job.train()));
    for thread in threads {
        let job = thread.join().expect("the thread trains to the end")?;
        let (xs, ys) = &job.batches[0];
        let accuracy = job.net.forward(xs).accuracy_for_logits(ys).double_value(&[]);
        println!("{}: accuracy {:.1} %", job.name, 100.0 * accuracy);
        if let Some(dir) = std::env::args().nth(1).map(std::path::PathBuf::from) {
            job.vs.save(dir.join(job.name).with_extension("safetensors"))?;
        }
    }
    Ok(())
}
