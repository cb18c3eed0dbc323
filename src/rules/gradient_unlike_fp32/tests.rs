//! Comparisons of hand: which are said to be off, why, and which are not.

use crate::observation::scenario::{Scenario, normal};
use crate::rules::silence::{diagnose, found};
use crate::rules::{Finding, Severity};
use crate::scan::Dtype::{self, Bf16, F16};

/// Rounds to FP16.
fn held(x: f64) -> f64 {
    half::f16::from_f64(x).to_f64()
}

/// A run whose gradients have this standard deviation, held in `dtype` at a loss scale, each step with a shadow of what `mixed` makes of FP32's.
fn run(dtype: Dtype, deviation: f64, scale: f64, steps: u64, mixed: impl Fn(f64) -> f64) -> Scenario {
    let mut run = Scenario::new();
    run.static_scaler(scale);
    for i in 0..steps {
        for layer in ["fc1", "fc2"] {
            let exact = normal(512, deviation, 2 * i + u64::from(layer == "fc2"));
            let kept: Vec<f64> = exact.iter().map(|x| mixed(x * scale)).collect();
            run.shadow(layer, "weight", Some(scale), &kept, &exact);
        }
        run.step(|s| {
            s.loss(1.0).loss_scale(scale);
            s.activation("fc1", "linear", dtype, &normal(64, 1.0, i));
            s.gradient("fc1", "linear", dtype, &normal(64, 1.0, i));
        });
    }
    run
}

fn only(run: &Scenario) -> Finding {
    let d = diagnose(run);
    assert_eq!(found(&d), ["AMP205"], "{:#?}", d.findings());
    d.findings()[0].clone()
}

#[test]
fn a_gradient_that_fades_is_an_error_of_backward_with_what_was_lost_measured() {
    let f = only(&run(F16, 2e-8, 1.0, 4, held));
    assert_eq!((f.severity, f.onset_step, f.layer.as_str()), (Severity::Error, 0, ""));
    assert!(f.explanation.contains("it is backward that loses it"), "{}", f.explanation);
    assert!(f.explanation.contains("were rounded to zero, which is measured"), "{}", f.explanation);
}

#[test]
fn a_little_off_is_a_warning_and_two_comparisons_are_no_trend() {
    assert_eq!(only(&run(F16, 5e-8, 1.0, 3, held)).severity, Severity::Warning);
    let d = diagnose(&run(F16, 5e-8, 1.0, 2, held));
    assert!(found(&d).is_empty());
    assert!(d.doubts().iter().any(|x| x.code == "AMP205" && x.reason.contains("2 of 3")), "{:?}", d.doubts());
}

#[test]
fn subnormals_alone_and_a_good_scale_are_nothing() {
    assert!(found(&diagnose(&run(F16, 1e-5, 1.0, 5, held))).is_empty(), "it fades, and points the right way");
    assert!(found(&diagnose(&run(F16, 1e-5, 65536.0, 5, held))).is_empty());
}

#[test]
fn a_wrong_direction_of_large_values_is_never_blamed_on_the_scale() {
    // Forward rounding in small: the gradient is right but for a part that has nothing to do with it.
    let noisy = |x: f64| held(x) + if x.to_bits().is_multiple_of(2) { 1.2e-2 } else { -1.2e-2 };
    for dtype in [F16, Bf16] {
        let f = only(&run(dtype, 1e-2, 1.0, 3, noisy));
        assert_eq!(f.severity, Severity::Warning);
        assert!(f.explanation.contains("it is not the loss scale") && !f.remedy.text.contains("cale"), "{f:?}");
        assert_eq!(f.remedy.set[0].name, "fp32_layers");
    }
    let late = |x: f64| held(x) + if x.to_bits().is_multiple_of(2) { 5e-3 } else { -5e-3 };
    assert!(found(&diagnose(&run(F16, 1e-2, 1.0, 6, late))).is_empty(), "1 - cosine of 0.1, as healthy runs have late");
}

#[test]
fn bf16_has_no_subnormals_to_fade_into() {
    assert!(found(&diagnose(&run(Bf16, 5e-8, 1.0, 5, |x| x * 1.001))).is_empty());
}

#[test]
fn a_gradient_of_twice_the_length_and_more_is_a_matter_of_the_loop() {
    let f = only(&run(F16, 1e-2, 4.0, 3, |x| held(3.0 * x)));
    assert!(
        f.explanation.contains("3.00 times as long") || f.explanation.contains("3 times as long"),
        "{}",
        f.explanation
    );
    assert!(found(&diagnose(&run(F16, 1e-2, 4.0, 4, |x| held(1.3 * x)))).is_empty());
}

#[test]
fn infinities_are_left_to_other_rules_and_a_run_without_shadows_has_no_doubt() {
    assert!(!found(&diagnose(&run(F16, 1.0, 65536.0, 4, |_| f64::INFINITY))).contains(&"AMP205"));
    let mut bare = Scenario::new();
    bare.steps(4, |s, i| {
        s.loss(1.0).activation("fc", "linear", F16, &normal(64, 1.0, i)).gradient(
            "fc",
            "linear",
            F16,
            &normal(64, 1.0, i),
        );
    });
    let d = diagnose(&bare);
    assert!(d.doubts().iter().all(|doubt| doubt.code != "AMP205"), "{:?}", d.doubts());
}

#[test]
fn one_layer_that_fades_beside_a_large_one_is_named() {
    let mut run = Scenario::new();
    run.static_scaler(1.0);
    for i in 0..4 {
        for (layer, deviation) in [("large", 1e-1), ("small", 2e-8)] {
            let exact = normal(512, deviation, i);
            let kept: Vec<f64> = exact.iter().map(|&x| held(x)).collect();
            run.shadow(layer, "weight", Some(1.0), &kept, &exact);
        }
        run.step(|s| {
            s.loss(1.0).loss_scale(1.0).activation("large", "linear", F16, &normal(64, 1.0, i));
            s.gradient("large", "linear", F16, &normal(64, 1.0, i));
        });
    }
    let f = only(&run);
    assert_eq!((f.layer.as_str(), f.severity), ("small", Severity::Warning));
}
