use crate::observation::Tier;
use crate::observation::scenario::{Scenario, StepBuilder, normal};
use crate::rules::silence::{diagnose, found};
use crate::rules::{Finding, Severity};
use crate::scan::Dtype::{F16, F32};

/// One step whose update is `ratio` of the weights, with a gradient of this norm and this learning rate.
fn step(s: &mut StepBuilder<'_>, i: u64, loss: f64, ratio: f64, gradient: f64, lr: Option<f64>) {
    s.loss(loss);
    lr.map(|lr| s.lr(lr));
    s.gradient("fc", "linear", F32, &normal(64, 1e-3, i)).param_grad("fc", "weight", F32, &[gradient / 16.0; 256]);
    s.update("fc", "add_", "weight", &normal(256, 0.1 * ratio, i)).param("fc", "weight", F32, &normal(256, 0.1, 3));
}

fn noise(i: u64) -> f64 {
    normal(1, 0.03, i)[0]
}

/// A run that learns, and from step 20 on goes as `after` has it: loss, ratio, gradient norm, learning rate.
fn run(steps: u64, after: impl Fn(u64) -> (f64, f64, f64, Option<f64>)) -> Scenario {
    let mut run = Scenario::new();
    run.steps(steps, |s, i| match i {
        0..20 => step(s, i, 1.0 + noise(i), 3e-3, 1.0, after(20).3.map(|_| 1e-3)),
        _ => {
            let (loss, ratio, gradient, lr) = after(i);
            step(s, i, loss + noise(i), ratio, gradient, lr);
        }
    });
    run
}

fn only(run: &Scenario) -> Finding {
    let d = diagnose(run);
    assert_eq!(found(&d), ["AMP403"], "{:#?}", d.findings());
    d.findings()[0].clone()
}

#[test]
fn a_learning_rate_that_is_raised_thirtyfold_is_found_at_its_step_with_the_one_to_go_back_to() {
    let f = only(&run(24, |i| (if i == 20 { 1.0 } else { 3.0 }, 0.09, 1.2, Some(3e-2))));
    assert_eq!((f.severity, f.onset_step), (Severity::Error, 20));
    assert!(f.explanation.contains("rose there from 0.001 to 0.030"), "{}", f.explanation);
    assert!(f.remedy.text.contains("the run bore 0.001"), "{}", f.remedy.text);
}

#[test]
fn a_gradient_that_explodes_is_told_from_a_learning_rate() {
    let f = only(&run(24, |i| (if i == 20 { 1.0 } else { 3.0 }, 0.09, 30.0, Some(1e-3))));
    assert!(f.explanation.contains("The gradient grew there"), "{}", f.explanation);
    assert!(f.remedy.text.contains("clip_grad_norm(2)"), "{}", f.remedy.text);
}

#[test]
fn where_the_learning_rate_is_not_known_the_factor_is_named() {
    let f = only(&run(24, |i| (if i == 20 { 1.0 } else { 3.0 }, 0.09, 1.0, None)));
    assert!(
        f.remedy.text.contains("by a factor of about") && f.remedy.text.contains("doctor.lr(lr)"),
        "{}",
        f.remedy.text
    );
}

#[test]
fn a_loss_that_is_not_finite_needs_no_second_look() {
    let mut run = run(21, |_| (1.0, 0.5, 1.0, Some(0.1)));
    run.step(|s| {
        s.loss(f64::NAN);
    });
    let d = diagnose(&run);
    let f = d.findings().iter().find(|f| f.code == "AMP403").expect("found");
    assert_eq!((f.severity, f.onset_step, f.last_step), (Severity::Error, 20, 21));
}

#[test]
fn from_the_first_step_on_the_learning_rate_to_use_is_named() {
    let mut run = Scenario::new();
    run.steps(6, |s, i| step(s, i, if i == 0 { 2.3 } else { 9.0 }, 0.4, 1.0, Some(0.1)));
    let f = only(&run);
    assert_eq!(f.onset_step, 0);
    assert!(f.remedy.text.contains("from 0.100 to about 0.002"), "{}", f.remedy.text);
}

#[test]
fn a_rate_that_rose_between_two_scanned_steps_is_the_one_to_go_back_to() {
    // Every tenth step is scanned; the rate rises in between, and the loss that is not finite has the steps after it scanned.
    for scanned in [2, 6] {
        let mut run = Scenario::new();
        run.steps(10 * scanned, |s, i| {
            if i % 10 == 0 {
                step(s, i, 1.0 + noise(i), 3e-3, 1.0, Some(1e-3));
            } else {
                s.loss(1.0 + noise(i)).lr(1e-3).tier(Tier::Off);
            }
        });
        let risen = 10 * scanned + 2;
        run.steps(5, |s, i| {
            if i < risen {
                s.loss(2.0 + noise(i)).lr(1e27).tier(Tier::Off);
            } else {
                step(s, i, f64::NAN, if i == risen { 0.0 } else { 0.3 }, 1.0, Some(1e27));
            }
        });
        let d = diagnose(&run);
        let f = d.findings().iter().find(|f| f.code == "AMP403").expect("found");
        assert!(f.explanation.contains("rose there from 0.001 to 1.00e27"), "{scanned}: {}", f.explanation);
        assert_eq!(f.remedy.settings().as_deref(), Some("lr = 0.001"), "{scanned}");
    }
}

#[test]
fn a_loss_that_falls_no_more_under_updates_of_8_percent_is_a_warning() {
    let f = only(&run(40, |i| (1.05 + 0.1 * noise(i), 0.08, 1.2, Some(3e-2))));
    assert_eq!((f.severity, f.onset_step), (Severity::Warning, 20));
}

#[test]
fn large_updates_that_do_no_harm_are_silent() {
    // Warm-up, from nothing to 2 % a step; a jump under which the loss goes on falling; the first steps of weights that start near zero.
    let mut warm_up = Scenario::new();
    warm_up.steps(40, |s, i| step(s, i, 2.0 - 0.02 * i as f64 + noise(i), 5e-4 * i as f64, 1.0, Some(1e-4 * i as f64)));
    assert!(found(&diagnose(&warm_up)).is_empty(), "{:#?}", diagnose(&warm_up).findings());
    assert!(found(&diagnose(&run(50, |i| (1.0 - 0.02 * (i - 20) as f64, 0.08, 1.0, Some(3e-2))))).is_empty());
    let mut from_zero = Scenario::new();
    from_zero.steps(40, |s, i| step(s, i, 2.3 / (1.0 + i as f64), 1.0 / (1.0 + i as f64), 1.0, None));
    assert!(found(&diagnose(&from_zero)).is_empty());
}

#[test]
fn a_restart_of_a_schedule_that_the_run_bore_before_is_silent() {
    let mut run = Scenario::new();
    run.steps(90, |s, i| {
        let phase = (i % 30) as f64 / 30.0;
        let lr = 0.5 * (1.0 + (std::f64::consts::PI * phase).cos());
        let loss = if i % 30 < 8 && i >= 30 { 1.4 } else { 1.0 };
        step(s, i, loss + noise(i), 0.02 * lr + 1e-5, 1.0, Some(lr * 1e-2));
    });
    assert!(found(&diagnose(&run)).is_empty(), "{:#?}", diagnose(&run).findings());
}

#[test]
fn one_bad_batch_whose_update_passes_without_harm_is_silent() {
    // Its own loss is high, its update large, and momentum carries it on; the next losses are what they were.
    let after = |i: u64| match i {
        25 => (8.0, 0.06, 20.0, None),
        26..40 => (1.0, 0.06 * 0.9f64.powi(i as i32 - 25), 1.0, None),
        _ => (1.0, 3e-3, 1.0, None),
    };
    assert!(found(&diagnose(&run(50, after))).is_empty());
}

#[test]
fn biases_and_gains_may_move_as_they_like() {
    let mut run = Scenario::new();
    run.steps(30, |s, i| {
        step(s, i, if i < 20 { 1.0 } else { 3.0 }, 3e-3, 1.0, None);
        let size = if i < 20 { 1e-3 } else { 1.0 };
        s.update("fc", "add_", "bias", &[size; 64]).param("fc", "bias", F32, &[1.0; 64]);
        s.update("norm", "add_", "weight", &[size; 32]).param("norm", "weight", F32, &[1.0; 32]);
    });
    assert!(!found(&diagnose(&run)).contains(&"AMP403"));
}

#[test]
fn under_a_scaler_that_skips_after_the_jump_the_losses_of_the_skipped_steps_tell() {
    let mut run = run(21, |_| (1.0, 0.3, 1.0, Some(0.1)));
    run.steps(3, |s, i| {
        s.loss(40.0).skipped(1024.0, 512.0).activation("fc", "linear", F16, &normal(64, 100.0, i));
    });
    assert!(found(&diagnose(&run)).contains(&"AMP403"));
}

#[test]
fn weights_that_change_while_the_scaler_skips_the_step_are_not_the_learning_rates_doing() {
    let changed = |withheld: bool| {
        let mut run = Scenario::new();
        // So many steps are skipped that the first are forgotten.
        run.dynamic_scaler(1024.0).steps(120, |s, i| {
            if i >= 24 {
                s.loss(3.0 + noise(i)).skipped(1024.0, 1024.0);
                return;
            }
            match i {
                20.. if withheld => s.skipped(1024.0, 1024.0),
                _ => s.applied(1024.0),
            };
            let (loss, ratio) = if i < 20 { (1.0 + noise(i), 3e-3) } else { (if i == 20 { 1.0 } else { 3.0 }, 1.0) };
            step(s, i, loss, ratio, 1.0, Some(1e-3));
        });
        found(&diagnose(&run)).contains(&"AMP403")
    };
    assert!(changed(false) && !changed(true));
}

#[test]
fn an_update_that_no_learning_rate_makes_is_not_laid_to_it() {
    // Weights of 0.1 become others of that size, at a learning rate of 1e-3: Adam moves an element by some thousandths.
    let written = |operator: &'static str, gradient: f64| {
        let mut run = Scenario::new();
        run.steps(24, |s, i| {
            let loss = if i <= 20 { 1.0 } else { 3.0 };
            s.loss(loss + noise(i)).lr(1e-3);
            s.gradient("fc", "linear", F32, &normal(64, 1e-3, i)).param_grad("fc", "weight", F32, &[gradient; 256]);
            let size = if i < 20 { 3e-4 } else { 0.1 };
            s.update("fc", operator, "weight", &normal(256, size, i)).param("fc", "weight", F32, &normal(256, 0.1, 3));
        });
        only(&run)
    };
    for f in [written("addcdiv_", 1.0), written("add_", 0.1)] {
        assert!(f.explanation.contains("Something else wrote the weights"), "{}", f.explanation);
        assert!(f.remedy.set.is_empty() && f.remedy.text.contains("checkpoint"), "{:?}", f.remedy);
    }
    // Of gradients this large plain descent makes it.
    let f = written("add_", 10.0);
    assert!(f.explanation.contains("or something else wrote the weights") && !f.remedy.set.is_empty(), "{f:#?}");
}
