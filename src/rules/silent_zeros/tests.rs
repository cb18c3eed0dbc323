use crate::observation::scenario::{Scenario, StepBuilder, normal};
use crate::rules::silence::{diagnose, first};
use crate::rules::{Finding, Severity};
use crate::scan::Dtype::{F16, F32};

const INF: f64 = f64::INFINITY;

/// A layer norm by hand over `x`, as it is recorded: mean, difference, square, variance, root, quotient.
fn norm_by_hand(s: &mut StepBuilder<'_>, deviation: f64, i: u64) {
    let x = normal(256, deviation, i);
    let d: Vec<f64> = x.clone();
    let squares: Vec<f64> = d.iter().map(|x| x * x).collect();
    let variance = squares.iter().sum::<f64>() / 256.0;
    let root = if variance > 65504.0 { INF } else { variance.sqrt() };
    let quotient: Vec<f64> = d.iter().map(|x| if root == INF { 0.0 } else { x / root }).collect();
    s.activation("ln", "linear", F16, &x).activation("ln", "sub", F16, &d).from(&["ln/linear", "none"]);
    s.activation("ln", "square", F16, &squares).from(&["ln/sub"]);
    s.activation("ln", "mean", F16, &[if root == INF { INF } else { variance }]).from(&["ln/square"]);
    s.activation("ln", "sqrt", F16, &[root]).from(&["ln/mean"]);
    s.activation("ln", "div", F16, &quotient).from(&["ln/sub", "ln/sqrt"]);
    s.gradient("ln", "div", F16, &normal(64, 1.0, i));
}

fn only(run: &Scenario) -> Finding {
    let d = diagnose(run);
    first(&d, "AMP105").cloned().unwrap_or_else(|| panic!("{:#?}", d.findings()))
}

fn is_silent(run: &Scenario) -> bool {
    first(&diagnose(run), "AMP105").is_none()
}

#[test]
fn case_15_a_layer_norm_by_hand_over_values_of_300_gives_zeros_and_says_where_it_overflowed() {
    let run = |deviation: f64| {
        let mut run = Scenario::new();
        run.steps(4, |s, i| {
            s.loss(1.0);
            norm_by_hand(s, if i >= 2 { deviation } else { 1.0 }, i);
        });
        run
    };
    let f = only(&run(300.0));
    assert_eq!(
        (f.layer.as_str(), f.operator.as_str(), f.onset_step, f.severity),
        ("ln", "div", 2, Severity::Error),
        "{f:#?}"
    );
    assert!(f.explanation.contains("for `ln/square` exceeds 65504"), "{}", f.explanation);
    assert!(is_silent(&run(10.0)));
}

/// Three steps of one operator on `inputs`.
fn zeros(operator: &str, inputs: &[&[f64]], argument: Option<f64>, output: &[f64]) -> Scenario {
    let mut run = Scenario::new();
    run.steps(3, |s, i| {
        s.loss(1.0);
        let labels = ["fc/a", "fc/b"];
        for (label, values) in labels.iter().zip(inputs) {
            s.activation("fc", &label[3..], F16, values);
        }
        s.activation("fc", operator, F16, output).from(&labels[..inputs.len()]);
        if let Some(argument) = argument {
            s.argument(argument);
        }
        s.gradient("fc", operator, F16, &normal(64, 1.0, i));
    });
    run
}

#[test]
fn a_product_that_is_too_small_for_fp16_is_found_whoever_makes_it() {
    let (small, one) = ([1e-4; 64], [1.0; 64]);
    for (operator, inputs, argument) in [
        ("mul", vec![&small[..], &small[..]], None),
        ("mul", vec![&one[..]], Some(1e-8)),
        ("div", vec![&one[..]], Some(1e9)),
        ("square", vec![&small[..]], None),
        ("pow", vec![&small[..]], Some(2.0)),
    ] {
        let f = only(&zeros(operator, &inputs, argument, &[0.0; 64]));
        assert_eq!((f.severity, f.onset_step, f.layer.as_str()), (Severity::Warning, 0, "fc"), "{operator}");
        assert!(f.explanation.contains("rounds"), "{}", f.explanation);
    }
    let f = only(&zeros("exp", &[&[-20.0; 64]], None, &[0.0; 64]));
    assert!(f.explanation.contains("never zero"), "{}", f.explanation);
}

#[test]
fn zeros_by_design_are_no_fault() {
    let (one, zero) = ([1.0; 64], [0.0; 64]);
    assert!(is_silent(&zeros("relu", &[&[-1.0; 64]], None, &zero)), "dead units");
    assert!(is_silent(&zeros("dropout", &[&one], Some(0.5), &zero)), "dropout");
    assert!(is_silent(&zeros("mul", &[&one, &zero], None, &zero)), "a gate that is zero");
    assert!(is_silent(&zeros("mul", &[&one], Some(0.0), &zero)), "a factor that is zero");
    assert!(is_silent(&zeros("masked_fill", &[&one], None, &zero)), "a mask");
    assert!(is_silent(&zeros("linear", &[&one], None, &zero)), "weights that begin at zero");
    assert!(is_silent(&zeros("square", &[&zero], None, &zero)), "zero in, zero out");
    assert!(is_silent(&zeros("mul", &[&[1e-3; 64], &[1e-3; 64]], None, &zero)), "not small enough");
}

#[test]
fn a_factor_that_is_not_observed_may_be_a_mask() {
    let mut run = Scenario::new();
    run.steps(3, |s, _| {
        s.loss(1.0).activation("fc", "a", F16, &[1e-5; 64]);
        s.activation("fc", "mul", F16, &[0.0; 64]).from(&["fc/a", "constant"]).gradient("fc", "mul", F16, &[1.0; 64]);
    });
    assert!(is_silent(&run));
}

#[test]
fn what_another_format_holds_is_another_matter() {
    let mut run = Scenario::new();
    run.steps(3, |s, _| {
        s.loss(1.0).activation("fc", "a", F32, &[1e-30; 64]);
        s.activation("fc", "square", F32, &[0.0; 64]).from(&["fc/a"]).gradient("fc", "square", F32, &[1.0; 64]);
    });
    assert!(is_silent(&run));
}
