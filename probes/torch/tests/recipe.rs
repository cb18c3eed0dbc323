//! Loops as people write them, and what of the recipe is seen in them.

mod observed;

use std::ffi::c_void;

use ampdoctor::aggregate::Misplaced;
use ampdoctor::aggregate::{Aggregate, Mistake, Sighting};
use ampdoctor::observation::{Act, Record, Refusal, Tier};
use ampdoctor::recording::read_run;
use ampdoctor_torch::{Doctor, DoctorBuilder, GradScaler, MasterWeights};
use observed::{Run, batch, mlp, store};
use tch::nn::{self, Module, OptimizerConfig, VarStore};
use tch::{Device, Kind, Tensor};

/// What was noticed of the recipe, and the recording.
fn watch(builder: DoctorBuilder, stores: &[&VarStore], training: impl FnOnce(&mut Doctor)) -> (Vec<Sighting>, Run) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut doctor = builder.run(dir.path()).attach_all(stores);
    assert!(doctor.is_attached());
    training(&mut doctor);
    drop(doctor);
    let mut aggregate = Aggregate::default();
    for record in read_run(dir.path()).expect("the recording opens") {
        aggregate.apply(record.expect("the recording is whole"));
    }
    (aggregate.recipe.sightings, Run::read(dir.path()))
}

fn full(stores: &[&VarStore], training: impl FnOnce(&mut Doctor)) -> Vec<Sighting> {
    watch(Doctor::builder().every(1), stores, training).0
}

fn scaler() -> GradScaler {
    GradScaler::builder().init_scale(1024.0).growth_interval(3).build().unwrap()
}

fn loss(net: &impl Module) -> Tensor {
    let (x, y) = batch();
    net.forward(&x).cross_entropy_for_logits(&y)
}

/// What a loop does to its gradients between two steps.
#[derive(Clone, Copy, Debug)]
enum Clearing {
    NoneBefore,
    NoneAfter,
    ZeroBefore,
    ZeroAfter,
}

const CLEARINGS: [Clearing; 4] = [Clearing::NoneBefore, Clearing::NoneAfter, Clearing::ZeroBefore, Clearing::ZeroAfter];

fn clear(how: Clearing, before: bool, opt: &mut nn::Optimizer, vs: &VarStore) {
    match (how, before) {
        (Clearing::NoneBefore, true) | (Clearing::NoneAfter, false) => opt.zero_grad(),
        (Clearing::ZeroBefore, true) | (Clearing::ZeroAfter, false) => {
            vs.trainable_variables().iter_mut().for_each(Tensor::zero_grad);
        }
        _ => {}
    }
}

#[test]
fn gradients_may_be_cleared_before_or_after_to_none_or_to_zero() {
    for how in CLEARINGS {
        for momentum in [0.0, 0.9] {
            let vs = store(1);
            let net = mlp(&vs);
            let mut opt = nn::Sgd { momentum, ..Default::default() }.build(&vs, 0.1).unwrap();
            let mut scaler = scaler();
            let found = full(&[&vs], |doctor| {
                for _ in 0..5 {
                    clear(how, true, &mut opt, &vs);
                    let loss = loss(&net);
                    scaler.backward(&loss);
                    scaler.unscale(&mut opt).unwrap();
                    opt.clip_grad_norm(0.01);
                    scaler.step(&mut opt).unwrap();
                    scaler.update().unwrap();
                    clear(how, false, &mut opt, &vs);
                    doctor.step(&loss);
                }
            });
            assert_eq!(found, [], "{how:?} {momentum}");
        }
    }
}

#[test]
fn gradients_that_are_never_cleared_are_seen_without_a_scaler_and_under_any_sampling() {
    for builder in [Doctor::builder().every(1), Doctor::builder().every(100), Doctor::builder()] {
        let vs = store(2);
        let net = mlp(&vs);
        let mut opt = nn::Adam::default().build(&vs, 1e-3).unwrap();
        let (found, _) = watch(builder, &[&vs], |doctor| {
            for _ in 0..5 {
                let loss = loss(&net);
                loss.backward();
                opt.step();
                doctor.step(&loss);
            }
        });
        let [stale] = &found[..] else { panic!("{found:#?}") };
        assert_eq!((stale.first, &stale.mistake), (1, &Mistake::Stale { stale: 4, parameters: 4, withheld: false }));
        assert!(stale.times >= 3, "{stale:?}");
    }
}

#[test]
fn gradients_that_are_not_cleared_after_an_overflow_are_seen_and_those_that_are_cleared_are_sound() {
    for (builder, clears) in
        [(Doctor::builder().every(1), false), (Doctor::builder(), false), (Doctor::builder().every(1), true)]
    {
        let vs = store(2);
        let net = mlp(&vs);
        let mut opt = nn::Adam::default().build(&vs, 1e-3).unwrap();
        // At this scale the gradients overflow in FP32, and the loss does not: it is 0.
        let mut scaler = GradScaler::builder().init_scale(2f64.powi(120)).build().unwrap();
        let (found, run) = watch(builder, &[&vs], |doctor| {
            for _ in 0..5 {
                let loss = loss(&net);
                let loss = (&loss - loss.detach()) * 1e9;
                if clears {
                    opt.zero_grad();
                }
                scaler.backward(&loss);
                scaler.unscale(&mut opt).unwrap();
                scaler.step(&mut opt).unwrap();
                scaler.update().unwrap();
                doctor.step(&loss);
            }
        });
        assert!(run.steps.iter().all(|step| step.skipped()));
        if clears {
            assert!(found.is_empty(), "{found:#?}");
            continue;
        }
        let [stale] = &found[..] else { panic!("{found:#?}") };
        assert_eq!((stale.first, &stale.mistake), (1, &Mistake::Stale { stale: 4, parameters: 4, withheld: true }));
    }
}

#[test]
fn accumulation_in_one_step_and_over_several_is_sound() {
    for step_per_micro_batch in [false, true] {
        let vs = store(3);
        let net = mlp(&vs);
        let mut opt = nn::Adam::default().build(&vs, 1e-3).unwrap();
        let mut scaler = scaler();
        let found = full(&[&vs], |doctor| {
            for _ in 0..4 {
                opt.zero_grad();
                for micro_batch in 0..3 {
                    let loss = loss(&net) / 3.0;
                    scaler.backward(&loss);
                    if micro_batch == 2 {
                        scaler.step(&mut opt).unwrap();
                        scaler.update().unwrap();
                    }
                    if step_per_micro_batch || micro_batch == 2 {
                        doctor.step(&loss);
                    }
                }
            }
        });
        assert_eq!(found, [], "a step per micro-batch: {step_per_micro_batch}");
    }
}

/// A generator whose loss goes through the discriminator, which so collects gradients that are not its own.
fn gan(scaled: bool) -> Vec<Sighting> {
    let (g, d) = (store(4), store(5));
    let generator = nn::linear(g.root() / "g", 8, 8, Default::default());
    let discriminator = nn::linear(d.root() / "d", 8, 1, Default::default());
    let mut opt_g = nn::Adam::default().build(&g, 1e-3).unwrap();
    let mut opt_d = nn::Adam::default().build(&d, 1e-3).unwrap();
    let mut scaler = GradScaler::builder().init_scale(256.0).growth_interval(2).enabled(scaled).build().unwrap();
    full(&[&g, &d], |doctor| {
        for _ in 0..6 {
            let noise = Tensor::randn([16, 8], (Kind::Float, Device::Cpu));
            opt_d.zero_grad();
            let real = discriminator.forward(&batch().0).square().mean(Kind::Float);
            let fake = discriminator.forward(&generator.forward(&noise).detach()).square().mean(Kind::Float);
            let loss_d = real - fake;
            scaler.backward(&loss_d);
            scaler.step(&mut opt_d).unwrap();
            scaler.update().unwrap();
            opt_g.zero_grad();
            let loss_g = discriminator.forward(&generator.forward(&noise)).square().mean(Kind::Float);
            scaler.backward(&loss_g);
            scaler.step(&mut opt_g).unwrap();
            scaler.update().unwrap();
            doctor.step(&loss_g);
        }
    })
}

#[test]
fn a_gan_is_sound_with_and_without_a_scaler() {
    assert_eq!(gan(true), []);
    assert_eq!(gan(false), []);
}

#[test]
fn two_optimizers_with_one_scaler_and_one_update_are_sound() {
    let (a, b) = (store(6), store(7));
    let first = nn::linear(a.root() / "fc", 8, 8, Default::default());
    let second = nn::linear(b.root() / "fc", 8, 4, Default::default());
    let mut opts = [nn::Adam::default().build(&a, 1e-3).unwrap(), nn::Sgd::default().build(&b, 0.1).unwrap()];
    let mut scaler = scaler();
    let found = full(&[&a, &b], |doctor| {
        for _ in 0..5 {
            let (x, y) = batch();
            opts.iter_mut().for_each(|opt| opt.zero_grad());
            let loss = second.forward(&first.forward(&x)).cross_entropy_for_logits(&y);
            scaler.backward(&loss);
            for opt in &mut opts {
                scaler.unscale(opt).unwrap();
                opt.clip_grad_value(0.01);
            }
            for opt in &mut opts {
                scaler.step(opt).unwrap();
            }
            scaler.update().unwrap();
            // Evaluation, with and without autograd.
            let _ = tch::no_grad(|| second.forward(&first.forward(&x)));
            let _ = second.forward(&first.forward(&x)) * 0.5;
            doctor.step(&loss);
        }
    });
    assert_eq!(found, []);
}

#[test]
fn weights_that_are_clamped_averaged_or_edited_between_micro_batches_are_sound() {
    let vs = store(8);
    let net = mlp(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.1).unwrap();
    let found = full(&[&vs], |doctor| {
        for _ in 0..4 {
            opt.zero_grad();
            for _ in 0..2 {
                loss(&net).backward();
                tch::no_grad(|| vs.trainable_variables().iter_mut().for_each(|p| drop(p.clamp_(-0.9, 0.9))));
            }
            opt.step();
            let average: Vec<Tensor> = vs.trainable_variables().iter().map(|p| p.detach().copy()).collect();
            tch::no_grad(|| vs.trainable_variables().iter_mut().zip(&average).for_each(|(p, a)| p.copy_(a)));
            doctor.step(());
        }
    });
    assert_eq!(found, []);
}

#[test]
fn master_weights_are_sound_and_left_over_gradients_of_the_copies_are_seen() {
    let run = |cleared: bool| {
        let mut vs = store(9);
        let net = mlp(&vs);
        vs.bfloat16();
        let mut opt = MasterWeights::new(&vs).unwrap().build(nn::Adam::default(), 1e-3).unwrap();
        full(&[&vs], |doctor| {
            for _ in 0..4 {
                let (x, y) = batch();
                if cleared {
                    opt.zero_grad();
                }
                let loss = net.forward(&x.to_kind(Kind::BFloat16)).to_kind(Kind::Float).cross_entropy_for_logits(&y);
                loss.backward();
                opt.step().unwrap();
                doctor.step(&loss);
            }
        })
    };
    assert_eq!(run(true), []);
    let found = run(false);
    assert!(matches!(found[..], [Sighting { first: 1, mistake: Mistake::Stale { .. }, .. }]), "{found:#?}");
}

#[test]
fn what_a_loop_does_is_recorded_in_its_order() {
    let vs = store(10);
    let net = mlp(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.1).unwrap();
    let mut scaler = scaler();
    let (_, run) = watch(Doctor::builder().every(100), &[&vs], |doctor| {
        for _ in 0..6 {
            let loss = loss(&net);
            scaler.backward(&loss);
            scaler.unscale(&mut opt).unwrap();
            opt.clip_grad_value(1e-3);
            scaler.step(&mut opt).unwrap();
            scaler.update().unwrap();
            vs.trainable_variables().iter_mut().for_each(Tensor::zero_grad);
            doctor.step(&loss);
        }
    });
    // Scaled, Unscaled, Stepped, Updated.
    let acts: Vec<(u32, &Act)> = run.steps[1].recipe.iter().map(|event| (event.after, &event.act)).collect();
    let [(1, Act::Backward { holding: 4, used: 0, product: Some(product) }), rest @ ..] = &acts[..] else {
        panic!("{acts:#?}");
    };
    assert_eq!((product.factor, run.steps[1].loss), (1024.0, Some(product.loss)));
    let expected = [
        (2, Act::Clamped { limit: 1e-3, gradients: 4 }),
        (2, Act::Stepped { parameters: 4, stale: 0, adaptive: false }),
        (4, Act::Cleared { gradients: 4 }),
    ];
    assert_eq!(rest.iter().map(|&(after, act)| (after, act.clone())).collect::<Vec<_>>(), expected);
    let tiers: Vec<Tier> = run.steps.iter().map(|s| s.tier).collect();
    assert_eq!(tiers, [Tier::Full, Tier::Light, Tier::Light, Tier::Light, Tier::Off, Tier::Off]);
    assert_eq!(run.steps[5].recipe, []);
}

#[test]
fn the_last_step_of_a_loop_that_an_error_ended_is_recorded() {
    let vs = store(11);
    let net = mlp(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.1).unwrap();
    let mut scaler = scaler();
    let (found, run) = watch(Doctor::builder().off(), &[&vs], |doctor| {
        for i in 0..3 {
            let loss = loss(&net);
            opt.zero_grad();
            scaler.backward(&loss);
            scaler.unscale(&mut opt).unwrap();
            if i == 2 {
                assert!(scaler.unscale(&mut opt).is_err());
                return;
            }
            scaler.step(&mut opt).unwrap();
            scaler.update().unwrap();
            doctor.step(&loss);
        }
    });
    assert_eq!(run.steps.len(), 3);
    assert!(matches!(found[..], [Sighting { first: 2, mistake: Mistake::UnscaledTwice { refused: true, .. }, .. }]));
}

#[test]
fn parameters_that_the_loss_does_not_reach_are_named_as_the_doctor_knows_them() {
    let (a, b) = (store(12), store(13));
    let net = mlp(&a);
    let _head = nn::linear(b.root() / "head", 4, 4, Default::default());
    let mut opt = nn::Sgd::default().build(&b, 0.1).unwrap();
    let mut scaler = scaler();
    let (_, run) = watch(Doctor::builder().every(1), &[&a, &b], |doctor| {
        scaler.backward(&loss(&net));
        assert!(scaler.step(&mut opt).is_err());
        doctor.step(());
    });
    let refused = run.steps[0].recipe.iter().find_map(|event| match &event.act {
        Act::Refused { refusal: Refusal::NoGradients, parameters, .. } => Some(parameters.clone()),
        _ => None,
    });
    let mut names = refused.expect("a refusal");
    names.sort();
    assert_eq!(names, ["store1.head.bias", "store1.head.weight"]);
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

/// A scaler of somebody else's: what is around ATen's two operators.
struct Foreign {
    scale: Tensor,
    tracker: Tensor,
}

impl Foreign {
    fn new() -> Self {
        Self { scale: Tensor::from(1024f32), tracker: Tensor::from(0i32) }
    }

    fn unscale(&self, vs: &VarStore) -> Tensor {
        let found = Tensor::from(0f32);
        let gradients: Vec<Tensor> = vs.trainable_variables().iter().map(Tensor::grad).collect();
        let handles: Vec<*mut c_void> = gradients.iter().map(|g| g.as_ptr().cast_mut().cast()).collect();
        let inverse = self.scale.reciprocal();
        let (found_inf, factor) = (found.as_ptr().cast_mut().cast(), inverse.as_ptr().cast());
        // SAFETY: all handles are live tensors of one device and dtype.
        let code = tch::no_grad(|| unsafe { ampdoctor_unscale(handles.as_ptr(), handles.len(), found_inf, factor) });
        assert_eq!(code, 0);
        found
    }

    fn update(&mut self, found: &Tensor) {
        let _ = self.scale.internal_amp_update_scale_(&self.tracker, found, 2.0, 0.5, 2);
    }
}

/// Two nets, and a foreign scaler; `step` is one step of the loop.
fn foreign(step: impl Fn(&mut Foreign, &mut [(VarStore, nn::Optimizer); 2], &[nn::Linear; 2])) -> Vec<Sighting> {
    let stores = [store(14), store(15)];
    let nets = [0, 1].map(|i| nn::linear(stores[i].root() / "fc", 8, 8, Default::default()));
    let mut parts = stores.map(|vs| {
        let opt = nn::Sgd::default().build(&vs, 0.1).unwrap();
        (vs, opt)
    });
    let dir = tempfile::tempdir().unwrap();
    let mut doctor = Doctor::builder().every(3).run(dir.path()).attach_all(&[&parts[0].0, &parts[1].0]);
    let mut scaler = Foreign::new();
    for _ in 0..7 {
        step(&mut scaler, &mut parts, &nets);
        doctor.step(());
    }
    drop(doctor);
    let mut aggregate = Aggregate::default();
    for record in read_run(dir.path()).unwrap() {
        let record = record.unwrap();
        if let Record::Step(step) = &record {
            assert!(step.tier >= Tier::Light);
        }
        aggregate.apply(record);
    }
    aggregate.recipe.sightings
}

fn both(nets: &[nn::Linear; 2]) -> Tensor {
    nets[1].forward(&nets[0].forward(&batch().0)).square().mean(Kind::Float)
}

#[test]
fn a_foreign_scaler_with_two_optimizers_is_sound_also_where_each_has_its_own_backward() {
    let shared = foreign(|scaler, parts, nets| {
        parts.iter_mut().for_each(|(_, opt)| opt.zero_grad());
        (both(nets) * &scaler.scale).backward();
        let found = [scaler.unscale(&parts[0].0), scaler.unscale(&parts[1].0)];
        parts.iter_mut().for_each(|(_, opt)| opt.step());
        scaler.update(&(&found[0] + &found[1]));
    });
    assert_eq!(shared, []);
    let apart = foreign(|scaler, parts, nets| {
        for (i, net) in nets.iter().enumerate() {
            parts[i].1.zero_grad();
            let loss = net.forward(&batch().0).square().mean(Kind::Float);
            (loss * &scaler.scale).backward();
            let found = scaler.unscale(&parts[i].0);
            parts[i].1.step();
            scaler.update(&found);
        }
    });
    assert_eq!(apart, []);
}

#[test]
fn what_a_foreign_scaler_is_made_to_do_wrongly_is_seen() {
    let step = |scaler: &mut Foreign, parts: &mut [(VarStore, nn::Optimizer); 2], nets: &[nn::Linear; 2]| {
        parts.iter_mut().for_each(|(_, opt)| opt.zero_grad());
        (both(nets) * &scaler.scale).backward();
    };
    let twice = foreign(|scaler, parts, nets| {
        step(scaler, parts, nets);
        let _ = scaler.unscale(&parts[0].0);
        let found = scaler.unscale(&parts[0].0);
        parts[0].1.step();
        scaler.update(&found);
    });
    assert!(twice.iter().any(|s| matches!(s.mistake, Mistake::UnscaledTwice { optimizer: 0, .. })), "{twice:#?}");
    let updated_twice = foreign(|scaler, parts, nets| {
        step(scaler, parts, nets);
        let found = scaler.unscale(&parts[0].0);
        parts[0].1.step();
        scaler.update(&found);
        scaler.update(&found);
    });
    let again = Mistake::Misplaced(Misplaced::UpdatedAgain);
    assert!(updated_twice.iter().any(|s| s.mistake == again), "{updated_twice:#?}");
    let between = foreign(|scaler, parts, nets| {
        step(scaler, parts, nets);
        for part in parts {
            let found = scaler.unscale(&part.0);
            part.1.step();
            scaler.update(&found);
        }
    });
    assert!(between.iter().any(|s| matches!(s.mistake, Mistake::ScaleChangedBetween { .. })), "{between:#?}");
    let clipped = foreign(|scaler, parts, nets| {
        step(scaler, parts, nets);
        parts[0].1.clip_grad_norm(1e-3);
        let found = scaler.unscale(&parts[0].0);
        parts[0].1.step();
        scaler.update(&found);
    });
    assert!(clipped.iter().any(|s| matches!(s.mistake, Mistake::ClippedBeforeUnscale(_))), "{clipped:#?}");
}
