//! A hand-written optimizer (Lion) under no-grad, over plain tensors that are in no VarStore.
//!
//! `cargo run --release -p ampdoctor-torch --example own_optimizer`
use tch::{Device, Kind, Tensor};

struct Lion {
    lr: f64,
    parameters: Vec<Tensor>,
    momenta: Vec<Tensor>,
}

impl Lion {
    fn new(parameters: &[(&str, &Tensor)], lr: f64) -> Self {
        let parameters: Vec<Tensor> = parameters.iter().map(|(_, p)| p.shallow_clone()).collect();
        let momenta = parameters.iter().map(|p| p.detach().zeros_like()).collect();
        Self { lr, parameters, momenta }
    }

    fn step(&mut self) {
        tch::no_grad(|| {
            for (parameter, momentum) in self.parameters.iter_mut().zip(&mut self.momenta) {
                let grad = parameter.grad();
                *parameter -= (&*momentum * 0.9 + &grad * 0.1).sign() * self.lr;
                *momentum *= 0.99;
                *momentum += grad * 0.01;
                parameter.zero_grad();
            }
        });
    }
}

fn weight(size: &[i64]) -> Tensor {
    (Tensor::randn(size, (Kind::Float, Device::Cpu)) * 0.2).set_requires_grad(true)
}

fn bias(size: i64) -> Tensor {
    Tensor::zeros([size], (Kind::Float, Device::Cpu)).set_requires_grad(true)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(8);
    tch::set_num_threads(1);
    let (w1, b1) = (weight(&[16, 32]), bias(32));
    let (w2, b2) = (weight(&[32, 4]), bias(4));
    let parameters = [("fc1.weight", &w1), ("fc1.bias", &b1), ("fc2.weight", &w2), ("fc2.bias", &b2)];
    let mut opt = Lion::new(&parameters, 3e-3);

    let mut doctor = ampdoctor_torch::Doctor::attach_tensors(&parameters); // ampdoctor: line one
    for step in 1..=40 {
        let xs = Tensor::randn([32, 16], (Kind::Float, Device::Cpu));
        let ys = xs.narrow(1, 0, 4).argmax(-1, false);
        let hidden = (xs.matmul(&w1) + &b1).relu();
        let loss = (hidden.matmul(&w2) + &b2).cross_entropy_for_logits(&ys);
        loss.backward();
        opt.step();
        doctor.step(&loss); // ampdoctor: line two
        if step % 10 == 0 {
            println!("step {step}, loss {:.3}", loss.double_value(&[]));
        }
    }
    if let Some(path) = std::env::args().nth(1) {
        Tensor::write_safetensors(&parameters, path)?;
    }
    Ok(())
}
