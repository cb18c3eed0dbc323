//! A parameter and its FP32 copy.

use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use tch::nn::{VarStore, Variables};
use tch::{Kind, Tensor};

use super::{MastersError, is_low_precision};
use crate::scaler::optimizer::identity;
use crate::shim;

/// A parameter and its FP32 copy.
#[derive(Debug)]
pub(super) struct Pair {
    pub name: String,
    /// A handle that follows `half`, `load` and `set_device`: they change what stands behind it.
    pub model: Tensor,
    pub master: Tensor,
    /// Of the copy's bits, at the last check that found nothing broken.
    pub digest: i64,
}

impl Pair {
    /// A copy of a parameter in FP32, in its layout, with memory of its own.
    fn new(name: String, model: Tensor) -> Result<Pair, MastersError> {
        let kind = model.kind();
        if !is_low_precision(kind) && kind != Kind::Float {
            return Err(MastersError::Kind { parameter: name, kind });
        }
        let master = model.detach().f_to_dtype(Kind::Float, false, true)?.f_set_requires_grad(model.requires_grad())?;
        let digest = digest(&master)?;
        Ok(Pair { name, model, master, digest })
    }

    pub(super) fn is_low_precision(&self) -> bool {
        is_low_precision(self.model.kind())
    }

    /// Moves the parameter's gradient to the copy; whether there was one. Under `no_grad`.
    pub(super) fn pull_gradient(&mut self) -> Result<bool, MastersError> {
        if self.master.requires_grad() != self.model.requires_grad() {
            let _ = self.master.f_set_requires_grad(self.model.requires_grad())?;
        }
        let gradient = self.model.grad();
        if !gradient.defined() {
            return Ok(false);
        }
        self.require_device()?;
        let gradient = gradient.f_to_kind(Kind::Float)?;
        let before = self.master.grad();
        let sum = if before.defined() { add(&before, &gradient)? } else { gradient };
        set_gradient(&mut self.master, Some(&sum))?;
        set_gradient(&mut self.model, None)?;
        Ok(true)
    }

    /// Rounds the copy into the parameter. Under `no_grad`.
    pub(super) fn write_back(&mut self) -> Result<(), MastersError> {
        self.require_device()?;
        Ok(self.model.f_copy_(&self.master)?)
    }

    /// Sets the copy to the parameter. Under `no_grad`.
    pub(super) fn refresh(&mut self) -> Result<(), MastersError> {
        self.require_device()?;
        Ok(self.master.f_copy_(&self.model)?)
    }

    pub(super) fn drop_gradients(&mut self) {
        for tensor in [&mut self.model, &mut self.master] {
            set_gradient(tensor, None).expect("taking a gradient away is an assignment, which has no reason to fail");
        }
    }

    fn require_device(&self) -> Result<(), MastersError> {
        let (model, copy) = (self.model.device(), self.master.device());
        if model == copy {
            return Ok(());
        }
        Err(MastersError::DeviceMoved { parameter: self.name.clone(), model, copy })
    }
}

/// The sum of two gradients, either of which may be sparse. It has memory of its own: the first may be in somebody else's hands.
fn add(before: &Tensor, gradient: &Tensor) -> Result<Tensor, MastersError> {
    // ATen adds a sparse tensor to a dense one, not a dense one to a sparse one.
    let (dense, other) = if before.is_sparse() { (gradient, before) } else { (before, gradient) };
    Ok(dense.f_add(other)?)
}

/// A number that differs where a single bit of an FP32 tensor does; sums of several changed bits meet with a chance of about 2^-32.
pub(super) fn digest(tensor: &Tensor) -> Result<i64, MastersError> {
    Ok(i64::try_from(tensor.detach().f_view_dtype(Kind::Int)?.f_sum(Kind::Int64)?)?)
}

/// The trainable variables of a model from the `seen`th on that have no copy yet, each with a new one and its parameter group; and how many there
/// are in all. A tensor that is registered twice (tied weights) is one parameter, under the first of its names.
pub(super) fn unpaired(
    model: &Mutex<Variables>,
    seen: usize,
    known: &[Pair],
) -> Result<(Vec<(usize, Pair)>, usize), MastersError> {
    // A panic elsewhere does not change what the parameters are.
    let variables = model.lock().unwrap_or_else(PoisonError::into_inner);
    let all = variables.trainable_variables.len();
    if all <= seen {
        return Ok((Vec::new(), seen));
    }
    let names = names(&variables);
    let mut copied: HashSet<usize> = known.iter().map(|pair| identity(&pair.model)).collect();
    let mut found = Vec::new();
    for (index, variable) in variables.trainable_variables.iter().enumerate().skip(seen) {
        let tensor = variable.tensor.shallow_clone();
        if copied.insert(identity(&tensor)) {
            let name = names.get(&identity(&tensor)).map_or_else(|| format!("unnamed{index}"), |&name| name.clone());
            found.push((variable.group, Pair::new(name, tensor)?));
        }
    }
    Ok((found, all))
}

/// The first name of each variable, in alphabetical order.
fn names(variables: &Variables) -> HashMap<usize, &String> {
    let mut names: HashMap<usize, &String> = HashMap::new();
    for (name, tensor) in &variables.named_variables {
        let first = names.entry(identity(tensor)).or_insert(name);
        *first = (*first).min(name);
    }
    names
}

/// Registers a copy under the name and in the parameter group of its parameter.
pub(super) fn add_to(vars: &VarStore, group: usize, pair: &Pair) {
    let (layer, name) = pair.name.rsplit_once('.').unwrap_or(("", &pair.name));
    let layers = layer.split('.').filter(|part| !part.is_empty());
    let path = layers.fold(vars.root().set_group(group), |path, part| path.sub(part));
    let master = path.add(name, pair.master.shallow_clone(), true);
    let _ = master.set_requires_grad(pair.model.requires_grad());
}

unsafe extern "C" {
    fn ampdoctor_set_gradient(tensor: *mut c_void, gradient: *const c_void) -> c_int;
}

/// Makes `gradient` the `.grad` of `tensor`, or takes it away.
fn set_gradient(tensor: &mut Tensor, gradient: Option<&Tensor>) -> Result<(), MastersError> {
    let gradient = gradient.map_or(std::ptr::null(), |gradient| gradient.as_ptr().cast());
    // SAFETY: both handles are at::Tensor that live through the call; the shim takes a reference of its own.
    Ok(shim::check(unsafe { ampdoctor_set_gradient(tensor.as_mut_ptr().cast(), gradient) })?)
}
