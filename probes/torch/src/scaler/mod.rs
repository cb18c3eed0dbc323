//! Dynamic loss scaling with the semantics of `torch.amp.GradScaler`.
//!
//! FP16 rounds gradients below 2^-25 to zero. A loss multiplied by a scale has its gradients multiplied by it too, and they are divided by the
//! scale in FP32 before the optimizer uses them. The scale is as high as the run allows: it falls, and the step is withheld, when a gradient
//! is not finite, and grows after an interval of clean steps.

mod builder;
mod error;
mod names;
pub(crate) mod optimizer;
mod policy;
mod state;
mod step;
mod tensors;
mod unscale;

use std::sync::{Arc, Mutex};

use ampdoctor::observation::{ScalerConfig, ScalerEvent};
use tch::{Kind, Tensor, nn};

pub use builder::GradScalerBuilder;
pub use error::ScalerError;
pub use optimizer::AmpOptimizer;

use crate::events;
use crate::shadow;
use optimizer::Optimizers;
use policy::{Policy, ScaleState};
use tensors::ScaleTensors;

/// Whether an optimizer step changed the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// The gradients were finite and the optimizer has stepped.
    Applied,
    /// A gradient was not finite and the optimizer was left alone.
    Skipped,
}

impl StepOutcome {
    /// Whether the parameters were changed.
    pub fn applied(self) -> bool {
        self == StepOutcome::Applied
    }
}

/// Dynamic loss scaling with the semantics, names and state of `torch.amp.GradScaler`.
///
/// The order of a step is `backward`, `unscale` (where gradients are clipped or looked at), `step`, `update`; a wrong order is a [`ScalerError`]
/// that says what to do. Several optimizers may share a scaler: each is stepped or skipped by its own gradients, and the scale falls if
/// any of them was skipped.
///
/// It is better than its model in four places. A floor and a ceiling keep the scale where it can work. A gradient that becomes infinite *by*
/// unscaling, at a scale far below 1, is found, where PyTorch writes it into the weights. FP16 and BF16 losses are cast to FP32 before they are
/// multiplied. And two optimizers over one VarStore cannot unscale their common gradients twice. As long as none of these is
/// touched, scales and parameters are PyTorch's, bit for bit. Each `unscale` reads one number back from the device, however
/// many tensors there are; `scale`, `step` after `unscale`, and `update` wait for nothing.
///
/// ```no_run
/// use ampdoctor_torch::{GradScaler, autocast};
/// use tch::nn::{self, Module, OptimizerConfig};
/// use tch::{Device, Kind, Tensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let vs = nn::VarStore::new(Device::Cpu);
/// let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// let mut opt = nn::Adam::default().build(&vs, 1e-3)?;
/// let mut scaler = GradScaler::default();
/// for _ in 0..10 {
///     let x = Tensor::randn([8, 4], (Kind::Float, Device::Cpu));
///     let loss = autocast(Device::Cpu, Kind::Half, || net.forward(&x)).to_kind(Kind::Float).square().mean(Kind::Float);
///     opt.zero_grad();
///     scaler.backward(&loss);
///     scaler.unscale(&mut opt)?;
///     opt.clip_grad_norm(1.0);
///     scaler.step(&mut opt)?;
///     scaler.update()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GradScaler {
    enabled: bool,
    policy: Policy,
    init_scale: f32,
    state: ScaleState,
    /// The twin of `state` that ATen updates; made on the device of the first loss.
    tensors: Option<ScaleTensors>,
    optimizers: Optimizers,
    names: Vec<Arc<Mutex<nn::Variables>>>,
    /// The generation of listeners that the settings were last told to.
    announced: Option<u64>,
}

impl Default for GradScaler {
    /// PyTorch's defaults: scale 65536, growth 2 after 2000 clean steps, backoff 0.5.
    fn default() -> Self {
        GradScaler::builder().build().expect("the defaults are valid")
    }
}

impl GradScaler {
    /// The settings of a scaler, to be changed and built.
    pub fn builder() -> GradScalerBuilder {
        GradScalerBuilder::default()
    }

    fn from_parts(policy: Policy, scale: f32, enabled: bool) -> GradScaler {
        GradScaler {
            enabled,
            policy,
            init_scale: scale,
            state: ScaleState { scale, growth_tracker: 0, bad_steps: 0 },
            tensors: None,
            optimizers: Optimizers::default(),
            names: Vec::new(),
            announced: None,
        }
    }

    /// Lets errors call the parameters of `vs` by their names; without, they are listed by their shapes.
    ///
    /// Keeps the variables of `vs` alive as long as the scaler.
    pub fn name_parameters(&mut self, vs: &nn::VarStore) {
        self.names.push(vs.variables_.clone());
    }

    /// The loss times the scale, in FP32 (FP64 stays), for a backward of your own; the loss itself where the scaler is disabled.
    ///
    /// # Panics
    /// Where [`f_scale`](Self::f_scale) returns an error: the loss is not a floating-point tensor.
    pub fn scale(&mut self, loss: &Tensor) -> Tensor {
        self.f_scale(loss).unwrap_or_else(|error| panic!("{error}"))
    }

    /// [`scale`](Self::scale) that returns its error.
    pub fn f_scale(&mut self, loss: &Tensor) -> Result<Tensor, ScalerError> {
        // A shadow scales by itself.
        if !self.enabled || shadow::is_on() {
            return Ok(loss.shallow_clone());
        }
        let loss = match loss.kind() {
            // A Half loss times 65536 is infinite: the product would be taken in Half.
            Kind::Half | Kind::BFloat16 => loss.f_to_kind(Kind::Float)?,
            Kind::Float | Kind::Double => loss.shallow_clone(),
            other => return Err(ScalerError::LossKind(other)),
        };
        if self.tensors.is_none() {
            self.tensors = Some(ScaleTensors::new(self.state, loss.device())?);
        }
        self.announce();
        let scale = f64::from(self.state.scale);
        let scaled = events::as_scaler(|| loss.f_mul_scalar(scale))?;
        events::emit(ScalerEvent::Scaled { scale });
        Ok(scaled)
    }

    /// `scale(loss).backward()`: gradients are added to the parameters' `.grad`, times the scale.
    ///
    /// # Panics
    /// Where [`f_backward`](Self::f_backward) returns an error: the loss is no scalar, or does not require a gradient.
    pub fn backward(&mut self, loss: &Tensor) {
        self.f_backward(loss).unwrap_or_else(|error| panic!("{error}"))
    }

    /// [`backward`](Self::backward) that returns its error.
    pub fn f_backward(&mut self, loss: &Tensor) -> Result<(), ScalerError> {
        Ok(self.f_scale(loss)?.f_backward()?)
    }

    /// The scale in force; the initial one before the first loss was scaled, 1 for a disabled scaler.
    pub fn get_scale(&self) -> f64 {
        if self.enabled { f64::from(self.state.scale) } else { 1.0 }
    }

    /// What the scale is multiplied by when it grows; 1 for a static scale.
    pub fn get_growth_factor(&self) -> f64 {
        self.policy.growth_factor
    }

    /// What the scale is multiplied by when a gradient is not finite; 1 for a static scale.
    pub fn get_backoff_factor(&self) -> f64 {
        self.policy.backoff_factor
    }

    /// Clean steps in a row before the scale grows.
    pub fn get_growth_interval(&self) -> u64 {
        self.policy.growth_interval
    }

    /// Clean steps since the scale last moved; 0 for a disabled scaler.
    pub fn get_growth_tracker(&self) -> u64 {
        if self.enabled { self.state.growth_tracker } else { 0 }
    }

    /// Whether the scaler does anything.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Changes the growth factor from the next update on; a static scale becomes one that grows.
    pub fn set_growth_factor(&mut self, factor: f64) -> Result<(), ScalerError> {
        self.policy.growth_factor = builder::valid_growth_factor(factor)?;
        self.announced = None;
        Ok(())
    }

    /// Changes the backoff factor from the next update on; a static scale becomes one that falls.
    pub fn set_backoff_factor(&mut self, factor: f64) -> Result<(), ScalerError> {
        self.policy.backoff_factor = builder::valid_backoff_factor(factor)?;
        self.announced = None;
        Ok(())
    }

    /// Changes the growth interval from the next update on.
    ///
    /// If as many clean steps lie behind already, the next one lets the scale grow. (PyTorch waits for equality and would not let
    /// it grow before the next non-finite step.)
    pub fn set_growth_interval(&mut self, steps: u64) -> Result<(), ScalerError> {
        self.policy.growth_interval = builder::valid_growth_interval(steps)?;
        self.announced = None;
        self.set_state(ScaleState { growth_tracker: self.state.growth_tracker.min(steps - 1), ..self.state })
    }

    /// What a doctor is told of the settings.
    fn config(&self) -> ScalerConfig {
        ScalerConfig {
            init_scale: f64::from(self.init_scale),
            growth_factor: self.policy.growth_factor,
            backoff_factor: self.policy.backoff_factor,
            growth_interval: self.policy.growth_interval,
            min_scale: self.policy.min_scale.map(f64::from),
            max_scale: self.policy.max_scale.map(f64::from),
            hysteresis: self.policy.hysteresis,
            foreign: false,
        }
    }

    /// Tells the settings to listeners that do not know them, or know older ones.
    fn announce(&mut self) {
        let generation = events::generation();
        if self.announced != Some(generation) {
            self.announced = Some(generation);
            events::emit_config(&self.config());
        }
    }

    /// Sets the state outside of an update.
    fn set_state(&mut self, state: ScaleState) -> Result<(), ScalerError> {
        if let Some(tensors) = &mut self.tensors {
            tensors.write(state)?;
        }
        self.state = state;
        Ok(())
    }
}
