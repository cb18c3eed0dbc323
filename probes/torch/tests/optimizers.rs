//! Updates of all optimizers of tch: what the observer saw is what happened.

mod observed;

use ampdoctor::observation::Probe;
use observed::{batch, mlp, observe, store};
use tch::Tensor;
use tch::nn::{self, Module, Optimizer, OptimizerConfig, VarStore};

/// Copies of all parameters, by name.
fn copies(vs: &VarStore) -> Vec<(String, Tensor)> {
    let mut all: Vec<_> = vs.variables().into_iter().map(|(name, t)| (name, t.detach().copy())).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Trains three steps and compares every observed update with the difference of the copies.
fn updates_are_true(build: impl FnOnce(&VarStore) -> Optimizer, operator: &str) {
    let vs = store(1);
    let net = mlp(&vs);
    let mut opt = build(&vs);
    let mut before = Vec::new();
    let mut after = Vec::new();
    let run = observe(&vs, |doctor| {
        for _ in 0..3 {
            let (x, y) = batch();
            let loss = net.forward(&x).cross_entropy_for_logits(&y);
            before.push(copies(&vs));
            opt.backward_step(&loss);
            after.push(copies(&vs));
            doctor.step(&loss);
        }
    });
    assert_eq!(run.notes, []);
    for step in 0..3 {
        for ((name, old), (_, new)) in before[step].iter().zip(&after[step]) {
            let update = run.one(step, Probe::Update, name);
            let difference = new - old;
            assert_eq!(run.site(update).operator, operator, "{name}");
            assert_eq!(update.stats.max_abs, difference.abs().max().double_value(&[]), "{name} at step {step}");
            assert_eq!(update.stats.count as usize, difference.numel());
            assert!(update.stats.max_abs > 0.0);
            let value = run.one(step, Probe::Param, name);
            assert_eq!(value.stats.max_abs, new.abs().max().double_value(&[]), "{name} at step {step}");
        }
    }
}

#[test]
fn sgd() {
    updates_are_true(|vs| nn::Sgd::default().build(vs, 0.1).unwrap(), "add_");
}

#[test]
fn sgd_with_weight_decay() {
    updates_are_true(|vs| nn::sgd(0.0, 0.0, 0.01, false).build(vs, 0.1).unwrap(), "add_");
}

#[test]
fn sgd_with_nesterov_momentum() {
    updates_are_true(|vs| nn::sgd(0.9, 0.0, 0.0, true).build(vs, 0.1).unwrap(), "add_");
}

#[test]
fn sgd_with_nesterov_momentum_and_weight_decay() {
    updates_are_true(|vs| nn::sgd(0.9, 0.0, 0.01, true).build(vs, 0.1).unwrap(), "add_");
}

#[test]
fn adam() {
    updates_are_true(|vs| nn::Adam::default().build(vs, 1e-3).unwrap(), "addcdiv_");
}

#[test]
fn adam_with_weight_decay() {
    updates_are_true(|vs| nn::adam(0.9, 0.999, 0.01).build(vs, 1e-3).unwrap(), "addcdiv_");
}

#[test]
fn amsgrad() {
    updates_are_true(|vs| nn::Adam::default().amsgrad(true).build(vs, 1e-3).unwrap(), "addcdiv_");
}

#[test]
fn amsgrad_with_weight_decay() {
    updates_are_true(|vs| nn::Adam::default().amsgrad(true).wd(0.01).build(vs, 1e-3).unwrap(), "addcdiv_");
}

#[test]
fn adamw_without_weight_decay() {
    updates_are_true(|vs| nn::adamw(0.9, 0.999, 0.0).build(vs, 1e-3).unwrap(), "addcdiv_");
}

#[test]
fn adamw() {
    updates_are_true(|vs| nn::AdamW::default().build(vs, 1e-3).unwrap(), "addcdiv_");
}

#[test]
fn rmsprop() {
    updates_are_true(|vs| nn::RmsProp::default().build(vs, 1e-3).unwrap(), "addcdiv_");
}

#[test]
fn rmsprop_with_weight_decay() {
    updates_are_true(|vs| nn::rms_prop(0.99, 1e-8, 0.01, 0.0, true).build(vs, 1e-3).unwrap(), "addcdiv_");
}

#[test]
fn rmsprop_with_momentum_and_weight_decay() {
    updates_are_true(|vs| nn::rms_prop(0.99, 1e-8, 0.01, 0.9, false).build(vs, 1e-3).unwrap(), "add_");
}
