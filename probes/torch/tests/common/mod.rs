//! What the tests against PyTorch's recordings have in common.

use ampdoctor_torch::GradScaler;
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Tensor};

/// One parameter under SGD, and the scaler that is tried on it.
pub struct Run {
    pub parameter: Tensor,
    pub optimizer: nn::Optimizer,
    pub scaler: GradScaler,
    /// Owns the parameter.
    _vs: nn::VarStore,
}

impl Run {
    pub fn new(start: &[f32], lr: f64, scaler: GradScaler) -> Run {
        tch::set_num_threads(1);
        let vs = nn::VarStore::new(Device::Cpu);
        let parameter = vs.root().var_copy("p", &Tensor::from_slice(start));
        let optimizer = nn::Sgd::default().build(&vs, lr).unwrap();
        Run { parameter, optimizer, scaler, _vs: vs }
    }

    pub fn values(&self) -> Vec<f32> {
        Vec::try_from(&self.parameter).unwrap()
    }
}
