//! The three shapes that are measured.

use tch::nn::{self, Module, ModuleT};
use tch::{Device, Kind, Tensor};

const WIDTH: i64 = 256;
const LAYERS: usize = 4;
const HEADS: i64 = 8;
const CONTEXT: i64 = 128;
const VOCABULARY: i64 = 96;

/// A model with a batch to train it on.
pub(crate) struct Shape {
    /// Its name.
    pub(crate) name: &'static str,
    /// The ratio of processor time that a scan of every step should not exceed.
    pub(crate) full_target: f64,
    /// Builds the model and its batch below the path; the loss of a step.
    pub(crate) build: fn(&nn::Path) -> Box<dyn Fn() -> Tensor>,
}

/// The shapes, in the order in which they are measured.
pub(crate) static SHAPES: &[Shape] = &[
    Shape { name: "transformer", full_target: 1.10, build: transformer },
    Shape { name: "conv", full_target: 1.10, build: conv },
    Shape { name: "mlp", full_target: 1.20, build: mlp },
];

/// Predicts the next of 96 characters: width 256, 4 layers, 8 heads, 8 rows of 128.
fn transformer(root: &nn::Path) -> Box<dyn Fn() -> Tensor> {
    let batch = 8;
    let tokens = Tensor::randint(VOCABULARY, [batch, CONTEXT], (Kind::Int64, Device::Cpu));
    let targets = Tensor::randint(VOCABULARY, [batch * CONTEXT], (Kind::Int64, Device::Cpu));
    let embedding = nn::embedding(root / "embedding", VOCABULARY, WIDTH, Default::default());
    let positions = root.var("positions", &[CONTEXT, WIDTH], nn::Init::Randn { mean: 0.0, stdev: 0.02 });
    let blocks: Vec<Block> = (0..LAYERS).map(|layer| Block::new(&(root / "block" / layer))).collect();
    let norm = nn::layer_norm(root / "norm", vec![WIDTH], Default::default());
    let head = nn::linear(root / "head", WIDTH, VOCABULARY, Default::default());
    Box::new(move || {
        let x = embedding.forward(&tokens) + &positions;
        let x = blocks.iter().fold(x, |x, block| block.forward(&x));
        head.forward(&norm.forward(&x)).view([-1, VOCABULARY]).cross_entropy_for_logits(&targets)
    })
}

struct Block {
    norm1: nn::LayerNorm,
    qkv: nn::Linear,
    out: nn::Linear,
    norm2: nn::LayerNorm,
    up: nn::Linear,
    down: nn::Linear,
    mask: Tensor,
}

impl Block {
    fn new(root: &nn::Path) -> Self {
        let linear = |name: &str, inputs, outputs| nn::linear(root / name, inputs, outputs, Default::default());
        Self {
            norm1: nn::layer_norm(root / "norm1", vec![WIDTH], Default::default()),
            qkv: linear("qkv", WIDTH, 3 * WIDTH),
            out: linear("out", WIDTH, WIDTH),
            norm2: nn::layer_norm(root / "norm2", vec![WIDTH], Default::default()),
            up: linear("up", WIDTH, 4 * WIDTH),
            down: linear("down", 4 * WIDTH, WIDTH),
            mask: Tensor::ones([CONTEXT, CONTEXT], (Kind::Bool, Device::Cpu)).triu(1),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let x = x + self.attention(&self.norm1.forward(x));
        let hidden = self.up.forward(&self.norm2.forward(&x)).gelu("none");
        x + self.down.forward(&hidden)
    }

    /// By hand, not fused: every intermediate is a tensor that the doctor scans, which is the dearer case.
    fn attention(&self, x: &Tensor) -> Tensor {
        let (batch, head) = (x.size()[0], WIDTH / HEADS);
        let heads = self.qkv.forward(x).view([batch, CONTEXT, 3, HEADS, head]).permute([2, 0, 3, 1, 4]);
        let (q, k, v) = (heads.get(0), heads.get(1), heads.get(2));
        let scores = q.matmul(&k.transpose(-2, -1)) / (head as f64).sqrt();
        let weights = scores.masked_fill(&self.mask, f64::NEG_INFINITY).softmax(-1, Kind::Float);
        let mixed = weights.matmul(&v).transpose(1, 2).reshape([batch, CONTEXT, WIDTH]);
        self.out.forward(&mixed)
    }
}

/// Classifies 32 images of 3 x 32 x 32: 3-32-32-64-64-128-128 with BatchNorm, the image halved after every second.
fn conv(root: &nn::Path) -> Box<dyn Fn() -> Tensor> {
    let images = Tensor::randn([32, 3, 32, 32], (Kind::Float, Device::Cpu));
    let labels = Tensor::randint(10, [32], (Kind::Int64, Device::Cpu));
    let channels = [3, 32, 32, 64, 64, 128, 128];
    let convolution = nn::ConvConfig { padding: 1, bias: false, ..Default::default() };
    let layers: Vec<(nn::Conv2D, nn::BatchNorm)> = channels
        .windows(2)
        .enumerate()
        .map(|(i, pair)| {
            let name = i + 1;
            let conv = nn::conv2d(root / format!("conv{name}"), pair[0], pair[1], 3, convolution);
            (conv, nn::batch_norm2d(root / format!("bn{name}"), pair[1], Default::default()))
        })
        .collect();
    let head = nn::linear(root / "head", 128, 10, Default::default());
    Box::new(move || {
        let mut x = images.shallow_clone();
        for (i, (conv, norm)) in layers.iter().enumerate() {
            x = norm.forward_t(&conv.forward(&x), true).relu();
            if i % 2 == 1 {
                x = x.max_pool2d_default(2);
            }
        }
        head.forward(&x.mean_dim([2, 3].as_slice(), false, Kind::Float)).cross_entropy_for_logits(&labels)
    })
}

/// Classifies 128 rows of 784: 784-1024-1024-10.
fn mlp(root: &nn::Path) -> Box<dyn Fn() -> Tensor> {
    let images = Tensor::rand([128, 784], (Kind::Float, Device::Cpu));
    let labels = Tensor::randint(10, [128], (Kind::Int64, Device::Cpu));
    let fc1 = nn::linear(root / "fc1", 784, 1024, Default::default());
    let fc2 = nn::linear(root / "fc2", 1024, 1024, Default::default());
    let fc3 = nn::linear(root / "fc3", 1024, 10, Default::default());
    Box::new(move || {
        let x = fc2.forward(&fc1.forward(&images).relu()).relu();
        fc3.forward(&x).cross_entropy_for_logits(&labels)
    })
}
