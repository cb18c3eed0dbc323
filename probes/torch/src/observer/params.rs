//! Parameters and buffers, recognised by the storage they live in.
//!
//! SGD in C++ steps `p.data()`, a fresh TensorImpl on the same storage; views and transposes share it too. `half`, `load` and
//! `set_device` replace storages, so the table is checked at every step boundary.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ampdoctor::observation::Parameter;
use ampdoctor::scan::Dtype;
use tch::Tensor;
use tch::nn::Variables;

use super::border::{Content, Place, tensor};
use super::layers::{LayerId, Layers, split_path};
use crate::events::Masters;

/// A parameter or buffer.
pub(super) struct Param {
    pub name: String,
    pub layer: LayerId,
    /// Its own name within the layer.
    pub tensor_name: Arc<str>,
    /// A handle of our own: it keeps the TensorImpl alive, so that no address is reused.
    pub tensor: Tensor,
    /// Whether an optimizer may change it (frozen parameters count, buffers do not).
    pub parameter: bool,
    /// Its part in master weights.
    pub role: Role,
    /// Its FP32 copy, or the parameter that it is a copy of; the place in the table.
    partner: Option<usize>,
    /// Autograd's version when it was last scanned.
    pub scanned_version: Option<u32>,
    /// The gradient that an optimizer last stepped it by, until that is cleared or changed.
    pub used: Option<Content>,
    /// Whether a backward pass began with that gradient still there, and added to it.
    pub carried: bool,
}

/// What a parameter is to master weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    /// The optimizer steps it itself.
    #[default]
    Own,
    /// It is written back from a copy, by `copy_`.
    Mastered,
    /// It is an FP32 copy, under the name of the parameter that it is a copy of. Its gradient is that parameter's, already seen there.
    Master,
}

/// A VarStore, and what its names begin with.
struct Store {
    variables: Arc<Mutex<Variables>>,
    prefix: String,
    role: Role,
    /// The model's store, where it has copies or consists of copies.
    model: Option<usize>,
}

/// All parameters and buffers of the observed VarStores, sorted by name.
#[derive(Default)]
pub(super) struct ParamTable {
    stores: Vec<Store>,
    params: Vec<Param>,
    /// The parameters in each storage, by where they begin: mostly one, but weights may be parts of one flat tensor (as cuDNN wants those of an LSTM).
    by_storage: HashMap<usize, Vec<(usize, usize)>>,
}

impl ParamTable {
    pub(super) fn new(stores: Vec<Arc<Mutex<Variables>>>) -> Self {
        let several = stores.len() > 1;
        let store = |(index, variables)| Store {
            variables,
            prefix: if several { format!("store{index}.") } else { String::new() },
            role: Role::Own,
            model: None,
        };
        Self { stores: stores.into_iter().enumerate().map(store).collect(), ..Self::default() }
    }

    /// Observes the FP32 copies of an observed model too, under its names: a layer is one layer, and the dtype tells the two apart. Copies
    /// that were attached as a VarStore of their own keep the names they have.
    pub(super) fn add_masters(&mut self, masters: &Masters) {
        let position = |wanted| self.stores.iter().position(|store| Arc::ptr_eq(&store.variables, wanted));
        let Some(model) = position(&masters.model) else { return };
        let copies = position(&masters.copies);
        let prefix = self.stores[model].prefix.clone();
        self.stores[model].role = Role::Mastered;
        self.stores[model].model = Some(model);
        let variables = masters.copies.clone();
        let store = Store { variables, prefix, role: Role::Master, model: Some(model) };
        match copies {
            Some(copies) => {
                let prefix = std::mem::take(&mut self.stores[copies].prefix);
                self.stores[copies] = Store { prefix, ..store };
            }
            None => self.stores.push(store),
        }
    }

    /// Reads the VarStores again where something changed. It waits for no lock: `clip_grad_norm`, `load` and `entry` hold the VarStore's while they
    /// run operators, whose callbacks it may be called from. Returns false where a lock could not be had.
    pub(super) fn refresh(&mut self, layers: &mut Layers) -> bool {
        let mut named = Vec::new();
        for store in &self.stores {
            let Ok(variables) = store.variables.try_lock() else { return false };
            collect(&variables, store, &mut named);
        }
        if self.is_current(&named) {
            return true;
        }
        named.sort_by(|a, b| a.name.cmp(&b.name));
        let partners = partners(&named);
        let with_partner = named.into_iter().zip(partners);
        self.params = with_partner.map(|(found, partner)| new_param(found, partner, layers)).collect();
        self.by_storage = by_storage(&self.params);
        true
    }

    fn is_current(&self, named: &[Found]) -> bool {
        named.len() == self.params.len()
            && named.iter().all(|found| {
                self.find(tensor::place(&found.tensor)).is_some_and(|i| {
                    let known = &self.params[i];
                    let same_memory = || tensor::storage(&known.tensor) == tensor::storage(&found.tensor);
                    known.role == found.role && (known.name == found.name || same_memory())
                })
            })
            && self.params.iter().all(|p| self.by_storage.contains_key(&tensor::storage(&p.tensor)))
    }

    /// The parameter or buffer that lies at a place: of those in its storage the last that begins there or before.
    pub(super) fn find(&self, at: Place) -> Option<usize> {
        let here = self.by_storage.get(&at.storage)?;
        let behind = here.partition_point(|&(begin, _)| begin <= at.offset);
        here.get(behind.saturating_sub(1)).map(|&(_, index)| index)
    }

    pub(super) fn get(&self, index: usize) -> Option<&Param> {
        self.params.get(index)
    }

    /// The FP32 copy that a parameter is written back from.
    pub(super) fn master_of(&self, index: usize) -> Option<usize> {
        let param = self.get(index).filter(|p| p.role == Role::Mastered)?;
        param.partner
    }

    /// The format that an FP32 copy is rounded to when it is written back, where that is a coarser one.
    pub(super) fn rounds_to(&self, index: usize) -> Option<Dtype> {
        let copy = self.get(index).filter(|p| p.role == Role::Master)?;
        match self.get(copy.partner?)?.tensor.kind() {
            tch::Kind::Half => Some(Dtype::F16),
            tch::Kind::BFloat16 => Some(Dtype::Bf16),
            _ => None,
        }
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Param> {
        self.params.get_mut(index)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Param> {
        self.params.iter_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Param> {
        self.params.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.params.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.params.is_empty()
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

fn by_storage(params: &[Param]) -> HashMap<usize, Vec<(usize, usize)>> {
    let mut by_storage: HashMap<usize, Vec<(usize, usize)>> = HashMap::new();
    for (index, param) in params.iter().enumerate() {
        let at = tensor::place(&param.tensor);
        if at.storage != 0 {
            by_storage.entry(at.storage).or_default().push((at.offset, index));
        }
    }
    by_storage.values_mut().for_each(|here| here.sort_unstable());
    by_storage
}

/// The device's name in recordings.
fn device_name(device: tch::Device) -> String {
    match device {
        tch::Device::Cpu => "cpu".into(),
        tch::Device::Cuda(index) => format!("cuda:{index}"),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// A parameter or buffer as a VarStore lists it.
struct Found {
    name: String,
    /// Its name in its store, and the store of the model, where copies are kept.
    pair: Option<(usize, String)>,
    tensor: Tensor,
    parameter: bool,
    role: Role,
}

/// Names and handles of one VarStore.
fn collect(variables: &Variables, store: &Store, out: &mut Vec<Found>) {
    let trained: std::collections::HashSet<usize> =
        variables.trainable_variables.iter().map(|v| tensor::identity(&v.tensor)).collect();
    for (name, t) in &variables.named_variables {
        let parameter = trained.contains(&tensor::identity(t));
        let role = if parameter { store.role } else { Role::Own };
        let pair = store.model.filter(|_| parameter).map(|model| (model, name.clone()));
        out.push(Found { name: format!("{}{name}", store.prefix), pair, tensor: t.shallow_clone(), parameter, role });
    }
}

/// For each its FP32 copy, or what it is a copy of.
fn partners(named: &[Found]) -> Vec<Option<usize>> {
    let mut pairs: HashMap<&(usize, String), Vec<usize>> = HashMap::new();
    for (index, found) in named.iter().enumerate() {
        if let Some(pair) = &found.pair {
            pairs.entry(pair).or_default().push(index);
        }
    }
    let mut partners = vec![None; named.len()];
    for pair in pairs.values() {
        if let [a, b] = pair[..]
            && named[a].role != named[b].role
        {
            (partners[a], partners[b]) = (Some(b), Some(a));
        }
    }
    partners
}

fn new_param(found: Found, partner: Option<usize>, layers: &mut Layers) -> Param {
    let Found { name, pair: _, tensor, parameter, role } = found;
    let (layer, own) = split_path(&name);
    Param {
        layer: layers.intern(layer),
        tensor_name: own.into(),
        tensor,
        parameter,
        role,
        partner,
        scanned_version: None,
        used: None,
        carried: false,
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
