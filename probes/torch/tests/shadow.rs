//! A batch once more in FP32: what is compared is right, and nothing of the run changes.

mod observed;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ampdoctor::observation::{Probe, ScalerEvent, Shadow};
use ampdoctor::scan::{Dtype, Likeness};
use ampdoctor_torch::{Doctor, GradScaler, MasterWeights, autocast, is_autocast_enabled, no_autocast};
use observed::{Run, batch, mlp, observe, observe_with, store};
use tch::nn::{self, Module, OptimizerConfig, VarStore};
use tch::{Device, Kind, Tensor};

const CPU: Device = Device::Cpu;

/// The random numbers are those of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The likeness of the gradient of one parameter.
fn of(run: &Run, shadow: &Shadow, label: &str) -> Likeness {
    let found = shadow.gradients.iter().find(|g| run.sites[g.site.0 as usize].label() == label);
    found.unwrap_or_else(|| panic!("no {label} in {shadow:?}")).likeness
}

fn values(vs: &VarStore) -> BTreeMap<String, Vec<f64>> {
    vs.variables().into_iter().map(|(name, t)| (name, bits(&t))).collect()
}

fn bits(t: &Tensor) -> Vec<f64> {
    Vec::try_from(t.detach().to_kind(Kind::Double).flatten(0, -1)).unwrap()
}

/// A net with everything that has a state of its own: dropout, BatchNorm, FP16 weights with FP32 copies.
struct Net {
    fc1: nn::Linear,
    bn: nn::BatchNorm,
    fc2: nn::Linear,
}

impl Net {
    fn new(vs: &mut VarStore, kind: Kind) -> Self {
        let root = vs.root();
        let net = Self {
            fc1: nn::linear(&root / "fc1", 8, 16, Default::default()),
            bn: nn::batch_norm1d(&root / "bn", 16, Default::default()),
            fc2: nn::linear(&root / "fc2", 16, 4, Default::default()),
        };
        if kind == Kind::Half {
            vs.half();
            (vs.root() / "bn").float();
        }
        net
    }

    fn loss(&self, x: &Tensor, y: &Tensor) -> Tensor {
        let x = x.to_kind(self.fc1.ws.kind());
        let hidden = self.fc1.forward(&x).relu().dropout(0.3, true).apply_t(&self.bn, true);
        self.fc2.forward(&hidden).to_kind(Kind::Float).cross_entropy_for_logits(y)
    }
}

/// What a loop with shadows everywhere, or with none, leaves behind: parameters, buffers, copies, gradients and random numbers.
fn trained(kind: Kind, shadows: bool) -> (Vec<(String, Vec<f64>)>, Run) {
    let mut vs = store(3);
    let net = Net::new(&mut vs, kind);
    let mut left = Vec::new();
    let run = observe(&vs, |doctor| {
        let mut scaler = GradScaler::builder().init_scale(2f64.powi(20)).growth_interval(3).build().unwrap();
        let mut masters =
            (kind == Kind::Half).then(|| MasterWeights::new(&vs).unwrap().build(nn::Adam::default(), 1e-2).unwrap());
        let mut own = masters.is_none().then(|| nn::Adam::default().build(&vs, 1e-2).unwrap());
        for _ in 0..6 {
            let (x, y) = batch();
            let loss = || match kind {
                Kind::Half => net.loss(&x, &y),
                _ => autocast(CPU, Kind::Half, || net.loss(&x, &y)),
            };
            let look = |doctor: &mut Doctor| assert!(!shadows || doctor.shadow(loss));
            // Before the first backward the loss scale is not known yet.
            if left.len() > 1 {
                look(doctor);
            }
            let value = loss();
            match (&mut own, &mut masters) {
                (Some(opt), _) => opt.zero_grad(),
                (_, Some(opt)) => opt.zero_grad(),
                _ => unreachable!("one of the two"),
            }
            scaler.backward(&value);
            look(doctor);
            left.push(("gradient".to_owned(), bits(&net.fc1.ws.grad())));
            match (&mut own, &mut masters) {
                (Some(opt), _) => {
                    scaler.unscale(opt).unwrap();
                    look(doctor);
                    scaler.step(opt).unwrap();
                }
                (_, Some(opt)) => {
                    scaler.unscale(opt).unwrap();
                    look(doctor);
                    scaler.step(opt).unwrap();
                }
                _ => unreachable!("one of the two"),
            }
            scaler.update().unwrap();
            look(doctor);
            doctor.step(&value);
        }
        if let Some(masters) = &masters {
            left.extend(masters.masters().vars().variables().into_iter().map(|(n, t)| (format!("copy {n}"), bits(&t))));
        }
    });
    left.extend(vs.variables().into_iter().map(|(name, t)| (name, bits(&t))));
    left.sort_by(|a, b| a.0.cmp(&b.0));
    left.push(("randn".into(), bits(&Tensor::randn([4], (Kind::Float, CPU)))));
    (left, run)
}

#[test]
fn the_run_is_the_same_bit_for_bit_with_dropout_batch_norm_and_a_shadow_at_every_place() {
    let _alone = alone();
    for kind in [Kind::Float, Kind::Half] {
        let (with, run) = trained(kind, true);
        let (without, bare) = trained(kind, false);
        assert!(with == without, "{kind:?}");
        assert_eq!(run.shadows.len(), 4 * 6 - 2);
        let unlike = |s: &Shadow| s.failure.is_some() || s.gradients.len() != 6;
        assert!(!run.shadows.iter().any(unlike), "{:?}", run.shadows);
        assert!(run.shadows.iter().all(|s| s.recomputed), "dropout: the run's own gradient has another mask");
        for (index, (with, without)) in run.steps.iter().zip(&bare.steps).enumerate() {
            assert_eq!(with.scaler, without.scaler, "no scaler event of a shadow");
            assert_eq!(run.labels(index), bare.labels(index), "no activation of a shadow");
        }
    }
}

#[test]
fn the_same_mask_of_dropout_is_used_on_both_sides() {
    let _alone = alone();
    let (_, run) = trained(Kind::Float, true);
    for shadow in run.shadows.iter().filter(|s| s.step > 3) {
        let like = of(&run, shadow, "fc2.weight");
        assert!(like.cosine().unwrap() > 0.999, "step {}: {:?}", shadow.step, like);
    }
}

/// One backward of an MLP under autocast at a loss scale, and a shadow behind it.
fn shadow_at(scale: f64, own: bool) -> (Run, Shadow) {
    let vs = store(1);
    let net = mlp(&vs);
    let run = observe(&vs, |doctor| {
        let mut opt = nn::Sgd::default().build(&vs, 0.0).unwrap();
        let mut scaler = GradScaler::builder().static_scale(scale).build().unwrap();
        let (x, y) = batch();
        let loss = || autocast(CPU, Kind::Half, || net.forward(&x)).to_kind(Kind::Float).cross_entropy_for_logits(&y);
        scaler.backward(&loss());
        if !own {
            scaler.unscale(&mut opt).unwrap();
        }
        assert!(doctor.shadow(loss));
        scaler.step(&mut opt).unwrap();
        scaler.update().unwrap();
        doctor.step(&loss());
    });
    let shadow = run.shadows[0].clone();
    (run, shadow)
}

#[test]
fn at_a_good_scale_the_gradient_is_like_fp32s() {
    let _alone = alone();
    let (run, shadow) = shadow_at(1024.0, true);
    assert_eq!((shadow.recomputed, shadow.loss_scale, shadow.step), (false, Some(1024.0), 0));
    for name in ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"] {
        let like = of(&run, &shadow, name);
        assert!(like.cosine().unwrap() > 0.9999 && (like.norm_ratio().unwrap() - 1.0).abs() < 0.01, "{name} {like:?}");
        assert!(like.lost_share().unwrap() < 0.05 && like.non_finite == 0, "{name} {like:?}");
    }
}

#[test]
fn at_a_scale_far_too_low_most_of_it_is_lost_and_the_share_is_measured() {
    let _alone = alone();
    let (run, shadow) = shadow_at(2f64.powi(-21), true);
    let like = of(&run, &shadow, "fc1.weight");
    assert!(like.lost_share().unwrap() > 0.5, "{like:?}");
    assert!(like.cosine().is_none_or(|c| c < 0.9) && like.fading_share().is_none_or(|s| s == 1.0), "{like:?}");
}

#[test]
fn the_gradient_that_is_computed_anew_is_the_runs_own() {
    let _alone = alone();
    for scale in [1024.0, 2f64.powi(-16)] {
        let ((run, own), (other, anew)) = (shadow_at(scale, true), shadow_at(scale, false));
        assert_eq!((own.recomputed, anew.recomputed), (false, true));
        assert_eq!((own.loss, own.loss_scale), (anew.loss, anew.loss_scale));
        for g in &own.gradients {
            let label = run.sites[g.site.0 as usize].label();
            assert_eq!(g.likeness, of(&other, &anew, &label), "{label}");
        }
    }
}

#[test]
fn fp16_weights_are_compared_with_their_fp32_copies_and_without_copies_widened() {
    let _alone = alone();
    for with_copies in [true, false] {
        let mut vs = store(2);
        let net = mlp(&vs);
        vs.half();
        let masters = with_copies.then(|| MasterWeights::new(&vs).unwrap());
        if let Some(masters) = &masters {
            // Such a change FP16 does not hold: only who reads the copies sees it.
            tch::no_grad(|| {
                masters
                    .vars()
                    .variables()
                    .values()
                    .for_each(|t| drop(t.shallow_clone().f_mul_scalar_(1.0 + 1e-4).unwrap()))
            });
        }
        let (mut fp32, mut kind) = (0.0, Kind::Float);
        let run = observe(&vs, |doctor| {
            let (x, y) = batch();
            let x = x.to_kind(Kind::Half);
            let loss = |x: &Tensor| net.forward(x).to_kind(Kind::Float).cross_entropy_for_logits(&y);
            loss(&x).backward();
            kind = vs.variables()["fc1.weight"].grad().kind();
            assert!(doctor.shadow(|| loss(&x)));
            let wide = store(2);
            let twin = mlp(&wide);
            tch::no_grad(|| {
                for (name, t) in wide.variables() {
                    let source = masters.as_ref().map_or_else(|| vs.variables(), |m| m.vars().variables());
                    t.shallow_clone().copy_(&source[&name]);
                }
            });
            fp32 = twin.forward(&x.to_kind(Kind::Float)).cross_entropy_for_logits(&y).double_value(&[]);
            doctor.step(());
        });
        let shadow = &run.shadows[0];
        assert_eq!((kind, shadow.loss), (Kind::Half, Some(fp32)), "copies: {with_copies}");
        let site = &run.sites[shadow.gradients[0].site.0 as usize];
        assert_eq!((site.probe, site.dtype), (Probe::ParamGrad, Dtype::F16));
    }
}

#[test]
fn several_micro_batches_are_compared_by_computing_the_last_one_anew() {
    let _alone = alone();
    let vs = store(4);
    let net = mlp(&vs);
    let run = observe(&vs, |doctor| {
        let mut scaler = GradScaler::builder().static_scale(64.0).build().unwrap();
        for _ in 0..2 {
            let (x, y) = batch();
            let loss =
                || autocast(CPU, Kind::Half, || net.forward(&x)).to_kind(Kind::Float).cross_entropy_for_logits(&y);
            scaler.backward(&loss());
            assert!(doctor.shadow(loss));
        }
        doctor.step(());
    });
    assert_eq!(run.shadows.iter().map(|s| s.recomputed).collect::<Vec<_>>(), [false, true]);
    let like = of(&run, &run.shadows[1], "fc1.weight");
    assert!((like.norm_ratio().unwrap() - 1.0).abs() < 0.01, "one micro-batch, not two: {like:?}");
}

#[test]
fn a_factor_on_the_loss_that_no_scaler_told_of_is_no_difference() {
    let _alone = alone();
    let vs = store(5);
    let net = mlp(&vs);
    let run = observe(&vs, |doctor| {
        let (x, y) = batch();
        let loss = || net.forward(&x).cross_entropy_for_logits(&y);
        (loss() * 1024.0).backward();
        assert!(doctor.shadow(loss));
        doctor.step(());
    });
    assert_eq!((run.shadows[0].loss_scale, run.shadows[0].recomputed), (Some(1024.0), false));
    assert!((of(&run, &run.shadows[0], "fc1.weight").norm_ratio().unwrap() - 1.0).abs() < 1e-5);
}

/// A closure that must not give a comparison: what the recording says, after a check that nothing of the run has changed.
fn refused(loss: impl FnOnce(&VarStore, &dyn Module) -> Box<dyn FnMut() -> Tensor>) -> String {
    let vs = store(6);
    let net: std::rc::Rc<dyn Module> = std::rc::Rc::new(mlp(&vs));
    let before = values(&vs);
    let run = observe(&vs, |doctor| {
        let (x, y) = batch();
        net.forward(&x).cross_entropy_for_logits(&y).backward();
        let gradient = vs.variables()["fc1.weight"].grad();
        let held = bits(&gradient);
        let mut closure = loss(&vs, net.as_ref());
        tch::no_grad(|| assert!(!doctor.shadow(&mut closure)));
        assert!(gradient.data_ptr() == vs.variables()["fc1.weight"].grad().data_ptr() && held == bits(&gradient));
        assert!(!is_autocast_enabled(CPU));
        doctor.step(());
        assert!(doctor.is_attached(), "training goes on, watched");
    });
    assert!(before == values(&vs));
    assert_eq!((run.steps.len(), run.shadows.len()), (1, 1));
    assert!(!run.steps[0].observations.is_empty());
    run.shadows[0].failure.clone().expect("a reason")
}

#[test]
fn a_closure_that_panics_leaves_everything_as_it_was_and_is_told() {
    let _alone = alone();
    let why = refused(|_, _| Box::new(|| autocast(CPU, Kind::Half, || panic!("planted: no loss today"))));
    assert_eq!(why, "the closure panicked: planted: no loss today");
    let why = refused(|_, _| {
        Box::new(|| Tensor::ones([2, 3], (Kind::Float, CPU)).matmul(&Tensor::ones([2, 3], (Kind::Float, CPU))))
    });
    assert!(why.contains("mat1 and mat2 shapes") && !why.contains("Exception raised"), "{why}");
}

#[test]
fn a_loss_that_was_computed_before_is_refused_and_its_graph_left_alone() {
    let _alone = alone();
    let vs = store(7);
    let net = mlp(&vs);
    let run = observe(&vs, |doctor| {
        let (x, y) = batch();
        let loss = net.forward(&x).cross_entropy_for_logits(&y);
        assert!(!doctor.shadow(|| loss.shallow_clone()));
        loss.backward();
        doctor.step(&loss);
    });
    let why = run.shadows[0].failure.as_deref().unwrap();
    assert!(why.starts_with("the closure read none of the model's parameters"), "{why}");
}

#[test]
fn a_closure_that_changes_a_parameter_in_place_is_refused() {
    let _alone = alone();
    let why = refused(|vs, _| {
        let mut weight = vs.variables()["fc1.weight"].shallow_clone();
        Box::new(move || {
            let _ = tch::no_grad(|| weight.f_mul_scalar_(2.0)).unwrap();
            weight.sum(Kind::Float)
        })
    });
    assert!(why.contains("`aten::mul_` would change a parameter"), "{why}");
    let why = refused(|vs, _| {
        let weight = vs.variables()["fc1.weight"].shallow_clone();
        Box::new(move || {
            let _ = tch::no_grad(|| weight.narrow(0, 0, 1).f_zero_()).unwrap();
            weight.sum(Kind::Float)
        })
    });
    assert!(why.contains("`aten::zero_` would change a parameter"), "a view of it: {why}");
}

#[test]
fn a_loss_of_many_elements_and_one_without_a_gradient_are_refused() {
    let _alone = alone();
    let why = refused(|vs, _| {
        let weight = vs.variables()["fc1.weight"].shallow_clone();
        Box::new(move || &weight * 2.0)
    });
    assert!(why.contains("has 128 elements, not one"), "{why}");
    let why = refused(|vs, _| {
        let weight = vs.variables()["fc1.weight"].shallow_clone();
        Box::new(move || weight.detach().sum(Kind::Float))
    });
    assert!(why.contains("does not depend on any parameter"), "{why}");
}

#[test]
fn casts_by_hand_and_autocast_are_left_out_in_fp32() {
    let _alone = alone();
    let vs = store(8);
    let fc = nn::linear(vs.root() / "fc", 8, 4, Default::default());
    let mut kinds = Vec::new();
    let mut exact = 0.0;
    let run = observe_with(Doctor::builder().off(), &vs, |doctor| {
        doctor.step(());
        let (x, y) = batch();
        assert!(doctor.shadow(|| {
            let half = autocast(CPU, Kind::Half, || fc.forward(&x.to_kind(Kind::Half)));
            kinds.push((half.kind(), is_autocast_enabled(CPU)));
            half.softmax(-1, Kind::Half).log().to_kind(Kind::Half).nll_loss(&y)
        }));
        exact = no_autocast(|| fc.forward(&x).softmax(-1, Kind::Float).log().nll_loss(&y)).double_value(&[]);
    });
    assert_eq!(kinds, [(Kind::Float, false), (Kind::Half, false)]);
    assert_eq!(run.shadows[0].loss, Some(exact));
}

#[test]
fn a_scaler_inside_the_closure_scales_nothing_and_tells_nothing() {
    let _alone = alone();
    let vs = store(9);
    let net = mlp(&vs);
    let mut scaler = GradScaler::default();
    let run = observe(&vs, |doctor| {
        let (x, y) = batch();
        scaler.backward(&net.forward(&x).cross_entropy_for_logits(&y));
        assert!(doctor.shadow(|| scaler.scale(&net.forward(&x).cross_entropy_for_logits(&y))));
        doctor.step(());
    });
    assert_eq!(run.steps[0].scaler, [ScalerEvent::Scaled { scale: 65536.0 }]);
    assert!((of(&run, &run.shadows[0], "fc2.bias").norm_ratio().unwrap() - 1.0).abs() < 1e-5);
}

#[test]
fn frozen_and_unused_parameters_and_tied_ones_are_no_trouble() {
    let _alone = alone();
    let vs = store(10);
    let net = mlp(&vs);
    let idle = vs.root().zeros("idle", &[3]);
    let mut frozen = vs.root().ones("frozen", &[16]);
    let _ = frozen.requires_grad_(false);
    let tied = vs.root().randn_standard("tied", &[4, 4]);
    let run = observe(&vs, |doctor| {
        let (x, y) = batch();
        let loss = || {
            let out = net.forward(&x).matmul(&tied).matmul(&tied.tr()) * frozen.mean(Kind::Float);
            out.cross_entropy_for_logits(&y)
        };
        loss().backward();
        assert!(doctor.shadow(loss));
        doctor.step(());
    });
    assert!(!idle.grad().defined());
    let names: Vec<String> = run.shadows[0].gradients.iter().map(|g| run.sites[g.site.0 as usize].label()).collect();
    assert_eq!(names, ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight", "tied"]);
    assert!((of(&run, &run.shadows[0], "tied").norm_ratio().unwrap() - 1.0).abs() < 1e-6);
}

#[test]
fn the_time_of_a_shadow_is_no_time_of_the_step() {
    let _alone = alone();
    let vs = store(11);
    let net = mlp(&vs);
    let run = observe(&vs, |doctor| {
        let (x, y) = batch();
        let loss = || {
            std::thread::sleep(std::time::Duration::from_millis(60));
            net.forward(&x).cross_entropy_for_logits(&y)
        };
        loss().backward();
        doctor.step(());
        loss().backward();
        assert!(doctor.shadow(loss));
        doctor.step(());
    });
    let (shadow, cost) = (&run.shadows[0], run.steps[1].cost);
    assert!(shadow.time_ns >= 60_000_000 && cost.step_ns >= 60_000_000, "{shadow:?} {cost:?}");
    assert!(cost.step_ns < 110_000_000 && cost.probe_ns < 50_000_000, "{cost:?}");
}
