//! `GradScaler` against what `torch.amp.GradScaler` does with its calls in every order.

mod common;

use ampdoctor_torch::{GradScaler, ScalerError};
use common::Run;
use serde::Deserialize;
use serde_json::{Value, json};
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Kind, Tensor};

const ORDER: &str = include_str!("../../../fixtures/gradscaler/order.json");

#[derive(Deserialize)]
struct Order {
    case: String,
    error: Option<String>,
    result: Option<Value>,
}

/// What a case came to: an error, or a result as the recording has it.
type Outcome = Result<Value, ScalerError>;

/// A case of the recording by its name, and how it is run here.
type Case = (&'static str, fn() -> Outcome);

/// The run of the order cases: `sum(p^2)` at scale 1024, so that the gradient of `[1, 2]` is `[2, 4]`.
fn order_run(scale: f64) -> Run {
    Run::new(&[1.0, 2.0], 0.1, GradScaler::builder().init_scale(scale).build().unwrap())
}

fn after_backward() -> Run {
    let mut run = order_run(1024.0);
    backward(&mut run);
    run
}

fn backward(run: &mut Run) {
    run.optimizer.zero_grad();
    run.scaler.backward(&run.parameter.square().sum(Kind::Float));
}

fn parameters(run: &Run) -> Outcome {
    Ok(json!({ "p": run.values() }))
}

fn unscale_twice() -> Outcome {
    let mut run = after_backward();
    run.scaler.unscale(&mut run.optimizer)?;
    run.scaler.unscale(&mut run.optimizer).map(|()| json!({}))
}

fn step_twice() -> Outcome {
    let mut run = after_backward();
    run.scaler.step(&mut run.optimizer)?;
    run.scaler.step(&mut run.optimizer).map(|_| json!({}))
}

fn unscale_after_step() -> Outcome {
    let mut run = after_backward();
    run.scaler.step(&mut run.optimizer)?;
    run.scaler.unscale(&mut run.optimizer).map(|()| json!({}))
}

fn update_alone() -> Outcome {
    after_backward().scaler.update().map(|()| json!({}))
}

fn update_before_scale() -> Outcome {
    order_run(1024.0).scaler.update().map(|()| json!({}))
}

fn step_without_gradients() -> Outcome {
    let mut run = order_run(1024.0);
    let _ = run.scaler.scale(&Tensor::from(1f32));
    run.scaler.step(&mut run.optimizer).map(|_| json!({}))
}

fn unscale_step_update() -> Outcome {
    let mut run = after_backward();
    run.scaler.unscale(&mut run.optimizer)?;
    let grad = Vec::<f32>::try_from(run.parameter.grad())?;
    run.scaler.step(&mut run.optimizer)?;
    run.scaler.update()?;
    Ok(json!({ "grad": grad, "p": run.values(), "scale": run.scaler.get_scale() }))
}

fn clip_after_unscale() -> Outcome {
    let mut run = after_backward();
    run.scaler.unscale(&mut run.optimizer)?;
    run.optimizer.clip_grad_norm(1.0);
    run.scaler.step(&mut run.optimizer)?;
    run.scaler.update()?;
    parameters(&run)
}

fn clip_before_unscale() -> Outcome {
    let mut run = after_backward();
    run.optimizer.clip_grad_norm(1.0);
    run.scaler.unscale(&mut run.optimizer)?;
    run.scaler.step(&mut run.optimizer)?;
    run.scaler.update()?;
    parameters(&run)
}

fn update_to_64() -> Outcome {
    let mut run = after_backward();
    run.scaler.step(&mut run.optimizer)?;
    run.scaler.update_to(64.0)?;
    Ok(json!({ "scale": run.scaler.get_scale() }))
}

fn growth_at_the_top() -> Outcome {
    let mut run = order_run(2f64.powi(127));
    run.scaler.set_growth_interval(1)?;
    run.optimizer.zero_grad();
    // A gradient of 1: at this scale one of 2 would already overflow.
    run.scaler.backward(&run.parameter.sum(Kind::Float));
    assert!(run.scaler.step(&mut run.optimizer)?.applied());
    run.scaler.update()?;
    assert_eq!(run.scaler.get_growth_tracker(), 0);
    Ok(json!({ "scale": run.scaler.get_scale() }))
}

fn backoff_at_the_bottom() -> Outcome {
    let mut run = order_run(2f64.powi(-149));
    backward(&mut run);
    let _ = run.parameter.grad().fill_(f64::INFINITY);
    assert!(!run.scaler.step(&mut run.optimizer)?.applied());
    run.scaler.update()?;
    Ok(json!({ "scale": run.scaler.get_scale() }))
}

fn unscale_half() -> Outcome {
    tch::set_num_threads(1);
    let mut vs = nn::VarStore::new(Device::Cpu);
    let parameter = vs.root().sub("fc").ones("weight", &[2]);
    vs.half();
    let mut optimizer = nn::Sgd::default().build(&vs, 0.1).unwrap();
    let mut scaler = GradScaler::default();
    scaler.name_parameters(&vs);
    scaler.backward(&parameter.to_kind(Kind::Float).sum(Kind::Float));
    let outcome = scaler.unscale(&mut optimizer);
    let text = outcome.as_ref().unwrap_err().to_string();
    assert!(text.contains("fc.weight [2]") && text.contains("master weights"), "{text}");
    assert_eq!(Vec::<f64>::try_from(parameter.grad().to_kind(Kind::Double))?, [f64::INFINITY; 2]);
    outcome.map(|()| json!({}))
}

fn disabled() -> Outcome {
    let mut run = Run::new(&[1.0], 0.1, GradScaler::builder().enabled(false).build().unwrap());
    backward(&mut run);
    run.scaler.unscale(&mut run.optimizer)?;
    run.scaler.step(&mut run.optimizer)?;
    run.scaler.update()?;
    Ok(json!({ "p": run.values(), "scale": run.scaler.get_scale(), "state": run.scaler.state_dict() }))
}

fn cases() -> Vec<Case> {
    vec![
        ("unscale twice before update", unscale_twice),
        ("step twice before update", step_twice),
        ("unscale after step", unscale_after_step),
        ("update with no step or unscale", update_alone),
        ("update before any scale", update_before_scale),
        ("step with no gradients", step_without_gradients),
        ("unscale, step, update", unscale_step_update),
        ("unscale, clip 1.0, step, update", clip_after_unscale),
        ("clip 1.0 before unscale (wrong order)", clip_before_unscale),
        ("update(new_scale=64)", update_to_64),
        ("growth at 2^127", growth_at_the_top),
        ("backoff at 2^-149", backoff_at_the_bottom),
        ("unscale FP16 gradients", unscale_half),
        ("disabled", disabled),
    ]
}

/// The error of ours that answers an error of PyTorch's, by its text.
fn answers(pytorch: &str, ours: &ScalerError) -> bool {
    let has = |part| pytorch.contains(part);
    match ours {
        ScalerError::AlreadyUnscaled { .. } => has("unscale_() has already been called on this optimizer"),
        ScalerError::AlreadyStepped { .. } => has("step() has already been called"),
        ScalerError::UnscaledAfterStep { .. } => has("unscale_() is being called after step()"),
        ScalerError::NothingChecked => has("No inf checks were recorded prior to update"),
        ScalerError::NothingScaled { .. } => has("_scale is None"),
        ScalerError::NoGradients { .. } => has("No inf checks were recorded for this optimizer"),
        ScalerError::HalfGradients { .. } => has("Attempting to unscale FP16 gradients"),
        _ => false,
    }
}

/// Equal as FP32 numbers: the recording and the run both print FP32 values as decimal fractions.
fn equal(ours: &Value, recorded: &Value) -> bool {
    match (ours, recorded) {
        (Value::Number(a), Value::Number(b)) => a.as_f64().map(|a| a as f32) == b.as_f64().map(|b| b as f32),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        (a, b) => a == b,
    }
}

#[test]
fn every_order_of_calls_ends_as_in_pytorch() {
    let rows: Vec<Order> = serde_json::from_str(ORDER).unwrap();
    let cases = cases();
    assert_eq!(rows.len(), cases.len());
    for row in rows {
        let (_, run) =
            cases.iter().find(|(case, _)| *case == row.case).unwrap_or_else(|| panic!("no case {}", row.case));
        match (run(), &row.error) {
            (Ok(ours), None) => {
                let recorded = row.result.unwrap();
                assert!(equal(&ours, &recorded), "{}: {ours} and not {recorded}", row.case);
            }
            (Err(ours), Some(pytorch)) => assert!(answers(pytorch, &ours), "{}: {ours}", row.case),
            (ours, pytorch) => panic!("{}: {ours:?} and not {pytorch:?}", row.case),
        }
    }
}
