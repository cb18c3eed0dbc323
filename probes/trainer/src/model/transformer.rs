//! A causal transformer over characters, its norms in front of attention and perceptron, its head tied to its embedding.

use tch::nn::{self, Module};
use tch::{Device, Kind, Tensor};

use super::Model;
use crate::data::VOCABULARY;
use crate::fault::Plant;

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
    fn forward(&self, characters: &Tensor, _train: bool, plant: &Plant) -> Tensor {
        let tok = plant.output("tok", self.tok.forward(characters));
        let pos = plant.output("pos", self.pos.forward(&self.positions));
        let x = self.blocks.iter().fold(tok + pos, |x, block| block.forward(&x, plant));
        let x = plant.output("norm", self.norm.forward(&x));
        x.linear(&self.tok.ws, None::<&Tensor>)
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

    fn forward(&self, x: &Tensor, plant: &Plant) -> Tensor {
        let through = |part: &str, output: Tensor| plant.output(&format!("{}.{part}", self.name), output);
        let normed = through("norm1", self.norm1.forward(x));
        let mixed = self.attend(&through("attn.qkv", self.qkv.forward(&normed)));
        let x = x + through("attn.out", self.out.forward(&mixed));
        let normed = through("norm2", self.norm2.forward(&x));
        let hidden = through("mlp.up", self.up.forward(&normed)).gelu("none");
        x + through("mlp.down", self.down.forward(&hidden))
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

    #[test]
    fn no_character_sees_a_later_one() {
        let vs = nn::VarStore::new(Device::Cpu);
        let model = Transformer::new(&vs.root());
        let characters = Tensor::randint(VOCABULARY, [1, CONTEXT as i64], (Kind::Int64, Device::Cpu));
        let other = characters.copy();
        let _ = other.narrow(1, 20, 12).fill_(0);
        let logits = |input: &Tensor| model.forward(input, true, &Plant::none());
        let (a, b) = (logits(&characters), logits(&other));
        assert_eq!(a.narrow(1, 0, 20), b.narrow(1, 0, 20));
        assert_ne!(a.narrow(1, 20, 12), b.narrow(1, 20, 12));
    }
}
