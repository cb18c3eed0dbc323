use crate::observation::scenario::{Scenario, StepBuilder, normal};
use crate::rules::Severity;
use crate::rules::silence::{diagnose, found};
use crate::scan::Dtype::{F16, F32};

/// One step of three matrices whose updates are `ratio` of them.
fn step(s: &mut StepBuilder<'_>, i: u64, loss: f64, ratio: f64, lr: Option<f64>) {
    s.loss(loss).applied(65536.0);
    lr.map(|lr| s.lr(lr));
    for layer in ["fc1", "fc2", "fc3"] {
        s.gradient(layer, "linear", F16, &normal(256, 100.0, i));
        s.param_grad(layer, "weight", F32, &normal(256, 100.0, i));
        s.update(layer, "add_", "weight", &normal(256, 0.1 * ratio, i)).param(
            layer,
            "weight",
            F32,
            &normal(256, 0.1, 3),
        );
    }
}

fn run(steps: u64, at: impl Fn(u64) -> (f64, f64, Option<f64>)) -> Vec<&'static str> {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(steps, |s, i| {
        let (loss, ratio, lr) = at(i);
        step(s, i, loss, ratio, lr);
    });
    found(&diagnose(&run))
}

#[test]
fn case_8_a_gradient_clipped_before_it_is_unscaled_is_found_with_the_factor() {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(20, |s, i| step(s, i, 2.3, 2e-7, Some(0.1)));
    let d = diagnose(&run);
    assert_eq!(found(&d), ["AMP406"], "{:#?}", d.findings());
    let f = &d.findings()[0];
    assert_eq!((f.severity, f.onset_step), (Severity::Warning, 0));
    assert!(f.remedy.text.contains("65536 (2^16) times too small"), "{}", f.remedy.text);
}

#[test]
fn without_a_loss_that_stays_small_updates_are_those_of_a_run_that_has_converged() {
    assert!(run(40, |i| (2.3 * 0.9f64.powi(i as i32), 2e-7, None)).is_empty());
}

#[test]
fn warm_up_and_the_end_of_a_schedule_are_silent() {
    assert!(run(40, |i| (2.3, 5e-8 * (i + 1) as f64, None)).is_empty(), "warm-up, learning rate unknown");
    assert!(run(40, |i| (2.3, 5e-7, Some(1e-9 * i as f64))).is_empty(), "warm-up, learning rate known");
    assert!(run(120, |i| (2.3, 1e-3 * 0.85f64.powi(i as i32), None)).is_empty(), "decay");
    assert!(run(120, |i| if i < 60 { (2.3, 1e-3, Some(1e-3)) } else { (2.3, 5e-7, Some(5e-7)) }).is_empty(), "a step");
}

#[test]
fn a_drop_in_the_middle_of_the_run_begins_there() {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(40, |s, i| step(s, i, 2.3, if i < 20 { 1e-3 } else { 1e-7 }, Some(0.1)));
    let d = diagnose(&run);
    assert_eq!((found(&d), d.findings()[0].onset_step), (vec!["AMP406"], 20));
}

#[test]
fn weight_decay_alone_is_no_movement() {
    let mut run = Scenario::new();
    run.steps(20, |s, i| {
        s.loss(2.3).gradient("fc", "linear", F32, &[0.0; 256]).param_grad("fc", "weight", F32, &[0.0; 256]);
        s.update("fc", "add_", "weight", &normal(256, 5e-6, i)).param("fc", "weight", F32, &normal(256, 0.1, i));
    });
    let d = diagnose(&run);
    assert_eq!(found(&d), ["AMP406"]);
    assert!(d.findings()[0].remedy.text.starts_with("Look for what shuts the gradient off"), "{:#?}", d.findings());
}

#[test]
fn what_follows_from_an_explosion_or_a_forward_that_overflows_is_not_told_again() {
    let dead = |s: &mut StepBuilder<'_>, i: u64| {
        s.loss(2.6).gradient("fc", "linear", F32, &[0.0; 256]).param_grad("fc", "weight", F32, &[0.0; 256]);
        s.update("fc", "add_", "weight", &[0.0; 256]).param("fc", "weight", F32, &normal(256, 0.1, i));
    };
    let mut run = Scenario::new();
    run.steps(12, |s, i| {
        s.loss(2.3).param_grad("fc", "weight", F32, &normal(256, 0.1, i));
        s.update("fc", "add_", "weight", &normal(256, 0.01, i)).param("fc", "weight", F32, &normal(256, 0.1, i));
    });
    assert!(!found(&diagnose(run.steps(20, dead))).contains(&"AMP406"));
    let mut run = Scenario::new();
    run.steps(20, |s, i| {
        s.activation("fc", "linear", F16, &[f64::INFINITY; 64]);
        dead(s, i);
    });
    assert!(!found(&diagnose(&run)).contains(&"AMP406"), "{:?}", found(&diagnose(&run)));
}

#[test]
fn one_matrix_of_three_that_stands_still_is_not_the_median() {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(20, |s, i| {
        step(s, i, 2.3, 1e-3, None);
        s.param_grad("gate", "weight", F32, &[0.0; 256]).update("gate", "add_", "weight", &[0.0; 256]);
        s.param("gate", "weight", F32, &normal(256, 0.1, i));
    });
    assert!(found(&diagnose(&run)).is_empty());
}
