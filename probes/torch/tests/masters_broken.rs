//! Master weights that somebody broke, refreshed, saved or loaded.

use ampdoctor_torch::{Broken, GradScaler, MasterWeights, MastersError, ScalerError};
use tch::nn::{self, OptimizerConfig, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

/// `fc.w` = [1, 2, 3] and `fc.b` = [1], in FP16.
fn model() -> (VarStore, Tensor, Tensor) {
    tch::set_num_threads(1);
    let mut vs = VarStore::new(Device::Cpu);
    let w = (vs.root() / "fc").var_copy("w", &Tensor::from_slice(&[1f32, 2.0, 3.0]));
    let b = (vs.root() / "fc").var_copy("b", &Tensor::from_slice(&[1f32]));
    vs.half();
    (vs, w, b)
}

fn broken(masters: &mut MasterWeights) -> Vec<Broken> {
    match masters.check() {
        Err(MastersError::Broken(broken)) => broken,
        other => panic!("{other:?}"),
    }
}

fn values(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.detach().to_kind(Kind::Float)).unwrap()
}

fn copies(masters: &MasterWeights) -> Vec<Vec<f32>> {
    masters.vars().trainable_variables().iter().map(values).collect()
}

fn fill(tensor: &Tensor, value: f64) {
    let _ = no_grad(|| tensor.shallow_clone().fill_(value));
}

fn backward(w: &Tensor, b: &Tensor) {
    (w.sum(Kind::Float) + b.sum(Kind::Float)).backward();
}

#[test]
fn a_model_that_something_else_changed_is_found_with_the_number_of_weights() {
    let (vs, w, _) = model();
    let mut masters = MasterWeights::new(&vs).unwrap();
    masters.check().unwrap();
    fill(&w.get(1), 7.0);
    let expected = [Broken::ModelChanged { parameter: "fc.w".into(), differing: 1, elements: 3 }];
    assert_eq!(broken(&mut masters), expected);
    assert_eq!(broken(&mut masters), expected, "it stays found");
    let text = masters.check().unwrap_err().to_string();
    assert!(text.contains("fc.w: 1 of 3 weights") && text.contains("refresh_from_model()"), "{text}");
    masters.refresh_from_model().unwrap();
    masters.check().unwrap();
    assert_eq!(copies(&masters)[0], [1.0, 7.0, 3.0]);
    fill(&w, f64::NAN);
    assert_eq!(broken(&mut masters).len(), 1);
    masters.refresh_from_model().unwrap();
    masters.check().unwrap();
}

#[test]
fn an_optimizer_built_on_the_model_is_refused_by_the_scaler() {
    let (vs, w, b) = model();
    let mut masters = MasterWeights::new(&vs).unwrap();
    let mut opt = nn::Sgd::default().build(&vs, 0.5).unwrap();
    let mut scaler = GradScaler::default();
    scaler.backward(&(w.sum(Kind::Float) + b.sum(Kind::Float)));
    let unscaled = scaler.unscale(&mut masters.optimizer(&mut opt));
    let Err(ScalerError::Masters(error)) = unscaled else { panic!("{unscaled:?}") };
    assert!(matches!(&error, MastersError::OptimizerOnModel { parameter, .. } if parameter == "fc.w"), "{error:?}");
    assert!(error.to_string().contains("build(masters.vars(), lr)?"), "{error}");
    assert_eq!(values(&w), [1.0, 2.0, 3.0]);
    let (other, _, _) = model();
    let mut opt = nn::Sgd::default().build(&other, 0.5).unwrap();
    let unscaled = scaler.unscale(&mut masters.optimizer(&mut opt));
    let elsewhere = matches!(unscaled, Err(ScalerError::Masters(MastersError::OptimizerElsewhere { .. })));
    assert!(elsewhere, "{unscaled:?}");
}

#[test]
fn an_optimizer_built_on_the_model_is_found_in_a_loop_without_a_scaler() {
    // It steps before the pull: the model has changed.
    let (vs, w, b) = model();
    let mut masters = MasterWeights::new(&vs).unwrap();
    let mut opt = nn::Sgd::default().build(&vs, 0.5).unwrap();
    backward(&w, &b);
    opt.step();
    let found = broken(&mut masters);
    assert!(found.contains(&Broken::ModelChanged { parameter: "fc.w".into(), differing: 3, elements: 3 }), "{found:?}");
    assert!(found.contains(&Broken::NeverPulled { parameter: "fc.w".into(), count: 2 }), "{found:?}");
    // It steps after the pull, and has nothing to step.
    let (vs, w, b) = model();
    let mut masters = MasterWeights::new(&vs).unwrap();
    let mut opt = nn::Sgd::default().build(&vs, 0.5).unwrap();
    for _ in 0..3 {
        backward(&w, &b);
        masters.pull_gradients().unwrap();
        opt.step();
        masters.write_back().unwrap();
    }
    assert_eq!(broken(&mut masters), [Broken::NeverStepped { write_backs: 3 }]);
}

#[test]
fn a_forgotten_write_back_is_found() {
    let (vs, w, b) = model();
    let mut masters = MasterWeights::new(&vs).unwrap();
    let mut opt = nn::Sgd::default().build(masters.vars(), 0.5).unwrap();
    for _ in 0..2 {
        opt.zero_grad();
        backward(&w, &b);
        masters.pull_gradients().unwrap();
        opt.step();
    }
    let expected = [
        Broken::NotWrittenBack { parameter: "fc.w".into(), differing: 3, elements: 3 },
        Broken::NotWrittenBack { parameter: "fc.b".into(), differing: 1, elements: 1 },
    ];
    assert_eq!(broken(&mut masters), expected);
    masters.write_back().unwrap();
    masters.check().unwrap();
    assert_eq!(values(&w), [0.0, 1.0, 2.0]);
}

#[test]
fn a_forgotten_pull_is_found() {
    let (vs, w, b) = model();
    let mut masters = MasterWeights::new(&vs).unwrap();
    let mut opt = nn::Sgd::default().build(masters.vars(), 0.5).unwrap();
    opt.backward_step(&(w.sum(Kind::Float) + b.sum(Kind::Float)));
    assert_eq!(broken(&mut masters), [Broken::NeverPulled { parameter: "fc.w".into(), count: 2 }]);
}

#[test]
fn a_copy_beyond_the_range_of_fp16_is_found_and_one_in_bf16_is_not() {
    let (mut vs, _, _) = model();
    let mut masters = MasterWeights::new(&vs).unwrap();
    fill(&masters.vars().variables()["fc.w"].get(0), 70000.0);
    masters.write_back().unwrap();
    let expected = Broken::OutOfRange { parameter: "fc.w".into(), elements: 1, kind: Kind::Half };
    assert_eq!(broken(&mut masters), [expected]);
    vs.bfloat16();
    masters.write_back().unwrap();
    masters.check().unwrap();
}

#[test]
fn gradients_that_come_after_unscale_are_refused_at_the_step() {
    let (vs, w, b) = model();
    let mut opt = MasterWeights::new(&vs).unwrap().build(nn::Sgd::default(), 0.5).unwrap();
    let mut scaler = GradScaler::builder().static_scale(8.0).build().unwrap();
    let loss = || w.sum(Kind::Float) + b.sum(Kind::Float);
    scaler.backward(&loss());
    scaler.unscale(&mut opt).unwrap();
    scaler.backward(&loss());
    let stepped = scaler.step(&mut opt);
    let left = matches!(&stepped, Err(ScalerError::Masters(MastersError::GradientsLeft { count: 2, .. })));
    assert!(left, "{stepped:?}");
    assert_eq!((values(&w), copies(opt.masters())[0].clone()), (vec![1.0, 2.0, 3.0], vec![1.0, 2.0, 3.0]));
}

#[test]
fn a_model_loaded_from_a_checkpoint_is_read_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let (mut vs, w, b) = model();
    let mut opt = MasterWeights::new(&vs).unwrap().build(nn::Sgd::default(), 0.5).unwrap();
    vs.float();
    vs.save(&path).unwrap();
    vs.half();
    opt.backward_step(&(w.sum(Kind::Float) + b.sum(Kind::Float))).unwrap();
    assert_eq!(values(&w), [0.5, 1.5, 2.5]);
    // An FP32 file makes an FP32 model of it; the handles hold.
    vs.load(&path).unwrap();
    vs.half();
    assert!(broken(opt.masters_mut()).iter().all(|b| matches!(b, Broken::ModelChanged { .. })));
    opt.masters_mut().refresh_from_model().unwrap();
    opt.backward_step(&(w.sum(Kind::Float) + b.sum(Kind::Float))).unwrap();
    assert_eq!((w.kind(), values(&w)), (Kind::Half, vec![0.5, 1.5, 2.5]));
    opt.masters_mut().check().unwrap();
}

/// Steps whose gradients depend on the weights, at a learning rate of which FP16 keeps little.
fn train(vs: &VarStore, masters: MasterWeights, steps: usize) -> MasterWeights {
    let mut masters = masters;
    let mut opt = nn::Sgd::default().build(masters.vars(), 1e-4).unwrap();
    for _ in 0..steps {
        opt.zero_grad();
        vs.trainable_variables().iter().map(|p| p.square().sum(Kind::Float)).sum::<Tensor>().backward();
        masters.optimizer(&mut opt).step().unwrap();
    }
    masters
}

#[test]
fn a_run_that_was_saved_and_loaded_goes_on_as_if_it_never_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (vs, _, _) = model();
    let without_a_break = copies(&train(&vs, MasterWeights::new(&vs).unwrap(), 20));
    for name in ["masters.safetensors", "masters.ot"] {
        let path = dir.path().join(name);
        let (vs, _, _) = model();
        train(&vs, MasterWeights::new(&vs).unwrap(), 10).save(&path).unwrap();
        let (vs, w, _) = model();
        let mut masters = MasterWeights::new(&vs).unwrap();
        masters.load(&path).unwrap();
        masters.check().unwrap();
        assert_ne!(values(&w), [1.0, 2.0, 3.0], "the model has them too");
        assert_eq!(copies(&train(&vs, masters, 10)), without_a_break, "{name}");
    }
    let files: Vec<_> = dir.path().read_dir().unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files.len(), 2, "nothing is left aside: {files:?}");
}

#[test]
fn a_file_that_holds_other_weights_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (vs, w, _) = model();
    let mut masters = MasterWeights::new(&vs).unwrap();
    let write = |named: &[(&str, Tensor)]| {
        let path = dir.path().join("other.safetensors");
        Tensor::write_safetensors(named, &path).unwrap();
        path
    };
    let (float, half) = ((Kind::Float, Device::Cpu), (Kind::Half, Device::Cpu));
    let zeros = |name, size: i64, options| (name, Tensor::zeros([size], options));
    let (good_w, good_b) = (|| zeros("fc.w", 3, float), || zeros("fc.b", 1, float));
    for (named, expected) in [
        (vec![good_w()], "fc.b [1] is missing"),
        (vec![good_w(), zeros("fc.b", 2, float)], "fc.b has the shape [2] there and [1] here"),
        (vec![good_w(), zeros("fc.b", 1, half)], "fc.b is Half there"),
        (vec![good_w(), good_b(), zeros("x", 1, float)], "x is there and is no trainable parameter here"),
    ] {
        let error = masters.load(write(&named)).unwrap_err();
        assert!(matches!(error, MastersError::NotTheseCopies { .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let missing = masters.load(dir.path().join("missing.ot")).unwrap_err();
    assert!(matches!(missing, MastersError::File { verb: "read", .. }), "{missing:?}");
    let nowhere = masters.save(dir.path().join("nowhere/masters.ot")).unwrap_err();
    assert!(matches!(nowhere, MastersError::File { verb: "written", .. }), "{nowhere:?}");
    masters.check().unwrap();
    assert_eq!((values(&w), copies(&masters)[0].clone()), (vec![1.0, 2.0, 3.0], vec![1.0, 2.0, 3.0]));
}
