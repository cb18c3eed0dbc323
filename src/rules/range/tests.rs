//! Where a value is back in range, and where that cannot be told.

use super::*;
use crate::observation::scenario::{Scenario, StepBuilder, normal};
use crate::rules::Value;
use crate::scan::Dtype;

const INF: f64 = f64::INFINITY;
const F16: Dtype = Dtype::F16;

fn run(build: impl Fn(&mut StepBuilder<'_>)) -> Aggregate {
    let mut run = Scenario::new();
    // Parameters are known as they were after the step before.
    run.steps(2, |s, _| build(s));
    Aggregate::of(&run)
}

/// How far the activation of this operator reaches.
fn forward(run: &Aggregate, layer: &str, operator: &str, out: Out) -> Reach {
    Reach::of_activation(&Graph::of(run), &site(run, layer, operator, Probe::Activation), out)
}

fn site(run: &Aggregate, layer: &str, operator: &str, probe: Probe) -> Site {
    let is_asked = |s: &&Site| s.layer == layer && s.operator == operator && s.probe == probe;
    run.sites.iter().map(|s| &s.site).find(is_asked).expect("it was observed").clone()
}

fn layers(names: &[&str]) -> Reach {
    Reach::Layers(names.iter().map(|&name| name.to_owned()).collect())
}

#[test]
fn a_factor_that_is_taken_back_within_the_layer_needs_that_layer_alone() {
    let run = run(|s| {
        s.activation("fc2", "linear", F16, &normal(64, 1.0, 1));
        s.activation("fc2", "mul", F16, &[INF, 3.0]).from(&["fc2/linear"]).argument(1e6);
        s.activation("fc2", "div", F16, &[4.0, 3e-6]).from(&["fc2/mul"]).argument(1e6);
        s.activation("fc3", "linear", F16, &normal(64, 1.0, 2)).from(&["fc2/div"]);
    });
    assert_eq!(forward(&run, "fc2", "mul", Out::Large), layers(&["fc2"]));
}

#[test]
fn a_norm_brings_a_large_value_back_and_is_kept_with_its_layer() {
    let run = run(|s| {
        s.param("conv2", "weight", F16, &normal(64, 0.1, 1)).param("bn2", "weight", F16, &[1.0; 8]);
        s.activation("conv2", "conv2d", F16, &[INF, 3.0]).from(&["input", "conv2.weight"]);
        s.activation("bn2", "batch_norm", F16, &[f64::NAN, 3.0]).from(&["conv2/conv2d", "bn2.weight"]);
        s.activation("fc1", "linear", F16, &[f64::NAN, 3.0]).from(&["bn2/batch_norm"]);
    });
    assert_eq!(forward(&run, "conv2", "conv2d", Out::Large), layers(&["conv2", "bn2"]));
}

#[test]
fn what_nothing_brings_back_is_a_matter_of_the_run() {
    let run = run(|s| {
        s.activation("fc1", "linear", F16, &[INF, 3.0]);
        s.activation("fc1", "relu", F16, &[INF, 3.0]).from(&["fc1/linear"]);
        s.activation("fc2", "linear", F16, &[INF, INF]).from(&["fc1/relu"]);
    });
    assert_eq!(forward(&run, "fc1", "linear", Out::Large), Reach::Run);
}

#[test]
fn where_nobody_is_known_to_take_it_nothing_is_promised_of_one_layer() {
    let run = run(|s| {
        s.activation("head", "sum", F16, &[INF]);
    });
    assert_eq!(forward(&run, "head", "sum", Out::Large), Reach::Run);
}

#[test]
fn more_layers_than_three_are_the_run() {
    let chain = |length: usize| {
        run(|s| {
            s.activation("fc0", "linear", F16, &[INF, 3.0]);
            for at in 1..length {
                let (layer, before) = (format!("fc{at}"), format!("fc{}/linear", at - 1));
                s.activation(&layer, "linear", F16, &[INF, 3.0]).from(&[&before]);
            }
            let last = format!("fc{}/linear", length - 1);
            s.activation("out", "tanh", F16, &[1.0, 1.0]).from(&[&last]);
        })
    };
    assert_eq!(forward(&chain(3), "fc0", "linear", Out::Large), layers(&["fc0", "fc1", "fc2"]));
    assert_eq!(forward(&chain(4), "fc0", "linear", Out::Large), Reach::Run);
}

#[test]
fn a_small_value_is_back_where_the_next_operator_makes_an_ordinary_number_of_it() {
    let run = run(|s| {
        s.activation("fc1", "mul", F16, &[1e-7, 0.0]);
        s.activation("fc1", "div", F16, &[1.0, 0.5]).from(&["fc1/mul"]);
        s.activation("fc2", "linear", F16, &[1.0, 0.5]).from(&["fc1/div"]);
    });
    assert_eq!(forward(&run, "fc1", "mul", Out::Small), layers(&["fc1"]));
}

#[test]
fn a_product_of_small_values_meets_them_in_fp16_again() {
    let run = run(|s| {
        s.activation("fc1", "mul", F16, &[1e-7, 0.0]);
        s.activation("fc2", "linear", F16, &[1.0, 0.5]).from(&["fc1/mul"]);
    });
    assert_eq!(forward(&run, "fc1", "mul", Out::Small), Reach::Run);
}

#[test]
fn the_gradient_of_a_parameter_is_handed_on_to_nobody() {
    let run = run(|s| {
        s.activation("fc1", "linear", F16, &[1.0, 0.5]);
        s.param_grad("fc1", "weight", F16, &[INF, 1.0]);
    });
    let gradient = site(&run, "fc1", "", Probe::ParamGrad);
    assert_eq!(Reach::of_gradient(&Graph::of(&run), &gradient), layers(&["fc1"]));
}

#[test]
fn a_gradient_goes_on_towards_the_input_until_a_factor_brings_it_back() {
    let blown_up = |taken_back: bool| {
        run(|s| {
            s.param("fc1", "weight", F16, &normal(64, 0.1, 1));
            s.activation("fc1", "linear", F16, &[1.0, 0.5]).from(&["input", "fc1.weight"]);
            if taken_back {
                s.activation("fc1", "mul", F16, &[1e-6, 5e-7]).from(&["fc1/linear"]).argument(1e-6);
            }
            s.activation("fc2", "mul", F16, &[1.0, 0.5]).argument(1e6);
            s.from(&[if taken_back { "fc1/mul" } else { "fc1/linear" }]);
        })
    };
    let of = |run: &Aggregate| Reach::of_gradient_from(&Graph::of(run), &site(run, "fc2", "mul", Probe::Activation));
    assert_eq!(of(&blown_up(true)), layers(&["fc1", "fc2"]));
    assert_eq!(of(&blown_up(false)), layers(&["fc1", "fc2"]), "to the input of the net, where it ends");
}

#[test]
fn the_setting_is_that_of_the_run_it_stands_in() {
    let reached = |dtype: Dtype| {
        let run = run(|s| {
            s.param("fc1", "weight", dtype, &normal(64, 0.1, 1));
            s.activation("fc1", "linear", F16, &[INF, 3.0]).from(&["input", "fc1.weight"]);
        });
        let remedy = forward(&run, "fc1", "linear", Out::Large).set("".into(), &run);
        remedy.set.iter().map(|setting| (setting.name, setting.value.clone())).collect::<Vec<_>>()
    };
    assert_eq!(reached(Dtype::F32), [("precision", Value::Text("bf16".into()))]);
    assert_eq!(reached(F16), [("precision", Value::Text("bf16-masters".into()))]);
}
