//! A loss scaler of the user's own, on the operators that PyTorch's is made of.
//!
//! `cargo run --release -p ampdoctor-torch --example own_scaler`
use std::ffi::c_void;

use ampdoctor_torch::autocast;
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

unsafe extern "C" {
    /// tch does not bind `_amp_foreach_non_finite_check_and_unscale_`; this function is the one line of C++ that calls it.
    fn ampdoctor_unscale(
        grads: *const *mut c_void,
        count: usize,
        found_inf: *mut c_void,
        inverse: *const c_void,
    ) -> i32;
}

struct Scaler {
    scale: Tensor,
    tracker: Tensor,
    found_inf: Tensor,
}

impl Scaler {
    fn new(scale: f32) -> Self {
        Self { scale: Tensor::from(scale), tracker: Tensor::from(0i32), found_inf: Tensor::from(0f32) }
    }

    fn scale(&self, loss: &Tensor) -> Tensor {
        loss * &self.scale
    }

    fn unscale(&mut self, vs: &nn::VarStore) {
        let _ = self.found_inf.fill_(0.0);
        let grads: Vec<Tensor> = vs.trainable_variables().iter().map(Tensor::grad).collect();
        let grads: Vec<*mut c_void> = grads.iter().map(|g| g.as_ptr().cast_mut().cast()).collect();
        let inverse = self.scale.reciprocal();
        // SAFETY: all are live tensors of one device; the gradients have one dtype.
        let code = tch::no_grad(|| unsafe {
            ampdoctor_unscale(
                grads.as_ptr(),
                grads.len(),
                self.found_inf.as_ptr().cast_mut().cast(),
                inverse.as_ptr().cast(),
            )
        });
        assert_eq!(code, 0, "unscaling failed");
    }

    fn step(&self, opt: &mut nn::Optimizer) {
        if self.found_inf.double_value(&[]) == 0.0 {
            opt.step();
        }
    }

    fn update(&mut self) {
        let _ = self.scale.internal_amp_update_scale_(&self.tracker, &self.found_inf, 2.0, 0.5, 100);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(17);
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::seq()
        .add(nn::linear(vs.root() / "fc1", 16, 32, Default::default()))
        .add_fn(|xs| xs.relu())
        .add(nn::linear(vs.root() / "fc2", 32, 4, Default::default()));
    let mut opt = nn::Adam::default().build(&vs, 3e-3)?;
    let mut scaler = Scaler::new(65536.0);

    let mut doctor = ampdoctor_torch::Doctor::attach(&vs); // ampdoctor: line one
    for step in 1..=50 {
        let xs = Tensor::randn([32, 16], (Kind::Float, Device::Cpu));
        let ys = xs.narrow(1, 0, 4).argmax(-1, false);
        let loss = autocast(Device::Cpu, Kind::Half, || net.forward(&xs).cross_entropy_for_logits(&ys));
        opt.zero_grad();
        scaler.scale(&loss).backward();
        scaler.unscale(&vs);
        scaler.step(&mut opt);
        scaler.update();
        doctor.step(&loss); // ampdoctor: line two
        if step % 10 == 0 {
            println!("step {step}, loss {:.3}, scale {}", loss.double_value(&[]), scaler.scale.double_value(&[]));
        }
    }
    if let Some(path) = std::env::args().nth(1) {
        vs.save(path)?;
    }
    Ok(())
}
