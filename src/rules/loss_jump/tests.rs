use crate::observation::Tier;
use crate::observation::scenario::{Scenario, StepBuilder, normal};
use crate::rules::silence::diagnose;
use crate::rules::{Finding, Severity, Value};
use crate::scan::Dtype::F32;

/// A number even between 0 and 1, the same for the same seed.
fn chance(i: u64) -> f64 {
    let x = normal(1, 1.0, i * 7 + 5)[0];
    0.5 * (1.0 + (x / 1.2).tanh())
}

/// A loss that falls from 2.3 with noise of a tenth.
fn falling(i: u64) -> f64 {
    (0.3 + 2.0 * (-(i as f64) / 25.0).exp()) * (1.0 + 0.1 * normal(1, 1.0, i)[0])
}

/// A run of which nothing but losses and the learning rate is known.
fn unscanned(steps: u64, of: impl Fn(u64) -> (f64, Option<f64>)) -> Scenario {
    let mut run = Scenario::new();
    run.steps(steps, |s, i| light(s, of(i)));
    run
}

fn light(s: &mut StepBuilder<'_>, (loss, lr): (f64, Option<f64>)) {
    s.loss(loss).tier(Tier::Off);
    lr.map(|lr| s.lr(lr));
}

/// The same, scanned: the update's part of the weights, and the norm of the gradient.
fn scanned(s: &mut StepBuilder<'_>, i: u64, loss: f64, ratio: f64, gradient: f64) {
    s.loss(loss).param_grad("fc", "weight", F32, &[gradient / 16.0; 256]);
    s.update("fc", "add_", "weight", &normal(256, 0.1 * ratio, i)).param("fc", "weight", F32, &normal(256, 0.1, 3));
}

fn jump(run: &Scenario) -> Option<Finding> {
    diagnose(run).findings().iter().find(|f| f.code == "AMP701").cloned()
}

fn cause(finding: &Finding) -> &str {
    match finding.evidence.iter().find(|e| e.name == "cause").map(|e| &e.value) {
        Some(Value::Text(cause)) => cause,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_learning_rate_that_was_raised_is_the_cause_though_nothing_was_scanned() {
    let run = unscanned(120, |i| match i {
        0..80 => (falling(i), Some(1e-3)),
        _ => (falling(80) + if i == 80 { 0.0 } else { 6.0 + chance(i) }, Some(3e-2)),
    });
    let f = jump(&run).expect("found");
    assert_eq!((f.severity, f.onset_step, cause(&f)), (Severity::Error, 81, "learning rate"), "{}", f.explanation);
    assert!(f.explanation.contains("from 0.001 to 0.030 at step 80"), "{}", f.explanation);
    assert_eq!((f.remedy.set.len(), f.remedy.set[0].name, &f.remedy.set[0].value), (1, "lr", &Value::Number(1e-3)));
}

#[test]
fn where_nothing_is_known_it_is_information_at_first_and_a_warning_where_it_stays() {
    let of = |i: u64| (if i < 60 { falling(i) } else { 1.6 + 0.1 * chance(i) }, None);
    let f = jump(&unscanned(75, of)).expect("found");
    assert_eq!((f.severity, f.onset_step, cause(&f)), (Severity::Info, 60, "unknown"));
    assert!(f.remedy.text.contains("doctor.lr(lr)") && f.remedy.text.contains("every(1)"), "{}", f.remedy.text);
    let f = jump(&unscanned(110, of)).expect("found");
    assert_eq!((f.severity, f.onset_step), (Severity::Warning, 60));
}

#[test]
fn the_next_scan_tells_an_update_that_outgrew_its_gradient_from_the_data() {
    let run = |ratio: f64, gradient: f64| {
        let mut run = Scenario::new();
        run.steps(110, |s, i| {
            let loss = if i < 61 { falling(i) } else { 3.0 + chance(i) };
            match i % 20 {
                5 if i < 60 => scanned(s, i, loss, 1e-3, 1.0),
                5 => scanned(s, i, loss, ratio, gradient),
                _ => light(s, (loss, None)),
            }
        });
        jump(&run).expect("found")
    };
    let f = run(3e-2, 2.0);
    assert_eq!((f.severity, cause(&f)), (Severity::Error, "update"), "{}", f.explanation);
    let f = run(2e-3, 2.0);
    assert_eq!((f.severity, cause(&f)), (Severity::Info, "data"), "{}", f.explanation);
    // It grew with the loss: that says nothing of what came first.
    let f = run(2e-2, 20.0);
    assert_eq!((f.severity, cause(&f)), (Severity::Error, "unknown"), "{}", f.explanation);
    let scanned = "were scanned, and none between them; those since are larger, but so is the gradient";
    assert!(f.explanation.contains(scanned), "{}", f.explanation);
}

#[test]
fn one_gradient_that_exploded_is_named_and_its_norm_to_clip_at() {
    let mut run = Scenario::new();
    run.steps(90, |s, i| {
        let loss = if i < 61 { falling(i) } else { 1.5 + 0.2 * chance(i) };
        let (ratio, gradient) = if i == 60 { (0.2, 300.0) } else { (1e-3, 1.0) };
        scanned(s, i, loss, ratio, gradient);
    });
    let f = jump(&run).expect("found");
    assert_eq!((cause(&f), f.onset_step), ("gradient", 61));
    assert_eq!((f.remedy.set[0].name, &f.remedy.set[0].value), ("clip", &Value::Number(2.0)));
}

#[test]
fn where_the_update_before_was_an_ordinary_one_it_is_the_data_however_large_the_next_ones_are() {
    let mut run = Scenario::new();
    run.steps(140, |s, i| {
        let (loss, ratio) = if i < 60 { (falling(i), 1e-3) } else { (3.0 + chance(i), 2e-2) };
        scanned(s, i, loss, ratio, 1000.0 * ratio);
    });
    let f = jump(&run).expect("found");
    assert_eq!((f.severity, cause(&f), f.onset_step), (Severity::Info, "data", 60), "{}", f.explanation);
}

#[test]
fn a_loss_that_is_reported_with_its_scale_is_told_from_one_that_jumped() {
    let mut run = Scenario::new();
    run.dynamic_scaler(1024.0).steps(100, |s, i| {
        let scale = if i < 60 { 1024.0 } else { 2048.0 };
        light(s, (scale * falling(100 + i), Some(1e-3)));
        if i == 59 {
            s.moved(1024.0, 2048.0)
        } else {
            s.applied(scale)
        };
    });
    let f = jump(&run).expect("found");
    assert_eq!((f.severity, cause(&f)), (Severity::Warning, "loss scale reported with the loss"), "{}", f.explanation);
}

#[test]
fn a_scale_that_doubled_and_a_step_that_was_skipped_are_not_blamed_for_a_learning_rate() {
    let mut run = Scenario::new();
    run.dynamic_scaler(1024.0).steps(120, |s, i| {
        let lr = if i < 60 { 1e-3 } else { 1e-2 };
        light(s, (if i < 61 { falling(i) } else { 3.0 * (-(i as f64 - 61.0) / 15.0).exp() + 0.5 }, Some(lr)));
        match i {
            59 => s.moved(1024.0, 2048.0),
            60 => s.skipped(2048.0, 1024.0),
            _ => s.applied(1024.0),
        };
    });
    let f = jump(&run).expect("found");
    assert_eq!((cause(&f), f.onset_step), ("learning rate", 61));
    assert!(f.explanation.contains("1 of the steps about it were skipped"), "{}", f.explanation);
}

#[test]
fn noise_of_a_batch_of_one_is_silent() {
    // Mostly almost nothing, now and then five.
    let heavy = |i: u64| if chance(i) > 0.8 { 5.0 * chance(i + 1) } else { 0.01 * chance(i + 2) };
    assert!(jump(&unscanned(1500, |i| (heavy(i), Some(1e-3)))).is_none());
    let log_normal = |i: u64| (1.5 * normal(1, 1.0, i)[0]).exp();
    assert!(jump(&unscanned(1500, |i| (log_normal(i), Some(1e-3)))).is_none());
}

#[test]
fn single_losses_that_are_high_a_slow_rise_and_a_start_are_silent() {
    let spikes = |i: u64| if i % 40 < 6 { 30.0 } else { falling(i) };
    assert!(jump(&unscanned(300, |i| (spikes(i), None))).is_none());
    assert!(jump(&unscanned(300, |i| (1.0 + 0.01 * i as f64 + 0.02 * chance(i), None))).is_none());
    assert!(jump(&unscanned(15, |i| (if i < 4 { 2.3 } else { 9.0 }, None))).is_none());
}

#[test]
fn a_converged_loss_that_bounces_is_silent() {
    let bounces = |i: u64| match i {
        0..60 => 2.3 * (-(i as f64) / 6.0).exp() + 1e-4 * chance(i),
        100..115 => 0.02 + 0.01 * chance(i),
        _ => 1e-4 * (1.0 + chance(i)),
    };
    assert!(jump(&unscanned(200, |i| (bounces(i), None))).is_none());
}

#[test]
fn a_restart_of_a_schedule_is_silent_and_a_higher_one_is_not() {
    let cosine = |i: u64| 0.5 * (1.0 + (std::f64::consts::PI * (i % 100) as f64 / 100.0).cos());
    let restarts = |peak: f64| {
        unscanned(300, move |i| {
            let lr = if i >= 200 { peak } else { 1e-2 } * cosine(i) + 1e-6;
            let loss = if i % 100 < 25 && i >= 200 { 1.5 } else { falling(i) };
            (loss * (1.0 + 0.05 * chance(i)), Some(lr))
        })
    };
    assert!(jump(&restarts(1e-2)).is_none());
    assert_eq!(jump(&restarts(1e-1)).map(|f| f.severity), Some(Severity::Warning));
}

#[test]
fn losses_of_any_sign_are_judged_and_what_is_not_finite_is_passed_over() {
    let f = jump(&unscanned(120, |i| (if i < 60 { -5.0 } else { 4.0 } + 0.3 * chance(i), None))).expect("found");
    assert_eq!(f.onset_step, 60);
    assert!(jump(&unscanned(120, |i| (if i < 60 { 1.0 } else { f64::NAN }, None))).is_none());
    assert!(jump(&unscanned(120, |_| (0.0, None))).is_none());
}

/// A run whose loss jumps at step 60, at an update like any other, with what forward does.
fn at_an_ordinary_update(steps: u64, after: f64, forward: impl Fn(&mut StepBuilder<'_>, u64)) -> Scenario {
    let mut run = Scenario::new();
    run.steps(steps, |s, i| {
        scanned(s, i, if i < 60 { falling(i) } else { after + 0.1 * chance(i) }, 1e-3, 1.0);
        forward(s, i);
    });
    run
}

#[test]
fn an_output_that_changed_its_size_there_is_named_and_the_norm_that_makes_nothing_of_it() {
    let f = jump(&at_an_ordinary_update(80, 3.0, |s, i| {
        let size = if i < 60 { 1.0 } else { 1e-7 };
        s.activation("fc1", "linear", F32, &normal(256, 1.0, i));
        s.activation("fc2", "mul", F32, &normal(256, size, i)).from(&["fc1/linear"]);
        let out = if i < 60 { 1.0 } else { 0.1 };
        s.activation("bn2", "batch_norm", F32, &normal(256, out, i)).from(&["fc2/mul"]);
    }))
    .expect("found");
    assert_eq!((f.severity, cause(&f), f.onset_step), (Severity::Error, "forward", 60), "{}", f.explanation);
    assert!(f.explanation.contains("the output of `fc2/mul` is 2^23 times smaller at step 60"), "{}", f.explanation);
    assert!(f.explanation.contains("`bn2/batch_norm`, which takes it, adds its epsilon"), "{}", f.explanation);
    assert!(f.remedy.set.is_empty() && f.remedy.text.contains("up by 2^23 before `bn2/batch_norm`"), "{:?}", f.remedy);
}

#[test]
fn outputs_that_only_follow_the_data_leave_it_the_data() {
    let f = jump(&at_an_ordinary_update(80, 3.0, |s, i| {
        s.activation("fc1", "linear", F32, &normal(256, if i < 60 { 1.0 } else { 8.0 }, i));
        s.activation("loss", "mean", F32, &[if i < 60 { 1e-3 } else { 3.0 }]);
    }));
    assert_eq!(f.map(|f| cause(&f).to_string()).as_deref(), Some("data"));
}

#[test]
fn what_is_said_of_the_present_loss_is_of_the_present() {
    let told = |steps, after: f64| jump(&at_an_ordinary_update(steps, after, |_, _| {})).expect("found");
    let soon = told(75, 2.6);
    assert!(soon.explanation.contains("At step 74 the loss is 2.6"), "{}", soon.explanation);
    // The jump is forgotten long before step 299, the finding is not.
    let mut run = at_an_ordinary_update(80, 2.6, |_, _| {});
    run.steps(220, |s, i| light(s, (0.3 + 0.01 * chance(i), None)));
    let later = jump(&run).expect("found");
    assert!(later.explanation.contains("At step 299 the loss is 0.30"), "{}", later.explanation);
    assert!(later.explanation.ends_with("it has come down again."), "{}", later.explanation);
    let now = later.evidence.iter().find(|e| e.name == "loss_now").map(|e| &e.value);
    assert!(matches!(now, Some(Value::Number(x)) if *x < 0.32), "{now:?}");
    assert_eq!(later.severity, Severity::Info);
}

#[test]
fn a_loss_that_stays_where_the_run_began_is_a_warning_even_if_it_is_the_data() {
    let long = at_an_ordinary_update(200, 2.35, |_, _| {});
    let f = jump(&long).expect("found");
    assert_eq!((cause(&f), f.severity), ("data", Severity::Warning), "{}", f.explanation);
    assert!(f.explanation.contains("for 96 losses nothing of what was learnt has come back"), "{}", f.explanation);
    assert!(!diagnose(&long).doubts().iter().any(|doubt| doubt.code == "AMP702"), "one finding tells it");
    // Half of what was learnt is a task that goes on, and so is a loss that falls again.
    assert_eq!(jump(&at_an_ordinary_update(200, 1.7, |_, _| {})).map(|f| f.severity), Some(Severity::Info));
    let mut again = at_an_ordinary_update(100, 2.4, |_, _| {});
    again.steps(100, |s, i| light(s, (2.4 - 0.012 * i as f64, None)));
    assert_eq!(jump(&again).map(|f| f.severity), Some(Severity::Info));
}

#[test]
fn a_jump_by_a_gradient_that_fits_after_skips_says_how_many() {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(80, |s, i| {
        let loss = if i < 61 { falling(i) } else { 3.0 + chance(i) };
        let (ratio, gradient) = if i == 60 { (0.2, 300.0) } else { (1e-3, 1.0) };
        if (54..60).contains(&i) {
            s.loss(loss).skipped(65536.0, 65536.0);
        } else {
            scanned(s, i, loss, ratio, gradient);
            s.applied(65536.0);
        }
    });
    let d = diagnose(&run);
    let f = crate::rules::silence::first(&d, "AMP701").expect("found");
    let skipped = f.evidence.iter().find(|e| e.name == "skipped_steps_before").map(|e| &e.value);
    assert_eq!(skipped, Some(&Value::Count(6)), "{f:#?}");
}
