//! Parameters and buffers, recognised by the storage they live in.
//!
//! SGD in C++ steps `p.data()`, a fresh TensorImpl on the same storage; views and transposes share it too. `half`, `load` and
//! `set_device` replace storages, so the table is checked at every step boundary.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ampdoctor::observation::Parameter;
use tch::Tensor;
use tch::nn::Variables;

use super::border::tensor;
use super::layers::{LayerId, Layers, split_path};

/// A parameter or buffer.
pub(super) struct Param {
    pub name: String,
    pub layer: LayerId,
    /// Its own name within the layer.
    pub tensor_name: String,
    /// A handle of our own: it keeps the TensorImpl alive, so that no address is reused.
    pub tensor: Tensor,
    /// Whether an optimizer may change it (frozen parameters count, buffers do not).
    pub parameter: bool,
    /// Autograd's version when it was last scanned.
    pub scanned_version: Option<u32>,
}

/// All parameters and buffers of the observed VarStores, sorted by name.
#[derive(Default)]
pub(super) struct ParamTable {
    stores: Vec<Arc<Mutex<Variables>>>,
    params: Vec<Param>,
    by_storage: HashMap<usize, usize>,
}

impl ParamTable {
    pub(super) fn new(stores: Vec<Arc<Mutex<Variables>>>) -> Self {
        Self { stores, ..Self::default() }
    }

    /// Reads the VarStores again where something changed. Never called from a callback: `clip_grad_norm`, `load` and `entry`
    /// hold the VarStore's lock while they run operators. Returns false where a lock could not be had.
    pub(super) fn refresh(&mut self, layers: &mut Layers) -> bool {
        let stores = self.stores.clone();
        let mut named = Vec::new();
        for (index, store) in stores.iter().enumerate() {
            let Ok(variables) = store.try_lock() else { return false };
            collect(&variables, index, stores.len(), &mut named);
        }
        if self.is_current(&named) {
            return true;
        }
        named.sort_by(|a, b| a.0.cmp(&b.0));
        self.params =
            named.into_iter().map(|(name, tensor, parameter)| new_param(name, tensor, parameter, layers)).collect();
        self.by_storage = self
            .params
            .iter()
            .enumerate()
            .map(|(i, p)| (tensor::storage(&p.tensor), i))
            .filter(|&(s, _)| s != 0)
            .collect();
        true
    }

    fn is_current(&self, named: &[(String, Tensor, bool)]) -> bool {
        named.len() == self.params.len()
            && named.iter().all(|(name, t, _)| {
                self.find(tensor::storage(t)).is_some_and(|i| {
                    let known = &self.params[i];
                    known.name == *name || tensor::storage(&known.tensor) == tensor::storage(t)
                })
            })
            && self.params.iter().all(|p| self.by_storage.contains_key(&tensor::storage(&p.tensor)))
    }

    /// The parameter or buffer that lives in a storage.
    pub(super) fn find(&self, storage: usize) -> Option<usize> {
        self.by_storage.get(&storage).copied()
    }

    pub(super) fn get(&self, index: usize) -> Option<&Param> {
        self.params.get(index)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Param> {
        self.params.get_mut(index)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Param> {
        self.params.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.params.len()
    }

    /// Where they live; the first one's device.
    pub(super) fn device(&self) -> String {
        self.params.first().map_or_else(|| "cpu".into(), |p| device_name(p.tensor.device()))
    }

    /// What the recording says of them at the start.
    pub(super) fn describe(&self) -> Vec<Parameter> {
        self.params
            .iter()
            .map(|p| Parameter {
                name: p.name.clone(),
                dtype: kind_name(p.tensor.kind()),
                shape: p.tensor.size(),
                trainable: p.parameter && p.tensor.requires_grad(),
            })
            .collect()
    }
}

/// The device's name in recordings.
fn device_name(device: tch::Device) -> String {
    match device {
        tch::Device::Cpu => "cpu".into(),
        tch::Device::Cuda(index) => format!("cuda:{index}"),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// Names and handles of one VarStore; with several stores, names are told apart by the store's number.
fn collect(variables: &Variables, store: usize, stores: usize, out: &mut Vec<(String, Tensor, bool)>) {
    let trained: std::collections::HashSet<usize> =
        variables.trainable_variables.iter().map(|v| tensor::identity(&v.tensor)).collect();
    for (name, t) in &variables.named_variables {
        let name = if stores > 1 { format!("store{store}.{name}") } else { name.clone() };
        out.push((name, t.shallow_clone(), trained.contains(&tensor::identity(t))));
    }
}

fn new_param(name: String, tensor: Tensor, parameter: bool, layers: &mut Layers) -> Param {
    let (layer, own) = split_path(&name);
    Param {
        layer: layers.intern(layer),
        tensor_name: own.to_owned(),
        tensor,
        parameter,
        scanned_version: None,
        name: name.clone(),
    }
}

/// The dtype's name in recordings: `f32`, `f16`, `bf16`, `i64`.
fn kind_name(kind: tch::Kind) -> String {
    match kind {
        tch::Kind::Half => "f16".into(),
        tch::Kind::BFloat16 => "bf16".into(),
        tch::Kind::Float => "f32".into(),
        tch::Kind::Double => "f64".into(),
        tch::Kind::Int64 => "i64".into(),
        other => format!("{other:?}").to_lowercase(),
    }
}
