//! What is held in which dtype, and what another would save.

use std::collections::BTreeMap;

use crate::aggregate::Aggregate;
use crate::observation::{Parameter, Probe};

/// Elements in one dtype.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DtypeBytes {
    /// Dtype name: `f32`, `f16`, `i64`.
    pub dtype: String,
    /// Elements.
    pub elements: u64,
    /// Bytes that they take.
    pub bytes: u64,
}

impl DtypeBytes {
    /// Whether the numbers have a fraction, so that another float format could hold them.
    pub fn is_float(&self) -> bool {
        is_float(&self.dtype)
    }
}

/// What an optimizer keeps besides the parameters, told by the operator that updates them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OptimizerState {
    /// Two numbers a parameter: Adam and AdamW.
    Two,
    /// At most one, the momentum: SGD.
    AtMostOne,
    /// No update was seen, or by an operator that tells nothing.
    #[default]
    Unknown,
}

impl OptimizerState {
    /// Numbers kept for each trained parameter, at most.
    pub fn per_parameter(self) -> Option<u64> {
        match self {
            Self::Two => Some(2),
            Self::AtMostOne => Some(1),
            Self::Unknown => None,
        }
    }
}

/// What is held in which dtype, on one rank. Parameters and buffers are counted; all else is an estimate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Parameters and buffers, by dtype.
    pub parameters: Vec<DtypeBytes>,
    /// Those that are trained: each has a gradient of its own dtype, and what the optimizer keeps.
    pub trained: Vec<DtypeBytes>,
    /// What the optimizer keeps.
    pub optimizer: OptimizerState,
    /// FP32 copies of 16-bit parameters, of which an update was seen.
    pub masters_elements: u64,
    /// Outputs of the operators of one forward pass, by dtype. An upper bound: backward does not keep all of them, and views share their memory.
    pub activations: Vec<DtypeBytes>,
}

impl Memory {
    pub(super) fn of(aggregate: &Aggregate) -> Self {
        let parameters = aggregate.run.iter().flat_map(|run| &run.parameters);
        let sizes = |p: &&Parameter| (p.dtype.clone(), elements(p));
        let trained = by_dtype(parameters.clone().filter(|p| p.trainable).map(|p| sizes(&p)));
        let has_masters =
            aggregate.sites.iter().any(|s| s.rounding.as_ref().is_some_and(|r| r.unlike_master.is_some()));
        let in_16_bits =
            trained.iter().filter(|t| width(&t.dtype) == Some(2) && t.is_float()).map(|t| t.elements).sum();
        let outputs = aggregate.sites.iter().filter(|s| s.site.probe == Probe::Activation && !s.site.is_scaled_loss());
        let latest = outputs.filter_map(|s| Some((s.site.dtype.name().to_owned(), s.latest()?.stats.count)));
        Self {
            parameters: by_dtype(parameters.map(|p| sizes(&p))),
            optimizer: optimizer(aggregate),
            masters_elements: if has_masters { in_16_bits } else { 0 },
            trained,
            activations: by_dtype(latest),
        }
    }

    /// Bytes that the optimizer keeps: its states, in FP32, and the FP32 copies of 16-bit parameters. `None` where the optimizer is not known.
    pub fn optimizer_bytes(&self) -> Option<u64> {
        let trained: u64 = self.trained.iter().map(|t| t.elements).sum();
        Some((trained.saturating_mul(self.optimizer.per_parameter()?) + self.masters_elements).saturating_mul(4))
    }
}

/// Adam divides by a root, SGD adds.
fn optimizer(aggregate: &Aggregate) -> OptimizerState {
    let updates = || aggregate.sites.iter().filter(|s| s.site.probe == Probe::Update);
    match () {
        () if updates().any(|s| s.site.operator.starts_with("addcdiv")) => OptimizerState::Two,
        () if updates().any(|s| s.site.operator.starts_with("add")) => OptimizerState::AtMostOne,
        () => OptimizerState::Unknown,
    }
}

fn elements(parameter: &Parameter) -> u64 {
    parameter.shape.iter().fold(1, |n: u64, side| n.saturating_mul(u64::try_from(*side).unwrap_or(0)))
}

/// Bytes of one element; `None` for a dtype that is not known.
fn width(dtype: &str) -> Option<u64> {
    let digits: String = dtype.chars().filter(char::is_ascii_digit).collect();
    match dtype {
        "bool" => Some(1),
        // "f16", "bf16", "i64": the number is in bits.
        _ => digits.parse::<u64>().ok().map(|bits| bits / 8).filter(|bytes| (1..=16).contains(bytes)),
    }
}

fn is_float(dtype: &str) -> bool {
    dtype.starts_with('f') || dtype.starts_with("bf")
}

fn by_dtype(all: impl Iterator<Item = (String, u64)>) -> Vec<DtypeBytes> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (dtype, elements) in all {
        let sum = sums.entry(dtype).or_default();
        *sum = sum.saturating_add(elements);
    }
    let row = |(dtype, elements): (String, u64)| {
        let bytes = elements.saturating_mul(width(&dtype).unwrap_or(0));
        DtypeBytes { dtype, elements, bytes }
    };
    sums.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtypes_have_their_width() {
        let widths = ["f32", "f16", "bf16", "i64", "bool", "u8", "complex"].map(width);
        assert_eq!(widths, [Some(4), Some(2), Some(2), Some(8), Some(1), Some(1), None]);
        assert!(is_float("bf16") && is_float("f64") && !is_float("i64") && !is_float("bool"));
    }

    #[test]
    fn a_scalar_is_one_element_and_elements_of_one_dtype_are_added() {
        let parameter =
            |shape: &[i64]| Parameter { name: "w".into(), dtype: "f16".into(), shape: shape.into(), trainable: true };
        assert_eq!(
            [elements(&parameter(&[])), elements(&parameter(&[3, 4])), elements(&parameter(&[0, 4]))],
            [1, 12, 0]
        );
        let sums = by_dtype([("f16".to_owned(), 3), ("f32".to_owned(), 5), ("f16".to_owned(), 4)].into_iter());
        assert_eq!(sums[0], DtypeBytes { dtype: "f16".into(), elements: 7, bytes: 14 });
        assert_eq!(sums[1].bytes, 20);
    }
}
