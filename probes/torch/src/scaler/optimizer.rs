//! Optimizers as a scaler sees them: their parameters, and how far each has come in this step.

use std::ffi::c_void;

use tch::{Tensor, nn};

use super::ScalerError;

/// What a [`GradScaler`](super::GradScaler) needs of an optimizer; `nn::Optimizer` has it, and an optimizer of your own can.
///
/// A scaler tells optimizers apart by their first parameter, since a Rust value has no address that lasts. For `tch` that names
/// the VarStore: its list of variables only ever grows at the end, so variables added later, frozen ones, `half` and
/// `set_device` change nothing. Two optimizers over *one* VarStore hold the same gradients, and are one optimizer to the scaler: it refuses
/// to unscale those gradients a second time within a step, where PyTorch would divide them by the scale twice.
pub trait AmpOptimizer {
    /// The parameters it steps, always in the same order; those without a gradient are skipped.
    fn parameters(&self) -> Vec<Tensor>;

    /// Applies the gradients to the parameters.
    fn apply(&mut self);

    /// Makes the gradients ready to be unscaled, once per step and before they are looked at; nothing by default. Master weights pull
    /// the gradients of their model over.
    fn prepare(&mut self) -> Result<(), ScalerError> {
        Ok(())
    }

    /// [`apply`](Self::apply) for an optimizer that can fail; what a scaler calls.
    fn try_apply(&mut self) -> Result<(), ScalerError> {
        self.apply();
        Ok(())
    }
}

impl AmpOptimizer for nn::Optimizer {
    fn parameters(&self) -> Vec<Tensor> {
        self.trainable_variables()
    }

    fn apply(&mut self) {
        self.step();
    }
}

/// How far an optimizer has come since the last update; one that is not listed is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Unscaled,
    Stepped,
}

/// An optimizer whose gradients were unscaled since the last update.
#[derive(Debug)]
pub(super) struct InFlight {
    pub number: u32,
    pub stage: Stage,
    /// Whether a gradient was not finite.
    pub found_inf: bool,
    /// Held until the update, so that no other optimizer's parameters can take their addresses.
    pub _parameters: Vec<Tensor>,
}

/// The optimizers that one scaler has met.
#[derive(Debug, Default)]
pub(super) struct Optimizers {
    /// Identity of each one's first parameter; the index is its number.
    known: Vec<usize>,
    in_flight: Vec<InFlight>,
}

impl Optimizers {
    /// The number of the optimizer that steps these parameters, counted in order of first use.
    pub(super) fn number(&mut self, parameters: &[Tensor]) -> u32 {
        let identity = parameters.first().map_or(0, identity);
        let index = self.known.iter().position(|&known| known == identity).unwrap_or_else(|| {
            self.known.push(identity);
            self.known.len() - 1
        });
        index as u32
    }

    /// What optimizer `number` has come to since the last update; `None` when it is ready.
    pub(super) fn in_flight(&self, number: u32) -> Option<&InFlight> {
        self.in_flight.iter().find(|optimizer| optimizer.number == number)
    }

    pub(super) fn unscaled(&mut self, number: u32, found_inf: bool, parameters: Vec<Tensor>) {
        self.in_flight.push(InFlight { number, stage: Stage::Unscaled, found_inf, _parameters: parameters });
    }

    pub(super) fn stepped(&mut self, number: u32) {
        for optimizer in self.in_flight.iter_mut().filter(|optimizer| optimizer.number == number) {
            optimizer.stage = Stage::Stepped;
        }
    }

    /// Whether a gradient of any optimizer was not finite; `None` where none was checked.
    pub(super) fn found_inf(&self) -> Option<bool> {
        self.in_flight.iter().map(|optimizer| optimizer.found_inf).reduce(|a, b| a || b)
    }

    /// Makes every optimizer ready again.
    pub(super) fn reset(&mut self) {
        self.in_flight.clear();
    }
}

unsafe extern "C" {
    fn ampdoctor_tensor_identity(tensor: *const c_void) -> *const c_void;
}

/// What stays the same for a parameter whatever happens to its handle or storage; 0 for an undefined tensor.
pub(crate) fn identity(tensor: &Tensor) -> usize {
    // SAFETY: the handle behind a tch tensor is an at::Tensor that lives as long as the borrow; only an address is read.
    unsafe { ampdoctor_tensor_identity(tensor.as_ptr().cast()) as usize }
}

#[cfg(test)]
mod tests {
    use tch::nn::OptimizerConfig;
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn an_optimizer_keeps_its_number_when_its_model_grows_is_cast_or_frozen() {
        let mut vs = nn::VarStore::new(Device::Cpu);
        let _a = vs.root().zeros("a", &[2]);
        let optimizer = nn::Sgd::default().build(&vs, 0.1).unwrap();
        let mut optimizers = Optimizers::default();
        assert_eq!(optimizers.number(&optimizer.parameters()), 0);
        let _b = vs.root().zeros("b", &[2]);
        vs.half();
        vs.freeze();
        assert_eq!(vs.trainable_variables()[0].kind(), Kind::Half);
        assert_eq!(optimizers.number(&optimizer.parameters()), 0);
    }

    #[test]
    fn optimizers_over_two_stores_are_two_and_over_one_are_one() {
        let stores = [nn::VarStore::new(Device::Cpu), nn::VarStore::new(Device::Cpu)];
        stores.iter().for_each(|vs| drop(vs.root().zeros("a", &[2])));
        let build = |vs| nn::Sgd::default().build(vs, 0.1).unwrap();
        let mut optimizers = Optimizers::default();
        assert_eq!(optimizers.number(&build(&stores[0]).parameters()), 0);
        assert_eq!(optimizers.number(&build(&stores[1]).parameters()), 1);
        assert_eq!(optimizers.number(&build(&stores[0]).parameters()), 0);
    }

    #[test]
    fn an_undefined_tensor_has_no_identity() {
        assert_eq!(identity(&Tensor::new()), 0);
    }
}
