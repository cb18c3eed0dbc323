//! The copies in a file, under the names of the parameters.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tch::{Kind, Tensor};

use super::pairs::Pair;
use super::{MasterWeights, MastersError};

impl MasterWeights {
    /// Writes the copies to a file, in full FP32: as safetensors where the path ends so, else in LibTorch's own format.
    ///
    /// Aside first, then renamed, so that a kill leaves the old file or the new one. The model's buffers are saved with `vs.save`, the scaler with
    /// [`GradScaler::save`](crate::GradScaler::save); `tch` gives no way to save the state of an optimizer.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), MastersError> {
        let path = path.as_ref();
        let aside = aside(path);
        let named: Vec<(&str, Tensor)> =
            self.pairs.iter().map(|pair| (pair.name.as_str(), pair.master.detach().contiguous())).collect();
        let written = if is_safetensors(path) {
            Tensor::write_safetensors(&named, &aside)
        } else {
            Tensor::save_multi(&named, &aside)
        };
        written.map_err(|error| file("written", error, path))?;
        fs::rename(&aside, path).map_err(|error| file("written", error, path))
    }

    /// Goes on from a file that [`save`](Self::save) wrote: sets the copies, and writes them into the model, rounded.
    ///
    /// Refused, with nothing changed, where a parameter is missing, unknown, of another shape, or not in FP32, as in a file of the model's own weights.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<(), MastersError> {
        let path = path.as_ref();
        self.take_up_new_parameters()?;
        let saved = read(path)?;
        self.require_fitting(&saved).map_err(|what| MastersError::NotTheseCopies { what, path: path.to_owned() })?;
        tch::no_grad(|| self.pairs.iter_mut().try_for_each(|pair| set(pair, &saved)))?;
        self.zero_grad();
        self.write_back()?;
        self.begin_check_anew()
    }

    /// Whether every copy is in the file, and nothing else; what differs where not.
    fn require_fitting(&self, saved: &BTreeMap<String, Tensor>) -> Result<(), String> {
        for pair in &self.pairs {
            let (name, wanted) = (&pair.name, pair.master.size());
            let tensor = saved.get(name).ok_or_else(|| format!("{name} {wanted:?} is missing"))?;
            if tensor.size() != wanted {
                return Err(format!("{name} has the shape {:?} there and {wanted:?} here", tensor.size()));
            }
            if tensor.kind() != Kind::Float {
                return Err(format!("{name} is {:?} there, as in a file of the model's own weights", tensor.kind()));
            }
        }
        match saved.keys().find(|&name| self.pairs.iter().all(|pair| pair.name != *name)) {
            Some(name) => Err(format!("{name} is there and is no trainable parameter here")),
            None => Ok(()),
        }
    }
}

fn set(pair: &mut Pair, saved: &BTreeMap<String, Tensor>) -> Result<(), MastersError> {
    match saved.get(&pair.name) {
        Some(tensor) => Ok(pair.master.f_copy_(tensor)?),
        None => Ok(()),
    }
}

fn read(path: &Path) -> Result<BTreeMap<String, Tensor>, MastersError> {
    // LibTorch's message for a file that is not there is a page long and names no file.
    fs::File::open(path).map_err(|error| file("read", error, path))?;
    let named = if is_safetensors(path) { Tensor::read_safetensors(path) } else { Tensor::load_multi(path) };
    Ok(named.map_err(|error| file("read", error, path))?.into_iter().collect())
}

fn is_safetensors(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "safetensors")
}

fn aside(path: &Path) -> PathBuf {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".partial");
    aside.into()
}

fn file(verb: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>, path: &Path) -> MastersError {
    MastersError::File { verb, source: source.into(), path: path.to_owned() }
}
