//! A residual convolution net with batch normalization, trained and evaluated in turn; the evaluation runs in grad mode.
//!
//! `cargo run --release -p ampdoctor-torch --example resnet`
use tch::nn::{self, FuncT, ModuleT, OptimizerConfig, SequentialT};
use tch::{Device, Kind, Tensor};

fn conv_bn(vs: &nn::Path, c_in: i64, c_out: i64) -> SequentialT {
    let config = nn::ConvConfig { padding: 1, bias: false, ..Default::default() };
    nn::seq_t()
        .add(nn::conv2d(vs / "conv", c_in, c_out, 3, config))
        .add(nn::batch_norm2d(vs / "bn", c_out, Default::default()))
        .add_fn(|x| x.relu())
}

fn layer<'a>(vs: &nn::Path, c_in: i64, c_out: i64) -> FuncT<'a> {
    let pre = conv_bn(&(vs / "pre"), c_in, c_out);
    let block1 = conv_bn(&(vs / "b1"), c_out, c_out);
    let block2 = conv_bn(&(vs / "b2"), c_out, c_out);
    nn::func_t(move |xs, train| {
        let pre = xs.apply_t(&pre, train).max_pool2d_default(2);
        let ys = pre.apply_t(&block1, train).apply_t(&block2, train);
        pre + ys
    })
}

fn resnet(vs: &nn::Path) -> SequentialT {
    nn::seq_t()
        .add(conv_bn(&(vs / "stem"), 3, 8))
        .add(layer(&(vs / "layer1"), 8, 16))
        .add(layer(&(vs / "layer2"), 16, 16))
        .add_fn(|x| x.max_pool2d_default(4).flat_view())
        .add(nn::linear(vs / "head", 16, 4, Default::default()))
}

/// Images of four classes: noise, and a bright quarter.
fn images(count: i64) -> (Tensor, Tensor) {
    let xs = Tensor::randn([count, 3, 16, 16], (Kind::Float, Device::Cpu));
    let ys = Tensor::randint(4, [count], tch::kind::INT64_CPU);
    for i in 0..count {
        let class = ys.int64_value(&[i]);
        let _ = xs.get(i).narrow(1, class / 2 * 8, 8).narrow(2, class % 2 * 8, 8).g_add_scalar_(1.0);
    }
    (xs, ys)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(3);
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let net = resnet(&vs.root());
    let mut opt = nn::Sgd { momentum: 0.9, dampening: 0., wd: 5e-4, nesterov: true }.build(&vs, 0.05)?;
    let (test_xs, test_ys) = images(64);

    let mut doctor = ampdoctor_torch::Doctor::attach(&vs); // ampdoctor: line one
    for epoch in 1..=3 {
        for _ in 0..8 {
            let (xs, ys) = images(16);
            let loss = net.forward_t(&xs, true).cross_entropy_for_logits(&ys);
            opt.backward_step(&loss);
            doctor.step(&loss); // ampdoctor: line two
        }
        let accuracy = net.forward_t(&test_xs, false).accuracy_for_logits(&test_ys);
        println!("epoch {epoch}, accuracy {:.1} %", 100.0 * accuracy.double_value(&[]));
    }
    if let Some(path) = std::env::args().nth(1) {
        vs.save(path)?;
    }
    Ok(())
}
