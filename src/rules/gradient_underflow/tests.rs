//! Gradients of hand: which are said to underflow, by which rule, and which are not.

use crate::observation::scenario::{Scenario, StepBuilder, normal};
use crate::rules::silence::{diagnose, found};
use crate::rules::{Finding, Severity, Value};
use crate::scan::Dtype::{F16, F32};

/// Gradients of four layers in the order of backward, each of this standard deviation.
fn backward(s: &mut StepBuilder<'_>, deviations: [f64; 4], seed: u64) {
    for (i, deviation) in deviations.into_iter().enumerate() {
        s.gradient(&format!("fc{}", 4 - i), "linear", F16, &normal(512, deviation, 10 * seed + i as u64));
    }
}

fn number(finding: &Finding, name: &str) -> f64 {
    match finding.evidence.iter().find(|e| e.name == name).map(|e| &e.value) {
        Some(Value::Number(x)) => *x,
        Some(Value::Count(n)) => *n as f64,
        other => panic!("{name}: {other:?}"),
    }
}

fn only(run: &Scenario) -> Finding {
    of_rule(run, "AMP201")
}

/// The only finding, which is of this rule.
fn of_rule(run: &Scenario, code: &str) -> Finding {
    let d = diagnose(run);
    assert_eq!(found(&d), [code], "{:#?}", d.findings());
    d.findings()[0].clone()
}

#[test]
fn a_scale_that_is_too_low_is_an_error_of_the_run_with_the_scale_to_set() {
    let mut run = Scenario::new();
    run.static_scaler(1.0).steps(5, |s, i| {
        s.loss(1.0).loss_scale(1.0);
        backward(s, [3e-7; 4], i);
    });
    let f = of_rule(&run, "AMP308");
    assert_eq!((f.severity, f.layer.as_str(), f.onset_step, f.last_step), (Severity::Error, "", 0, 4));
    assert!(number(&f, "median_ehat") > 1e-3);
    assert!(f.explanation.contains("no layer is to blame") && f.explanation.contains("estimated"), "{}", f.explanation);
    assert!(f.remedy.text.starts_with("Raise the static loss scale from 1 (2^0) to "), "{}", f.remedy.text);
    let scale = number(&f, "recommended_loss_scale");
    assert!(scale.log2().fract() == 0.0 && number(&f, "headroom_bits_at_recommended") >= 3.0);

    // The remedy, applied, cures it.
    let mut cured = Scenario::new();
    cured.static_scaler(scale).steps(5, |s, i| {
        s.loss(1.0).loss_scale(scale);
        backward(s, [3e-7 * scale; 4], i);
    });
    assert_eq!(found(&diagnose(&cured)), Vec::<&str>::new());
}

#[test]
fn one_bad_step_is_not_a_trend() {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(9, |s, i| {
        s.loss(1.0).applied(65536.0);
        backward(s, [if i % 3 == 2 { 1e-7 } else { 1e-2 }; 4], i);
    });
    assert_eq!(found(&diagnose(&run)), Vec::<&str>::new());
}

#[test]
fn two_samples_leave_it_unsure() {
    let mut run = Scenario::new();
    run.steps(2, |s, i| {
        s.loss(1.0);
        backward(s, [1e-7; 4], i);
    });
    let d = diagnose(&run);
    assert!(found(&d).is_empty());
    assert!(d.doubts().iter().any(|x| x.code == "AMP201" && x.reason.contains("2 of 3")), "{:?}", d.doubts());
}

#[test]
fn wholly_below_the_smallest_normal_number_is_a_warning_five_octaves_before_harm() {
    let mut run = Scenario::new();
    run.dynamic_scaler(16.0).steps(5, |s, i| {
        s.loss(1.0).applied(16.0);
        backward(s, [1.2e-5; 4], i);
    });
    let f = only(&run);
    assert_eq!(f.severity, Severity::Warning);
    assert!(f.explanation.contains("wholly below 2^-14"), "{}", f.explanation);
    assert!(f.remedy.text.starts_with("Raise `init_scale` from 16 (2^4)"), "{}", f.remedy.text);
}

#[test]
fn the_layer_at_which_the_gradient_collapses_is_named_and_those_that_inherit_are_counted() {
    let mut run = Scenario::new();
    run.dynamic_scaler(1024.0).steps(10, |s, i| {
        let starved = if i < 4 { 1.0 } else { 2f64.powi(-20) };
        s.loss(1.0).applied(1024.0);
        backward(s, [0.1, 0.1 * starved, 0.1 * starved, 0.1 * starved], i);
    });
    let f = only(&run);
    assert_eq!((f.layer.as_str(), f.onset_step), ("fc3", 4), "{f:#?}");
    assert!(f.explanation.contains("2 gradients nearer the input inherited it"), "{}", f.explanation);
}

#[test]
fn gradients_that_fade_toward_the_input_name_the_first_starved_layer() {
    let mut run = Scenario::new();
    run.dynamic_scaler(1024.0).steps(6, |s, i| {
        s.loss(1.0).applied(1024.0);
        (0..12).rev().for_each(|l| {
            s.gradient(
                &format!("layer{l:02}"),
                "linear",
                F16,
                &normal(512, 2f64.powi(-4 - 2 * (11 - l)), 100 * i + l as u64),
            );
        });
    });
    let f = only(&run);
    // 2^-24 and less: layers 1 and 0.
    assert_eq!((f.layer.as_str(), f.severity), ("layer01", Severity::Warning), "{f:#?}");
    assert!(number(&f, "lost_share_estimate") > 0.05 && number(&f, "fading_share") == 1.0, "{:?}", f.evidence);
}

#[test]
fn a_gradient_that_faded_and_became_zero_is_starved() {
    let mut run = Scenario::new();
    run.dynamic_scaler(1024.0).steps(8, |s, i| {
        s.loss(1.0).applied(1024.0);
        let left = match i {
            0..2 => 0.1,
            2 => 1e-5,
            _ => 0.0,
        };
        backward(s, [0.1, left, left, left], i);
    });
    // It begins with the step at which it fades.
    let f = only(&run);
    assert_eq!((f.layer.as_str(), f.onset_step, f.severity), ("fc3", 2, Severity::Error));
    assert!(f.explanation.contains("all 512 elements are zero"), "{}", f.explanation);
}

#[test]
fn a_factor_that_is_new_and_leaves_next_to_nothing_from_its_first_step_is_found() {
    let mut run = Scenario::new();
    run.dynamic_scaler(1024.0).steps(8, |s, i| {
        s.loss(1.0).applied(1024.0).gradient("fc3", "linear", F16, &normal(512, 1.0, i));
        let left = normal(512, if i < 3 { 1.0 } else { 5e-8 }, i);
        if i >= 3 {
            // A product of zeros with a tiny constant: that its output is zero says nothing of the constant.
            s.activation("fc2", "sub", F16, &[0.0; 512]).activation("fc2", "mul", F16, &[0.0; 512]);
            s.gradient("fc2", "sub", F16, &left).via("fc2", "mul", F16);
        }
        s.gradient("fc2", "linear", F16, &left).gradient("fc1", "linear", F16, &left);
    });
    let f = only(&run);
    assert_eq!((f.layer.as_str(), f.onset_step), ("fc2", 3));
}

#[test]
fn case_19_a_gradient_that_was_zero_from_the_start_because_the_loss_is_tiny() {
    let mut run = Scenario::new();
    run.steps(4, |s, i| {
        s.loss(1e-6).activation("fc", "matmul", F16, &normal(4096, 1.0, i)).activation("fc", "mean", F16, &[1.0]);
        s.gradient("fc", "mean", F16, &[1e-6]);
        s.gradient("fc", "matmul", F16, &[0.0; 4096]).via("fc", "mean", F16);
        s.param_grad("fc", "weight", F32, &[0.0; 64]);
    });
    let f = of_rule(&run, "AMP308");
    assert_eq!(f.severity, Severity::Error);
    assert!(f.remedy.text.contains("use a `GradScaler` with `init_scale` = 16777216 (2^24)"), "{}", f.remedy.text);
    assert!(f.explanation.contains("There is no loss scaler"), "{}", f.explanation);
}

#[test]
fn what_a_cast_loses_is_measured_and_sets_the_scale() {
    let tiny = 2f64.powi(-20);
    let mut run = Scenario::new();
    run.static_scaler(tiny).steps(4, |s, i| {
        let logits = normal(640, 0.01 * tiny, i);
        s.loss(1.0).loss_scale(tiny).gradient("fc3", "cross_entropy_loss", F32, &[tiny]);
        s.cast_gradient("fc3", "cross_entropy_loss", &logits).gradient("fc3", "linear", F16, &logits);
        s.gradient("fc2", "relu", F16, &[0.0; 640]).via("fc3", "linear", F16);
    });
    let f = of_rule(&run, "AMP307");
    assert_eq!((f.severity, f.layer.as_str(), f.onset_step), (Severity::Error, "", 0));
    assert!(number(&f, "recommended_loss_scale") >= 1.0, "{:?}", f.evidence);
    assert!(number(&f, "lost_share") > 0.9, "{:?}", f.evidence);
    // What is left of the others says nothing of what they need.
    assert!(
        f.remedy.text.contains("Or raise the static loss scale from 9.54e-7 (2^-20) to 65536 (2^16): a"),
        "{}",
        f.remedy.text
    );
    assert_eq!((f.remedy.set.len(), f.remedy.set[0].value.clone()), (1, "dynamic".into()));
}

#[test]
fn no_scale_for_two_layers_far_apart_names_the_one_to_fix() {
    let mut run = Scenario::new();
    run.dynamic_scaler(1.0).steps(5, |s, i| {
        s.loss(1.0).applied(1.0);
        backward(s, [1e3, 1e3, 1e3, 2f64.powi(-25)], i);
    });
    let f = only(&run);
    assert_eq!(f.layer, "fc1");
    assert!(f.remedy.text.contains("no loss scale") || f.remedy.text.contains("No loss scale"), "{}", f.remedy.text);
    assert!(f.remedy.text.contains("Change layer `fc1`"), "{}", f.remedy.text);
}

#[test]
fn a_scale_that_was_dropped_between_two_steps_leaves_evidence_in_what_was_there_before() {
    let mut run = Scenario::new();
    run.static_scaler(1024.0).steps(8, |s, i| {
        let scale = if i < 4 { 1024.0 } else { 2f64.powi(-20) };
        s.loss(1.0).loss_scale(scale);
        backward(s, [1e-3 * scale; 4], i);
    });
    let f = of_rule(&run, "AMP307");
    assert_eq!((f.layer.as_str(), f.onset_step, f.severity), ("", 4, Severity::Error));
}

#[test]
fn a_remedy_never_lowers_the_scale_nor_asks_why_one_that_never_moved_has_left() {
    for init in [65536.0, 2f64.powi(20)] {
        let mut run = Scenario::new();
        run.dynamic_scaler(init).steps(8, |s, i| {
            s.loss(1.0).applied(init);
            let left = if i < 3 { 2e-6 } else { 0.0 };
            backward(s, [0.1, 0.1, left, left], i);
        });
        let f = only(&run);
        assert!(!f.remedy.text.contains("ower") && !f.remedy.text.contains("why the scale"), "{}", f.remedy.text);
        assert!(f.remedy.text.contains("layer `fc2`") || f.remedy.text.starts_with("Raise"), "{}", f.remedy.text);
    }
}

#[test]
fn a_side_path_of_which_nothing_is_left_beside_a_gradient_that_arrives_is_no_fault() {
    // The gradient of a sum by which the layer is normalized, and that of its weight, which comes past the sum.
    let beside = |weight: f64| {
        let mut run = Scenario::new();
        run.dynamic_scaler(32768.0).steps(6, |s, i| {
            s.loss(1.0).applied(32768.0);
            s.activation("fc1", "linear", F16, &normal(512, 1.0, i));
            backward(s, [1.0, 1.0, 1.0, 0.5], i);
            s.gradient("fc1", "abs", F16, &normal(512, if i == 0 { 1e-6 } else { 3e-8 }, i));
            s.param_grad("fc1", "weight", F32, &normal(64, weight, i));
        });
        found(&diagnose(&run))
    };
    assert_eq!(beside(1.0), Vec::<&str>::new());
    assert_eq!(beside(1e-4), ["AMP201"], "here the weight may have its gradient from nowhere else");
}

#[test]
fn what_follows_from_a_collapse_of_the_scale_is_not_reported_as_underflow() {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(40, |s, i| {
        let scale = 2f64.powi(16 - i as i32);
        let bad = if i < 36 { f64::INFINITY } else { 1e-9 };
        let well = 1e-4 * scale;
        s.loss(1.0);
        if i < 36 {
            s.skipped(scale, scale / 2.0)
        } else {
            s.applied(scale)
        };
        backward(s, [bad, well, well, well], i);
    });
    assert!(!found(&diagnose(&run)).contains(&"AMP201"));
}

/// A gradient of which FP16 keeps little, each step compared with FP32, which has `exact`.
fn compared_with(exact: impl Fn(f64) -> f64) -> Scenario {
    let mut run = Scenario::new();
    run.static_scaler(1.0);
    for i in 0..4 {
        let held: Vec<f64> = normal(512, 1e-7, i).into_iter().map(|x| half::f16::from_f64(x).to_f64()).collect();
        let fp32: Vec<f64> =
            normal(512, 1e-7, i).iter().zip(&held).map(|(x, h)| exact(if *h == 0.0 { *x } else { *h })).collect();
        run.shadow("fc", "weight", Some(1.0), &held, &fp32);
        run.step(|s| {
            s.loss(1.0).loss_scale(1.0).gradient("fc", "linear", F16, &held);
        });
    }
    run
}

#[test]
fn twins_that_fp16_shows_alike_are_told_apart_by_their_shadows() {
    // The same histogram in FP16: here the zeros were small numbers in FP32, ...
    let lost = compared_with(|x| x);
    let d = diagnose(&lost);
    let f = crate::rules::silence::first(&d, "AMP308").expect("an underflow");
    assert!(number(f, "lost_share_against_fp32") > 0.2, "{f:#?}");
    assert!(f.explanation.contains("Measured against FP32"), "{}", f.explanation);
    // ... there they are zeros in FP32, too: ReLU made them.
    let sparse = compared_with(|x| if x.abs() < 2f64.powi(-25) { 0.0 } else { x });
    let d = diagnose(&sparse);
    assert!(d.findings().iter().all(|f| f.severity < Severity::Error), "{:#?}", d.findings());
}
