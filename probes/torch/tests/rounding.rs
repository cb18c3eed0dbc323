//! What low precision does to the steps of real optimizers, as the observer measures it.

mod observed;

use ampdoctor::observation::{Observation, Probe, Rounding};
use ampdoctor::scan::Fidelity;
use ampdoctor_torch::MasterWeights;
use observed::{Run, batch, mlp, observe, store};
use std::sync::{Mutex, PoisonError};
use tch::nn::{self, Module, Optimizer, OptimizerConfig, VarStore};
use tch::{Device, Kind, Tensor};

/// LibTorch's random numbers are the process's.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> impl Drop {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn rounding(observation: &Observation) -> Rounding {
    observation.rounding.as_deref().copied().unwrap_or_default()
}

/// The sum over all steps of what was left of the update of `label`.
fn stepped(run: &Run, label: &str) -> Fidelity {
    let mut sum = Fidelity::default();
    for step in 0..run.steps.len() {
        let update = run.one(step, Probe::Update, label);
        sum.merge(&rounding(update).stepped.expect("the intended update is known"));
    }
    sum
}

/// One parameter `w` in `kind`, and `steps` steps of `optimizer` along a gradient of `gradient`'s.
fn one_parameter(
    w: &Tensor,
    gradient: &Tensor,
    steps: usize,
    build: impl FnOnce(&VarStore) -> Optimizer,
) -> (Tensor, Run) {
    let vs = VarStore::new(Device::Cpu);
    let mut p = vs.root().zeros("w", &w.size());
    let mut vs = vs;
    match w.kind() {
        Kind::Half => vs.half(),
        Kind::BFloat16 => vs.bfloat16(),
        _ => {}
    }
    tch::no_grad(|| p.copy_(w));
    let mut opt = build(&vs);
    let run = observe(&vs, |doctor| {
        for _ in 0..steps {
            let loss = (&p * gradient).sum(Kind::Float);
            opt.backward_step(&loss);
            doctor.step(&loss);
        }
    });
    (p.detach().to_kind(Kind::Double), run)
}

/// Weights as N(0, 0.02) in FP16, and signs as gradients.
fn weights() -> (Tensor, Tensor) {
    tch::set_num_threads(1);
    tch::manual_seed(3);
    let normal = || Tensor::randn([200_000], (Kind::Float, Device::Cpu));
    ((normal() * 0.02).to_kind(Kind::Half), normal().sign().to_kind(Kind::Half))
}

/// One step of `w` in FP16 by `step`.
fn one_step(w: &Tensor, step: impl FnOnce(&mut Tensor)) -> Fidelity {
    let mut vs = VarStore::new(Device::Cpu);
    let mut p = vs.root().zeros("w", &w.size());
    vs.half();
    tch::no_grad(|| p.copy_(w));
    let run = observe(&vs, |doctor| {
        tch::no_grad(|| step(&mut p));
        doctor.step(&Tensor::from(0.0));
    });
    stepped(&run, "w")
}

#[test]
fn the_known_figures_of_updates_that_fp16_loses_come_out() {
    let _alone = alone();
    let (w, signs) = weights();
    for (size, dead, phi) in [(1e-5, 0.118, 1.00), (3e-6, 0.697, 0.36), (1e-6, 0.845, 0.22), (1e-7, 0.985, 0.012)] {
        let change = signs.to_kind(Kind::Float) * size;
        let found = one_step(&w, |p| drop(p.g_add_(&change)));
        let (d, p) = (found.dead_share().unwrap(), found.phi().unwrap());
        println!("{size:e}: {d:.4} dead, phi {p:.4}");
        assert_eq!(found.intended, 200_000);
        assert!((d - dead).abs() < 0.006, "{size:e}: {d:.4} dead, not {dead}");
        assert!((p - phi).abs() < 0.006 && (p / phi - 1.0).abs() < 0.1, "{size:e}: phi {p:.4}, not {phi}");
    }
}

#[test]
fn sgd_that_rounds_its_learning_rate_too_is_held_against_the_one_it_was_given() {
    let _alone = alone();
    let (w, signs) = weights();
    for (lr, dead, phi) in [(1e-5, 0.118, 1.00), (3e-6, 0.695, 0.364), (1e-6, 0.844, 0.223)] {
        let (_, run) = one_parameter(&w, &signs, 1, |vs| nn::Sgd::default().build(vs, lr).unwrap());
        let found = stepped(&run, "w");
        let (d, p) = (found.dead_share().unwrap(), found.phi().unwrap());
        assert!((d - dead).abs() < 0.006 && (p - phi).abs() < 0.01, "{lr:e}: {d:.4} dead, phi {p:.4}");
    }
    // LibTorch's kernel holds the learning rate in FP16: 1e-7 is 1.19e-7 there, and the weights that move at all move by twice as much on
    // the whole.
    let (_, run) = one_parameter(&w, &signs, 1, |vs| nn::Sgd::default().build(vs, 1e-7).unwrap());
    let found = stepped(&run, "w");
    assert!((found.phi().unwrap() - 0.024).abs() < 0.002, "{found:?}");
    assert!((found.energy / (200_000.0 * 1e-14) - 1.0).abs() < 1e-6, "{found:?}");
}

#[test]
fn rounding_that_amplifies_is_seen() {
    let _alone = alone();
    let one = Tensor::from_slice(&[1f32]).to_kind(Kind::Half);
    let (w, run) = one_parameter(&one, &one, 1000, |vs| nn::Sgd::default().build(vs, 2.5e-4).unwrap());
    assert!((w.double_value(&[0]) - 0.512).abs() < 5e-4, "{w}");
    assert!((stepped(&run, "w").phi().unwrap() - 1.95).abs() < 5e-3, "{:?}", stepped(&run, "w"));
}

#[test]
fn weight_decay_that_is_lost_is_seen() {
    let _alone = alone();
    for (kind, left) in [(Kind::Float, 0.49950), (Kind::Half, 0.5), (Kind::BFloat16, 0.5)] {
        let w = Tensor::from_slice(&[0.5f32]).to_kind(kind);
        let zero = w.zeros_like();
        // SGD adds the decay to the gradient: it is the whole update here.
        let (end, run) = one_parameter(&w, &zero, 1000, |vs| nn::sgd(0.0, 0.0, 0.01, false).build(vs, 1e-4).unwrap());
        assert!((end.double_value(&[0]) - left).abs() < 1e-5, "{kind:?}: {end}");
        if kind != Kind::Float {
            let found = stepped(&run, "w");
            assert_eq!((found.phi(), found.dead_share()), (Some(0.0), Some(1.0)), "{kind:?}");
        }
    }
}

#[test]
fn the_decay_of_adamw_is_told_apart_from_the_rest() {
    let _alone = alone();
    let (w, signs) = weights();
    let w = w.to_kind(Kind::BFloat16);
    let gradient = signs.to_kind(Kind::BFloat16);
    let (_, run) = one_parameter(&w, &gradient, 2, |vs| nn::adamw(0.9, 0.999, 0.01).build(vs, 1e-3).unwrap());
    for step in 0..2 {
        let found = rounding(run.one(step, Probe::Update, "w"));
        let (whole, decay) = (found.stepped.unwrap(), found.decay.unwrap());
        assert!(whole.phi().unwrap() > 0.95, "{whole:?}");
        assert_eq!(decay.dead_share(), Some(1.0), "{decay:?}");
        assert!(decay.energy > 0.0 && decay.energy < whole.energy);
    }
}

type Build = Box<dyn FnOnce(&VarStore) -> Optimizer>;

/// The optimizers of tch, at learning rates whose updates FP16 holds well.
fn optimizers() -> Vec<(&'static str, Build)> {
    vec![
        ("sgd", Box::new(|vs| nn::Sgd::default().build(vs, 0.5).unwrap())),
        ("nesterov", Box::new(|vs| nn::sgd(0.9, 0.0, 0.01, true).build(vs, 0.5).unwrap())),
        ("adam", Box::new(|vs| nn::Adam::default().build(vs, 0.05).unwrap())),
        ("amsgrad", Box::new(|vs| nn::Adam::default().amsgrad(true).wd(0.01).build(vs, 0.05).unwrap())),
        ("adamw", Box::new(|vs| nn::AdamW::default().build(vs, 0.05).unwrap())),
        ("rmsprop", Box::new(|vs| nn::RmsProp::default().build(vs, 0.05).unwrap())),
        ("rmsprop momentum", Box::new(|vs| nn::rms_prop(0.99, 1e-8, 0.01, 0.9, true).build(vs, 0.05).unwrap())),
    ]
}

#[test]
fn what_every_optimizer_intended_is_known() {
    let _alone = alone();
    for (name, build) in optimizers() {
        let mut vs = store(1);
        let net = mlp(&vs);
        vs.bfloat16();
        let mut opt = build(&vs);
        let run = observe(&vs, |doctor| {
            for _ in 0..4 {
                let (x, y) = batch();
                let loss = net.forward(&x.to_kind(Kind::BFloat16)).to_kind(Kind::Float).cross_entropy_for_logits(&y);
                opt.backward_step(&loss);
                doctor.step(&loss);
            }
        });
        assert_eq!(run.notes, [], "{name}");
        for label in ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"] {
            let found = stepped(&run, label);
            let phi = found.phi().unwrap();
            assert!((phi - 1.0).abs() < 0.03, "{name} {label}: {found:?}");
            assert_eq!(found.non_finite, 0, "{name} {label}");
            // The change that was seen, by itself: its square is that of the intention but for rounding.
            let change: f64 = (0..4).map(|s| run.one(s, Probe::Update, label).stats.sum_squares.to_f64()).sum();
            assert!((change / found.energy - 1.0).abs() < 0.05, "{name} {label}: {change:e}, {found:?}");
        }
    }
}

#[test]
fn adam_whose_eps_is_nothing_in_fp16_intends_what_is_not_finite() {
    let _alone = alone();
    let (w, signs) = weights();
    let (end, run) = one_parameter(&w, &(signs * 1e-3), 1, |vs| nn::Adam::default().build(vs, 1e-3).unwrap());
    let found = stepped(&run, "w");
    assert_eq!((found.non_finite, found.intended), (200_000, 0));
    assert!(!bool::try_from(end.isfinite().any()).unwrap());
}

#[test]
fn an_operator_that_does_not_tell_its_intention_is_a_blind_spot_and_no_lost_update() {
    let _alone = alone();
    let mut vs = store(1);
    let net = mlp(&vs);
    vs.half();
    let run = observe(&vs, |doctor| {
        let (x, y) = batch();
        let loss = net.forward(&x.to_kind(Kind::Half)).to_kind(Kind::Float).cross_entropy_for_logits(&y);
        loss.backward();
        for mut p in vs.trainable_variables() {
            let stepped = p.detach().to_kind(Kind::Float) - p.grad().to_kind(Kind::Float) * 1e-3;
            tch::no_grad(|| p.copy_(&stepped));
        }
        doctor.step(&loss);
    });
    assert_eq!(run.one(0, Probe::Update, "fc1.weight").rounding, None);
    assert!(run.notes.iter().any(|n| n.text.contains("changed by `copy_`")), "{:?}", run.notes);
}

/// Four steps under masters, `meddle` before each.
fn under_masters(meddle: impl Fn(&VarStore, usize), write_back: bool) -> Run {
    let mut vs = store(1);
    let net = mlp(&vs);
    vs.half();
    let mut masters = MasterWeights::new(&vs).unwrap();
    let mut opt = nn::Sgd::default().build(masters.vars(), 1e-3).unwrap();
    observe(&vs, |doctor| {
        for step in 0..4 {
            meddle(&vs, step);
            let (x, y) = batch();
            let loss = net.forward(&x.to_kind(Kind::Half)).to_kind(Kind::Float).cross_entropy_for_logits(&y);
            loss.backward();
            masters.pull_gradients().unwrap();
            opt.step();
            // Where a loop calls doctor.step before the write-back, the two differ by right.
            doctor.step(&loss);
            if write_back {
                masters.write_back().unwrap();
            }
            opt.zero_grad();
        }
    })
}

fn unlike(run: &Run, step: usize, label: &str) -> Option<u64> {
    let found =
        run.at(step, |s| s.probe == Probe::Param && s.label() == label && s.dtype == ampdoctor::scan::Dtype::F16);
    found.first().and_then(|o| rounding(o).unlike_master)
}

#[test]
fn under_masters_nothing_is_lost_and_what_would_be_is_told() {
    let _alone = alone();
    let run = under_masters(|_, _| {}, true);
    for step in 0..4 {
        let update = run.one(step, Probe::Update, "fc1.weight");
        let found = rounding(update);
        assert_eq!((found.stepped, found.unlike_master), (None, None));
        let lost = found.without_masters.expect("the weights are FP16").dead_share().unwrap();
        assert!(lost > 0.02 && lost < 1.0, "step {step}: {lost}");
        assert!(matches!(unlike(&run, step, "fc1.weight"), None | Some(0)), "step {step}");
    }
}

#[test]
fn a_write_back_that_is_forgotten_is_seen_in_the_next_forward() {
    let _alone = alone();
    let run = under_masters(|_, _| {}, false);
    for step in 1..4 {
        let n = unlike(&run, step, "fc1.weight").expect("compared");
        assert!(n > 0, "step {step}");
        assert!(run.at(step, |s| s.probe == Probe::Update && s.label() == "fc1.weight").len() == 1);
    }
}

#[test]
fn a_model_that_something_else_changed_is_seen() {
    let _alone = alone();
    let meddle = |vs: &VarStore, step: usize| {
        if step == 2 {
            let _ = tch::no_grad(|| vs.variables()["fc1.weight"].shallow_clone().get(3).fill_(0.5));
        }
    };
    let run = under_masters(meddle, true);
    assert_eq!(unlike(&run, 2, "fc1.weight"), Some(8), "one row");
    assert!(matches!(unlike(&run, 2, "fc2.weight"), None | Some(0)));
    assert!(matches!(unlike(&run, 3, "fc1.weight"), None | Some(0)), "the write-back has mended it");
}
