//! Where an observation was made.

use crate::scan::Dtype;

/// The number by which a recording refers to a [`Site`]; counted from 0 in order of first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteId(pub u32);

/// The layer of what no parameter has touched: the data that the model is given, and what is computed from it alone.
pub const INPUT: &str = "input";

/// The layer under which the product of loss and loss scale stands.
pub const SCALER: &str = "scaler";

/// The operator that it is called, which no model has.
pub const SCALE_LOSS: &str = "scale_loss";

/// What kind of tensor was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Probe {
    /// An operator's output in forward.
    Activation,
    /// The gradient that backward delivers to an operator's output: as it was held, times the loss scale.
    ActivationGrad,
    /// A gradient in FP32 as it stood before backward cast it to a half-precision format: what the cast rounds to zero is truly
    /// lost, and measured here. Times the loss scale.
    CastGrad,
    /// A parameter's gradient, complete for this step, before it is unscaled.
    ParamGrad,
    /// A parameter's value after the step.
    Param,
    /// The change of a parameter by the optimizer in this step.
    Update,
    /// A buffer (running statistics) after the step.
    Buffer,
    /// A tensor of the optimizer's own (a moment, a momentum) as it went into a parameter's update; observed only where it is not finite.
    OptimizerState,
    /// A moving average of a parameter that the loop keeps, after the step; observed only where it is held in FP16 or BF16.
    Average,
}

impl Probe {
    /// All probes, in the order in which reports list them.
    pub const ALL: [Probe; 9] = [
        Probe::Activation,
        Probe::ActivationGrad,
        Probe::CastGrad,
        Probe::ParamGrad,
        Probe::Param,
        Probe::Update,
        Probe::Buffer,
        Probe::OptimizerState,
        Probe::Average,
    ];

    /// The name used in reports: `activation`, `activation_grad`, ...
    pub fn name(self) -> &'static str {
        match self {
            Probe::Activation => "activation",
            Probe::ActivationGrad => "activation_grad",
            Probe::CastGrad => "cast_grad",
            Probe::ParamGrad => "param_grad",
            Probe::Param => "param",
            Probe::Update => "update",
            Probe::Buffer => "buffer",
            Probe::OptimizerState => "optimizer_state",
            Probe::Average => "average",
        }
    }

    /// What it is, in words: `the gradient of an activation`.
    pub fn described(self) -> &'static str {
        match self {
            Probe::Activation => "an activation",
            Probe::ActivationGrad => "the gradient of an activation",
            Probe::CastGrad => "a gradient before a cast",
            Probe::ParamGrad => "the gradient of a parameter",
            Probe::Param => "a parameter",
            Probe::Update => "an update",
            Probe::Buffer => "a buffer",
            Probe::OptimizerState => "the optimizer's state",
            Probe::Average => "a moving average",
        }
    }

    /// Whether the tensor is a gradient, and so carries the loss scale.
    pub fn is_gradient(self) -> bool {
        matches!(self, Probe::ActivationGrad | Probe::CastGrad | Probe::ParamGrad)
    }
}

/// A place in the model that is observed again and again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// Dotted path of the layer, as the parameters are named: `block.3.fc`; `input` for what no parameter has touched;
    /// empty for the root.
    pub layer: String,
    /// The operator, without its namespace: `linear`, `relu#2` for the second of its kind in one forward of the layer. For an
    /// update, the operator that made it (`addcdiv_`); empty for parameters, their gradients and buffers.
    pub operator: String,
    /// Name of the parameter or buffer within the layer: `weight`; empty for activations and their gradients.
    pub tensor: String,
    /// What was observed.
    pub probe: Probe,
    /// The dtype in which it was held.
    pub dtype: Dtype,
}

impl Site {
    /// Whether it is the product of loss and loss scale, or a gradient of it: no tensor of the model, though one of its layers may be called [`SCALER`] too.
    pub fn is_scaled_loss(&self) -> bool {
        self.layer == SCALER && self.operator.split('#').next() == Some(SCALE_LOSS)
    }

    /// The site as people write it: `block.3.fc/relu#2`, `block.3.fc.weight`.
    pub fn label(&self) -> String {
        let layer = if self.layer.is_empty() { "(root)" } else { &self.layer };
        match (self.tensor.is_empty(), self.layer.is_empty()) {
            (true, _) => format!("{layer}/{}", self.operator),
            (false, true) => self.tensor.clone(),
            (false, false) => format!("{layer}.{}", self.tensor),
        }
    }
}
