//! Values that are not finite: where they are said to begin, and where nothing is said.

use crate::observation::scenario::{Scenario, StepBuilder, normal};
use crate::observation::{Probe, Sampling, Tier};
use crate::rules::silence::{diagnose, first, found};
use crate::rules::{Diagnosis, Finding};
use crate::scan::Dtype::{self, Bf16, F16, F32};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

fn well(s: &mut StepBuilder<'_>, dtype: Dtype, seed: u64) {
    s.loss(1.0).activation("fc1", "linear", dtype, &normal(64, 1.0, seed)).activation(
        "fc2",
        "linear",
        dtype,
        &normal(64, 1.0, seed),
    );
    s.gradient("fc2", "linear", dtype, &normal(64, 1.0, seed)).gradient("fc1", "linear", dtype, &normal(64, 1.0, seed));
}

fn only(d: &Diagnosis) -> &Finding {
    assert_eq!(found(d), ["AMP501"], "{:#?}", d.findings());
    &d.findings()[0]
}

#[test]
fn a_nan_made_in_forward_is_named_at_once_in_every_precision() {
    for dtype in [F16, Bf16, F32] {
        let mut run = Scenario::new();
        run.steps(3, |s, i| well(s, dtype, i)).steps(3, |s, _| {
            s.loss(NAN).activation("fc1", "linear", dtype, &[1.0]).activation("fc2", "log", dtype, &[NAN]);
            s.activation("fc3", "linear", dtype, &[NAN]).inherited();
            s.gradient("fc3", "linear", dtype, &[NAN]).gradient("fc1", "linear", dtype, &[NAN]).inherited();
        });
        let d = diagnose(&run);
        let f = only(&d);
        assert_eq!((f.layer.as_str(), f.operator.as_str(), f.onset_step, f.last_step), ("fc2", "log", 3, 5));
        assert!(f.explanation.contains("independent") && f.remedy.text.contains("clamp"), "{f:#?}");
    }
}

#[test]
fn case_2_the_logarithm_of_zero_is_named_before_the_scale_is_gone() {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).step(|s| {
        s.skipped(65536.0, 32768.0).loss(INF).activation("head", "log", F32, &[-INF, 0.1]);
    });
    assert_eq!(only(&diagnose(&run)).operator, "log");
}

#[test]
fn data_that_came_in_non_finite_is_named_as_data() {
    let mut run = Scenario::new();
    run.steps(2, |s, i| well(s, F32, i)).step(|s| {
        s.loss(NAN).activation("input", "data", F32, &[NAN, 1.0]).activation("fc1", "linear", F32, &[NAN]).inherited();
    });
    let d = diagnose(&run);
    assert_eq!(only(&d).layer, "input");
    assert!(only(&d).remedy.text.contains("batch of step 2"), "{}", only(&d).remedy.text);

    // Without an operator before the first layer there is nobody to name: it was handed in.
    let mut run = Scenario::new();
    run.steps(2, |s, i| well(s, F32, i)).step(|s| {
        s.loss(NAN).activation("fc1", "linear", F32, &[NAN]).inherited();
    });
    assert_eq!(only(&diagnose(&run)).layer, "input");
}

#[test]
fn a_non_finite_tensor_that_the_model_was_not_handed_is_not_the_origin() {
    // A loop that averages its losses hands yesterday's NaN to an operator of its own.
    let mut run = Scenario::new();
    run.steps(2, |s, i| well(s, F32, i)).steps(2, |s, _| {
        s.loss(NAN).activation("input", "data", F32, &[NAN]);
        s.activation("fc1", "linear", F32, &[1.0]).activation("fc2", "log", F32, &[NAN]);
    });
    let d = diagnose(&run);
    assert_eq!((only(&d).layer.as_str(), only(&d).last_step), ("fc2", 3));
    let mut run = Scenario::new();
    run.steps(3, |s, i| {
        well(s, F32, i);
        s.activation("input", "data", F32, &[NAN]);
    });
    assert!(found(&diagnose(&run)).is_empty());
}

#[test]
fn what_a_ruined_weight_makes_is_no_origin() {
    let mut run = Scenario::new();
    run.steps(2, |s, i| well(s, F32, i)).step(|s| {
        s.loss(NAN).activation("fc1", "linear", F32, &[1.0]).activation("fc2", "log", F32, &[NAN]);
        s.gradient("fc2", "log", F32, &[NAN]).param("fc1", "weight", F32, &[NAN]);
    });
    run.steps(3, |s, _| {
        s.loss(NAN).activation("fc1", "linear", F32, &[NAN]).activation("fc2", "log", F32, &[NAN]).inherited();
    });
    assert_eq!(only(&diagnose(&run)).layer, "fc2");
}

#[test]
fn what_follows_from_an_origin_is_not_another_finding() {
    let mut run = Scenario::new();
    run.steps(2, |s, i| well(s, F32, i)).step(|s| {
        s.loss(NAN).activation("fc1", "linear", F32, &[1.0]).activation("fc2", "sqrt", F32, &[NAN]);
        s.gradient("fc2", "sqrt", F32, &[NAN]).param("fc1", "weight", F32, &[NAN]).param("fc2", "weight", F32, &[NAN]);
        s.buffer("bn", "running_mean", &[NAN]);
    });
    run.steps(3, |s, _| {
        s.loss(NAN)
            .activation("fc1", "linear", F32, &[NAN])
            .inherited()
            .activation("fc2", "sqrt", F32, &[NAN])
            .inherited();
        s.param("fc1", "weight", F32, &[NAN]).buffer("bn", "running_mean", &[NAN]);
    });
    let d = diagnose(&run);
    assert_eq!((only(&d).layer.as_str(), only(&d).last_step), ("fc2", 2));
}

#[test]
fn a_bad_batch_that_was_not_scanned_is_told_although_the_scaler_had_to_find_its_scale_before() {
    let mut run = Scenario::sampled(Sampling::Every(5));
    run.dynamic_scaler(65536.0);
    run.step(|s| {
        well(s, F16, 0);
        s.gradient("fc1", "linear", F16, &[INF; 64]).skipped(65536.0, 32768.0);
    });
    let batch = |run: &mut Scenario, loss: f64, tier: Tier| {
        run.step(|s| {
            well(s, F16, 1);
            s.tier(tier).loss(loss);
            if loss.is_finite() {
                s.applied(32768.0)
            } else {
                s.skipped(32768.0, 32768.0)
            };
        });
    };
    (0..6).for_each(|_| batch(&mut run, 1.0, Tier::Full));
    assert!(found(&diagnose(&run)).is_empty());
    batch(&mut run, NAN, Tier::Light);
    batch(&mut run, 1.0, Tier::Full);
    let d = diagnose(&run);
    assert_eq!((only(&d).code, only(&d).onset_step), ("AMP501", 7));
    assert!(only(&d).explanation.contains("unobserved origin"), "{}", only(&d).explanation);
}

/// A layer norm in FP32 that three FP16 layers read, and a gradient of it that is infinite for three steps, until the scaler has found its scale.
fn read_in(dtype: Dtype) -> Diagnosis {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0);
    run.steps(12, |s, i| {
        let scale = 2f64.powi(16 - i.min(3) as i32);
        if i < 3 {
            s.loss(3.0).skipped(scale, scale / 2.0)
        } else {
            s.loss(3.0).applied(scale)
        };
        s.activation("ln", "layer_norm", F32, &normal(64, 1.0, i));
        for layer in ["q", "k", "v"] {
            s.activation(layer, "linear", dtype, &normal(64, 1.0, i)).from(&["ln/layer_norm"]);
            s.gradient(layer, "linear", dtype, &normal(64, 100.0, i));
        }
        let mut gradient = normal(64, 100.0, i);
        if i < 3 {
            gradient[0] = f64::INFINITY;
        }
        s.gradient("ln", "layer_norm", F32, &gradient).via("q", "linear", dtype);
    });
    diagnose(&run)
}

#[test]
fn an_fp32_gradient_that_an_fp16_operator_handed_back_overflows_with_the_scale() {
    assert!(found(&read_in(F16)).is_empty(), "{:#?}", read_in(F16).findings());
    let d = read_in(F32);
    let f = first(&d, "AMP501").expect("found");
    assert_eq!((f.layer.as_str(), f.onset_step), ("ln", 0));
    assert!(f.explanation.contains("`q/linear`, or of another of the 3 operators that take it,"), "{}", f.explanation);
}

#[test]
fn a_nan_born_in_backward_is_named_at_once_where_range_cannot_be_the_cause() {
    let mut run = Scenario::new();
    run.steps(2, |s, i| well(s, F32, i)).step(|s| {
        well(s, F32, 9);
        s.gradient("enc", "relu", F32, &[NAN; 64]).via("enc", "sqrt", F32);
    });
    let d = diagnose(&run);
    let f = only(&d);
    assert_eq!((f.layer.as_str(), f.probe, f.onset_step), ("enc", Some(Probe::ActivationGrad), 2));
    assert!(f.explanation.contains("backward of `enc/sqrt`") && f.remedy.text.contains("epsilon"), "{f:#?}");
}

#[test]
fn a_nan_gradient_in_fp16_needs_proof_that_the_scale_is_not_the_cause() {
    let step = |s: &mut StepBuilder<'_>, scale: f64, bad: bool, i: u64| {
        if bad {
            s.skipped(scale, scale / 2.0)
        } else {
            s.applied(scale)
        };
        s.loss(1.0).gradient("fc2", "linear", F16, &normal(64, 1e-4 * scale, i));
        s.gradient("fc1", "linear", F16, &if bad { vec![NAN; 64] } else { normal(64, 1e-4 * scale, i) });
    };
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(3, |s, i| step(s, 65536.0, false, i)).steps(1, |s, i| step(s, 65536.0, true, i));
    assert!(found(&diagnose(&run)).is_empty(), "one event proves nothing");
    run.steps(1, |s, i| step(s, 32768.0, true, i));
    let d = diagnose(&run);
    assert_eq!((only(&d).layer.as_str(), only(&d).onset_step), ("fc1", 3));
    assert!(only(&d).explanation.contains("below FP16's end"), "{}", only(&d).explanation);
}

#[test]
fn a_nan_gradient_from_the_first_step_is_proved_by_the_fall_of_the_scale() {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(9, |s, i| {
        let scale = 2f64.powi(16 - i as i32);
        s.loss(1.0).skipped(scale, scale / 2.0).gradient("fc1", "linear", F16, &[NAN; 64]);
    });
    let d = diagnose(&run);
    assert!(only(&d).explanation.contains("65536 (2^16) and still is at 256 (2^8)"), "{}", only(&d).explanation);
    assert_eq!(only(&d).onset_step, 0);
}

#[test]
fn a_parameter_ruined_by_its_update_names_the_optimizer() {
    let mut run = Scenario::new();
    run.step(|s| {
        well(s, F16, 0);
        s.update("fc1", "addcdiv_", "weight", &[NAN; 4]).param("fc1", "weight", F16, &[NAN; 4]);
        s.update("fc2", "addcdiv_", "weight", &[NAN; 4]).param("fc2", "weight", F16, &[NAN; 4]);
    });
    let d = diagnose(&run);
    let f = only(&d);
    assert_eq!((f.layer.as_str(), f.operator.as_str(), f.probe), ("fc1", "addcdiv_", Some(Probe::Param)));
}

#[test]
fn what_began_between_scans_is_said_to_be_of_unobserved_origin() {
    let mut run = Scenario::sampled(Sampling::Every(5));
    run.step(|s| well(s, F32, 0)).steps(4, |s, _| {
        s.tier(Tier::Light);
    });
    run.step(|s| {
        s.loss(NAN).activation("fc1", "linear", F32, &[NAN]).inherited().param("fc1", "weight", F32, &[NAN]);
    });
    let d = diagnose(&run);
    assert!(
        only(&d).explanation.contains("unobserved origin") && only(&d).remedy.text.contains("every(1)"),
        "{:#?}",
        only(&d)
    );
}

#[test]
fn a_loss_that_went_bad_unscanned_waits_for_the_next_scan() {
    let mut run = Scenario::sampled(Sampling::Every(5));
    run.step(|s| well(s, F32, 0)).step(|s| {
        s.tier(Tier::Light).loss(NAN);
    });
    let waiting = diagnose(&run);
    assert!(found(&waiting).is_empty() && waiting.doubts().iter().any(|d| d.code == "AMP501"));

    let mut explained = run.clone();
    explained.step(|s| {
        s.loss(NAN).activation("fc2", "log", F32, &[NAN]);
    });
    assert_eq!(only(&diagnose(&explained)).layer, "fc2");

    run.step(|s| well(s, F32, 2));
    let d = diagnose(&run);
    assert_eq!((only(&d).layer.as_str(), only(&d).onset_step), ("", 1));
    assert!(only(&d).explanation.contains("unobserved origin"), "{}", only(&d).explanation);
}

#[test]
fn a_pole_in_a_net_with_a_causal_mask_is_not_blamed_on_the_mask() {
    for (operator, value, advice) in [("log", -INF, "clamp"), ("div", NAN, "epsilon"), ("exp", INF, "in FP32")] {
        let mut run = Scenario::new();
        run.step(|s| {
            s.loss(NAN).activation("attn", "masked_fill", F16, &[1.0, -INF]);
            s.activation("attn", "softmax", F16, &[1.0, 0.0]).activation("up", operator, F16, &[value, 1.0]);
            if operator == "exp" {
                // It was handed the mask's -inf, and made +inf of a finite element.
                s.inherited();
            }
        });
        let d = diagnose(&run);
        let f = first(&d, "AMP501").unwrap();
        assert_eq!((f.layer.as_str(), f.operator.as_str()), ("up", operator));
        assert!(f.remedy.text.contains(advice) && !f.explanation.contains("a mask wrote"), "{f:#?}");
    }
}

#[test]
fn an_infinity_of_a_pole_is_no_matter_of_range() {
    for operator in ["log", "div#2", "rsqrt", "reciprocal", "log_"] {
        let mut run = Scenario::new();
        run.step(|s| {
            s.loss(1.0).activation("up", operator, F16, &[INF, 1.0]);
        });
        assert_eq!(only(&diagnose(&run)).operator, operator);
    }
}

#[test]
fn the_root_of_an_exact_zero_is_named_once_and_at_once() {
    let step = |s: &mut StepBuilder<'_>, i: u64, reaches: bool| {
        let scale = 65536.0 / (i as f64).exp2();
        if reaches {
            s.skipped(scale, scale / 2.0)
        } else {
            s.applied(65536.0)
        };
        s.loss(1.0).activation("up", "sqrt", F16, &[0.0, 1.0]);
        s.gradient("up", "sqrt", F16, &[1.0, 1.0]);
        s.gradient("up", "abs", F16, &[INF, 0.5]).via("up", "sqrt", F16);
    };
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(12, |s, i| step(s, i, true));
    let d = diagnose(&run);
    assert_eq!((only(&d).layer.as_str(), only(&d).onset_step), ("up", 0));
    assert!(only(&d).remedy.text.contains("epsilon") && only(&d).explanation.contains("exact zero"), "{:#?}", only(&d));

    // A ReLU behind it takes the infinity away: no parameter sees it.
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(12, |s, i| step(s, i, false));
    assert!(found(&diagnose(&run)).is_empty());
}

#[test]
fn the_onset_is_that_of_the_loss_where_the_steps_between_were_not_scanned() {
    let mut run = Scenario::sampled(Sampling::Every(3));
    run.step(|s| well(s, F32, 0)).steps(2, |s, i| {
        s.tier(Tier::Light).loss(if i == 2 { NAN } else { 1.0 });
    });
    run.step(|s| {
        s.loss(NAN).activation("fc2", "log", F32, &[NAN]);
    });
    let d = diagnose(&run);
    assert_eq!((only(&d).layer.as_str(), only(&d).onset_step), ("fc2", 2));
    assert!(
        only(&d).explanation.contains("since step 2") && only(&d).explanation.contains("from step 3"),
        "{:?}",
        only(&d)
    );
}

#[test]
fn a_loss_that_no_observed_operator_made_bad_is_told() {
    let mut run = Scenario::new();
    run.step(|s| {
        well(s, F32, 0);
        s.loss(NAN);
    });
    let d = diagnose(&run);
    assert!(only(&d).layer.is_empty() && only(&d).explanation.contains("not observed"), "{:#?}", only(&d));
}
