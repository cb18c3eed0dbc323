//! Finding master weights that somebody broke.

use tch::{Kind, Tensor};

use super::pairs::{Pair, digest};
use super::{MasterWeights, MastersError};

/// Broken parameters that a message lists before it says how many more there are.
const LISTED: usize = 4;

/// How a pair of parameter and copy is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Broken {
    /// The parameter was changed by something other than a write-back.
    ModelChanged {
        /// Its name.
        parameter: String,
        /// Elements that are not what the copy rounds to.
        differing: u64,
        /// Elements in all.
        elements: u64,
    },
    /// Gradients were pulled and the copy was stepped, but not written back.
    NotWrittenBack {
        /// Name of the parameter.
        parameter: String,
        /// Elements that are not what the copy rounds to.
        differing: u64,
        /// Elements in all.
        elements: u64,
    },
    /// The copy is finite and beyond the range of the parameter's dtype: written back, it is infinite.
    OutOfRange {
        /// Name of the parameter.
        parameter: String,
        /// Elements beyond the range.
        elements: u64,
        /// The parameter's dtype.
        kind: Kind,
    },
    /// Gradients were pulled and copies written back, but no copy has changed since the last check.
    NeverStepped {
        /// Write-backs since then.
        write_backs: u64,
    },
    /// Parameters hold gradients, and none was pulled since the last check.
    NeverPulled {
        /// The first parameter that holds one.
        parameter: String,
        /// Parameters that hold one.
        count: usize,
    },
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Broken::ModelChanged { parameter, differing, elements } => write!(
                f,
                "{parameter}: {differing} of {elements} weights are not what their copies round to, and nothing is waiting to be \
                 written back: the model was changed by something else. An optimizer may have been built on it (build it on masters.vars()), it \
                 may have been loaded or initialised again (call masters.refresh_from_model()), or the copies were changed after write_back()"
            ),
            Broken::NotWrittenBack { parameter, differing, elements } => write!(
                f,
                "{parameter}: {differing} of {elements} weights are not what their copies round to: the copies were stepped and not written back. \
                 Call masters.write_back() after opt.step(), or step through masters.optimizer(&mut opt)"
            ),
            Broken::OutOfRange { parameter, elements, kind } => write!(
                f,
                "{parameter}: {elements} weights are finite in FP32 and infinite in {kind:?}. The learning rate may be too high; go back to a \
                 checkpoint with a lower one, or train this model in BF16, which has FP32's range"
            ),
            Broken::NeverStepped { write_backs } => write!(
                f,
                "no copy has changed in {write_backs} write-backs with gradients: the optimizer does not step the copies. It may have been built on the \
                 model: build it on masters.vars(). A learning rate of 0, or gradients that are all zero, look the same"
            ),
            Broken::NeverPulled { parameter, count } => write!(
                f,
                "{count} parameters (first: {parameter}) hold gradients, and none was pulled over since the last check: the optimizer gets none, or steps \
                 the model. Call masters.pull_gradients() before opt.step(), or step through masters.optimizer(&mut opt)"
            ),
        }
    }
}

/// The first few, and how many more there are.
pub(super) fn list(broken: &[Broken]) -> String {
    let listed: Vec<String> = broken.iter().take(LISTED).map(ToString::to_string).collect();
    match broken.len().saturating_sub(LISTED) {
        0 => listed.join("; "),
        more => format!("{}; and {more} more", listed.join("; ")),
    }
}

impl MasterWeights {
    /// Looks whether the model is what the copies round to, and whether the copies have been stepped since the last check.
    ///
    /// [`MastersError::Broken`] names each parameter concerned, with its number of elements, and what to do. To be called between steps: after a
    /// `pull_gradients` and an `opt.step()` that are not yet written back the two differ by right, and it says so. Costs about three
    /// steps of Adam, and two host synchronisations for each parameter: every hundred steps, not every one. A NaN on both sides is no difference.
    pub fn check(&mut self) -> Result<(), MastersError> {
        let mut broken = Vec::new();
        let mut changed = false;
        for pair in &self.pairs {
            let stepped = digest(&pair.master)? != pair.digest;
            changed |= stepped;
            broken.extend(tch::no_grad(|| self.compare(pair, stepped))?);
        }
        broken.extend(self.never_pulled());
        if self.pulls > 0 && self.write_backs > 0 && !changed {
            broken.push(Broken::NeverStepped { write_backs: self.write_backs });
        }
        if broken.is_empty() { self.begin_check_anew() } else { Err(MastersError::Broken(broken)) }
    }

    /// What the next check compares with is what is there now.
    pub(super) fn begin_check_anew(&mut self) -> Result<(), MastersError> {
        for pair in &mut self.pairs {
            pair.digest = digest(&pair.master)?;
        }
        (self.pulls, self.write_backs) = (0, 0);
        Ok(())
    }

    /// What is wrong between a parameter and its copy, which was `stepped` or not since the last check.
    fn compare(&self, pair: &Pair, stepped: bool) -> Result<Option<Broken>, MastersError> {
        let rounded = pair.master.f_to_kind(pair.model.kind())?.f_to_device(pair.model.device())?;
        let parameter = pair.name.clone();
        let differing = count(&differ(&pair.model, &rounded)?)?;
        if differing > 0 {
            let elements = pair.model.numel() as u64;
            return Ok(Some(match stepped && self.unwritten {
                true => Broken::NotWrittenBack { parameter, differing, elements },
                false => Broken::ModelChanged { parameter, differing, elements },
            }));
        }
        let elements = count(&rounded.f_isinf()?)?.saturating_sub(count(&pair.master.f_isinf()?)?);
        Ok((elements > 0).then(|| Broken::OutOfRange { parameter, elements, kind: pair.model.kind() }))
    }

    fn never_pulled(&self) -> Option<Broken> {
        let holding: Vec<&Pair> = self.pairs.iter().filter(|pair| pair.model.grad().defined()).collect();
        let first = holding.first().filter(|_| self.pulls == 0)?;
        Some(Broken::NeverPulled { parameter: first.name.clone(), count: holding.len() })
    }
}

/// Where two tensors differ; NaN is like NaN.
fn differ(a: &Tensor, b: &Tensor) -> Result<Tensor, MastersError> {
    let both_nan = a.f_isnan()?.f_logical_and(&b.f_isnan()?)?;
    Ok(a.f_ne_tensor(b)?.f_logical_and(&both_nan.f_logical_not()?)?)
}

fn count(mask: &Tensor) -> Result<u64, MastersError> {
    Ok(i64::try_from(mask.f_sum(Kind::Int64)?)? as u64)
}
