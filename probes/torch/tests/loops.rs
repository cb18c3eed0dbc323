//! Loops as people write them.

mod observed;

use std::ffi::c_void;

use ampdoctor::observation::{Note, NoteKind, Probe, ScalerEvent, Tier};
use ampdoctor_torch::{Doctor, GradScaler};
use observed::{Run, batch, mlp, observe, observe_with, store};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

#[test]
fn an_evaluation_between_two_steps_is_not_taken_for_training() {
    let vs = store(1);
    let net = mlp(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.1).unwrap();
    let run = observe(&vs, |doctor| {
        for _ in 0..2 {
            let (x, y) = batch();
            let loss = net.forward(&x).cross_entropy_for_logits(&y);
            opt.backward_step(&loss);
            // Some loops evaluate in grad mode, and some do not.
            let _ = net.forward(&x);
            let _ = tch::no_grad(|| net.forward(&x));
            doctor.step(&loss);
            let _ = net.forward(&x);
        }
    });
    assert_eq!(run.labels(0), run.labels(1));
    assert_eq!(run.at(1, |s| s.probe == Probe::Activation && s.layer == "fc1").len(), 2, "{:#?}", run.labels(1));
}

#[test]
fn micro_batches_of_an_accumulation_belong_to_one_step() {
    let vs = store(2);
    let net = mlp(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.1).unwrap();
    let run = observe(&vs, |doctor| {
        opt.zero_grad();
        let mut total = 0.0;
        for _ in 0..3 {
            let (x, y) = batch();
            let loss = net.forward(&x).cross_entropy_for_logits(&y) / 3.0;
            loss.backward();
            total += loss.double_value(&[]);
        }
        opt.step();
        doctor.step(total);
    });
    assert_eq!(run.at(0, |s| s.probe == Probe::ActivationGrad && s.label() == "fc1/linear").len(), 3);
    run.one(0, Probe::ParamGrad, "fc1.weight");
}

#[test]
fn the_gradient_of_a_parameter_is_seen_once_and_whole() {
    let vs = store(3);
    let net = mlp(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.1).unwrap();
    let mut expected = 0.0;
    let run = observe(&vs, |doctor| {
        let (x, y) = batch();
        let loss = net.forward(&x).cross_entropy_for_logits(&y);
        opt.zero_grad();
        loss.backward();
        expected = vs.variables()["fc2.weight"].grad().abs().max().double_value(&[]);
        opt.step();
        doctor.step(&loss);
    });
    assert_eq!(run.one(0, Probe::ParamGrad, "fc2.weight").stats.max_abs, expected);
}

#[test]
fn tied_weights_and_residuals_find_their_layers() {
    let vs = store(4);
    let embedding = nn::embedding(vs.root() / "embed", 10, 8, Default::default());
    let block = nn::linear(vs.root() / "block" / 0 / "fc", 8, 8, Default::default());
    let norm = nn::layer_norm(vs.root() / "block" / 0 / "norm", vec![8], Default::default());
    let run = observe(&vs, |doctor| {
        let tokens = Tensor::from_slice(&[1i64, 2, 3, 4]);
        let x = embedding.forward(&tokens);
        let hidden = norm.forward(&(block.forward(&x).gelu("none") + block.forward(&x)));
        let logits = hidden.matmul(&embedding.ws.tr());
        let loss = logits.cross_entropy_for_logits(&tokens);
        loss.backward();
        doctor.step(&loss);
    });
    let labels = run.labels(0);
    for label in [
        "embed/embedding",
        "block.0.fc/linear",
        "block.0.fc/gelu",
        "block.0.fc/linear#2",
        "block.0.fc/add",
        "block.0.norm/layer_norm",
        "embed/matmul",
    ] {
        assert!(labels.iter().any(|l| l == &format!("activation {label} f32")), "{label} in {labels:#?}");
    }
}

#[test]
fn two_stores_are_watched_by_one_doctor() {
    let (a, b) = (store(5), store(6));
    let first = nn::linear(a.root() / "fc", 8, 8, Default::default());
    let second = nn::linear(b.root() / "fc", 8, 2, Default::default());
    let dir = tempfile::tempdir().unwrap();
    let mut doctor = Doctor::builder().every(1).run(dir.path()).attach_all(&[&a, &b]);
    let x = Tensor::randn([4, 8], (Kind::Float, Device::Cpu));
    let loss = second.forward(&first.forward(&x)).square().mean(Kind::Float);
    loss.backward();
    doctor.step(&loss);
    let run = Run::read(doctor.finish().recording().unwrap());
    run.one(0, Probe::Activation, "store0.fc/linear");
    run.one(0, Probe::Activation, "store1.fc/linear");
}

unsafe extern "C" {
    /// ATen's operator, which tch does not bind; our own shim does.
    fn ampdoctor_unscale(
        gradients: *const *mut c_void,
        count: usize,
        found_inf: *mut c_void,
        factor: *const c_void,
    ) -> i32;
}

fn unscale(gradients: &[Tensor], found_inf: &Tensor, factor: &Tensor) {
    let handles: Vec<*mut c_void> = gradients.iter().map(|g| g.as_ptr().cast_mut().cast()).collect();
    let (found_inf, factor) = (found_inf.as_ptr().cast_mut().cast(), factor.as_ptr().cast());
    // SAFETY: all handles are live tensors of one device and dtype.
    let code = tch::no_grad(|| unsafe { ampdoctor_unscale(handles.as_ptr(), handles.len(), found_inf, factor) });
    assert_eq!(code, 0);
}

#[test]
fn a_scaler_of_somebody_else_is_read_off_its_operators() {
    let vs = store(7);
    let net = mlp(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.1).unwrap();
    let mut scale = Tensor::from(1024f32);
    let tracker = Tensor::from(0i32);
    let run = observe_with(Doctor::builder().every(2), &vs, |doctor| {
        for step in 0..4 {
            let (x, y) = batch();
            let loss = net.forward(&x).cross_entropy_for_logits(&y) * if step == 2 { f64::INFINITY } else { 1.0 };
            opt.zero_grad();
            (&loss * &scale).backward();
            let grads: Vec<Tensor> = vs.trainable_variables().iter().map(Tensor::grad).collect();
            let found = Tensor::from(0f32);
            unscale(&grads, &found, &scale.reciprocal());
            if found.double_value(&[]) == 0.0 {
                opt.step();
            }
            let _ = scale.internal_amp_update_scale_(&tracker, &found, 2.0, 0.5, 2);
            doctor.step(&loss);
        }
    });
    let scales: Vec<_> = run.steps.iter().map(|s| s.loss_scale).collect();
    assert_eq!(scales, [1024.0, 1024.0, 2048.0, 1024.0].map(Some));
    assert_eq!(run.steps.iter().map(|s| s.skipped()).collect::<Vec<_>>(), [false, false, true, false]);
    assert_eq!(run.steps[1].tier, Tier::Light);
    let update = run.steps[1].scaler.last();
    assert_eq!(update, Some(&ScalerEvent::Updated { from: 1024.0, to: 2048.0, growth_tracker: 0 }));
}

#[test]
fn the_gradient_is_seen_before_it_is_unscaled() {
    let vs = store(8);
    let net = mlp(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.1).unwrap();
    let mut scaler = GradScaler::builder().init_scale(4096.0).build().unwrap();
    let mut unscaled = 0.0;
    let run = observe(&vs, |doctor| {
        let (x, y) = batch();
        let loss = net.forward(&x).cross_entropy_for_logits(&y);
        opt.zero_grad();
        scaler.backward(&loss);
        scaler.unscale(&mut opt).unwrap();
        unscaled = vs.variables()["fc1.weight"].grad().abs().max().double_value(&[]);
        scaler.step(&mut opt).unwrap();
        scaler.update().unwrap();
        doctor.step(&loss);
    });
    assert_eq!(run.one(0, Probe::ParamGrad, "fc1.weight").stats.max_abs, unscaled * 4096.0);
}

#[test]
fn a_loop_that_moves_to_another_thread_is_followed() {
    let vs = store(9);
    let dir = tempfile::tempdir().unwrap();
    let mut doctor = Doctor::builder().every(1).run(dir.path()).attach(&vs);
    let vs = std::thread::spawn(move || {
        let net = mlp(&vs);
        for _ in 0..3 {
            let (x, y) = batch();
            let loss = net.forward(&x).cross_entropy_for_logits(&y);
            loss.backward();
            doctor.step(&loss);
        }
        drop(doctor);
        vs
    })
    .join()
    .unwrap();
    let run = Run::read(dir.path());
    assert!(run.at(0, |s| s.probe == Probe::Activation).is_empty());
    assert!(!run.at(1, |s| s.probe == Probe::Activation).is_empty());
    assert!(matches!(run.notes[..], [Note { kind: NoteKind::Information, .. }]), "{:?}", run.notes);
    // The thread that was left can be observed again.
    let net = nn::linear(vs.root() / "again", 8, 2, Default::default());
    let run = observe(&vs, |doctor| {
        let loss = net.forward(&batch().0).square().mean(Kind::Float);
        loss.backward();
        doctor.step(&loss);
    });
    run.one(0, Probe::Activation, "again/linear");
}

#[test]
fn parameters_made_or_cast_after_attaching_are_found_at_the_next_step() {
    let mut vs = store(10);
    let first = nn::linear(vs.root() / "fc", 8, 8, Default::default());
    let dir = tempfile::tempdir().unwrap();
    let mut doctor = Doctor::builder().every(1).run(dir.path()).attach(&vs);
    let x = Tensor::randn([4, 8], (Kind::Float, Device::Cpu));
    let late = nn::linear(vs.root() / "late", 8, 8, Default::default());
    doctor.step(());
    let step = |x: &Tensor, doctor: &mut Doctor| {
        let loss = late.forward(&first.forward(x)).square().mean(Kind::Float);
        loss.backward();
        doctor.step(&loss);
    };
    step(&x, &mut doctor);
    vs.bfloat16();
    doctor.step(());
    step(&x.to_kind(Kind::BFloat16), &mut doctor);
    let run = Run::read(doctor.finish().recording().unwrap());
    run.one(1, Probe::Activation, "late/linear");
    let cast = run.one(3, Probe::Activation, "late/linear");
    assert_eq!(run.site(cast).dtype, ampdoctor::scan::Dtype::Bf16);
}

#[test]
fn non_finite_input_data_is_an_observation_of_the_input() {
    let vs = store(11);
    let net = mlp(&vs);
    let run = observe(&vs, |doctor| {
        let (x, y) = batch();
        let x = x.where_scalarother(&x.lt(2.0), f64::NAN);
        let loss = net.forward(&x).cross_entropy_for_logits(&y);
        loss.backward();
        doctor.step(&loss);
    });
    let first = &run.steps[0].observations[0];
    assert_eq!(run.site(first).layer, "input");
    assert!(first.stats.nan > 0 && !first.inherited);
    assert!(run.one(0, Probe::Activation, "fc1/linear").inherited);
    assert!(run.steps[0].loss.is_some_and(f64::is_nan));
}

#[test]
fn the_origin_of_a_nan_is_the_first_that_did_not_inherit_it() {
    let vs = store(12);
    let fc1 = nn::linear(vs.root() / "fc1", 8, 8, Default::default());
    let fc2 = nn::linear(vs.root() / "fc2", 8, 4, Default::default());
    let run = observe(&vs, |doctor| {
        let (x, y) = batch();
        let loss = fc2.forward(&fc1.forward(&x).log()).cross_entropy_for_logits(&y);
        loss.backward();
        doctor.step(&loss);
    });
    let origin = run.steps[0].observations.iter().find(|o| o.stats.non_finite() > 0).unwrap();
    assert_eq!(run.site(origin).label(), "fc1/log");
    assert!(!origin.inherited);
    let later = run.at(0, |s| s.layer == "fc2" && s.probe == Probe::Activation);
    assert!(later.iter().all(|o| o.inherited));
}

#[test]
fn an_overflow_that_begins_in_backward_names_the_operator_whose_backward_made_it() {
    let mut vs = store(13);
    let w1 = vs.root().sub("a").ones("w", &[4, 4]);
    let w2 = vs.root().sub("b").ones("w", &[4, 4]);
    for w in [&w1, &w2] {
        let _ = tch::no_grad(|| w.shallow_clone().fill_(200.0));
    }
    vs.half();
    let run = observe(&vs, |doctor| {
        let x = Tensor::ones([4, 4], (Kind::Half, Device::Cpu));
        let y = (x.matmul(&w1) * 1e-3).matmul(&w2) * 1e-3;
        let loss = y.to_kind(Kind::Float).sum(Kind::Float);
        (&loss * 4096.0 * 64.0).backward();
        doctor.step(&loss);
    });
    let gradients = run.at(0, |s| s.probe == Probe::ActivationGrad);
    let first = gradients.iter().find(|o| o.stats.non_finite() > 0).expect("an infinity");
    assert!(!first.inherited, "{:#?}", run.labels(0));
    let via = &run.sites[first.via.expect("a consumer").0 as usize];
    assert_eq!((via.layer.as_str(), run.site(first).probe), ("b", Probe::ActivationGrad));
}

#[test]
fn every_nth_step_is_full_and_the_others_are_said_to_be_off() {
    let vs = store(14);
    let net = mlp(&vs);
    let run = observe_with(Doctor::builder().every(3), &vs, |doctor| {
        for _ in 0..7 {
            let (x, y) = batch();
            let loss = net.forward(&x).cross_entropy_for_logits(&y);
            loss.backward();
            doctor.lr(0.25);
            doctor.metric("accuracy", 0.5);
            doctor.step(&loss);
        }
    });
    let full: Vec<u64> = run.steps.iter().filter(|s| s.tier == Tier::Full).map(|s| s.index).collect();
    assert_eq!(full, [0, 3, 6]);
    assert!(run.steps[1].observations.is_empty() && run.steps[1].loss.is_some());
    assert_eq!((run.steps[1].lr, run.steps[1].metrics.clone()), (Some(0.25), vec![("accuracy".to_owned(), 0.5)]));
}

#[test]
fn the_run_is_described_with_its_parameters() {
    let vs = store(15);
    let _bn = nn::batch_norm1d(vs.root() / "bn", 4, Default::default());
    let run = observe_with(Doctor::builder().command(vec!["train".into()]), &vs, |doctor| doctor.step(1.0));
    let info = run.info.unwrap();
    let trainable = |name: &str| info.parameters.iter().find(|p| p.name == name).map(|p| p.trainable);
    assert_eq!((trainable("bn.weight"), trainable("bn.running_mean")), (Some(true), Some(false)));
    assert_eq!(
        (info.command, info.framework.as_str(), info.device.as_str()),
        (vec!["train".to_owned()], "LibTorch 2.13.0", "cpu")
    );
}

#[test]
fn a_causal_mask_does_not_make_every_step_a_full_one() {
    let vs = store(16);
    let fc = nn::linear(vs.root() / "fc", 8, 8, Default::default());
    let mask = Tensor::ones([8, 8], (Kind::Bool, Device::Cpu)).triu(1);
    let run = observe_with(Doctor::builder().every(5), &vs, |doctor| {
        for _ in 0..10 {
            let scores = fc.forward(&batch().0.narrow(0, 0, 8)).masked_fill(&mask, f64::NEG_INFINITY);
            let loss = scores.softmax(-1, Kind::Float).square().mean(Kind::Float);
            loss.backward();
            doctor.step(&loss);
        }
    });
    assert!(run.at(0, |s| s.operator == "masked_fill").iter().any(|o| o.stats.neg_inf > 0));
    let full: Vec<u64> = run.steps.iter().filter(|s| s.tier == Tier::Full).map(|s| s.index).collect();
    assert_eq!(full, [0, 5]);
}

/// Scores of a layer, each far above half of FP16's largest, to which a mask of 0 and -inf is added.
fn masked_scores(vs: &nn::VarStore, mask: &Tensor, steps: usize) -> Run {
    let fc = nn::linear(vs.root() / "attn" / "fc", 8, 8, Default::default());
    observe_with(Doctor::builder().every(5), vs, |doctor| {
        for _ in 0..steps {
            let scores = fc.forward(&batch().0.narrow(0, 0, 8)) + 40000.0;
            let masked = scores.to_kind(Kind::Half) + mask;
            let loss = masked.softmax(-1, Kind::Float).square().mean(Kind::Float);
            loss.backward();
            doctor.step(&loss);
        }
    })
}

#[test]
fn a_mask_that_is_a_constant_or_a_buffer_is_no_fault_whatever_the_scores_are() {
    let mask = Tensor::full([8, 8], f64::NEG_INFINITY, (Kind::Half, Device::Cpu)).triu(1);
    for is_buffer in [false, true] {
        let vs = store(16);
        if is_buffer {
            let _ = vs.root().sub("attn").add("mask", mask.shallow_clone(), false);
        }
        let run = masked_scores(&vs, &mask, 10);
        let at = if is_buffer { Probe::Buffer } else { Probe::Activation };
        let seen = run.at(0, |s| s.probe == at && (is_buffer || s.operator == "data"));
        assert!(seen.iter().any(|o| o.stats.neg_inf == 28), "the mask itself is observed");
        let full: Vec<u64> = run.steps.iter().filter(|s| s.tier == Tier::Full).map(|s| s.index).collect();
        assert_eq!(full, [0, 5]);
        let blamed: Vec<_> =
            run.codes.iter().filter(|c| ["AMP102", "AMP501", "AMP502", "AMP504"].contains(c)).collect();
        assert!(blamed.is_empty(), "{blamed:?}");
    }
}

#[test]
fn a_loop_that_never_calls_step_fills_no_memory_and_is_told() {
    let vs = store(17);
    let net = mlp(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.1).unwrap();
    let run = observe(&vs, |doctor| {
        for _ in 0..6000 {
            let (x, y) = batch();
            let loss = net.forward(&x).cross_entropy_for_logits(&y);
            opt.backward_step(&loss);
        }
        doctor.step(());
        let (x, y) = batch();
        let loss = net.forward(&x).cross_entropy_for_logits(&y);
        opt.backward_step(&loss);
        doctor.step(&loss);
    });
    assert!(
        run.notes.iter().any(|n| n.kind == NoteKind::BlindSpot && n.text.contains("doctor.step()")),
        "{:?}",
        run.notes
    );
    assert!(run.steps[0].observations.len() <= 100_100, "{}", run.steps[0].observations.len());
    assert!(!run.at(1, |s| s.probe == Probe::ActivationGrad).is_empty(), "the next step is watched again");
}

#[test]
fn a_row_of_a_parameter_edited_in_place_ends_nothing() {
    let vs = store(1);
    let net = mlp(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.1).unwrap();
    let run = observe(&vs, |doctor| {
        for _ in 0..3 {
            // LibTorch refuses to say whether autograd follows such a view.
            let _ = tch::no_grad(|| vs.variables()["fc1.weight"].shallow_clone().get(3).fill_(0.5));
            let (x, y) = batch();
            let loss = net.forward(&x).cross_entropy_for_logits(&y);
            opt.backward_step(&loss);
            doctor.step(&loss);
        }
    });
    assert_eq!((run.steps.len(), run.notes.as_slice()), (3, &[][..]));
    let updates = run.at(2, |s| s.probe == Probe::Update && s.label() == "fc1.weight");
    assert_eq!(updates.last().expect("what the optimizer did").stats.count, 128);
}
