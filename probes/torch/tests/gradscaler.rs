//! What `GradScaler` does beyond the recorded runs: several optimizers, bounds, bad gradients, dtypes, states.

use ampdoctor_torch::{AmpOptimizer, GradScaler, ScalerError, StepOutcome};
use serde_json::json;
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Kind, Tensor};

/// A parameter of ones under SGD with learning rate 1.
struct Model {
    vs: nn::VarStore,
    p: Tensor,
    optimizer: nn::Optimizer,
}

impl Model {
    fn new() -> Model {
        tch::set_num_threads(1);
        let vs = nn::VarStore::new(Device::Cpu);
        let p = vs.root().ones("p", &[2]);
        let optimizer = nn::Sgd::default().build(&vs, 1.0).unwrap();
        Model { vs, p, optimizer }
    }

    /// A loss whose gradient is `g` in both elements.
    fn loss(&self, g: f64) -> Tensor {
        (&self.p * g).sum(Kind::Float)
    }

    fn plant(&self, value: f64) {
        let _ = self.p.grad().get(0).fill_(value);
    }

    fn values(&self) -> Vec<f32> {
        Vec::try_from(&self.p).unwrap()
    }

    fn gradient(&self) -> Vec<f32> {
        Vec::try_from(self.p.grad()).unwrap()
    }
}

/// A whole step with gradient `g`, into which `bad` is planted after backward.
fn step(scaler: &mut GradScaler, model: &mut Model, g: f64, bad: Option<f64>) -> StepOutcome {
    model.optimizer.zero_grad();
    scaler.backward(&model.loss(g));
    if let Some(bad) = bad {
        model.plant(bad);
    }
    let outcome = scaler.step(&mut model.optimizer).unwrap();
    scaler.update().unwrap();
    outcome
}

fn clean_steps(scaler: &mut GradScaler, model: &mut Model, count: usize) {
    for _ in 0..count {
        assert!(step(scaler, model, 0.0, None).applied());
    }
}

#[test]
fn of_two_optimizers_only_the_one_that_overflowed_is_skipped() {
    let (mut a, mut b) = (Model::new(), Model::new());
    let mut scaler = GradScaler::builder().init_scale(16.0).build().unwrap();
    scaler.backward(&(a.loss(0.5) + b.loss(0.5)));
    a.plant(f64::INFINITY);
    assert_eq!(scaler.step(&mut a.optimizer).unwrap(), StepOutcome::Skipped);
    assert_eq!(scaler.step(&mut b.optimizer).unwrap(), StepOutcome::Applied);
    scaler.update().unwrap();
    assert_eq!((a.values(), b.values()), (vec![1.0, 1.0], vec![0.5, 0.5]));
    assert_eq!(scaler.get_scale(), 8.0);
}

#[test]
fn an_optimizer_may_sit_out_a_step() {
    let (mut a, mut b) = (Model::new(), Model::new());
    let mut scaler = GradScaler::builder().init_scale(16.0).build().unwrap();
    scaler.backward(&a.loss(0.5));
    scaler.unscale(&mut b.optimizer).unwrap();
    assert!(scaler.step(&mut a.optimizer).unwrap().applied());
    scaler.update().unwrap();
    scaler.backward(&b.loss(0.5));
    assert!(scaler.step(&mut b.optimizer).unwrap().applied());
    scaler.update().unwrap();
    assert_eq!(scaler.get_growth_tracker(), 2);
}

#[test]
fn two_optimizers_over_one_store_cannot_unscale_the_same_gradients_twice() {
    let mut model = Model::new();
    let mut second = nn::Adam::default().build(&model.vs, 1.0).unwrap();
    let mut scaler = GradScaler::default();
    scaler.backward(&model.loss(0.5));
    scaler.step(&mut model.optimizer).unwrap();
    let error = scaler.step(&mut second).unwrap_err();
    assert!(matches!(error, ScalerError::AlreadyStepped { .. }), "{error}");
    assert!(error.to_string().contains("one VarStore"), "{error}");
}

#[test]
fn a_parameter_added_between_unscale_and_step_does_not_make_another_optimizer() {
    let mut model = Model::new();
    let mut scaler = GradScaler::default();
    scaler.backward(&model.loss(0.5));
    scaler.unscale(&mut model.optimizer).unwrap();
    let _late = model.vs.root().ones("late", &[2]);
    assert!(scaler.step(&mut model.optimizer).unwrap().applied());
    assert_eq!(model.values(), [0.5, 0.5]);
    assert!(matches!(scaler.step(&mut model.optimizer), Err(ScalerError::AlreadyStepped { .. })));
}

#[test]
fn gradients_of_an_accumulation_are_unscaled_once_together() {
    let mut model = Model::new();
    let mut scaler = GradScaler::builder().init_scale(1024.0).build().unwrap();
    (0..4).for_each(|_| scaler.backward(&model.loss(0.125)));
    assert_eq!(model.gradient(), [512.0, 512.0]);
    scaler.unscale(&mut model.optimizer).unwrap();
    assert_eq!(model.gradient(), [0.5, 0.5]);
    scaler.step(&mut model.optimizer).unwrap();
    scaler.update().unwrap();
    assert_eq!(model.values(), [0.5, 0.5]);
}

#[test]
fn a_gradient_that_becomes_infinite_by_unscaling_is_not_written_into_the_weights() {
    let mut model = Model::new();
    let mut scaler = GradScaler::builder().init_scale(1e-30).build().unwrap();
    // 1e10 is finite; divided by 1e-30 it is 1e40, beyond FP32.
    assert_eq!(step(&mut scaler, &mut model, 0.0, Some(1e10)), StepOutcome::Skipped);
    assert_eq!(model.values(), [1.0, 1.0]);
    assert_eq!(scaler.get_scale(), f64::from(1e-30f32) / 2.0);
}

#[test]
fn a_scale_that_has_fallen_to_zero_writes_no_nan_into_the_weights() {
    let mut model = Model::new();
    let mut scaler = GradScaler::builder().init_scale(2f64.powi(-149)).build().unwrap();
    step(&mut scaler, &mut model, 1.0, Some(f64::NAN));
    assert_eq!(scaler.get_scale(), 0.0);
    assert_eq!(step(&mut scaler, &mut model, 1.0, None), StepOutcome::Skipped);
    assert_eq!(model.values(), [1.0, 1.0]);
}

#[test]
fn below_scale_one_finite_gradients_are_unscaled_exactly_once() {
    let mut model = Model::new();
    let mut scaler = GradScaler::builder().init_scale(0.25).build().unwrap();
    assert!(step(&mut scaler, &mut model, 0.5, None).applied());
    assert_eq!(model.values(), [0.5, 0.5]);
}

#[test]
fn the_floor_holds_and_the_step_is_still_skipped() {
    let mut model = Model::new();
    let mut scaler = GradScaler::builder().init_scale(4.0).min_scale(1.5).build().unwrap();
    let scales: Vec<f64> = (0..3)
        .map(|_| {
            assert!(!step(&mut scaler, &mut model, 1.0, Some(f64::NAN)).applied());
            scaler.get_scale()
        })
        .collect();
    assert_eq!(scales, [2.0, 1.5, 1.5]);
}

#[test]
fn the_ceiling_holds() {
    let mut model = Model::new();
    let mut scaler = GradScaler::builder().init_scale(4.0).max_scale(6.0).growth_interval(1).build().unwrap();
    clean_steps(&mut scaler, &mut model, 3);
    assert_eq!(scaler.get_scale(), 6.0);
    scaler.backward(&model.loss(1.0));
    scaler.update_to(1e9).unwrap();
    assert_eq!(scaler.get_scale(), 6.0);
}

#[test]
fn hysteresis_skips_the_step_but_keeps_the_scale_and_the_state_remembers() {
    let mut model = Model::new();
    let new = || GradScaler::builder().init_scale(8.0).hysteresis(2).build().unwrap();
    let mut scaler = new();
    assert!(!step(&mut scaler, &mut model, 1.0, Some(f64::INFINITY)).applied());
    assert_eq!(scaler.get_scale(), 8.0);
    let state = scaler.state_dict();
    assert_eq!(state["_hysteresis_tracker"], 1);
    let mut resumed = new();
    resumed.load_state_dict(&state).unwrap();
    step(&mut resumed, &mut model, 1.0, Some(f64::INFINITY));
    assert_eq!(resumed.get_scale(), 4.0);
}

#[test]
fn a_static_scale_stays_and_bad_steps_are_skipped() {
    let mut model = Model::new();
    let mut scaler = GradScaler::builder().static_scale(128.0).growth_interval(1).build().unwrap();
    assert!(!step(&mut scaler, &mut model, 1.0, Some(f64::INFINITY)).applied());
    assert!(step(&mut scaler, &mut model, 0.5, None).applied());
    assert_eq!((scaler.get_scale(), model.values()), (128.0, vec![0.5, 0.5]));
    let mut resumed = GradScaler::default();
    resumed.load_state_dict(&scaler.state_dict()).unwrap();
    assert_eq!((resumed.get_scale(), resumed.get_growth_factor(), resumed.get_backoff_factor()), (128.0, 1.0, 1.0));
}

#[test]
fn a_disabled_scaler_is_not_there() {
    let mut model = Model::new();
    let mut scaler = GradScaler::builder().enabled(false).build().unwrap();
    let loss = model.loss(0.5);
    assert_eq!(f64::try_from(scaler.scale(&loss)).unwrap(), 1.0);
    assert!(step(&mut scaler, &mut model, 0.5, None).applied());
    assert_eq!(model.values(), [0.5, 0.5]);
    // It checks nothing: a bad step goes through, as without a scaler.
    assert!(step(&mut scaler, &mut model, 0.5, Some(f64::NAN)).applied());
    assert!(model.values()[0].is_nan());
    scaler.load_state_dict(&json!({ "scale": 2.0 })).unwrap();
    assert_eq!((scaler.get_scale(), scaler.get_growth_tracker(), scaler.is_enabled()), (1.0, 0, false));
}

#[test]
fn a_low_precision_loss_is_scaled_in_fp32() {
    let mut scaler = GradScaler::default();
    for kind in [Kind::Half, Kind::BFloat16] {
        for shape in [vec![], vec![1]] {
            let scaled = scaler.scale(&Tensor::full(shape, 2.0, (kind, Device::Cpu)));
            assert_eq!((scaled.kind(), scaled.double_value(&[])), (Kind::Float, 131_072.0), "{kind:?}");
        }
    }
    assert_eq!(scaler.scale(&Tensor::from(2f64)).kind(), Kind::Double);
}

#[test]
fn a_loss_of_integers_is_refused() {
    let error = GradScaler::default().f_scale(&Tensor::from(2i64)).unwrap_err();
    assert!(error.to_string().starts_with("a loss of Int64 cannot be scaled"), "{error}");
}

#[test]
fn gradients_of_several_dtypes_are_unscaled_and_checked_together() {
    tch::set_num_threads(1);
    let kinds = [Kind::Float, Kind::BFloat16, Kind::Double];
    for bad in [None, Some(0), Some(1), Some(2)] {
        let mut several = Several::new(&kinds);
        let mut scaler = GradScaler::builder().init_scale(1024.0).build().unwrap();
        scaler.backward(&several.loss());
        if let Some(index) = bad {
            let _ = several.0[index].grad().get(1).fill_(f64::NAN);
        }
        assert_eq!(scaler.step(&mut several).unwrap().applied(), bad.is_none(), "{bad:?}");
        let left: Vec<f64> = several.0.iter().map(|p| p.double_value(&[0])).collect();
        assert_eq!(left, if bad.is_none() { [0.5; 3] } else { [1.0; 3] });
    }
}

/// An optimizer of the user's own: plain gradient descent over parameters of several dtypes.
struct Several(Vec<Tensor>);

impl Several {
    fn new(kinds: &[Kind]) -> Several {
        let parameter = |kind: &Kind| Tensor::ones([2], (*kind, Device::Cpu)).set_requires_grad(true);
        Several(kinds.iter().map(parameter).collect())
    }

    fn loss(&self) -> Tensor {
        self.0.iter().map(|p| p.to_kind(Kind::Float).sum(Kind::Float) * 0.5).sum()
    }
}

impl AmpOptimizer for Several {
    fn parameters(&self) -> Vec<Tensor> {
        self.0.iter().map(Tensor::shallow_clone).collect()
    }

    fn apply(&mut self) {
        tch::no_grad(|| self.0.iter_mut().for_each(|p| drop(p.g_sub_(&p.grad()))));
    }
}

#[test]
fn parameters_without_a_gradient_are_skipped() {
    let mut model = Model::new();
    let unused = model.vs.root().ones("unused", &[2]);
    let mut scaler = GradScaler::default();
    assert!(step(&mut scaler, &mut model, 0.5, None).applied());
    assert!(!unused.grad().defined());
}

#[test]
fn an_optimizer_without_any_gradient_is_told_with_its_parameters() {
    let mut model = Model::new();
    let mut scaler = GradScaler::default();
    scaler.name_parameters(&model.vs);
    let _ = scaler.scale(&Tensor::from(1f32));
    for _ in 0..2 {
        let error = scaler.step(&mut model.optimizer).unwrap_err();
        assert!(matches!(error, ScalerError::NoGradients { .. }));
        assert!(error.to_string().contains("1 parameter: p [2]"), "{error}");
    }
    // The error leaves nothing behind: with a gradient the same step works.
    assert!(step(&mut scaler, &mut model, 0.5, None).applied());
}

#[test]
fn the_values_of_a_sparse_gradient_are_unscaled_and_checked() {
    tch::set_num_threads(1);
    let sparse = || {
        let vs = nn::VarStore::new(Device::Cpu);
        let table = vs.root().ones("table", &[5, 2]);
        (nn::Sgd::default().build(&vs, 1.0).unwrap(), table, vs)
    };
    for bad in [false, true] {
        let (mut optimizer, table, _vs) = sparse();
        let mut scaler = GradScaler::builder().init_scale(1024.0).build().unwrap();
        let rows = Tensor::embedding(&table, &Tensor::from_slice(&[1i64, 3, 1]), -1, false, true);
        let weight = if bad { f64::INFINITY } else { 0.25 };
        scaler.backward(&(rows * weight).sum(Kind::Float));
        assert!(table.grad().is_sparse());
        assert_eq!(scaler.step(&mut optimizer).unwrap().applied(), !bad);
        let first = |row| table.double_value(&[row, 0]);
        let expected = if bad { [1.0, 1.0, 1.0] } else { [1.0, 0.5, 0.75] };
        assert_eq!([first(0), first(1), first(3)], expected);
    }
}

#[test]
fn a_second_graph_through_the_gradients_does_not_hinder_unscaling() {
    let mut model = Model::new();
    let mut scaler = GradScaler::builder().init_scale(16.0).build().unwrap();
    let scaled = scaler.scale(&model.p.square().sum(Kind::Float));
    let gradients = Tensor::run_backward(&[&scaled], &[&model.p], true, true);
    let penalty = (&gradients[0] / 16.0).square().sum(Kind::Float);
    scaler.backward(&penalty);
    scaler.unscale(&mut model.optimizer).unwrap();
    assert_eq!(model.gradient(), [8.0, 8.0]);
}

#[test]
fn the_saved_state_has_pytorchs_keys_and_no_others() {
    let mut model = Model::new();
    let mut scaler = GradScaler::builder().growth_factor(1.1).min_scale(1.0).max_scale(1e6).build().unwrap();
    step(&mut scaler, &mut model, 0.0, None);
    let expected = json!({
        "scale": 65536.0, "growth_factor": 1.1, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 1
    });
    assert_eq!(scaler.state_dict(), expected);
}

#[test]
fn a_file_of_pytorchs_state_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scaler.json");
    let text =
        r#"{"scale": 3.0, "growth_factor": 1.1, "backoff_factor": 0.7, "growth_interval": 5, "_growth_tracker": 2}"#;
    std::fs::write(&file, text).unwrap();
    let mut scaler = GradScaler::default();
    scaler.load(&file).unwrap();
    assert_eq!((scaler.get_scale(), scaler.get_growth_factor(), scaler.get_backoff_factor()), (3.0, 1.1, 0.7));
    assert_eq!((scaler.get_growth_interval(), scaler.get_growth_tracker()), (5, 2));
    let mut model = Model::new();
    clean_steps(&mut scaler, &mut model, 3);
    assert_eq!(scaler.get_scale(), f64::from((3.0f64 * 1.1) as f32));
    scaler.save(&file).unwrap();
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files, ["scaler.json"]);
}

#[test]
fn a_state_that_is_none_is_refused_and_changes_nothing() {
    let mut scaler = GradScaler::default();
    let whole = scaler.state_dict();
    let with = |key: &str, value: serde_json::Value| {
        let mut state = whole.clone();
        state[key] = value;
        state
    };
    assert!(matches!(scaler.load_state_dict(&json!({})), Err(ScalerError::EmptyState)));
    for malformed in [
        json!(null),
        json!([1]),
        json!({ "scale": 2.0 }),
        with("scale", json!("NaN")),
        with("_growth_tracker", json!(-1)),
    ] {
        assert!(matches!(scaler.load_state_dict(&malformed), Err(ScalerError::MalformedState(_))), "{malformed}");
    }
    let settings =
        [("scale", -1.0), ("scale", 0.0), ("growth_factor", 0.5), ("growth_factor", 1.0), ("backoff_factor", 1.0)];
    for (key, value) in settings {
        let error = scaler.load_state_dict(&with(key, json!(value))).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{key} = {value}")), "{error}");
    }
    assert!(scaler.load_state_dict(&with("growth_interval", json!(0))).is_err());
    assert_eq!(scaler.state_dict(), whole);
}

#[test]
fn a_state_outside_of_the_bounds_is_brought_inside() {
    let mut scaler = GradScaler::builder().min_scale(2.0).build().unwrap();
    let mut state = scaler.state_dict();
    for (saved, loaded) in [(0.0, 2.0), (1e-20, 2.0), (16.0, 16.0)] {
        state["scale"] = json!(saved);
        scaler.load_state_dict(&state).unwrap();
        assert_eq!(scaler.get_scale(), loaded);
    }
}

#[test]
fn a_state_loaded_in_the_middle_of_a_run_is_in_force_at_once() {
    let mut model = Model::new();
    let mut scaler = GradScaler::default();
    step(&mut scaler, &mut model, 0.0, None);
    let state = GradScaler::builder().init_scale(4.0).build().unwrap().state_dict();
    scaler.load_state_dict(&state).unwrap();
    assert_eq!(scaler.scale(&Tensor::from(1f32)).double_value(&[]), 4.0);
    assert!(!step(&mut scaler, &mut model, 0.0, Some(f64::NAN)).applied());
    assert_eq!(scaler.get_scale(), 2.0);
}

#[test]
fn an_interval_shortened_below_the_tracker_lets_the_scale_grow_at_the_next_clean_step() {
    let mut model = Model::new();
    let mut scaler = GradScaler::builder().init_scale(4.0).build().unwrap();
    clean_steps(&mut scaler, &mut model, 5);
    scaler.set_growth_interval(3).unwrap();
    step(&mut scaler, &mut model, 0.0, None);
    assert_eq!((scaler.get_scale(), scaler.get_growth_tracker()), (8.0, 0));
}

#[test]
fn a_file_that_cannot_be_read_or_written_is_told_with_its_path_last() {
    let mut scaler = GradScaler::default();
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing").join("scaler.json");
    for error in [scaler.save(&missing).unwrap_err(), scaler.load(&missing).unwrap_err()] {
        assert!(error.to_string().ends_with(&missing.display().to_string()), "{error}");
    }
}

#[test]
fn a_file_that_torch_saved_or_that_was_cut_short_is_told_from_a_wrong_state() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scaler.json");
    for content in [&b"PK\x03\x04\xff\xfe"[..], b"{\"scale\": 655", b""] {
        std::fs::write(&file, content).unwrap();
        let error = GradScaler::default().load(&file).unwrap_err();
        assert!(matches!(error, ScalerError::NotJson { .. }), "{error}");
        assert!(error.to_string().ends_with(&file.display().to_string()), "{error}");
    }
}

#[test]
fn a_hundred_tensors_are_checked_as_one() {
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let parameters: Vec<Tensor> = (0..100).map(|i| vs.root().ones(&format!("p{i}"), &[3])).collect();
    let mut optimizer = nn::Sgd::default().build(&vs, 1.0).unwrap();
    let mut scaler = GradScaler::default();
    scaler.backward(&Tensor::stack(&parameters, 0).sum(Kind::Float));
    let _ = parameters[99].grad().get(2).fill_(f64::NEG_INFINITY);
    assert!(!scaler.step(&mut optimizer).unwrap().applied());
    assert_eq!(parameters[0].double_value(&[0]), 1.0);
}
