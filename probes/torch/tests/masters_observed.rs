//! Master weights under a doctor: what it sees, and that it changes nothing.

mod observed;

use ampdoctor::observation::{Probe, ScalerEvent};
use ampdoctor::scan::Dtype;
use ampdoctor_torch::{Doctor, GradScaler, MasterWeights};
use observed::{Run, batch, mlp, store};
use std::sync::{Mutex, PoisonError};
use tch::nn::{self, Module, OptimizerConfig, VarStore};
use tch::{Kind, Tensor};

/// LibTorch's random numbers are the process's.
static ALONE: Mutex<()> = Mutex::new(());

fn loss(net: &impl Module) -> Tensor {
    let (x, y) = batch();
    net.forward(&x.to_kind(Kind::Half)).to_kind(Kind::Float).cross_entropy_for_logits(&y)
}

/// Ten steps, the first ones skipped; all parameters and copies.
fn train(vs: &VarStore, net: impl Module, mut doctor: Option<&mut Doctor>) -> Vec<Vec<f64>> {
    let mut opt = MasterWeights::new(vs).unwrap().build(nn::AdamW::default(), 1e-3).unwrap();
    let mut scaler = GradScaler::builder().init_scale(2f64.powi(24)).growth_interval(3).build().unwrap();
    for _ in 0..10 {
        let loss = loss(&net);
        opt.zero_grad();
        scaler.backward(&loss);
        scaler.unscale(&mut opt).unwrap();
        opt.clip_grad_norm(1.0);
        scaler.step(&mut opt).unwrap();
        scaler.update().unwrap();
        if let Some(doctor) = doctor.as_deref_mut() {
            doctor.step(&loss);
        }
    }
    opt.masters_mut().check().unwrap();
    let all = vs.trainable_variables().into_iter().chain(opt.masters().vars().trainable_variables());
    all.map(|t| Vec::try_from(t.detach().to_kind(Kind::Double).flatten(0, -1)).unwrap()).collect()
}

fn model() -> (VarStore, impl Module) {
    let mut vs = store(1);
    let net = mlp(&vs);
    vs.half();
    (vs, net)
}

/// What `training` leaves under a doctor of these settings, and its recording.
fn under<T>(
    builder: ampdoctor_torch::DoctorBuilder,
    stores: &[&VarStore],
    training: impl FnOnce(&mut Doctor) -> T,
) -> (T, Run) {
    let dir = tempfile::tempdir().unwrap();
    let mut doctor = builder.run(dir.path()).attach_all(stores);
    assert!(doctor.is_attached());
    let result = training(&mut doctor);
    (result, Run::read(doctor.finish().recording().unwrap()))
}

/// `tensor` and dtype of a step's sites of a probe, in order.
fn sites(run: &Run, step: usize, probe: Probe) -> Vec<(String, Dtype)> {
    let named = |layer: &str, tensor: &str| format!("{layer}.{tensor}");
    let mut sites: Vec<_> = run
        .at(step, |site| site.probe == probe)
        .iter()
        .map(|o| (named(&run.site(o).layer, &run.site(o).tensor), run.site(o).dtype))
        .collect();
    sites.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.name().cmp(b.1.name())));
    sites
}

const PARAMETERS: [&str; 4] = ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"];

fn all(prefix: &str, dtypes: &[Dtype]) -> Vec<(String, Dtype)> {
    PARAMETERS.iter().flat_map(|name| dtypes.iter().map(move |&d| (format!("{prefix}{name}"), d))).collect()
}

#[test]
fn the_training_is_the_same_with_every_way_of_sampling() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (vs, net) = model();
    let expected = train(&vs, net, None);
    for builder in [Doctor::builder().every(1), Doctor::builder().every(3), Doctor::builder().off()] {
        let (vs, net) = model();
        let (weights, run) = under(builder.clone(), &[&vs], |doctor| train(&vs, net, Some(doctor)));
        assert!(weights == expected, "{builder:?}");
        assert_eq!((run.steps.len(), run.notes), (10, vec![]), "{builder:?}");
    }
}

#[test]
fn the_copies_are_seen_under_the_names_of_the_model_and_a_write_back_is_no_update() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (vs, net) = model();
    let (_, run) = under(Doctor::builder().every(1), &[&vs], |doctor| train(&vs, net, Some(doctor)));
    let applied = |step: &ampdoctor::observation::Step| {
        step.scaler.iter().any(|event| matches!(event, ScalerEvent::Stepped { applied: true, .. }))
    };
    let first = run.steps.iter().position(applied).expect("the scale has fallen far enough");
    assert!(first > 0, "the first steps are skipped");
    for step in [first, 9] {
        assert_eq!(sites(&run, step, Probe::Update), all("", &[Dtype::F32]), "step {step}: the copies are stepped");
        assert_eq!(sites(&run, step, Probe::Param), all("", &[Dtype::F16, Dtype::F32]), "step {step}");
        assert_eq!(sites(&run, step, Probe::ParamGrad), all("", &[Dtype::F16]), "step {step}: as FP16 held them");
    }
    assert_eq!(sites(&run, 0, Probe::Update), [], "a skipped step updates nothing");
    assert_eq!(sites(&run, 0, Probe::ParamGrad), all("", &[Dtype::F16]));
}

#[test]
fn a_doctor_attached_to_the_copies_too_keeps_the_names_of_several_stores() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (vs, net) = model();
    let mut opt = MasterWeights::new(&vs).unwrap().build(nn::Sgd::default(), 0.1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut doctor = Doctor::builder().every(1).run(dir.path()).attach_all(&[&vs, opt.masters().vars()]);
    for _ in 0..2 {
        let loss = loss(&net);
        opt.backward_step(&loss).unwrap();
        doctor.step(&loss);
    }
    let run = Run::read(doctor.finish().recording().unwrap());
    for step in 0..2 {
        assert_eq!(sites(&run, step, Probe::Update), all("store1.", &[Dtype::F32]), "step {step}");
        assert_eq!(sites(&run, step, Probe::ParamGrad), all("store0.", &[Dtype::F16]), "step {step}");
    }
}

#[test]
fn an_optimizer_that_steps_the_model_beside_its_copies_is_seen() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (vs, net) = model();
    let mut masters = MasterWeights::new(&vs).unwrap();
    let mut opt = nn::Sgd::default().build(masters.vars(), 0.1).unwrap();
    let mut stray = nn::Sgd::default().build(&vs, 0.1).unwrap();
    let (_, run) = under(Doctor::builder().every(1), &[&vs], |doctor| {
        for _ in 0..2 {
            let loss = loss(&net);
            loss.backward();
            stray.step();
            masters.optimizer(&mut opt).step().unwrap();
            doctor.step(&loss);
        }
    });
    assert_eq!(sites(&run, 1, Probe::Update), all("", &[Dtype::F16, Dtype::F32]));
}

#[test]
fn a_doctor_attached_later_hears_of_the_copies_at_the_next_step() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (vs, net) = model();
    let mut opt = MasterWeights::new(&vs).unwrap().build(nn::Sgd::default(), 0.1).unwrap();
    opt.backward_step(&loss(&net)).unwrap();
    let other = VarStore::new(tch::Device::Cpu);
    let _ = other.root().zeros("w", &[1]);
    // With another store beside it the copies stand under the number of their model's.
    for (stores, prefix) in [(vec![&vs], ""), (vec![&other, &vs], "store1.")] {
        let (_, run) = under(Doctor::builder().every(1), &stores, |doctor| {
            let loss = loss(&net);
            opt.backward_step(&loss).unwrap();
            doctor.step(&loss);
        });
        assert_eq!(sites(&run, 0, Probe::Update), all(prefix, &[Dtype::F32]));
    }
    let (_, run) = under(Doctor::builder().every(1), &[&other], |doctor| {
        let loss = loss(&net);
        opt.backward_step(&loss).unwrap();
        doctor.step(&loss);
    });
    assert_eq!(sites(&run, 0, Probe::Update), [], "copies of a model that is not observed are none of its business");
}

#[test]
fn copies_that_are_never_pulled_to_are_known_all_the_same() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (vs, net) = model();
    let masters = MasterWeights::new(&vs).unwrap();
    let mut stray = nn::Sgd::default().build(&vs, 0.1).unwrap();
    let (_, run) = under(Doctor::builder().every(1), &[&vs], |doctor| {
        let loss = loss(&net);
        stray.backward_step(&loss);
        doctor.step(&loss);
    });
    assert_eq!(sites(&run, 0, Probe::Update), all("", &[Dtype::F16]), "the model is stepped");
    assert_eq!(sites(&run, 0, Probe::Param), all("", &[Dtype::F16, Dtype::F32]), "beside its copies");
    drop(masters);
}
