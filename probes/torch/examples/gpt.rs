//! A character-level GPT in FP16: weights of embedding and head tied, causal mask, dropout, AdamW with two groups, loss scaling.
//!
//! `cargo run --release -p ampdoctor-torch --example gpt`
use ampdoctor_torch::{GradScaler, autocast};
use tch::nn::{self, Module, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Tensor};

const TEXT: &str =
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness";
const BLOCK: i64 = 16;
const BATCH: i64 = 8;
const WIDTH: i64 = 32;
const HEADS: i64 = 2;
const DROPOUT: f64 = 0.1;
const NO_DECAY: usize = 0;
const DECAY: usize = 1;

struct Attention {
    qkv: nn::Linear,
    proj: nn::Linear,
    mask: Tensor,
}

impl Attention {
    fn new(p: &nn::Path) -> Self {
        let mask = Tensor::ones([BLOCK, BLOCK], (Kind::Bool, p.device())).triu(1);
        let linear = |name: &str, out| nn::linear((p / name).set_group(DECAY), WIDTH, out, Default::default());
        Self { qkv: linear("qkv", 3 * WIDTH), proj: linear("proj", WIDTH), mask }
    }

    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let (batch, time, _) = xs.size3().unwrap();
        let heads = |t: &Tensor| t.view([batch, time, HEADS, WIDTH / HEADS]).transpose(1, 2);
        let parts = xs.apply(&self.qkv).chunk(3, -1);
        let (q, k, v) = (heads(&parts[0]), heads(&parts[1]), heads(&parts[2]));
        let scores = q.matmul(&k.transpose(-2, -1)) / ((WIDTH / HEADS) as f64).sqrt();
        let scores = scores.masked_fill(&self.mask, f64::NEG_INFINITY);
        let weights = scores.softmax(-1, Kind::Float).dropout(DROPOUT, train);
        let ys = weights.to_kind(v.kind()).matmul(&v).transpose(1, 2).contiguous().view([batch, time, WIDTH]);
        ys.apply(&self.proj).dropout(DROPOUT, train)
    }
}

struct Block {
    ln1: nn::LayerNorm,
    attention: Attention,
    ln2: nn::LayerNorm,
    fc1: nn::Linear,
    fc2: nn::Linear,
}

impl Block {
    fn new(p: &nn::Path) -> Self {
        let linear = |name: &str, i, o| nn::linear((p / name).set_group(DECAY), i, o, Default::default());
        Self {
            ln1: nn::layer_norm(p / "ln1", vec![WIDTH], Default::default()),
            attention: Attention::new(&(p / "attn")),
            ln2: nn::layer_norm(p / "ln2", vec![WIDTH], Default::default()),
            fc1: linear("fc1", WIDTH, 4 * WIDTH),
            fc2: linear("fc2", 4 * WIDTH, WIDTH),
        }
    }

    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let xs = xs + self.attention.forward_t(&xs.apply(&self.ln1), train);
        let ys = xs.apply(&self.ln2).apply(&self.fc1).gelu("none").apply(&self.fc2).dropout(DROPOUT, train);
        xs + ys
    }
}

struct Gpt {
    tokens: nn::Embedding,
    positions: Tensor,
    blocks: Vec<Block>,
    ln: nn::LayerNorm,
}

impl Gpt {
    fn new(p: &nn::Path, vocabulary: i64, layers: i64) -> Self {
        let init =
            nn::EmbeddingConfig { ws_init: nn::init::Init::Randn { mean: 0., stdev: 0.02 }, ..Default::default() };
        Self {
            tokens: nn::embedding(p / "tokens", vocabulary, WIDTH, init),
            positions: p.randn("positions", &[1, BLOCK, WIDTH], 0., 0.02),
            blocks: (0..layers).map(|i| Block::new(&(p / "blocks" / i))).collect(),
            ln: nn::layer_norm(p / "ln", vec![WIDTH], Default::default()),
        }
    }
}

impl std::fmt::Debug for Gpt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gpt of {} blocks", self.blocks.len())
    }
}

impl ModuleT for Gpt {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let xs = (self.tokens.forward(xs) + &self.positions).dropout(DROPOUT, train);
        let xs = self.blocks.iter().fold(xs, |xs, block| block.forward_t(&xs, train)).apply(&self.ln);
        // The head is the embedding, transposed.
        xs.matmul(&self.tokens.ws.tr())
    }
}

/// The text as numbers of characters, and how many different ones there are.
fn tokens() -> (Tensor, i64) {
    let mut characters: Vec<char> = TEXT.chars().collect();
    characters.sort_unstable();
    characters.dedup();
    let number = |c| characters.binary_search(&c).unwrap() as i64;
    let numbers: Vec<i64> = TEXT.chars().map(number).collect();
    (Tensor::from_slice(&numbers), characters.len() as i64)
}

fn batch(text: &Tensor) -> (Tensor, Tensor) {
    let starts =
        Vec::<i64>::try_from(Tensor::randint(text.size()[0] - BLOCK - 1, [BATCH], tch::kind::INT64_CPU)).unwrap();
    let rows = |shift| starts.iter().map(|start| text.narrow(0, start + shift, BLOCK)).collect::<Vec<_>>();
    (Tensor::stack(&rows(0), 0), Tensor::stack(&rows(1), 0))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(1);
    tch::set_num_threads(1);
    let device = Device::Cpu;
    let vs = nn::VarStore::new(device);
    let (text, vocabulary) = tokens();
    let gpt = Gpt::new(&vs.root(), vocabulary, 2);
    let mut opt = nn::AdamW::default().build(&vs, 3e-3)?;
    opt.set_weight_decay_group(NO_DECAY, 0.0);
    opt.set_weight_decay_group(DECAY, 0.1);

    let mut doctor = ampdoctor_torch::Doctor::attach(&vs); // ampdoctor: line one
    let mut scaler = GradScaler::default();
    for step in 1..=40 {
        let (xs, ys) = batch(&text);
        let loss = autocast(device, Kind::Half, || {
            let logits = gpt.forward_t(&xs, true);
            logits.view([BATCH * BLOCK, vocabulary]).cross_entropy_for_logits(&ys.view([BATCH * BLOCK]))
        });
        opt.zero_grad();
        scaler.backward(&loss);
        scaler.unscale(&mut opt)?;
        opt.clip_grad_norm(1.0);
        scaler.step(&mut opt)?;
        scaler.update()?;
        doctor.step(&loss); // ampdoctor: line two
        if step % 10 == 0 {
            println!("step {step}, loss {:.3}", loss.double_value(&[]));
        }
    }
    if let Some(path) = std::env::args().nth(1) {
        vs.save(path)?;
    }
    Ok(())
}
