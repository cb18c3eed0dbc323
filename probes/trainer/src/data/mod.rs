//! What the models learn: examples with their answers, split once and for all into those to learn from and those to judge by.

mod batches;
mod digits;
mod text;

use anyhow::{Result, ensure};
use tch::Tensor;

pub use batches::Batches;
pub use text::VOCABULARY;

/// Which examples a model learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataKind {
    /// Images of handwritten digits (`[n, 64]`, f32, 0 to 1), each with its digit.
    Digits,
    /// Rows of characters (`[n, CONTEXT]`, i64), each character with the one after it.
    Text {
        /// Characters in a row.
        context: usize,
    },
}

/// Examples, split; the split is the same for every run, whatever its seed.
#[derive(Debug)]
pub struct Data {
    /// To learn from.
    pub train: Set,
    /// To judge by.
    pub held_out: Set,
}

impl Data {
    /// Reads examples that are part of this program.
    pub fn load(kind: DataKind) -> Result<Self> {
        match kind {
            DataKind::Digits => digits::load(),
            DataKind::Text { context } => text::load(context),
        }
    }
}

/// Inputs and what is to be said of each: one example a row.
#[derive(Debug)]
pub struct Set {
    inputs: Tensor,
    targets: Tensor,
}

impl Set {
    /// Inputs (`[n, ..]`) and targets (i64, `[n]` or `[n, t]`); an error where their numbers differ, or there is none.
    fn new(inputs: Tensor, targets: Tensor) -> Result<Self> {
        let (examples, answers) = (rows(&inputs), rows(&targets));
        ensure!(examples == answers && examples > 0, "{examples} examples with {answers} answers are no data");
        Ok(Self { inputs, targets })
    }

    /// How many examples there are; at least one.
    pub fn examples(&self) -> usize {
        rows(&self.inputs)
    }

    /// Inputs and targets at these indices.
    pub fn at(&self, indices: &[i64]) -> (Tensor, Tensor) {
        let indices = Tensor::from_slice(indices);
        (self.inputs.index_select(0, &indices), self.targets.index_select(0, &indices))
    }

    /// All inputs and targets.
    pub fn all(&self) -> (&Tensor, &Tensor) {
        (&self.inputs, &self.targets)
    }
}

fn rows(tensor: &Tensor) -> usize {
    tensor.size().first().map_or(0, |&rows| rows as usize)
}
