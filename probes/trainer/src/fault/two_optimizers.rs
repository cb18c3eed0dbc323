//! Two optimizers under one scaler, which is no fault.

use std::sync::PoisonError;

use ampdoctor_torch::AmpOptimizer;
use anyhow::Result;
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Tensor};

use super::Fault;
use crate::options::Options;
use crate::precision::Precision;
use crate::stepper::Stepper;

pub(super) struct TwoOptimizers;

impl Fault for TwoOptimizers {
    fn name(&self) -> &'static str {
        "two-optimizers"
    }

    fn about(&self) -> &'static str {
        "no fault: one optimizer for the first half of the parameters and one for the rest, stepped one after the other, and one update of the scaler"
    }

    fn is_setting(&self) -> bool {
        true
    }

    fn prepare(&self, options: &mut Options) -> Vec<String> {
        let needed = if options.precision.has_masters() { Precision::Fp16 } else { options.precision };
        options.need_precision(needed).into_iter().collect()
    }

    fn splits_optimizer(&self) -> bool {
        true
    }
}

/// Two optimizers of one kind, each on a part of the model.
pub struct TwoSteppers {
    first: nn::Optimizer,
    second: nn::Optimizer,
}

impl TwoSteppers {
    /// Optimizers on the first half of the parameters and on the rest.
    pub fn new(options: &Options, vs: &nn::VarStore) -> Result<Self> {
        let (kind, lr) = (options.optimizer_config(), options.learning_rate());
        let all = vs.trainable_variables();
        let (first, second) = all.split_at(all.len() / 2);
        Ok(Self { first: kind.build(&store_of(first), lr)?, second: kind.build(&store_of(second), lr)? })
    }
}

/// A VarStore that holds these parameters of another one.
fn store_of(parameters: &[Tensor]) -> nn::VarStore {
    let part = nn::VarStore::new(Device::Cpu);
    for place in 0..parameters.len() {
        let _variable = part.root().var(&place.to_string(), &[1], nn::Init::Const(0.0));
    }
    let mut variables = part.variables_.lock().unwrap_or_else(PoisonError::into_inner);
    for (variable, parameter) in variables.trainable_variables.iter_mut().zip(parameters) {
        variable.tensor = parameter.shallow_clone();
    }
    drop(variables);
    part
}

impl AmpOptimizer for TwoSteppers {
    fn parameters(&self) -> Vec<Tensor> {
        self.first.trainable_variables()
    }

    fn apply(&mut self) {
        self.first.step();
    }
}

impl Stepper for TwoSteppers {
    fn optimizer(&mut self) -> &mut nn::Optimizer {
        &mut self.first
    }

    fn second(&mut self) -> Option<&mut nn::Optimizer> {
        Some(&mut self.second)
    }

    fn zero_grad(&mut self) {
        self.first.zero_grad();
        self.second.zero_grad();
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn each_parameter_is_stepped_by_one_of_the_two() {
        let options = Options::parse_from(["t"]);
        let vs = nn::VarStore::new(Device::Cpu);
        let _model = options.model.build(&vs.root());
        let steppers = TwoSteppers::new(&options, &vs).unwrap();
        let places = |optimizer: &nn::Optimizer| -> Vec<_> {
            optimizer.trainable_variables().iter().map(Tensor::data_ptr).collect()
        };
        let all: Vec<_> = vs.trainable_variables().iter().map(Tensor::data_ptr).collect();
        assert_eq!([places(&steppers.first), places(&steppers.second)].concat(), all);
        assert_eq!(steppers.first.trainable_variables().len(), all.len() / 2);
    }
}
