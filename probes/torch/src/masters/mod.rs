//! FP32 master weights for a model in FP16 or BF16.
//!
//! An update smaller than half a unit in the last place of a weight changes nothing: in FP16 for w = 0.02 that is 7.6e-6, in BF16 6.1e-5. So the
//! optimizer steps FP32 copies, which keep what is small, and the model gets them back rounded to nearest, ties to even, after every step.
//!
//! `pairs` matches parameters with copies; `optimizer` is what a scaler and a loop step; `check` finds copies that somebody broke;
//! `state` saves and loads them.

mod check;
mod error;
mod optimizer;
mod pairs;
mod state;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use tch::nn::{VarStore, Variables};
use tch::{Kind, Tensor};

pub use check::Broken;
pub use error::MastersError;
pub use optimizer::{MasterOptimizer, MasteredOptimizer};

use crate::events;
use crate::scaler::optimizer::identity;
use pairs::Pair;

/// FP32 copies of an FP16 or BF16 model's trainable parameters, for the optimizer to step.
///
/// A loop with a scaler changes in the line that builds the optimizer, and in no other:
///
/// ```no_run
/// use ampdoctor_torch::{GradScaler, MasterWeights};
/// use tch::nn::{self, Module};
/// use tch::{Device, Kind, Tensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut vs = nn::VarStore::new(Device::Cpu);
/// let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// vs.half();
/// let mut opt = MasterWeights::new(&vs)?.build(nn::Adam::default(), 1e-3)?; // was nn::Adam::default().build(&vs, 1e-3)?
/// let mut scaler = GradScaler::default();
/// for step in 0..10 {
///     let x = Tensor::randn([8, 4], (Kind::Half, Device::Cpu));
///     let loss = net.forward(&x).to_kind(Kind::Float).square().mean(Kind::Float);
///     opt.zero_grad();
///     scaler.backward(&loss);
///     scaler.unscale(&mut opt)?; // pulls the FP16 gradients over, then divides by the scale in FP32
///     opt.clip_grad_norm(1.0); // the FP32 gradients
///     scaler.step(&mut opt)?; // steps the copies and writes them back; a skipped step writes nothing
///     scaler.update()?;
///     if step % 100 == 0 {
///         opt.masters_mut().check()?;
///     }
/// }
/// opt.masters().save("masters.safetensors")?;
/// # Ok(())
/// # }
/// ```
///
/// An optimizer of another type is built on [`vars`](Self::vars) and lent at each call: `scaler.unscale(&mut
/// masters.optimizer(&mut opt))?`, `scaler.step(&mut masters.optimizer(&mut opt))?`. Without a scaler, as BF16 allows, a step is
/// `masters.pull_gradients()?; opt.step(); masters.write_back()?`.
///
/// * **Which.** Every trainable parameter has a copy, one that was kept in FP32 too; weights that are tied have one. Parameters added to the model
///   later get theirs at the next pull, as `tch`'s optimizers take them up. Running statistics of BatchNorm and other buffers
///   have no gradients: they stay in the model, are changed by its forward pass, and are saved with it.
/// * **Gradients** are moved, not copied: after a pull the model has none, so nothing is left to be zeroed. Micro-batches may add up in the
///   model, in its precision, or be pulled one by one, and then add up in FP32; all before `unscale`, since those that come after it still
///   carry the scale. Pull and write-back together take about a quarter of the time of a step of Adam.
/// * **Frozen** parameters get no gradient, so no step; unfrozen ones go on from the copy they have.
/// * **A model that is changed** by `load`, `copy` or an initialisation is read anew by
///   [`refresh_from_model`](Self::refresh_from_model); until then the next step would undo the change. After `half` or `bfloat16` alone the
///   next write-back rounds to the new dtype. A model moves to its device before its copies are made.
/// * **Memory.** 4 bytes a parameter for the copies and, from pull to `zero_grad`, 4 for their gradients, beside 2 for the parameter
///   and, until the pull, 2 for its gradient. Optimizer state is FP32: 8 bytes for Adam. 16 bytes a parameter in all with Adam, as
///   in FP32 training without masters; activations take half.
#[derive(Debug)]
pub struct MasterWeights {
    model: Arc<Mutex<Variables>>,
    vars: VarStore,
    pairs: Vec<Pair>,
    /// Entries of the model's list of trainable variables that were looked at; it only grows at the end.
    seen: usize,
    /// Pulls that brought a gradient since the last check that found nothing broken.
    pulls: u64,
    /// Write-backs since the last check that found nothing broken.
    write_backs: u64,
    /// Whether gradients were pulled since the last write-back.
    unwritten: bool,
    /// The generation of listeners that the copies were last told to.
    announced: Option<u64>,
}

impl MasterWeights {
    /// Copies the trainable parameters of `vs` to FP32.
    ///
    /// An error where none of them is FP16 or BF16, and where one is of a kind that FP32 does not hold.
    pub fn new(vs: &VarStore) -> Result<MasterWeights, MastersError> {
        let mut masters = MasterWeights {
            model: vs.variables_.clone(),
            vars: VarStore::new(vs.device()),
            pairs: Vec::new(),
            seen: 0,
            pulls: 0,
            write_backs: 0,
            unwritten: false,
            announced: None,
        };
        masters.take_up_new_parameters()?;
        if !masters.pairs.iter().any(Pair::is_low_precision) {
            return Err(MastersError::NothingInLowPrecision { parameters: masters.pairs.len() });
        }
        // Not with the first pull: a loop that forgets to pull is a fault to be seen.
        events::remember_masters(&masters.told());
        masters.announce();
        Ok(masters)
    }

    /// The copies, under the names of the parameters, in the same order and the same parameter groups: what the optimizer is built on.
    pub fn vars(&self) -> &VarStore {
        &self.vars
    }

    /// Moves the model's gradients over to the copies, in FP32; to those already there they are added.
    ///
    /// They keep the loss scale: dividing by it is `scaler.unscale`'s, which calls this. NaN and infinities come along. Parameters without
    /// a gradient are left alone.
    pub fn pull_gradients(&mut self) -> Result<(), MastersError> {
        self.take_up_new_parameters()?;
        self.announce();
        let mut pulled = false;
        for pair in &mut self.pairs {
            pulled |= tch::no_grad(|| pair.pull_gradient())?;
        }
        self.pulls += u64::from(pulled);
        self.unwritten |= pulled;
        Ok(())
    }

    /// Writes the copies into the model, rounded to nearest, ties to even; what lies beyond the model's range becomes infinite, which
    /// [`check`](Self::check) finds.
    ///
    /// An error, and nothing is written, where gradients have arrived in the model that were not pulled: the step would leave them out.
    pub fn write_back(&mut self) -> Result<(), MastersError> {
        self.refuse_gradients_left()?;
        self.announce();
        tch::no_grad(|| self.pairs.iter_mut().try_for_each(Pair::write_back))?;
        self.write_backs += 1;
        self.unwritten = false;
        Ok(())
    }

    /// Sets the copies to what the model holds now, after `load` or anything else that changed it. What the copies knew beyond its
    /// precision is lost; to go on from a checkpoint use [`load`](Self::load). Gradients and optimizer state stay.
    pub fn refresh_from_model(&mut self) -> Result<(), MastersError> {
        self.take_up_new_parameters()?;
        tch::no_grad(|| self.pairs.iter_mut().try_for_each(Pair::refresh))?;
        self.begin_check_anew()
    }

    /// Lets go of the model's gradients and of the copies'.
    pub fn zero_grad(&mut self) {
        for pair in &mut self.pairs {
            pair.drop_gradients();
        }
    }

    /// Gives a copy to every trainable parameter that has none yet.
    fn take_up_new_parameters(&mut self) -> Result<(), MastersError> {
        let (found, seen) = pairs::unpaired(&self.model, self.seen, &self.pairs)?;
        for (group, pair) in found {
            pairs::add_to(&self.vars, group, &pair);
            self.pairs.push(pair);
        }
        self.seen = seen;
        Ok(())
    }

    fn refuse_gradients_left(&self) -> Result<(), MastersError> {
        let left: Vec<&Pair> = self.pairs.iter().filter(|pair| pair.model.grad().defined()).collect();
        match left.first() {
            Some(first) => Err(MastersError::GradientsLeft { parameter: first.name.clone(), count: left.len() }),
            None => Ok(()),
        }
    }

    /// Whether these are the copies; an optimizer that steps anything else is refused.
    fn require_copies(&self, stepped: &[Tensor]) -> Result<(), MastersError> {
        let copies: HashSet<usize> = self.pairs.iter().map(|pair| identity(&pair.master)).collect();
        let Some(stranger) = stepped.iter().find(|tensor| !copies.contains(&identity(tensor))) else { return Ok(()) };
        match self.pairs.iter().find(|pair| identity(&pair.model) == identity(stranger)) {
            Some(pair) => Err(MastersError::OptimizerOnModel { parameter: pair.name.clone(), kind: pair.model.kind() }),
            None => Err(MastersError::OptimizerElsewhere { shape: stranger.size() }),
        }
    }

    /// Tells listeners that do not know them which copies the model has.
    fn announce(&mut self) {
        let generation = events::generation();
        if self.announced != Some(generation) {
            self.announced = Some(generation);
            events::emit_masters(&self.told());
        }
    }

    /// What listeners are told.
    fn told(&self) -> events::Masters {
        events::Masters { model: self.model.clone(), copies: self.vars.variables_.clone() }
    }
}

/// Whether a parameter of this kind needs a copy.
fn is_low_precision(kind: Kind) -> bool {
    matches!(kind, Kind::Half | Kind::BFloat16)
}
