//! A causal transformer over characters, its norms in front of attention and perceptron, its head tied to its embedding.

use tch::nn::{self, Module};
use tch::{Device, Kind, Tensor};

use super::{Model, Pass};
use crate::data::VOCABULARY;

pub(super) const LAYERS: &[&str] = &[
    "tok",
    "pos",
    "block.0.norm1",
    "block.0.attn.qkv",
    "block.0.attn.out",
    "block.0.norm2",
    "block.0.mlp.up",
    "block.0.mlp.down",
    "block.1.norm1",
    "block.1.attn.qkv",
    "block.1.attn.out",
    "block.1.norm2",
    "block.1.mlp.up",
    "block.1.mlp.down",
    "norm",
];

/// Characters that it looks back upon.
pub(super) const CONTEXT: usize = 32;
const WIDTH: i64 = 32;
const BLOCKS: usize = 2;
const HEADS: i64 = 2;
/// Of the embeddings. The head multiplies by the same numbers: at tch's default of 1 the first logits would have a spread of 6, and a loss far above chance.
const INIT_STDEV: f64 = 0.1;

pub(super) struct Transformer {
    tok: nn::Embedding,
    pos: nn::Embedding,
    positions: Tensor,
    blocks: Vec<Block>,
    norm: nn::LayerNorm,
}

impl Transformer {
    pub(super) fn new(root: &nn::Path) -> Self {
        let drawn =
            nn::EmbeddingConfig { ws_init: nn::Init::Randn { mean: 0.0, stdev: INIT_STDEV }, ..Default::default() };
        Self {
            tok: nn::embedding(root / "tok", VOCABULARY, WIDTH, drawn),
            pos: nn::embedding(root / "pos", CONTEXT as i64, WIDTH, drawn),
            positions: Tensor::arange(CONTEXT as i64, (Kind::Int64, Device::Cpu)),
            blocks: (0..BLOCKS).map(|number| Block::new(root, format!("block.{number}"))).collect(),
            norm: nn::layer_norm(root / "norm", vec![WIDTH], Default::default()),
        }
    }
}

impl Model for Transformer {
    fn forward(&self, characters: &Tensor, _train: bool, pass: &Pass<'_>) -> Tensor {
        let tok = pass.layer("tok", characters, |x| self.tok.forward(x));
        let pos = pass.layer("pos", &self.positions, |x| self.pos.forward(x));
        let x = self.blocks.iter().fold(tok + pos, |x, block| block.forward(&x, pass));
        let x = pass.layer("norm", &x, |x| self.norm.forward(x));
        // The head is the embedding once more.
        pass.within("tok", &x, |x| x.linear(&pass.plant().tied(self.tok.ws.shallow_clone()), None::<&Tensor>))
    }
}

struct Block {
    name: String,
    norm1: nn::LayerNorm,
    qkv: nn::Linear,
    out: nn::Linear,
    norm2: nn::LayerNorm,
    up: nn::Linear,
    down: nn::Linear,
    /// True where a character would look ahead.
    ahead: Tensor,
}

impl Block {
    fn new(root: &nn::Path, name: String) -> Self {
        let at = |part: &str| name.split('.').chain(part.split('.')).fold(root.clone(), |path, part| path / part);
        let linear = |part: &str, inputs, outputs| nn::linear(at(part), inputs, outputs, Default::default());
        let norm = |part: &str| nn::layer_norm(at(part), vec![WIDTH], Default::default());
        let context = CONTEXT as i64;
        Self {
            norm1: norm("norm1"),
            qkv: linear("attn.qkv", WIDTH, 3 * WIDTH),
            out: linear("attn.out", WIDTH, WIDTH),
            norm2: norm("norm2"),
            up: linear("mlp.up", WIDTH, 4 * WIDTH),
            down: linear("mlp.down", 4 * WIDTH, WIDTH),
            ahead: Tensor::ones([context, context], (Kind::Bool, Device::Cpu)).triu(1),
            name,
        }
    }

    fn forward(&self, x: &Tensor, pass: &Pass<'_>) -> Tensor {
        let at = |part: &str| format!("{}.{part}", self.name);
        let normed = pass.layer(&at("norm1"), x, |x| self.norm1.forward(x));
        let qkv = pass.layer(&at("attn.qkv"), &normed, |x| self.qkv.forward(x));
        let mixed = pass.within(&at("attn"), &qkv, |qkv| self.attend(qkv));
        let x = x + pass.layer(&at("attn.out"), &mixed, |x| self.out.forward(x));
        let normed = pass.layer(&at("norm2"), &x, |x| self.norm2.forward(x));
        let hidden = pass.layer(&at("mlp.up"), &normed, |x| self.up.forward(x)).gelu("none");
        x + pass.layer(&at("mlp.down"), &hidden, |x| self.down.forward(x))
    }

    /// Queries, keys and values (`[n, t, 3 WIDTH]`) to what each character takes from those before it (`[n, t, WIDTH]`).
    fn attend(&self, qkv: &Tensor) -> Tensor {
        let (rows, context, head) = (qkv.size()[0], qkv.size()[1], WIDTH / HEADS);
        let heads = qkv.view([rows, context, 3, HEADS, head]).permute([2, 0, 3, 1, 4]);
        let (q, k, v) = (heads.get(0), heads.get(1), heads.get(2));
        let scores = q.matmul(&k.transpose(-2, -1)) / (head as f64).sqrt();
        // In FP32, as CUDA's autocast would; the CPU's leaves it in FP16.
        let weights = scores.masked_fill(&self.ahead, f64::NEG_INFINITY).softmax(-1, Kind::Float);
        weights.to_kind(v.kind()).matmul(&v).transpose(1, 2).reshape([rows, context, WIDTH])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Plant;
    use crate::model::Fp32Layers;
    use crate::precision::Precision;

    #[test]
    fn no_character_sees_a_later_one() {
        let vs = nn::VarStore::new(Device::Cpu);
        let model = Transformer::new(&vs.root());
        let characters = Tensor::randint(VOCABULARY, [1, CONTEXT as i64], (Kind::Int64, Device::Cpu));
        let other = characters.copy();
        let _ = other.narrow(1, 20, 12).fill_(0);
        let (none, plant) = (Fp32Layers::none(), Plant::none());
        let pass = Pass::new(Precision::Fp32, &none, &plant);
        let logits = |input: &Tensor| model.forward(input, true, &pass);
        let (a, b) = (logits(&characters), logits(&other));
        assert_eq!(a.narrow(1, 0, 20), b.narrow(1, 0, 20));
        assert_ne!(a.narrow(1, 20, 12), b.narrow(1, 20, 12));
    }
}
