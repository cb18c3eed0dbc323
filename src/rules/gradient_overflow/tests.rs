use crate::observation::scenario::{Scenario, StepBuilder, normal};
use crate::rules::silence::{diagnose, found};
use crate::rules::{Finding, Severity};
use crate::scan::Dtype::{F16, F32};

const INF: f64 = f64::INFINITY;

/// Backward through three layers: the gradient of `fc2` is `size`, made by the backward of `fc3`; `fc1` inherits what is infinite.
fn backward(s: &mut StepBuilder<'_>, size: f64, seed: u64) {
    s.loss(1.0).activation("fc1", "linear", F16, &normal(128, 100.0, seed));
    s.gradient("fc3", "linear", F16, &normal(128, 1.0, seed));
    s.gradient("fc2", "linear", F16, &[size; 128]).via("fc3", "linear", F16);
    s.gradient("fc1", "linear", F16, &[if size > 65504.0 { f64::NAN } else { size }; 128]).inherited();
}

fn only(run: &Scenario) -> Finding {
    let d = diagnose(run);
    assert_eq!(found(&d), ["AMP202"], "{:#?}", d.findings());
    d.findings()[0].clone()
}

#[test]
fn case_18_an_overflow_that_begins_in_backward_names_its_layer_and_the_operator_that_made_it() {
    let mut run = Scenario::new();
    run.steps(2, |s, i| backward(s, 1e6, i));
    let f = only(&run);
    assert_eq!((f.severity, f.layer.as_str(), f.onset_step), (Severity::Error, "fc2", 0));
    assert!(
        f.explanation.contains("backward of `fc3/linear`") && f.explanation.contains("no loss scaler"),
        "{}",
        f.explanation
    );
    assert!(f.remedy.text.contains("GradScaler") && f.remedy.text.contains("layer `fc3`"), "{}", f.remedy.text);
}

#[test]
fn case_18_at_a_static_scale_of_4096() {
    let mut run = Scenario::new();
    run.static_scaler(4096.0).steps(17, |s, i| {
        s.skipped(4096.0, 4096.0);
        backward(s, 3e6, i);
    });
    // All steps overflow, and a lower scale would do: but it is one operator's backward that blows up a gradient of ordinary size.
    let f = only(&run);
    assert_eq!((f.severity, f.layer.as_str(), f.onset_step), (Severity::Error, "fc2", 0), "{f:#?}");
    // What the operators took is not known here, so neither is where the gradient is back in range.
    assert!(
        f.remedy.text.contains("train in BF16") && f.remedy.settings().as_deref() == Some("precision = bf16"),
        "{:?}",
        f.remedy
    );

    let mut now_and_then = Scenario::new();
    now_and_then.static_scaler(4096.0).steps(32, |s, i| {
        if i % 8 == 7 {
            s.skipped(4096.0, 4096.0);
        } else {
            s.applied(4096.0);
        }
        backward(s, if i % 8 == 7 { 3e6 } else { 3.0 }, i);
    });
    assert_eq!((only(&now_and_then).layer.as_str(), only(&now_and_then).onset_step), ("fc2", 7));
}

#[test]
fn case_4_calibration_is_no_finding() {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(8, |s, i| {
        let scale = if i < 2 { 65536.0 / (1 << i) as f64 } else { 16384.0 };
        if i < 2 {
            s.skipped(scale, scale / 2.0)
        } else {
            s.applied(scale)
        };
        backward(s, 3.0 * scale, i);
    });
    let d = diagnose(&run);
    assert!(found(&d).is_empty(), "{:#?}", d.findings());
    assert_eq!(d.aggregate().scaler.calibration_skips, 2);
}

#[test]
fn case_5_a_scaler_that_probes_its_ceiling_is_no_finding() {
    let mut run = Scenario::new();
    run.dynamic_scaler(16384.0).steps(120, |s, i| {
        let probe = i % 21 == 20;
        let scale = if probe { 32768.0 } else { 16384.0 };
        if probe {
            s.skipped(scale, 16384.0)
        } else {
            s.applied(scale)
        };
        backward(s, 3.0 * scale, i);
    });
    assert!(found(&diagnose(&run)).is_empty());
}

#[test]
fn a_long_descent_in_which_the_overflow_recedes_is_calibration() {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(14, |s, i| {
        let scale = 2f64.powi(16 - i.min(12) as i32);
        if i < 12 {
            s.skipped(scale, scale / 2.0)
        } else {
            s.applied(scale)
        };
        s.loss(1.0).gradient("fc1", "linear", F16, &normal(4096, 1000.0 * scale, i));
    });
    assert!(found(&diagnose(&run)).is_empty(), "{:#?}", diagnose(&run).findings());
}

#[test]
fn an_overflow_that_no_halving_cures_is_first_a_warning_and_then_an_error() {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0);
    for i in 0..30 {
        let scale = 2f64.powi(16 - i);
        run.step(|s| {
            s.skipped(scale, scale / 2.0);
            backward(s, INF, i as u64);
        });
        let d = diagnose(&run);
        let expected = match i {
            0..8 => None,
            8..17 => Some(Severity::Warning),
            _ => Some(Severity::Error),
        };
        assert_eq!(d.findings().first().map(|f| f.severity), expected, "step {i}");
    }
    let f = only(&run);
    assert_eq!((f.layer.as_str(), f.onset_step, f.last_step), ("fc2", 0, 29));
    // A floor was measured to end two to six times worse than none: every step that overflows at it is lost.
    assert!(!f.remedy.text.contains("floor"), "{}", f.remedy.text);
    assert_eq!(f.remedy.settings().as_deref(), Some("precision = bf16"));
}

/// A descent from 2^16 in three layers, of which `fc2` inflates its gradient by 2^30 from step `from` on; `fc1` adds two octaves to what it is handed.
fn inflated(from: u64, steps: u64) -> Scenario {
    let mut run = Scenario::new();
    let fits = |size: f64| if size > 65504.0 { INF } else { size };
    run.dynamic_scaler(65536.0).steps(from, |s, i| {
        s.applied(65536.0);
        backward(s, 3.0, i);
    });
    run.steps(steps, |s, i| {
        let scale = 2f64.powi(16 - (i - from) as i32);
        s.skipped(scale, scale / 2.0).loss(1.0).activation("fc1", "linear", F16, &normal(128, 100.0, i));
        s.gradient("fc3", "linear", F16, &normal(128, 1e-3 * scale, i));
        let size = 2f64.powi(18) * scale;
        s.gradient("fc2", "linear", F16, &[fits(size); 128]).via("fc3", "linear", F16);
        s.gradient("fc1", "linear", F16, &[fits(4.0 * size); 128]).via("fc2", "linear", F16);
        if size > 65504.0 {
            s.inherited();
        }
    });
    run
}

#[test]
fn what_overflows_behind_the_layer_at_lower_scales_is_no_finding_of_its_own() {
    // From 2^-3 on fc2 fits, and fc1 does not until 2^-5.
    let f = only(&inflated(20, 21));
    assert_eq!((f.severity, f.layer.as_str(), f.onset_step), (Severity::Error, "fc2", 20), "{f:#?}");
    assert!(f.explanation.contains("`fc2/linear` was, at step 38, infinite"), "{}", f.explanation);
    assert!(f.explanation.contains("still too large for `fc1/linear` behind it"), "{}", f.explanation);
    assert!(f.remedy.text.contains("layer `fc3`"), "{}", f.remedy.text);
}

#[test]
fn what_a_high_scale_made_overflow_before_it_reached_the_layer_is_not_blamed() {
    let mut run = Scenario::new();
    run.dynamic_scaler(2f64.powi(24)).steps(34, |s, i| {
        let scale = 2f64.powi(24 - i as i32);
        s.skipped(scale, scale / 2.0);
        s.loss(1.0).activation("fc1", "linear", F16, &normal(128, 100.0, i));
        // The head overflows by the scale alone, until 2^17.
        s.gradient("fc3", "linear", F16, &[if i < 7 { INF } else { 1e-3 * scale }; 128]);
        s.gradient("fc2", "linear", F16, &[INF; 128]).via("fc3", "linear", F16);
        if i < 7 {
            s.inherited();
        }
    });
    assert_eq!(only(&run).layer, "fc2");
}

#[test]
fn near_the_end_at_a_static_scale_is_a_warning_with_the_scale_to_set() {
    let mut run = Scenario::new();
    run.static_scaler(1024.0).steps(3, |s, i| {
        s.applied(1024.0);
        backward(s, 40000.0, i);
    });
    let f = only(&run);
    assert_eq!((f.severity, f.layer.as_str()), (Severity::Warning, "fc2"));
    assert!(f.remedy.text.contains("from 1024 (2^10) to 128 (2^7)"), "{}", f.remedy.text);
}

#[test]
fn a_parameter_gradient_that_autocast_made_infinite_names_its_layer() {
    let mut run = Scenario::new();
    run.steps(2, |s, i| {
        s.loss(1.0).gradient("fc2", "linear", F16, &normal(128, 1.0, i)).gradient(
            "fc1",
            "linear",
            F16,
            &normal(128, 1.0, i),
        );
        s.param_grad("fc1", "weight", F32, &normal(64, 1.0, i)).param_grad("fc2", "weight", F32, &[INF; 64]);
    });
    assert_eq!(only(&run).layer, "fc2");
}

#[test]
fn skips_that_were_not_scanned_are_told_without_a_layer() {
    let mut run = Scenario::new();
    run.static_scaler(65536.0).steps(14, |s, i| {
        s.applied(65536.0);
        backward(s, 3.0, i);
    });
    run.steps(4, |s, _| {
        s.tier(crate::observation::Tier::Light).loss(1.0).skipped(65536.0, 65536.0);
    });
    let f = only(&run);
    assert_eq!((f.layer.as_str(), f.onset_step), ("", 14));
    assert!(f.explanation.contains("every(1)"), "{}", f.explanation);
}
