//! The rules for hooks on tensors; each of them once ended or falsified a run.

mod observed;

use ampdoctor::observation::Probe;
use ampdoctor_torch::{Doctor, autocast};
use observed::{Run, batch, mlp, observe, store};
use tch::nn::{self, Module, OptimizerConfig, RNN};
use tch::{Device, Kind, Tensor};

fn randn(size: &[i64]) -> Tensor {
    Tensor::randn(size, (Kind::Float, Device::Cpu))
}

/// One step of SGD on a loss, observed.
fn one_step(vs: &nn::VarStore, loss: impl FnOnce() -> Tensor) -> Run {
    let mut opt = nn::Sgd::default().build(vs, 0.1).unwrap();
    observe(vs, |doctor| {
        let loss = loss();
        opt.backward_step(&loss);
        doctor.step(&loss);
    })
}

#[test]
fn an_undefined_gradient_of_an_unused_chunk_is_passed_over() {
    let vs = store(1);
    let fc = nn::linear(vs.root() / "fc", 8, 6, Default::default());
    let run = one_step(&vs, || {
        let parts = fc.forward(&randn(&[4, 8])).chunk(3, 1);
        let unsafe_parts = fc.forward(&randn(&[4, 8])).unsafe_chunk(3, 1);
        (&parts[0] + unsafe_parts[1].tanh()).square().mean(Kind::Float)
    });
    assert_eq!(run.notes, []);
    run.one(0, Probe::ActivationGrad, "fc/linear");
    run.one(0, Probe::ActivationGrad, "fc/linear#2");
    run.one(0, Probe::ParamGrad, "fc.weight");
}

#[test]
fn a_tensor_that_an_operator_returns_as_it_came_has_one_hook() {
    let vs = store(2);
    let fc = nn::linear(vs.root() / "fc", 8, 4, Default::default());
    let run = one_step(&vs, || {
        let y = fc.forward(&randn(&[4, 8])).dropout(0.5, false).to_kind(Kind::Float).to_device(Device::Cpu);
        y.square().mean(Kind::Float)
    });
    let gradients = run.at(0, |s| s.probe == Probe::ActivationGrad);
    let labels: Vec<_> = gradients.iter().map(|o| run.site(o).label()).collect();
    assert_eq!(labels, ["fc/mean", "fc/square", "fc/linear"]);
}

#[test]
fn the_output_of_a_3d_linear_under_autocast_is_a_view_and_is_observed() {
    let vs = store(3);
    let fc = nn::linear(vs.root() / "fc", 8, 4, Default::default());
    let run = one_step(&vs, || {
        let x = randn(&[2, 3, 8]);
        autocast(Device::Cpu, Kind::Half, || fc.forward(&x)).to_kind(Kind::Float).square().mean(Kind::Float)
    });
    let activation = run.one(0, Probe::Activation, "fc/linear");
    let gradient = run.one(0, Probe::ActivationGrad, "fc/linear");
    assert_eq!((activation.stats.count, gradient.stats.count), (24, 24));
    assert_eq!(run.site(activation).dtype, ampdoctor::scan::Dtype::F16);
}

#[test]
fn an_lstm_shows_its_outputs_and_all_its_parameters() {
    let vs = store(4);
    let lstm = nn::lstm(vs.root() / "rnn", 8, 5, Default::default());
    let run = one_step(&vs, || lstm.seq(&randn(&[2, 7, 8])).0.square().mean(Kind::Float));
    let outputs = run.at(0, |s| s.probe == Probe::ActivationGrad && s.layer == "rnn" && s.operator == "lstm");
    assert!(!outputs.is_empty(), "{:#?}", run.labels(0));
    assert_eq!(outputs[0].stats.count, 2 * 7 * 5);
    assert_eq!(run.at(0, |s| s.probe == Probe::Update).len(), 4);
}

#[test]
fn a_stride_0_gradient_counts_every_element() {
    let vs = store(5);
    let fc = nn::linear(vs.root() / "fc", 8, 4, Default::default());
    let run = one_step(&vs, || fc.forward(&randn(&[16, 8])).sum(Kind::Float));
    let stats = &run.one(0, Probe::ActivationGrad, "fc/linear").stats;
    assert_eq!((stats.count, stats.max_abs, stats.min_abs), (64, 1.0, 1.0));
    assert_eq!(stats.exponents.count(0), 64);
}

#[test]
fn an_in_place_operator_shows_the_value_before_and_after() {
    let vs = store(6);
    let fc = nn::linear(vs.root() / "fc", 8, 4, Default::default());
    let run = one_step(&vs, || fc.forward(&randn(&[16, 8])).relu_().square().mean(Kind::Float));
    assert_eq!(run.one(0, Probe::Activation, "fc/linear").stats.zeros, 0);
    let after = &run.one(0, Probe::Activation, "fc/relu_").stats;
    assert!(after.zeros > 0);
    let before_gradient = &run.one(0, Probe::ActivationGrad, "fc/linear").stats;
    assert_eq!(before_gradient.zeros, after.zeros, "what relu cut off has no gradient");
}

#[test]
fn a_frozen_parameter_is_silent_until_it_is_unfrozen() {
    let vs = store(7);
    let net = mlp(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.1).unwrap();
    let weight = vs.variables()["fc1.weight"].shallow_clone();
    let _ = weight.set_requires_grad(false);
    let run = observe(&vs, |doctor| {
        for step in 0..2 {
            if step == 1 {
                let _ = weight.set_requires_grad(true);
            }
            let (x, y) = batch();
            let loss = net.forward(&x).cross_entropy_for_logits(&y);
            opt.backward_step(&loss);
            doctor.step(&loss);
        }
    });
    let grads = |step| run.at(step, |s| s.probe == Probe::ParamGrad && s.label() == "fc1.weight").len();
    assert_eq!((grads(0), grads(1)), (0, 1));
    assert_eq!(run.notes, []);
}

#[test]
fn double_backward_is_observed_twice_and_changes_nothing() {
    let vs = store(8);
    let net = mlp(&vs);
    let (x, _) = batch();
    let plain = penalty(&vs, &net, &x);
    let expected = gradients(&vs, &plain);
    let mut seen = None;
    let run = observe(&vs, |doctor| {
        let loss = penalty(&vs, &net, &x);
        seen = Some(gradients(&vs, &loss));
        doctor.step(&loss);
    });
    assert_eq!(seen.unwrap(), expected);
    assert!(run.at(0, |s| s.probe == Probe::ActivationGrad && s.label() == "fc1/linear").len() >= 2);
    assert_eq!(run.notes, []);
}

/// A loss with the norm of its own gradient in it.
fn penalty(vs: &nn::VarStore, net: &impl Module, x: &Tensor) -> Tensor {
    let weight = &vs.variables()["fc1.weight"];
    let loss = net.forward(x).tanh().square().mean(Kind::Float);
    let gradient = Tensor::run_backward(&[&loss], &[weight], true, true);
    loss + gradient[0].square().sum(Kind::Float)
}

/// The bytes of all gradients after backward.
fn gradients(vs: &nn::VarStore, loss: &Tensor) -> Vec<Vec<f32>> {
    for variable in vs.trainable_variables() {
        let mut gradient = variable.grad();
        if gradient.defined() {
            let _ = gradient.zero_();
        }
    }
    loss.backward();
    vs.trainable_variables().iter().map(|v| Vec::try_from(v.grad().flatten(0, -1)).unwrap()).collect()
}

#[test]
fn a_doctor_dropped_between_forward_and_backward_leaves_the_hooks_harmless() {
    let vs = store(9);
    let net = mlp(&vs);
    let (x, y) = batch();
    let loss = net.forward(&x).cross_entropy_for_logits(&y);
    let expected = gradients(&vs, &loss);
    let dir = tempfile::tempdir().unwrap();
    let doctor = Doctor::builder().every(1).run(dir.path()).attach(&vs);
    let loss = net.forward(&x).cross_entropy_for_logits(&y);
    drop(doctor);
    assert_eq!(gradients(&vs, &loss), expected);
    // And a new doctor does not take the old hooks for its own.
    let loss = net.forward(&x).cross_entropy_for_logits(&y);
    let run = observe(&vs, |doctor| {
        let _ = gradients(&vs, &loss);
        doctor.step(&loss);
    });
    assert!(run.at(0, |s| s.probe == Probe::ActivationGrad).is_empty());
}

#[test]
fn clipping_and_loading_under_observation_neither_lock_up_nor_go_unseen() {
    let vs = store(10);
    let net = mlp(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weights.ot");
    vs.save(&file).unwrap();
    let mut vs = vs;
    let dir = tempfile::tempdir().unwrap();
    let mut doctor = Doctor::builder().every(1).run(dir.path()).attach(&vs);
    let mut seen_norms = Vec::new();
    for step in 0..3 {
        let (x, y) = batch();
        let loss = net.forward(&x).cross_entropy_for_logits(&y);
        opt.zero_grad();
        (&loss * 100.0).backward();
        opt.clip_grad_norm(0.5);
        opt.step();
        if step == 1 {
            vs.load(&file).unwrap();
        }
        doctor.step(&loss);
        seen_norms.push(loss.double_value(&[]));
    }
    let report = doctor.finish();
    let run = Run::read(report.recording().unwrap());
    assert_eq!(run.steps.len(), 3);
    assert_eq!(run.notes, []);
    // The gradient is seen as backward left it, before it was clipped.
    let squares: f64 = run.at(0, |s| s.probe == Probe::ParamGrad).iter().map(|o| o.stats.sum_squares.to_f64()).sum();
    assert!(squares.sqrt() > 0.6, "{squares}");
    assert!(run.at(1, |s| s.probe == Probe::Update && s.operator == "copy_").len() >= 4, "{:#?}", run.labels(1));
}

#[test]
fn an_operator_that_throws_does_not_unsettle_the_observer() {
    let vs = store(11);
    let fc = nn::linear(vs.root() / "fc", 8, 4, Default::default());
    let run = one_step(&vs, || {
        let y = fc.forward(&randn(&[4, 8]));
        assert!(y.f_matmul(&randn(&[3, 3])).is_err());
        assert!(y.f_view([7]).is_err());
        let mut weight = vs.variables().remove("fc.weight").unwrap();
        assert!(weight.f_add_(&weight.detach()).is_err(), "in place on a leaf that requires a gradient");
        y.square().mean(Kind::Float)
    });
    assert_eq!(run.notes, []);
    run.one(0, Probe::ActivationGrad, "fc/linear");
    run.one(0, Probe::ActivationGrad, "fc/square");
    run.one(0, Probe::Update, "fc.weight");
}

#[test]
fn a_graph_kept_over_the_step_is_not_taken_for_the_next_one() {
    let vs = store(12);
    let net = mlp(&vs);
    let run = observe(&vs, |doctor| {
        let (x, y) = batch();
        let loss = net.forward(&x).cross_entropy_for_logits(&y);
        loss.f_backward().unwrap();
        doctor.step(&loss);
        let late = net.forward(&x).cross_entropy_for_logits(&y);
        doctor.step(&late);
        late.backward();
        doctor.step(());
    });
    assert!(!run.at(0, |s| s.probe == Probe::ActivationGrad).is_empty());
    assert!(run.at(1, |s| s.probe == Probe::ActivationGrad).is_empty());
    assert!(run.at(2, |s| s.probe == Probe::ActivationGrad).is_empty());
    assert!(!run.at(2, |s| s.probe == Probe::ParamGrad).is_empty());
}
