//! What the observer sees of a plain training step.

mod observed;

use ampdoctor::observation::{Probe, Tier};
use ampdoctor_torch::{GradScaler, autocast};
use observed::{batch, mlp, observe, store};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind};

#[test]
fn a_step_in_fp16_shows_every_layer_in_order() {
    let vs = store(1);
    let net = mlp(&vs);
    let mut opt = nn::Adam::default().build(&vs, 1e-3).unwrap();
    let mut scaler = GradScaler::default();
    let run = observe(&vs, |doctor| {
        for _ in 0..3 {
            let (x, y) = batch();
            let loss = autocast(Device::Cpu, Kind::Half, || net.forward(&x).cross_entropy_for_logits(&y));
            opt.zero_grad();
            scaler.backward(&loss);
            scaler.unscale(&mut opt).unwrap();
            scaler.step(&mut opt).unwrap();
            scaler.update().unwrap();
            doctor.step(&loss);
        }
    });
    println!("{:#?}", run.labels(0));
    println!("{:#?}", run.labels(1));
    assert!(run.ended);
    assert_eq!(run.steps.len(), 3);
    assert!(run.steps.iter().all(|s| s.tier == Tier::Full && s.loss_scale == Some(65536.0)));
    assert_eq!(run.notes, []);
    for label in ["fc1/linear", "fc1/relu", "fc2/linear"] {
        run.one(1, Probe::Activation, label);
        run.one(1, Probe::ActivationGrad, label);
    }
    for label in ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"] {
        run.one(1, Probe::ParamGrad, label);
        run.one(1, Probe::Update, label);
        run.one(1, Probe::Param, label);
    }
}
