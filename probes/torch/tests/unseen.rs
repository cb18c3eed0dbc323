//! What loops in the wild once hid from the observer, and what it says of what it cannot see.

mod observed;

use ampdoctor::observation::{NoteKind, Probe};
use ampdoctor_torch::Doctor;
use observed::{Run, batch, mlp, observe, store};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

fn randn(size: &[i64]) -> Tensor {
    Tensor::randn(size, (Kind::Float, Device::Cpu))
}

/// The one blind spot of a run.
fn blind_spot(run: &Run) -> &str {
    assert_eq!(run.notes.len(), 1, "{:?}", run.notes);
    assert_eq!(run.notes[0].kind, NoteKind::BlindSpot);
    &run.notes[0].text
}

#[test]
fn a_sparse_gradient_is_seen_by_its_stored_values_each_place_once() {
    let vs = store(1);
    let config = nn::EmbeddingConfig { sparse: true, ..Default::default() };
    let embedding = nn::embedding(vs.root() / "embed", 10, 4, config);
    let mut opt = nn::Sgd::default().build(&vs, 0.5).unwrap();
    let run = observe(&vs, |doctor| {
        let loss = embedding.forward(&Tensor::from_slice(&[1i64, 2, 1])).sum(Kind::Float);
        opt.backward_step(&loss);
        doctor.step(&loss);
    });
    let gradient = &run.one(0, Probe::ParamGrad, "embed.weight").stats;
    // Two rows of four: the word that stands twice has twice the gradient, and what is not stored is no zero.
    assert_eq!((gradient.count, gradient.zeros, gradient.max_abs, gradient.min_abs), (8, 0, 2.0, 1.0));
    assert_eq!(run.one(0, Probe::Update, "embed.weight").stats.max_abs, 1.0);
    assert_eq!(run.notes, []);
}

#[test]
fn the_gradient_of_an_activation_may_be_sparse() {
    let vs = store(2);
    let weight = (vs.root() / "table").randn("weight", &[10, 4], 0.0, 1.0);
    let run = observe(&vs, |doctor| {
        let scaled = &weight * 2.0;
        let loss = Tensor::embedding(&scaled, &Tensor::from_slice(&[3i64, 3]), -1, false, true).sum(Kind::Float);
        loss.backward();
        doctor.step(&loss);
    });
    let gradient = &run.one(0, Probe::ActivationGrad, "table/mul").stats;
    assert_eq!((gradient.count, gradient.max_abs), (4, 2.0));
    assert_eq!(run.notes, []);
}

/// A frozen layer in front of a trained one, in FP16.
fn frozen_and_head(vs: &mut nn::VarStore) -> (nn::Linear, nn::Linear) {
    let frozen = nn::linear(vs.root() / "frozen", 8, 8, Default::default());
    let head = nn::linear(vs.root() / "head", 8, 4, Default::default());
    vs.half();
    for weight in [Some(&frozen.ws), frozen.bs.as_ref()].into_iter().flatten() {
        let _ = weight.set_requires_grad(false);
    }
    (frozen, head)
}

#[test]
fn what_a_frozen_layer_computes_is_seen_where_the_loss_depends_on_it() {
    let mut vs = store(3);
    let (frozen, head) = frozen_and_head(&mut vs);
    let x = randn(&[4, 8]).to_kind(Kind::Half);
    let run = observe(&vs, |doctor| {
        let loss = head.forward(&frozen.forward(&x).tanh()).to_kind(Kind::Float).square().mean(Kind::Float);
        loss.backward();
        // An evaluation, in grad mode: the loss does not depend on it.
        let _ = head.forward(&frozen.forward(&x).relu());
        doctor.step(&loss);
    });
    let seen = run.at(0, |s| s.probe == Probe::Activation && s.layer == "frozen");
    let operators: Vec<_> = seen.iter().map(|o| run.site(o).operator.as_str()).collect();
    assert_eq!(operators, ["linear", "tanh"]);
}

#[test]
fn an_overflow_in_a_frozen_layer_is_its_own_and_not_that_of_the_layer_that_reads_it() {
    let mut vs = store(4);
    let (mut frozen, head) = frozen_and_head(&mut vs);
    let _ = tch::no_grad(|| frozen.ws.fill_(3e4));
    let run = observe(&vs, |doctor| {
        let x = Tensor::ones([4, 8], (Kind::Half, Device::Cpu));
        let loss = head.forward(&frozen.forward(&x).relu()).to_kind(Kind::Float).square().mean(Kind::Float);
        loss.backward();
        doctor.step(&loss);
    });
    let origin = run.steps[0].observations.iter().find(|o| o.stats.non_finite() > 0).expect("an infinity");
    assert_eq!((run.site(origin).label().as_str(), origin.inherited), ("frozen/linear", false), "{:#?}", run.labels(0));
    assert!(run.one(0, Probe::Activation, "frozen/relu").inherited);
    assert!(run.one(0, Probe::Activation, "head/linear").inherited);
}

#[test]
fn parameters_that_are_parts_of_one_tensor_are_told_apart() {
    let vs = store(5);
    let flat = randn(&[32]);
    let a = (vs.root() / "a").add("weight", flat.narrow(0, 0, 16).view([4, 4]), true);
    let b = (vs.root() / "b").add("weight", flat.narrow(0, 16, 16).view([4, 4]), true);
    let mut opt = nn::Adam::default().build(&vs, 0.25).unwrap();
    let mut largest = Vec::new();
    let run = observe(&vs, |doctor| {
        let loss = (randn(&[8, 4]).matmul(&a).tanh().matmul(&b) * 8.0).square().mean(Kind::Float);
        opt.zero_grad();
        loss.backward();
        largest = [&a, &b].map(|w| w.grad().abs().max().double_value(&[])).to_vec();
        opt.step();
        doctor.step(&loss);
    });
    for (label, largest) in ["a.weight", "b.weight"].into_iter().zip(largest) {
        assert_eq!(run.one(0, Probe::ParamGrad, label).stats.max_abs, largest, "{label}");
        let update = &run.one(0, Probe::Update, label).stats;
        assert!(update.count == 16 && (update.max_abs - 0.25).abs() < 1e-3, "{label}: {}", update.max_abs);
    }
    run.one(0, Probe::Activation, "a/matmul");
    run.one(0, Probe::Activation, "b/matmul");
}

#[test]
fn a_model_that_is_trained_and_not_attached_is_told_once() {
    for config in ["adam", "sgd"] {
        let (vs, other) = (store(6), nn::VarStore::new(Device::Cpu));
        let (net, forgotten) = (mlp(&vs), nn::linear(other.root() / "forgotten", 4, 2, Default::default()));
        let build = |vs: &nn::VarStore| match config {
            "adam" => nn::Adam::default().build(vs, 0.1).unwrap(),
            // In C++ it steps an alias of each parameter.
            _ => nn::Sgd::default().build(vs, 0.1).unwrap(),
        };
        let (mut opt, mut other_opt) = (build(&vs), build(&other));
        let run = observe(&vs, |doctor| {
            for _ in 0..4 {
                let loss = forgotten.forward(&net.forward(&batch().0)).square().mean(Kind::Float);
                opt.zero_grad();
                other_opt.zero_grad();
                loss.backward();
                opt.step();
                other_opt.step();
                doctor.step(&loss);
            }
        });
        assert!(blind_spot(&run).contains("attach_all"), "{config}: {}", blind_spot(&run));
    }
}

#[test]
fn an_input_that_requires_a_gradient_is_no_stranger() {
    let vs = store(12);
    let net = mlp(&vs);
    let mut opt = nn::Adam::default().build(&vs, 0.1).unwrap();
    let run = observe(&vs, |doctor| {
        for _ in 0..6 {
            let (x, y) = batch();
            // As large as a weight, and gone before the optimizer needs memory of that size.
            let x = x.narrow(0, 0, 16).copy().set_requires_grad(true);
            let gradient = Tensor::run_backward(&[&net.forward(&x).sum(Kind::Float)], &[&x], false, false);
            let penalty = gradient[0].square().sum(Kind::Float).double_value(&[]);
            drop((x, gradient));
            let (inputs, _) = batch();
            let loss = net.forward(&inputs).cross_entropy_for_logits(&y) * (1.0 + 0.0 * penalty);
            opt.backward_step(&loss);
            doctor.step(&loss);
        }
    });
    assert_eq!(run.notes, []);
}

#[test]
fn a_model_that_is_built_after_attaching_is_seen_from_its_first_step_on() {
    let vs = store(11);
    let run = observe(&vs, |doctor| {
        let net = mlp(&vs);
        let mut opt = nn::Adam::default().build(&vs, 0.1).unwrap();
        let (x, y) = batch();
        let loss = net.forward(&x).cross_entropy_for_logits(&y);
        opt.backward_step(&loss);
        doctor.step(&loss);
    });
    for name in ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"] {
        run.one(0, Probe::ParamGrad, name);
        run.one(0, Probe::Update, name);
    }
    run.one(0, Probe::Activation, "fc1/linear");
    run.one(0, Probe::ActivationGrad, "fc2/linear");
    assert_eq!(run.notes, []);
}

#[test]
fn a_variable_that_is_made_and_stepped_in_one_step_is_no_stranger() {
    let vs = store(7);
    let mut opt = nn::Adam::default().build(&vs, 0.1).unwrap();
    let run = observe(&vs, |doctor| {
        for name in ["first", "second", "third"] {
            let layer = nn::linear(vs.root() / name, 8, 2, Default::default());
            let loss = layer.forward(&batch().0).square().mean(Kind::Float);
            opt.backward_step(&loss);
            doctor.step(&loss);
        }
        doctor.step(());
    });
    assert_eq!(run.notes, []);
}

#[test]
fn a_copy_of_the_model_that_follows_it_is_no_stranger() {
    let (vs, mut target) = (store(8), nn::VarStore::new(Device::Cpu));
    let (net, teacher) = (mlp(&vs), mlp(&target));
    let mut opt = nn::Adam::default().build(&vs, 0.1).unwrap();
    let run = observe(&vs, |doctor| {
        for _ in 0..3 {
            let (x, _) = batch();
            let aim = tch::no_grad(|| teacher.forward(&x));
            let loss = net.forward(&x).mse_loss(&aim, tch::Reduction::Mean);
            opt.backward_step(&loss);
            target.copy(&vs).unwrap();
            doctor.step(&loss);
        }
    });
    assert_eq!(run.notes, []);
}

#[test]
fn running_statistics_that_are_in_no_store_are_told() {
    let vs = store(9);
    let fc = nn::linear(vs.root() / "fc", 8, 4, Default::default());
    let (scale, shift) = ((vs.root() / "norm").ones("weight", &[4]), (vs.root() / "norm").zeros("bias", &[4]));
    let [mean, var] = [Tensor::zeros([4], (Kind::Float, Device::Cpu)), Tensor::ones([4], (Kind::Float, Device::Cpu))];
    let run = observe(&vs, |doctor| {
        for _ in 0..3 {
            let x = fc.forward(&batch().0);
            let y = x.batch_norm(Some(&scale), Some(&shift), Some(&mean), Some(&var), true, 0.1, 1e-5, false);
            let loss = y.relu().mean(Kind::Float);
            loss.backward();
            doctor.step(&loss);
        }
    });
    assert!(blind_spot(&run).contains("running statistics"), "{}", blind_spot(&run));
}

#[test]
fn plain_tensors_are_attached_under_the_names_they_are_given() {
    tch::manual_seed(10);
    let weight = randn(&[8, 4]).set_requires_grad(true);
    let temperature = Tensor::from(1f32).set_requires_grad(true);
    let mean = randn(&[8]);
    let dir = tempfile::tempdir().unwrap();
    let tensors = [("fc.weight", &weight), ("temperature", &temperature), ("fc.mean", &mean)];
    let mut doctor = Doctor::builder().every(1).run(dir.path()).attach_tensors(&tensors);
    let loss = ((randn(&[16, 8]) - &mean).matmul(&weight) * &temperature).square().mean(Kind::Float);
    loss.backward();
    tch::no_grad(|| {
        for mut parameter in [weight.shallow_clone(), temperature.shallow_clone()] {
            parameter -= parameter.grad() * 0.1;
        }
    });
    doctor.step(&loss);
    let run = Run::read(doctor.finish().recording().unwrap());
    let described = run.info.as_ref().unwrap().parameters.iter().map(|p| (p.name.as_str(), p.trainable));
    assert_eq!(described.collect::<Vec<_>>(), [("fc.mean", false), ("fc.weight", true), ("temperature", true)]);
    for name in ["fc.weight", "temperature"] {
        run.one(0, Probe::ParamGrad, name);
        run.one(0, Probe::Update, name);
    }
    run.one(0, Probe::Buffer, "fc.mean");
    run.one(0, Probe::Activation, "fc/matmul");
    assert_eq!(run.notes, []);
}
