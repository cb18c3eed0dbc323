//! Master weights: what is rounded, what survives, what is skipped, saved and shared; bit for bit where arithmetic decides.

use std::sync::{Mutex, PoisonError};

use ampdoctor_torch::{GradScaler, MasterWeights, MasteredOptimizer, MastersError, StepOutcome};
use half::{bf16, f16};
use tch::nn::{self, Module, OptimizerConfig, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

/// A store with one parameter `fc.w` of these values, in `kind`.
fn one_parameter(values: &[f32], kind: Kind) -> (VarStore, Tensor) {
    tch::set_num_threads(1);
    let mut vs = VarStore::new(Device::Cpu);
    let parameter = (vs.root() / "fc").var_copy("w", &Tensor::from_slice(values));
    vs.set_kind(kind);
    (vs, parameter)
}

/// Draws from one seed; LibTorch's generator is one for all threads.
fn seeded<T>(draw: impl FnOnce() -> T) -> T {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    tch::set_num_threads(1);
    tch::manual_seed(7);
    draw()
}

fn sgd(masters: MasterWeights, lr: f64) -> MasteredOptimizer {
    masters.build(nn::Sgd::default(), lr).unwrap()
}

fn bits(tensor: &Tensor) -> Vec<i16> {
    Vec::try_from(tensor.detach().view_dtype(Kind::Int16).flatten(0, -1)).unwrap()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.detach().to_kind(Kind::Float).flatten(0, -1)).unwrap()
}

fn copy(masters: &MasterWeights, name: &str) -> Tensor {
    masters.vars().variables()[name].shallow_clone()
}

fn set(tensor: &Tensor, values: &[f32]) {
    no_grad(|| tensor.shallow_clone().copy_(&Tensor::from_slice(values).view_as(tensor)));
}

/// Every finite value, the midpoint between it and the next away from zero, and the midpoint's neighbours; what each rounds to, as bits. `last` is
/// the largest finite pattern; the value beyond it is where the format would go on.
fn near_ties(last: u16, value: impl Fn(u16) -> f64, beyond: f64) -> (Vec<f32>, Vec<i16>) {
    let (mut values, mut expected) = (Vec::new(), Vec::new());
    for pattern in 0..=last {
        let next = if pattern == last { beyond } else { value(pattern + 1) };
        let tie = ((value(pattern) + next) / 2.0) as f32;
        let even = if pattern % 2 == 0 { pattern } else { pattern + 1 };
        let cases =
            [(value(pattern) as f32, pattern), (tie.next_down(), pattern), (tie, even), (tie.next_up(), pattern + 1)];
        for (case, rounded) in cases {
            values.extend([case, -case]);
            expected.extend([rounded as i16, (rounded | 0x8000) as i16]);
        }
    }
    (values, expected)
}

#[test]
fn a_write_back_rounds_to_nearest_even_at_every_fp16_value_and_tie() {
    let (values, expected) = near_ties(0x7bff, |pattern| f16::from_bits(pattern).to_f64(), 65536.0);
    let (_vs, parameter) = written_back(&values, Kind::Half);
    assert!(bits(&parameter) == expected);
}

#[test]
fn a_write_back_rounds_to_nearest_even_at_every_bf16_value_and_tie() {
    let (values, expected) = near_ties(0x7f7f, |pattern| bf16::from_bits(pattern).to_f64(), 2f64.powi(128));
    let (_vs, parameter) = written_back(&values, Kind::BFloat16);
    assert!(bits(&parameter) == expected);
}

fn written_back(values: &[f32], kind: Kind) -> (VarStore, Tensor) {
    let (vs, parameter) = one_parameter(&vec![0.0; values.len()], kind);
    let mut masters = MasterWeights::new(&vs).unwrap();
    set(&copy(&masters, "fc.w"), values);
    masters.write_back().unwrap();
    (vs, parameter)
}

#[test]
fn updates_of_1e_6_on_a_weight_of_0_02_add_up_in_the_copy_and_vanish_in_fp16() {
    let (vs, pure) = one_parameter(&[0.02], Kind::Half);
    let start = bits(&pure);
    let mut opt = nn::Sgd::default().build(&vs, 1e-6).unwrap();
    for _ in 0..1000 {
        opt.backward_step(&pure.sum(Kind::Float));
    }
    assert_eq!(bits(&pure), start, "FP16 keeps none of them");

    let (vs, parameter) = one_parameter(&[0.02], Kind::Half);
    let mut opt = sgd(MasterWeights::new(&vs).unwrap(), 1e-6);
    let mut expected = f16::from_f32(0.02).to_f32();
    for step in 0..1000 {
        opt.backward_step(&parameter.sum(Kind::Float)).unwrap();
        expected -= 1e-6;
        assert_eq!(floats(&copy(opt.masters(), "fc.w")), [expected], "step {step}");
        assert_eq!(bits(&parameter), [f16::from_f32(expected).to_bits() as i16], "step {step}");
    }
    assert!((f64::from(expected) - 0.019).abs() < 1e-5);
}

/// phi = <applied, u> / <u, u> and the share of elements that did not change.
fn fidelity(before: &[f32], after: &[f32], update: &[f32]) -> (f64, f64) {
    let applied = |i: usize| f64::from(after[i]) - f64::from(before[i]);
    let norm: f64 = update.iter().map(|u| f64::from(*u).powi(2)).sum();
    let product: f64 = update.iter().enumerate().map(|(i, u)| applied(i) * f64::from(*u)).sum();
    let dead = (0..update.len()).filter(|&i| applied(i) == 0.0).count();
    (product / norm, dead as f64 / update.len() as f64)
}

#[test]
fn one_update_has_the_fidelity_of_fp16_in_the_model_and_of_one_in_the_copy() {
    let (weights, signs) = seeded(|| {
        let normal = || Tensor::randn([200_000], (Kind::Float, Device::Cpu));
        (floats(&(normal() * 0.02)), normal().sign())
    });
    // |u|, then phi and dead share of w + u rounded to FP16.
    for (u, phi, dead) in [(1e-5, 1.00, 0.118), (3e-6, 0.36, 0.697), (1e-6, 0.22, 0.84), (1e-7, 0.012, 0.99)] {
        let update: Vec<f32> = floats(&(&signs * -u));
        let (vs, parameter) = one_parameter(&weights, Kind::Half);
        let before = floats(&parameter);
        let mut opt = sgd(MasterWeights::new(&vs).unwrap(), u);
        opt.backward_step(&(&parameter * signs.to_kind(Kind::Half)).sum(Kind::Float)).unwrap();
        // Two digits, and the scatter of 2000 living elements at the smallest |u|.
        let in_model = fidelity(&before, &floats(&parameter), &update);
        assert!((in_model.0 - phi).abs() < 0.02 * phi + 0.005, "|u| = {u}: {in_model:?}");
        assert!((in_model.1 - dead).abs() < 0.005, "|u| = {u}: {in_model:?}");
        let in_copy = fidelity(&before, &floats(&copy(opt.masters(), "fc.w")), &update);
        // FP32 has about 54 steps of its own in 1e-7 at 0.02.
        assert!((in_copy.0 - 1.0).abs() < 5e-3 && in_copy.1 < 1e-3, "|u| = {u}: {in_copy:?}");
    }
}

#[test]
fn updates_that_fp16_amplifies_are_right_with_copies() {
    let run = |with_copies: bool| {
        let (vs, parameter) = one_parameter(&[1.0], Kind::Half);
        let loss = || parameter.sum(Kind::Float);
        if with_copies {
            let mut opt = sgd(MasterWeights::new(&vs).unwrap(), 2.5e-4);
            (0..1000).for_each(|_| opt.backward_step(&loss()).unwrap());
        } else {
            let mut opt = nn::Sgd::default().build(&vs, 2.5e-4).unwrap();
            (0..1000).for_each(|_| opt.backward_step(&loss()));
        }
        floats(&parameter)[0]
    };
    assert!((run(false) - 0.512).abs() < 1e-3, "{}", run(false));
    assert!((run(true) - 0.75).abs() < 5e-4, "{}", run(true));
}

#[test]
fn gradients_are_unscaled_in_fp32() {
    let (vs, parameter) = one_parameter(&[1.0, 1.0], Kind::Half);
    let mut opt = sgd(MasterWeights::new(&vs).unwrap(), 1.0);
    let mut scaler = GradScaler::default();
    // 2^-30 is no FP16 number; times 2^16 it is.
    scaler.backward(&(parameter.sum(Kind::Float) * 2f64.powi(-30)));
    scaler.unscale(&mut opt).unwrap();
    assert_eq!(floats(&copy(opt.masters(), "fc.w").grad()), [2f32.powi(-30); 2]);
    assert!(!parameter.grad().defined(), "gradients are moved, not copied");
    assert_eq!(scaler.step(&mut opt).unwrap(), StepOutcome::Applied);
    scaler.update().unwrap();
}

#[test]
fn a_skipped_step_writes_nothing_and_leaves_no_gradient_behind() {
    let (vs, parameter) = one_parameter(&[1.0, 2.0], Kind::Half);
    let mut opt = sgd(MasterWeights::new(&vs).unwrap(), 0.5);
    // What the copy knows beyond FP16 is there: a write-back would not change it, a refresh would.
    set(&copy(opt.masters(), "fc.w"), &[1.0001, 2.0001]);
    let before = (bits(&parameter), floats(&copy(opt.masters(), "fc.w")));
    let mut scaler = GradScaler::default();
    opt.zero_grad();
    scaler.backward(&(parameter.sum(Kind::Float) * 1e30));
    scaler.unscale(&mut opt).unwrap();
    assert_eq!(scaler.step(&mut opt).unwrap(), StepOutcome::Skipped);
    scaler.update().unwrap();
    assert_eq!(scaler.get_scale(), 32768.0);
    assert_eq!((bits(&parameter), floats(&copy(opt.masters(), "fc.w"))), before);
    assert!(!parameter.grad().defined());
    opt.zero_grad();
    scaler.backward(&parameter.sum(Kind::Float));
    assert_eq!(scaler.step(&mut opt).unwrap(), StepOutcome::Applied);
    assert_eq!(floats(&copy(opt.masters(), "fc.w")), [1.0001 - 0.5, 2.0001 - 0.5]);
    opt.masters_mut().check().unwrap();
}

/// Inputs and labels.
type Batch = (Tensor, Tensor);

/// A two-layer perceptron in `kind`, and 20 batches for it; the same at every call.
fn mlp(kind: Kind) -> (VarStore, impl Module + use<>, Vec<Batch>) {
    seeded(|| {
        let mut vs = VarStore::new(Device::Cpu);
        let fc1 = nn::linear(vs.root() / "fc1", 8, 16, Default::default());
        let fc2 = nn::linear(vs.root() / "fc2", 16, 4, Default::default());
        vs.set_kind(kind);
        let batch = |_| {
            let x = Tensor::randn([32, 8], (Kind::Float, Device::Cpu));
            (x.to_kind(kind), x.narrow(1, 0, 4).argmax(1, false))
        };
        (vs, nn::seq().add(fc1).add_fn(|x| x.relu()).add(fc2), (0..20).map(batch).collect())
    })
}

fn loss(net: &impl Module, (x, y): &Batch) -> Tensor {
    net.forward(x).to_kind(Kind::Float).cross_entropy_for_logits(y)
}

#[test]
fn a_run_is_what_its_arithmetic_says_bit_for_bit() {
    const SCALE: f32 = 1024.0;
    let (vs, net, batches) = mlp(Kind::Half);
    let mut by_hand: Vec<(Tensor, Tensor)> =
        vs.trainable_variables().into_iter().map(|p| (p.detach().to_kind(Kind::Float), p)).collect();
    for batch in &batches {
        (&loss(&net, batch) * f64::from(SCALE)).backward();
        for (copy, parameter) in &mut by_hand {
            no_grad(|| {
                let gradient = parameter.grad().to_kind(Kind::Float) * f64::from(1.0 / SCALE);
                let _ = copy.g_sub_(&(gradient * 0.5));
                parameter.copy_(copy);
            });
            parameter.zero_grad();
        }
    }
    let expected: Vec<_> = by_hand.iter().map(|(copy, parameter)| (floats(copy), bits(parameter))).collect();

    let (vs, net, batches) = mlp(Kind::Half);
    let mut opt = sgd(MasterWeights::new(&vs).unwrap(), 0.5);
    let mut scaler = GradScaler::builder().static_scale(f64::from(SCALE)).build().unwrap();
    for batch in &batches {
        let loss = loss(&net, batch);
        opt.zero_grad();
        scaler.backward(&loss);
        scaler.unscale(&mut opt).unwrap();
        scaler.step(&mut opt).unwrap();
        scaler.update().unwrap();
    }
    let copies = opt.masters().vars().trainable_variables();
    let found: Vec<_> = copies.iter().zip(vs.trainable_variables()).map(|(c, p)| (floats(c), bits(&p))).collect();
    assert!(found == expected);
}

#[test]
fn a_lent_optimizer_steps_like_an_owned_one_and_like_a_loop_without_a_scaler() {
    let start = || {
        let (vs, net, batches) = mlp(Kind::BFloat16);
        (MasterWeights::new(&vs).unwrap(), vs, net, batches)
    };
    let weights = |vs: &VarStore| vs.trainable_variables().iter().map(bits).collect::<Vec<_>>();
    let owned = {
        let (masters, vs, net, batches) = start();
        let mut opt = masters.build(nn::Adam::default(), 1e-2).unwrap();
        batches.iter().for_each(|batch| opt.backward_step_clip_norm(&loss(&net, batch), 1.0).unwrap());
        weights(&vs)
    };
    let by_hand = {
        let (mut masters, vs, net, batches) = start();
        let mut opt = nn::Adam::default().build(masters.vars(), 1e-2).unwrap();
        for batch in &batches {
            opt.zero_grad();
            loss(&net, batch).backward();
            masters.pull_gradients().unwrap();
            opt.clip_grad_norm(1.0);
            opt.step();
            masters.write_back().unwrap();
            masters.check().unwrap();
        }
        weights(&vs)
    };
    for enabled in [true, false] {
        let (mut masters, vs, net, batches) = start();
        let mut opt = nn::Adam::default().build(masters.vars(), 1e-2).unwrap();
        // A scale of 1 changes no bit.
        let mut scaler = GradScaler::builder().static_scale(1.0).enabled(enabled).build().unwrap();
        for batch in &batches {
            opt.zero_grad();
            scaler.backward(&loss(&net, batch));
            scaler.unscale(&mut masters.optimizer(&mut opt)).unwrap();
            opt.clip_grad_norm(1.0);
            scaler.step(&mut masters.optimizer(&mut opt)).unwrap();
            scaler.update().unwrap();
        }
        assert!(weights(&vs) == owned, "enabled: {enabled}");
    }
    assert!(by_hand == owned);
}

#[test]
fn clipping_takes_the_norm_in_fp32_where_that_of_fp16_is_infinite() {
    let (vs, parameter) = one_parameter(&vec![1.0; 100_000], Kind::Half);
    let mut opt = sgd(MasterWeights::new(&vs).unwrap(), 1.0);
    (parameter.sum(Kind::Float) * 400.0).backward();
    assert!(f64::try_from(parameter.grad().norm()).unwrap().is_infinite());
    opt.pull_gradients().unwrap();
    opt.clip_grad_norm(1.0);
    let norm = f64::try_from(copy(opt.masters(), "fc.w").grad().norm()).unwrap();
    assert!((norm - 1.0).abs() < 1e-4, "{norm}");
}

#[test]
fn micro_batches_pulled_one_by_one_add_up_in_fp32() {
    let (vs, parameter) = one_parameter(&[1.0], Kind::Half);
    let mut masters = MasterWeights::new(&vs).unwrap();
    let backward = |gradient: f64| (parameter.sum(Kind::Float) * gradient).backward();
    backward(1.0);
    (0..4096).for_each(|_| backward(4e-4));
    masters.pull_gradients().unwrap();
    assert_eq!(floats(&copy(&masters, "fc.w").grad()), [1.0], "added up in FP16");
    masters.zero_grad();
    let mut expected = 0f32;
    for gradient in std::iter::once(1.0).chain(std::iter::repeat_n(4e-4, 4096)) {
        backward(gradient);
        masters.pull_gradients().unwrap();
        expected += f16::from_f64(gradient).to_f32();
    }
    assert_eq!(floats(&copy(&masters, "fc.w").grad()), [expected]);
    assert!((expected - 2.638).abs() < 2e-3);
}

#[test]
fn a_frozen_parameter_stays_and_goes_on_from_its_copy_when_unfrozen() {
    let (vs, a) = one_parameter(&[1.0], Kind::Half);
    let b = vs.root().var_copy("b", &Tensor::from_slice(&[1f32]));
    let mut opt = sgd(MasterWeights::new(&vs).unwrap(), 0.25);
    let step = |opt: &mut MasteredOptimizer| opt.backward_step(&(&a + &b).sum(Kind::Float)).unwrap();
    let _ = a.set_requires_grad(false);
    step(&mut opt);
    assert_eq!((floats(&a), floats(&b)), (vec![1.0], vec![0.75]));
    assert!(!copy(opt.masters(), "fc.w").requires_grad());
    let _ = a.set_requires_grad(true);
    step(&mut opt);
    assert_eq!((floats(&a), floats(&b)), (vec![0.75], vec![0.5]));
    assert!(copy(opt.masters(), "fc.w").requires_grad());
}

#[test]
fn tied_weights_have_one_copy_that_is_stepped_once() {
    let (vs, embedding) = one_parameter(&[1.0], Kind::Half);
    let tied = (vs.root() / "head").add("w", embedding.shallow_clone(), true);
    let mut opt = sgd(MasterWeights::new(&vs).unwrap(), 0.25);
    assert_eq!(opt.masters().vars().variables().into_keys().collect::<Vec<_>>(), ["fc.w"]);
    opt.backward_step(&(&embedding + &tied).sum(Kind::Float)).unwrap();
    assert_eq!((floats(&embedding), floats(&tied)), (vec![0.5], vec![0.5]));
    opt.masters_mut().check().unwrap();
}

#[test]
fn a_parameter_added_later_is_taken_up_at_the_next_pull() {
    let (mut vs, a) = one_parameter(&[1.0], Kind::Half);
    let mut opt = MasterWeights::new(&vs).unwrap().build(nn::Adam::default(), 0.1).unwrap();
    opt.backward_step(&a.sum(Kind::Float)).unwrap();
    let later = (vs.root() / "later").var_copy("w", &Tensor::from_slice(&[1f32]));
    vs.half();
    opt.backward_step(&(&a + &later).sum(Kind::Float)).unwrap();
    // Adam's first step is the learning rate.
    assert_eq!(bits(&later), [f16::from_f32(0.9).to_bits() as i16]);
    assert_eq!(opt.masters().vars().len(), 2);
    opt.masters_mut().check().unwrap();
}

#[test]
fn names_groups_buffers_and_parameters_kept_in_fp32_are_where_they_belong() {
    tch::set_num_threads(1);
    let mut vs = VarStore::new(Device::Cpu);
    let _fc = nn::linear(vs.root() / "fc", 2, 3, Default::default());
    let bn = nn::batch_norm1d(vs.root().set_group(1) / "bn", 3, Default::default());
    vs.half();
    (vs.root() / "bn").float();
    let masters = MasterWeights::new(&vs).unwrap();
    let mut names: Vec<String> = masters.vars().variables().into_keys().collect();
    names.sort();
    assert_eq!(names, ["bn.bias", "bn.weight", "fc.bias", "fc.weight"]);
    let mut opt = sgd(masters, 0.5);
    opt.set_lr_group(1, 0.125);
    let x = Tensor::randn([4, 3], (Kind::Float, Device::Cpu));
    let loss = x.apply_t(&bn, true).sum(Kind::Float) + vs.variables()["fc.bias"].sum(Kind::Float);
    let before = (floats(bn.bs.as_ref().unwrap()), floats(&vs.variables()["fc.bias"]));
    opt.backward_step(&loss).unwrap();
    let after = (floats(bn.bs.as_ref().unwrap()), floats(&vs.variables()["fc.bias"]));
    assert_eq!(after.0, before.0.iter().map(|b| b - 0.125 * 4.0).collect::<Vec<_>>());
    assert_eq!(after.1, before.1.iter().map(|b| f16::from_f32(b - 0.5).to_f32()).collect::<Vec<_>>());
    assert!(floats(&bn.running_mean).iter().all(|mean| *mean != 0.0), "the statistics live in the model");
    opt.masters_mut().check().unwrap();
}

#[test]
fn sparse_gradients_are_pulled_and_unscaled_too() {
    let (vs, table) = one_parameter(&[1.0, 1.0, 1.0], Kind::Half);
    no_grad(|| table.shallow_clone().set_data(&table.detach().view([3, 1]).copy()));
    let mut opt = sgd(MasterWeights::new(&vs).unwrap(), 0.5);
    let mut scaler = GradScaler::builder().static_scale(8.0).build().unwrap();
    for _ in 0..2 {
        let rows = Tensor::embedding(&table, &Tensor::from_slice(&[0i64, 0, 2]), -1, false, true);
        scaler.backward(&rows.sum(Kind::Float));
        assert!(table.grad().is_sparse());
        opt.masters_mut().pull_gradients().unwrap();
    }
    scaler.step(&mut opt).unwrap();
    scaler.update().unwrap();
    assert_eq!(floats(&table), [-1.0, 1.0, 0.0]);
}

#[test]
fn a_model_that_cannot_have_copies_is_refused_with_what_to_do() {
    let (vs, _) = one_parameter(&[1.0], Kind::Float);
    let error = MasterWeights::new(&vs).unwrap_err();
    assert!(matches!(error, MastersError::NothingInLowPrecision { parameters: 1 }));
    assert!(error.to_string().contains("Call vs.half() or vs.bfloat16()"), "{error}");
    let (vs, _) = one_parameter(&[1.0], Kind::Double);
    let error = MasterWeights::new(&vs).unwrap_err().to_string();
    assert!(error.starts_with("fc.w is Double: "), "{error}");
}

#[test]
fn fp16_parameters_given_to_a_scaler_are_told_the_code_that_helps() {
    let (vs, parameter) = one_parameter(&[1.0], Kind::Half);
    let mut opt = nn::Adam::default().build(&vs, 1e-3).unwrap();
    let mut scaler = GradScaler::default();
    scaler.backward(&parameter.sum(Kind::Float));
    let error = scaler.unscale(&mut opt).unwrap_err().to_string();
    assert!(error.contains("let mut opt = MasterWeights::new(&vs)?.build(nn::Adam::default(), lr)?;"), "{error}");
}
