//! A fault in a running model: in which layer it sits, and since when.

use std::cell::{Cell, RefCell};

use tch::{Kind, Tensor};

use super::{BrokenMasters, BrokenRecipe, Fault, HandStep};
use crate::average::Averaging;
use crate::precision::Precision;
use crate::random::SplitMix64;

/// What stands between a layer and the next; passes everything through until a fault's step has come.
pub struct Plant {
    planted: Option<Planted>,
    step: Cell<u64>,
    seen: RefCell<Vec<(String, Kind)>>,
    random: RefCell<SplitMix64>,
}

/// A fault, and where it sits in a run.
pub struct Planted {
    /// The fault.
    pub fault: &'static dyn Fault,
    /// Its strength; without a meaning for a fault that has none.
    pub strength: f64,
    /// The first step that it disturbs, counted from 0.
    pub at: u64,
    /// The layer that it sits in, if it does.
    pub layer: Option<&'static str>,
}

impl Plant {
    /// Nothing planted.
    pub fn none() -> Self {
        Self { planted: None, step: Cell::new(0), seen: RefCell::default(), random: RefCell::new(SplitMix64::new(0)) }
    }

    /// A fault; the seed decides what it leaves to chance.
    pub fn new(planted: Planted, seed: u64) -> Self {
        Self { planted: Some(planted), random: RefCell::new(SplitMix64::new(seed)), ..Self::none() }
    }

    /// Says which step begins.
    pub fn begin_step(&self, step: u64) {
        self.step.set(step);
        self.seen.borrow_mut().clear();
    }

    /// What `layer` gives to the next one instead of `output`; where it casts by hand, it casts to `by_hand`.
    pub fn output(&self, layer: &str, output: Tensor, by_hand: Kind) -> Tensor {
        self.seen.borrow_mut().push((layer.to_owned(), output.kind()));
        match &self.planted {
            Some(planted) if planted.layer == Some(layer) => planted.fault.output(output, self.is_active(), by_hand),
            _ => match self.active() {
                Some(planted) => planted.fault.every_output(output, planted.strength),
                None => output,
            },
        }
    }

    /// The labels that a batch comes with.
    pub fn labels(&self, targets: Tensor) -> Tensor {
        match self.active() {
            Some(planted) => planted.fault.labels(targets),
            None => targets,
        }
    }

    /// What the gradient of this step is multiplied by.
    pub fn gradient_factor(&self) -> f64 {
        let since = |planted: &Planted| self.step.get() - planted.at;
        self.active().map_or(1.0, |planted| planted.fault.gradient_factor(planted.strength, since(planted)))
    }

    /// Whether the loss is scaled though the precision does not ask for it.
    pub fn adds_scaler(&self) -> bool {
        self.planted.as_ref().is_some_and(|planted| planted.fault.adds_scaler())
    }

    /// Whether the scaler is made anew at this step.
    pub fn renews_scaler(&self) -> bool {
        self.begins().is_some_and(|planted| planted.fault.renews_scaler())
    }

    /// What the scale is multiplied by at this step.
    pub fn scale_factor(&self) -> f64 {
        self.begins().map_or(1.0, |planted| planted.fault.scale_factor(planted.strength))
    }

    /// The layer whose weights are multiplied at this step, and by what.
    pub fn weight_factor(&self) -> Option<(&'static str, f64)> {
        let planted = self.begins()?;
        Some((planted.layer?, planted.fault.weight_factor(planted.strength)?))
    }

    /// The layer whose bias is multiplied at this step, and by what.
    pub fn bias_factor(&self) -> Option<(&'static str, f64)> {
        let planted = self.begins()?;
        Some((planted.layer?, planted.fault.bias_factor()?))
    }

    /// What a head multiplies by that is tied to the embedding.
    pub fn tied(&self, embedding: Tensor) -> Tensor {
        match self.active() {
            Some(planted) => planted.fault.tied(embedding),
            None => embedding,
        }
    }

    /// What evaluation makes of its logits.
    pub fn evaluated(&self, logits: Tensor) -> Tensor {
        match self.active() {
            Some(planted) => planted.fault.evaluated(logits),
            None => logits,
        }
    }

    /// What the loss of a batch is instead of `loss`.
    pub fn loss(&self, loss: Tensor) -> Tensor {
        match self.active() {
            Some(planted) => planted.fault.loss(loss, self.random.borrow_mut().share(), planted.strength),
            None => loss,
        }
    }

    /// The loss scale that the fault holds at this step, if it does.
    pub fn scale(&self) -> Option<f64> {
        let planted = self.active().filter(|planted| planted.layer.is_none());
        planted.and_then(|planted| planted.fault.scale(planted.strength))
    }

    /// Whether the fault leaves this step without a loss scaler.
    pub fn drops_scaler(&self) -> bool {
        self.active().is_some_and(|planted| planted.fault.drops_scaler())
    }

    /// The growth interval of the loss scale that the fault sets at this step, if it does.
    pub fn growth_interval(&self) -> Option<u32> {
        self.active().and_then(|planted| planted.fault.growth_interval(planted.strength))
    }

    /// What the learning rate of this step is multiplied by.
    pub fn lr_factor(&self) -> f64 {
        self.active().map_or(1.0, |planted| {
            let (fault, strength, since) = (planted.fault, planted.strength, self.step.get() - planted.at);
            fault.lr_factor(strength) * fault.lr_factor_after(strength, since)
        })
    }

    /// What the loop does in the wrong order at this step.
    pub fn breaks_recipe(&self) -> Option<BrokenRecipe> {
        self.active().and_then(|planted| planted.fault.breaks_recipe())
    }

    /// The moving average of the weights that the fault has the loop keep, whether its step has come or not.
    pub fn averages(&self, precision: Precision) -> Option<Averaging> {
        self.planted.as_ref().and_then(|planted| planted.fault.averages(precision))
    }

    /// What the fault will break between the model and its FP32 copies, whether its step has come or not.
    pub fn breaks_masters(&self) -> Option<BrokenMasters> {
        self.planted.as_ref().and_then(|planted| planted.fault.breaks_masters())
    }

    /// What is wrong with a step written by hand, whether its step has come or not.
    pub fn steps_by_hand(&self) -> Option<HandStep> {
        self.planted.as_ref().and_then(|planted| planted.fault.steps_by_hand())
    }

    /// Whether a second optimizer has half of the parameters.
    pub fn splits_optimizer(&self) -> bool {
        self.planted.as_ref().is_some_and(|planted| planted.fault.splits_optimizer())
    }

    /// Whether the fault is at work at this step.
    pub fn is_active(&self) -> bool {
        self.active().is_some()
    }

    /// The layers that gave their output since the step began, in this order.
    pub fn layers_seen(&self) -> Vec<String> {
        self.seen.borrow().iter().map(|(layer, _)| layer.clone()).collect()
    }

    /// The dtypes of their outputs.
    pub fn kinds_seen(&self) -> Vec<Kind> {
        self.seen.borrow().iter().map(|(_, kind)| *kind).collect()
    }

    /// The fault, at its first step.
    fn begins(&self) -> Option<&Planted> {
        self.active().filter(|planted| planted.at == self.step.get())
    }

    fn active(&self) -> Option<&Planted> {
        let steps_since = |planted: &Planted| self.step.get().checked_sub(planted.at);
        self.planted.as_ref().filter(|planted| steps_since(planted).is_some_and(|n| n < planted.fault.lasts()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::by_name;

    fn plant(name: &str, at: u64, layer: Option<&'static str>) -> Plant {
        Plant::new(Planted { fault: by_name(name).unwrap(), strength: 0.5, at, layer }, 1)
    }

    fn is_nan(plant: &Plant, layer: &str) -> bool {
        plant.output(layer, Tensor::from_slice(&[1.0f32]), Kind::Half).double_value(&[0]).is_nan()
    }

    #[test]
    fn a_fault_waits_for_its_step_and_stays_in_its_layer() {
        let plant = plant("nan", 3, Some("fc2"));
        plant.begin_step(2);
        assert!(!is_nan(&plant, "fc2"));
        plant.begin_step(3);
        assert!(is_nan(&plant, "fc2"));
        assert!(!is_nan(&plant, "fc1"));
        plant.begin_step(100);
        assert!(is_nan(&plant, "fc2"));
    }

    #[test]
    fn a_fault_in_a_layer_leaves_the_scale_alone() {
        assert_eq!(plant("underflow", 0, Some("fc1")).scale(), None);
        assert!(plant("underflow", 0, None).scale().is_some());
        assert_eq!(plant("underflow", 1, None).scale(), None);
    }

    #[test]
    fn a_setting_waits_for_its_step_too() {
        let (lr, interval) = (plant("lr-high", 5, None), plant("short-interval", 5, None));
        assert_eq!((lr.lr_factor(), interval.growth_interval()), (1.0, None));
        lr.begin_step(5);
        interval.begin_step(5);
        assert_eq!((lr.lr_factor(), interval.growth_interval()), (0.5, Some(0)));
    }

    #[test]
    fn bad_batches_come_as_often_as_they_should_and_where_the_seed_says() {
        let bad = || {
            let plant = plant("bad-batches", 0, None);
            let is_bad = |_| {
                let x = Tensor::from(1.0f32).set_requires_grad(true);
                plant.loss(&x * 1.0).backward();
                x.grad().double_value(&[]).is_nan()
            };
            (0..200).map(is_bad).collect::<Vec<bool>>()
        };
        let count = bad().iter().filter(|&&bad| bad).count();
        assert!((70..130).contains(&count), "{count} of 200 at a rate of one half");
        assert_eq!(bad(), bad());
    }
}
