//! Tensors that only their device reads: the same loops are recorded twice, with their tensors read where they lie and with everything computed by ATen's operators as on a
//! GPU. Both recordings must say the same.

mod observed;

use std::sync::{Mutex, PoisonError};

use ampdoctor::observation::{Note, Observation, Probe, Rounding, ScalerEvent, Tier};
use ampdoctor::scan::{Fidelity, disagreement};
use ampdoctor_torch::{Doctor, GradScaler, MasterWeights, autocast, sabotage};
use observed::{Run, mlp, observe_with, store};
use tch::nn::{self, Module, ModuleT, Optimizer, OptimizerConfig, RNN, VarStore};
use tch::{Device, Kind, Tensor};

/// The switch is the whole process's.
static SWITCH: Mutex<()> = Mutex::new(());

/// A loop: it is given a store, in which it builds its model, and trains under `attach`.
type Loop = fn(&VarStore, Attach<'_>);

/// Attaches a doctor to a store, and runs the steps under it.
type Attach<'a> = &'a mut dyn FnMut(&VarStore, &mut dyn FnMut(&mut Doctor));

/// A loop's recording, and the weights that it ended with.
fn record(training: Loop, on_device: bool, every: u64) -> (Run, Vec<(String, Tensor)>) {
    let _held = SWITCH.lock().unwrap_or_else(PoisonError::into_inner);
    sabotage::treat_host_as_device(on_device);
    let vs = store(17);
    let mut run = None;
    training(&vs, &mut |vs, steps| {
        run = Some(observe_with(Doctor::builder().every(every), vs, |doctor| steps(doctor)));
    });
    sabotage::treat_host_as_device(false);
    let mut weights: Vec<_> = vs.variables().into_iter().collect();
    weights.sort_by(|a, b| a.0.cmp(&b.0));
    (run.expect("the loop trained"), weights)
}

/// Records a loop both ways, compares everything, and gives one of the two.
#[track_caller]
fn both_ways(training: Loop) -> Run {
    both_ways_every(training, 1)
}

#[track_caller]
fn both_ways_every(training: Loop, every: u64) -> Run {
    let (host, host_weights) = record(training, false, every);
    let (device, device_weights) = record(training, true, every);
    assert_eq!(host_weights.len(), device_weights.len());
    for ((name, a), (_, b)) in host_weights.iter().zip(&device_weights) {
        assert!(a.allclose(b, 0.0, 0.0, true), "{name} is another one when it is looked at as on a device");
    }
    assert_same_runs(&device, &host);
    device
}

#[track_caller]
fn assert_same_runs(found: &Run, expected: &Run) {
    let texts = |run: &Run| run.notes.iter().map(|note: &Note| note.text.clone()).collect::<Vec<_>>();
    assert_eq!(texts(found), texts(expected));
    assert_eq!(found.steps.len(), expected.steps.len());
    for (index, (a, b)) in found.steps.iter().zip(&expected.steps).enumerate() {
        assert_eq!(found.labels(index), expected.labels(index), "step {index}");
        assert_eq!(found.sites, expected.sites);
        for (a, b) in a.observations.iter().zip(&b.observations) {
            assert_same(found, a, b);
        }
        assert_eq!((&a.scaler, &a.recipe, a.loss_scale), (&b.scaler, &b.recipe, b.loss_scale), "step {index}");
        assert_eq!(
            (a.loss.map(f64::to_bits), a.tier, a.cost.unscanned),
            (b.loss.map(f64::to_bits), b.tier, b.cost.unscanned)
        );
    }
}

#[track_caller]
fn assert_same(run: &Run, found: &Observation, expected: &Observation) {
    let site = run.site(found);
    let what = format!("{} {}", site.probe.name(), site.label());
    assert_eq!(disagreement(site.dtype, &found.stats, &expected.stats), None, "{what}");
    assert_eq!(
        (found.site, found.inherited, found.via, &found.provenance),
        (expected.site, expected.inherited, expected.via, &expected.provenance),
        "{what}"
    );
    let (a, b) = (found.rounding.as_deref(), expected.rounding.as_deref());
    assert_eq!(a.is_some(), b.is_some(), "{what}");
    if let (Some(a), Some(b)) = (a, b) {
        assert_same_rounding(a, b, &what);
    }
}

#[track_caller]
fn assert_same_rounding(found: &Rounding, expected: &Rounding, what: &str) {
    let fidelities = |r: &Rounding| [r.stepped, r.without_masters, r.decay];
    for (a, b) in fidelities(found).into_iter().zip(fidelities(expected)) {
        let counts = |f: Option<Fidelity>| f.map(|f| (f.intended, f.dead, f.non_finite));
        assert_eq!(counts(a), counts(b), "{what}");
        let (Some(a), Some(b)) = (a, b) else { continue };
        assert!((a.energy - b.energy).abs() <= 1e-12 * b.energy, "{what}: {a:?}, not {b:?}");
        assert!((a.dot - b.dot).abs() <= 1e-12 * b.energy.max(b.dot.abs()), "{what}: {a:?}, not {b:?}");
    }
    assert_eq!(found.unlike_master, expected.unlike_master, "{what}");
    match (found.unmoved, expected.unmoved) {
        (Some(a), Some(b)) => assert!((a - b).abs() <= 1e-12 * b, "{what}"),
        (a, b) => assert_eq!(a, b, "{what}"),
    }
}

fn batch() -> (Tensor, Tensor) {
    observed::batch()
}

#[test]
fn every_optimizer_of_a_plain_loop() {
    fn train(vs: &VarStore, mut opt: Optimizer, steps: Attach<'_>, net: &dyn Module) {
        steps(vs, &mut |doctor| {
            for _ in 0..3 {
                let (x, y) = batch();
                let loss = net.forward(&x).cross_entropy_for_logits(&y);
                opt.backward_step_clip_norm(&loss, 0.5);
                doctor.step(&loss);
            }
        });
    }
    let loops: [Loop; 4] = [
        |vs, steps| {
            let net = mlp(vs);
            train(vs, nn::sgd(0.9, 0.0, 1e-3, true).build(vs, 0.1).unwrap(), steps, &net);
        },
        |vs, steps| {
            let net = mlp(vs);
            train(vs, nn::Adam::default().build(vs, 1e-2).unwrap(), steps, &net);
        },
        |vs, steps| {
            let net = mlp(vs);
            train(vs, nn::AdamW::default().build(vs, 1e-2).unwrap(), steps, &net);
        },
        |vs, steps| {
            let net = mlp(vs);
            train(vs, nn::RmsProp::default().build(vs, 1e-3).unwrap(), steps, &net);
        },
    ];
    for training in loops {
        let run = both_ways(training);
        assert!(!run.at(2, |s| s.probe == Probe::Update).is_empty());
    }
}

#[test]
fn autocast_with_our_own_scaler() {
    let run = both_ways(|vs, steps| {
        let net = mlp(vs);
        let mut opt = nn::Adam::default().build(vs, 1e-3).unwrap();
        let mut scaler = GradScaler::builder().init_scale(65536.0).build().unwrap();
        steps(vs, &mut |doctor| {
            for step in 0..4 {
                let (x, y) = batch();
                let x = if step == 2 { x * 1e4 } else { x };
                let loss = autocast(Device::Cpu, Kind::Half, || net.forward(&x).cross_entropy_for_logits(&y));
                opt.zero_grad();
                scaler.backward(&loss);
                scaler.unscale(&mut opt).unwrap();
                opt.clip_grad_norm(1.0);
                scaler.step(&mut opt).unwrap();
                scaler.update().unwrap();
                doctor.step(&loss);
            }
        });
    });
    assert!(!run.at(0, |s| s.probe == Probe::CastGrad).is_empty(), "{:#?}", run.labels(0));
}

#[test]
fn a_convolution_net_with_batch_norm_and_channels_last() {
    let run = both_ways(|vs, steps| {
        let root = vs.root();
        let conv = nn::conv2d(&root / "conv", 3, 8, 3, nn::ConvConfig { padding: 1, ..Default::default() });
        let norm = nn::batch_norm2d(&root / "bn", 8, Default::default());
        let head = nn::linear(&root / "head", 8, 4, Default::default());
        let mut opt = nn::sgd(0.9, 0.0, 0.0, false).build(vs, 0.05).unwrap();
        steps(vs, &mut |doctor| {
            for _ in 0..2 {
                let x = Tensor::randn([4, 3, 8, 8], (Kind::Float, Device::Cpu));
                let x = x.permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2]);
                let y = Tensor::from_slice(&[0i64, 1, 2, 3]);
                let hidden =
                    norm.forward_t(&conv.forward(&x), true).relu_().mean_dim([2i64, 3].as_slice(), false, Kind::Float);
                let loss = head.forward(&hidden).cross_entropy_for_logits(&y);
                opt.backward_step(&loss);
                let _ = norm.forward_t(&conv.forward(&x), false);
                doctor.step(&loss);
            }
        });
    });
    assert!(!run.at(1, |s| s.probe == Probe::Buffer).is_empty());
}

#[test]
fn a_causal_transformer_and_an_lstm() {
    both_ways(|vs, steps| {
        let root = vs.root();
        let embedding = nn::embedding(&root / "embed", 12, 8, Default::default());
        let qkv = nn::linear(&root / "block" / 0 / "qkv", 8, 24, Default::default());
        let norm = nn::layer_norm(&root / "block" / 0 / "norm", vec![8], Default::default());
        let lstm = nn::lstm(&root / "lstm", 8, 8, Default::default());
        let mut opt = nn::AdamW::default().build(vs, 1e-2).unwrap();
        steps(vs, &mut |doctor| {
            for _ in 0..2 {
                let tokens = Tensor::randint(12, [2, 6], (Kind::Int64, Device::Cpu));
                let x = embedding.forward(&tokens);
                let parts = qkv.forward(&norm.forward(&x)).chunk(3, -1);
                let mask = Tensor::ones([6, 6], (Kind::Bool, Device::Cpu)).tril(0).logical_not();
                let scores = parts[0].matmul(&parts[1].transpose(1, 2)) / 8f64.sqrt();
                let weights = scores.masked_fill(&mask, f64::NEG_INFINITY).softmax(-1, Kind::Float);
                let x = x + weights.matmul(&parts[2]);
                let (x, _) = lstm.seq(&x);
                let logits = x.matmul(&embedding.ws.tr());
                let loss = logits.view([12, 12]).cross_entropy_for_logits(&tokens.view([12]));
                opt.backward_step(&loss);
                doctor.step(&loss);
            }
        });
    });
}

#[test]
fn weights_in_16_bits_and_what_rounding_leaves_of_their_steps() {
    for kind in [Kind::Half, Kind::BFloat16] {
        let training: Loop = match kind {
            Kind::Half => |vs, steps| train_in(vs, steps, Kind::Half),
            _ => |vs, steps| train_in(vs, steps, Kind::BFloat16),
        };
        let run = both_ways(training);
        let updates = run.at(1, |s| s.probe == Probe::Update && s.tensor == "weight");
        assert!(updates.iter().all(|o| o.rounding.as_ref().is_some_and(|r| r.stepped.is_some())));
        assert!(updates.iter().any(|o| o.rounding.as_ref().is_some_and(|r| r.decay.is_some())));
    }

    fn train_in(vs: &VarStore, steps: Attach<'_>, kind: Kind) {
        let net = mlp(vs);
        for (_, mut weight) in vs.variables() {
            weight.set_data(&weight.to_kind(kind));
        }
        let mut opt = nn::sgd(0.0, 0.0, 0.0, false).build(vs, 1e-2).unwrap();
        steps(vs, &mut |doctor| {
            for _ in 0..2 {
                let (x, y) = batch();
                let loss = net.forward(&x.to_kind(kind)).to_kind(Kind::Float).cross_entropy_for_logits(&y);
                opt.backward_step(&loss);
                tch::no_grad(|| {
                    for mut weight in vs.trainable_variables() {
                        let _ = weight.g_mul_scalar_(0.99);
                        let _ = weight.g_add_(&weight.grad().g_mul_scalar(1e-3));
                    }
                });
                doctor.step(&loss);
            }
        });
    }
}

#[test]
fn master_weights() {
    let run = both_ways(|vs, steps| {
        let net = mlp(vs);
        vs_half(vs);
        let mut opt = MasterWeights::new(vs).unwrap().build(nn::AdamW::default(), 1e-3).unwrap();
        let mut scaler = GradScaler::builder().init_scale(1024.0).build().unwrap();
        steps(vs, &mut |doctor| {
            for _ in 0..3 {
                let (x, y) = batch();
                let loss = net.forward(&x.to_kind(Kind::Half)).to_kind(Kind::Float).cross_entropy_for_logits(&y);
                opt.zero_grad();
                scaler.backward(&loss);
                scaler.step(&mut opt).unwrap();
                scaler.update().unwrap();
                doctor.step(&loss);
            }
        });
    });
    assert!(run.steps[1].observations.iter().any(|o| o.rounding.as_ref().is_some_and(|r| r.without_masters.is_some())));
    assert!(run.steps[1].observations.iter().any(|o| o.rounding.as_ref().is_some_and(|r| r.unlike_master.is_some())));

    fn vs_half(vs: &VarStore) {
        for (_, mut weight) in vs.variables() {
            weight.set_data(&weight.to_kind(Kind::Half));
        }
    }
}

#[test]
fn a_nan_is_followed_to_its_origin() {
    let run = both_ways(|vs, steps| {
        let root = vs.root();
        let (a, b) =
            (nn::linear(&root / "a", 8, 8, Default::default()), nn::linear(&root / "b", 8, 1, Default::default()));
        let mut opt = nn::Adam::default().build(vs, 1e-3).unwrap();
        steps(vs, &mut |doctor| {
            for step in 0..3 {
                let (x, _) = batch();
                let hidden = a.forward(&x);
                let hidden = if step == 1 { hidden.log() } else { hidden.tanh() };
                let loss = b.forward(&hidden).square().mean(Kind::Float);
                opt.backward_step(&loss);
                doctor.step(&loss);
            }
        });
    });
    let inherited: Vec<bool> = run.at(1, |s| s.probe == Probe::Activation).iter().map(|o| o.inherited).collect();
    assert!(inherited.contains(&true) && inherited.contains(&false), "{inherited:?}");
    assert!(!run.at(2, |s| s.probe == Probe::OptimizerState).is_empty(), "{:#?}", run.labels(2));
}

#[test]
fn integers_that_16_bits_do_not_hold() {
    let run = both_ways(|vs, steps| {
        let fc = nn::linear(vs.root() / "fc", 1, 4, Default::default());
        steps(vs, &mut |doctor| {
            let positions = Tensor::arange(4000, (Kind::Int64, Device::Cpu)).unsqueeze(1);
            let cast = positions.to_kind(Kind::Half).to_kind(Kind::Float);
            let made =
                Tensor::arange(4000, (Kind::Float, Device::Cpu)).slice(0, 1, 4000, 1).to_kind(Kind::Half).unsqueeze(1);
            let loss =
                fc.forward(&cast).mean(Kind::Float) + fc.forward(&(made.to_kind(Kind::Float) * 1e-3)).mean(Kind::Float);
            loss.backward();
            doctor.step(&loss);
        });
    });
    let counted = run.steps[0].observations.iter().filter_map(|o| o.provenance.as_ref()?.inexact).max();
    assert!(counted.is_some_and(|n| n > 0), "{:#?}", run.labels(0));
}

#[test]
fn a_moving_average_in_16_bits() {
    let run = both_ways(|vs, steps| {
        let net = mlp(vs);
        let mut opt = nn::Sgd::default().build(vs, 0.1).unwrap();
        let weights = vs.trainable_variables();
        let mut averages: Vec<Tensor> = weights.iter().map(|w| w.detach().to_kind(Kind::BFloat16)).collect();
        steps(vs, &mut |doctor| {
            for _ in 0..2 {
                let (x, y) = batch();
                let loss = net.forward(&x).cross_entropy_for_logits(&y);
                opt.backward_step(&loss);
                tch::no_grad(|| {
                    for (average, weight) in averages.iter_mut().zip(&weights) {
                        let next = &*average * 0.999 + weight.detach().to_kind(Kind::BFloat16) * 0.001;
                        average.copy_(&next);
                    }
                });
                doctor.step(&loss);
            }
        });
    });
    let averages = run.at(1, |s| s.probe == Probe::Average);
    assert!(!averages.is_empty() && averages.iter().all(|o| o.rounding.as_ref().unwrap().unmoved.is_some()));
}

unsafe extern "C" {
    /// ATen's operator, which tch does not bind; our own shim does.
    fn ampdoctor_unscale(
        gradients: *const *mut std::ffi::c_void,
        count: usize,
        found_inf: *mut std::ffi::c_void,
        factor: *const std::ffi::c_void,
    ) -> i32;
}

fn unscale(gradients: &[Tensor], found_inf: &Tensor, factor: &Tensor) {
    let handles: Vec<*mut std::ffi::c_void> = gradients.iter().map(|g| g.as_ptr().cast_mut().cast()).collect();
    let (found_inf, factor) = (found_inf.as_ptr().cast_mut().cast(), factor.as_ptr().cast());
    // SAFETY: all handles are live tensors of one device and dtype.
    let code = tch::no_grad(|| unsafe { ampdoctor_unscale(handles.as_ptr(), handles.len(), found_inf, factor) });
    assert_eq!(code, 0);
}

#[test]
fn a_scaler_of_somebody_else_in_light_steps_too() {
    for every in [1, 3] {
        let run = both_ways_every(
            |vs, steps| {
                let net = mlp(vs);
                let mut opt = nn::Sgd::default().build(vs, 0.1).unwrap();
                let mut scale = Tensor::from(1024f32);
                let tracker = Tensor::from(0i32);
                steps(vs, &mut |doctor| {
                    for step in 0..6 {
                        let (x, y) = batch();
                        let loss =
                            net.forward(&x).cross_entropy_for_logits(&y) * if step == 2 { f64::INFINITY } else { 1.0 };
                        opt.zero_grad();
                        (&loss * &scale).backward();
                        let grads: Vec<Tensor> = vs.trainable_variables().iter().map(Tensor::grad).collect();
                        let found = Tensor::from(0f32);
                        unscale(&grads, &found, &scale.reciprocal());
                        if found.double_value(&[]) == 0.0 {
                            tch::no_grad(|| {
                                let norm = Tensor::from(0.5f32);
                                for grad in &grads {
                                    let _ = grad.shallow_clone().g_mul_(&norm);
                                }
                            });
                            opt.step();
                        }
                        let _ = scale.internal_amp_update_scale_(&tracker, &found, 2.0, 0.5, 2);
                        doctor.step(&loss);
                    }
                });
            },
            every,
        );
        assert_eq!(run.steps.iter().map(|s| s.skipped()).filter(|&skipped| skipped).count(), 1);
        assert!(run.steps[1].scaler.iter().any(|e| matches!(e, ScalerEvent::Updated { from: 1024.0, to: 2048.0, .. })));
    }
}

#[test]
fn losses_of_steps_that_are_not_scanned_are_read_later_and_recorded_in_order() {
    // Read with the next scanned step, with others when 16 have come together, and at the end.
    for every in [3, 5, 40] {
        let run = both_ways_every(
            |vs, steps| {
                let net = mlp(vs);
                let mut opt = nn::Sgd::default().build(vs, 0.1).unwrap();
                steps(vs, &mut |doctor| {
                    for step in 0..43 {
                        let (x, y) = batch();
                        let mut loss = net.forward(&x).cross_entropy_for_logits(&y);
                        opt.backward_step(&loss);
                        match step {
                            7 => doctor.step(()),
                            8 => doctor.step(0.5),
                            _ => doctor.step(&loss),
                        }
                        // A loop may use its memory for something else.
                        let _ = tch::no_grad(|| loss.fill_(f64::NAN));
                    }
                });
            },
            every,
        );
        let indices: Vec<u64> = run.steps.iter().map(|step| step.index).collect();
        assert_eq!(indices, (0..43).collect::<Vec<_>>(), "every {every}");
        let without: Vec<u64> = run.steps.iter().filter(|s| s.loss.is_none()).map(|s| s.index).collect();
        assert_eq!((without, run.steps[8].loss), (vec![7], Some(0.5)), "every {every}");
        assert!(run.steps.iter().filter_map(|s| s.loss).all(f64::is_finite), "every {every}");
    }
}

#[test]
fn a_loss_that_is_read_later_and_is_not_finite_is_followed_by_scanned_steps() {
    let training: Loop = |vs, steps| {
        let net = mlp(vs);
        steps(vs, &mut |doctor| {
            for step in 0..40 {
                let (x, y) = batch();
                let loss = net.forward(&x).cross_entropy_for_logits(&y);
                loss.backward();
                doctor.step(&(loss * if step == 6 { f64::NAN } else { 1.0 }));
            }
        });
    };
    let (run, _) = record(training, true, 100);
    assert!(run.steps[6].loss.is_some_and(f64::is_nan));
    let full: Vec<u64> = run.steps.iter().filter(|s| s.tier == Tier::Full).map(|s| s.index).collect();
    // Steps 1 to 16 are read together, at the end of the last of them.
    assert_eq!(full, [0, 18, 19, 20]);
}

#[test]
fn the_numbers_are_those_of_the_moment_although_the_loop_goes_on() {
    let run = both_ways(|vs, steps| {
        let fc = nn::linear(vs.root() / "fc", 8, 8, Default::default());
        steps(vs, &mut |doctor| {
            let (x, _) = batch();
            let loss = fc.forward(&x).g_mul_(&Tensor::from(3f32)).tanh_().sum(Kind::Float);
            loss.backward();
            tch::no_grad(|| {
                for weight in vs.trainable_variables() {
                    let _ = weight.grad().fill_(7.0);
                }
            });
            doctor.step(&loss);
        });
    });
    assert_ne!(run.one(0, Probe::ParamGrad, "fc.weight").stats.max_abs, 7.0);
}
