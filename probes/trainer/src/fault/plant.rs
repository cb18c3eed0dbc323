//! A fault in a running model: in which layer it sits, and since when.

use std::cell::{Cell, RefCell};

use tch::Tensor;

use super::Fault;

/// What stands between a layer and the next; passes everything through until a fault's step has come.
#[derive(Default)]
pub struct Plant {
    planted: Option<Planted>,
    step: Cell<u64>,
    seen: RefCell<Vec<String>>,
}

struct Planted {
    fault: &'static dyn Fault,
    at: u64,
    layer: Option<&'static str>,
}

impl Plant {
    /// Nothing planted.
    pub fn none() -> Self {
        Self::default()
    }

    /// This fault, from step `at` on, in one layer or in none.
    pub fn new(fault: &'static dyn Fault, at: u64, layer: Option<&'static str>) -> Self {
        Self { planted: Some(Planted { fault, at, layer }), ..Self::default() }
    }

    /// Says which step begins.
    pub fn begin_step(&self, step: u64) {
        self.step.set(step);
        self.seen.borrow_mut().clear();
    }

    /// What `layer` gives to the next one instead of `output`.
    pub fn output(&self, layer: &str, output: Tensor) -> Tensor {
        self.seen.borrow_mut().push(layer.to_owned());
        match &self.planted {
            Some(planted) if planted.layer == Some(layer) => {
                planted.fault.output(output, self.step.get() >= planted.at)
            }
            _ => output,
        }
    }

    /// The loss scale that the fault holds at this step, if it does.
    pub fn scale(&self) -> Option<f64> {
        let planted = self.planted.as_ref().filter(|planted| planted.layer.is_none() && self.step.get() >= planted.at);
        planted.and_then(|planted| planted.fault.scale())
    }

    /// The layers that gave their output since the step began, in this order.
    pub fn layers_seen(&self) -> Vec<String> {
        self.seen.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::by_name;

    fn is_nan(plant: &Plant, layer: &str) -> bool {
        plant.output(layer, Tensor::from_slice(&[1.0f32])).double_value(&[0]).is_nan()
    }

    #[test]
    fn a_fault_waits_for_its_step_and_stays_in_its_layer() {
        let plant = Plant::new(by_name("nan").unwrap(), 3, Some("fc2"));
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
        let underflow = by_name("underflow").unwrap();
        assert_eq!(Plant::new(underflow, 0, Some("fc1")).scale(), None);
        assert!(Plant::new(underflow, 0, None).scale().is_some());
        assert_eq!(Plant::new(underflow, 1, None).scale(), None);
    }
}
