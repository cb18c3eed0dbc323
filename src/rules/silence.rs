//! Runs that must stay silent: every kind that healthy training is made of.

use super::{Diagnosis, Finding, Health};
use crate::observation::scenario::{Scenario, StepBuilder, normal};
use crate::scan::Dtype::{self, Bf16, F16, F32};

/// The diagnosis of a whole scenario.
pub(super) fn diagnose(run: &Scenario) -> Diagnosis {
    let mut diagnosis = Diagnosis::new();
    run.records().iter().cloned().for_each(|record| diagnosis.apply(record));
    diagnosis
}

/// The codes that were found, in the order of the findings.
pub(super) fn found(diagnosis: &Diagnosis) -> Vec<&'static str> {
    diagnosis.findings().iter().map(|f| f.code).collect()
}

/// The first finding of this code, whether it stands on its own or follows from another.
pub(super) fn first<'a>(diagnosis: &'a Diagnosis, code: &str) -> Option<&'a Finding> {
    diagnosis.findings().iter().flat_map(Finding::with_consequences).find(|f| f.code == code)
}

const LAYERS: [&str; 4] = ["fc1", "fc2", "fc3", "fc4"];

/// Forward and backward of four layers held in `dtype`, gradients of standard deviation `gradient` times `scale`.
fn healthy_step(s: &mut StepBuilder<'_>, dtype: Dtype, gradient: f64, scale: f64, i: u64) {
    s.loss(1.0 / (1.0 + i as f64));
    for (k, layer) in LAYERS.iter().enumerate() {
        s.activation(layer, "linear", dtype, &normal(256, 2.0, 7 * i + k as u64));
    }
    for (k, layer) in LAYERS.iter().enumerate().rev() {
        s.gradient(layer, "linear", dtype, &normal(256, gradient * scale, 11 * i + k as u64));
    }
    for layer in LAYERS {
        s.param_grad(layer, "weight", F32, &normal(64, gradient * scale, i));
        s.update(layer, "addcdiv_", "weight", &normal(64, 1e-5, i)).param(layer, "weight", F32, &normal(64, 0.1, i));
    }
}

fn assert_silent(run: &Scenario) {
    let d = diagnose(run);
    // These runs are short: a rule that wants more scanned steps may say so, and no more than that.
    let waits = |reason: &str| reason.contains("that it needs were");
    let may_wait = |code: &str| ["AMP4", "AMP104", "AMP70"].iter().any(|start| code.starts_with(start));
    let doubts = d.doubts().iter().all(|doubt| may_wait(doubt.code) && waits(&doubt.reason));
    assert!(d.findings().is_empty() && doubts, "{:#?} {:#?}", d.findings(), d.doubts());
    assert_eq!(d.health(), Health::Healthy);
}

/// A healthy FP16 run under a dynamic scaler, with `extra` in every step.
fn fp16_with(steps: u64, mut extra: impl FnMut(&mut StepBuilder<'_>, u64)) -> Scenario {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(steps, |s, i| {
        s.applied(65536.0);
        healthy_step(s, F16, 1e-4, 65536.0, i);
        extra(s, i);
    });
    run
}

#[test]
fn healthy_fp32_and_bf16_without_a_scaler() {
    for dtype in [F32, Bf16] {
        let mut run = Scenario::new();
        // Gradients of 1e-7 and activations of 1e5 are nothing to these formats.
        run.steps(20, |s, i| {
            healthy_step(s, dtype, 1e-7, 1.0, i);
            s.activation("large", "matmul", dtype, &normal(64, 1e5, i));
        });
        assert_silent(&run);
    }
}

#[test]
fn healthy_fp16_under_a_dynamic_scaler() {
    assert_silent(&fp16_with(30, |_, _| {}));
}

#[test]
fn relu_and_dropout_sparsity() {
    assert_silent(&fp16_with(10, |s, i| {
        let sparse: Vec<f64> = normal(256, 1.0, i).into_iter().map(|x| x.max(0.0)).collect();
        s.activation("act", "relu", F16, &sparse).gradient("act", "relu", F16, &sparse);
        let nearly_all: Vec<f64> =
            normal(256, 1.0, i).into_iter().enumerate().map(|(k, x)| if k % 8 == 0 { x } else { 0.0 }).collect();
        s.gradient("drop", "dropout", F16, &nearly_all);
    }));
}

#[test]
fn embedding_rows_without_a_gradient_and_frozen_layers() {
    assert_silent(&fp16_with(10, |s, i| {
        let mut rows = vec![0.0; 1024];
        rows[(i as usize % 8) * 16..][..16].copy_from_slice(&normal(16, 1.0, i));
        s.param_grad("emb", "weight", F32, &rows);
        // A frozen layer has activations and no gradient.
        s.activation("frozen", "linear", F16, &normal(256, 1.0, i));
    }));
}

#[test]
fn a_branch_behind_a_gate_that_starts_at_zero() {
    assert_silent(&fp16_with(12, |s, i| {
        let open = i >= 6;
        s.gradient("block", "add", F16, &normal(256, 1.0, i));
        s.gradient("gate", "linear", F16, &if open { normal(256, 0.1, i) } else { vec![0.0; 256] })
            .via("block", "mul", F16);
        s.gradient("gate", "relu", F16, &if open { normal(256, 0.1, i) } else { vec![0.0; 256] });
    }));
}

#[test]
fn dead_units_whose_gradient_became_zero() {
    assert_silent(&fp16_with(12, |s, i| {
        let dead = i >= 5;
        let (out, grad) =
            if dead { (vec![0.0; 256], vec![0.0; 256]) } else { (normal(256, 1.0, i), normal(256, 1.0, i)) };
        s.activation("unit", "relu", F16, &out);
        s.gradient("unit", "relu", F16, &normal(256, 1.0, i));
        s.gradient("unit", "linear", F16, &grad).via("unit", "relu", F16);
    }));
}

#[test]
fn a_block_that_is_dropped_whole_for_some_steps() {
    assert_silent(&fp16_with(12, |s, i| {
        let dropped = (4..9).contains(&i);
        let kept = |values: Vec<f64>| if dropped { vec![0.0; 256] } else { values };
        s.activation("block", "linear", F16, &normal(256, 1.0, i)).activation(
            "block",
            "mul",
            F16,
            &kept(normal(256, 1.0, i)),
        );
        s.gradient("block", "mul", F16, &normal(256, 1.0, i));
        s.gradient("block", "linear", F16, &kept(normal(256, 1.0, i))).via("block", "mul", F16);
        s.gradient("block", "norm", F16, &kept(normal(256, 1.0, i))).via("block", "linear", F16);
    }));
}

#[test]
fn causal_masks_of_minus_infinity() {
    assert_silent(&fp16_with(6, |s, i| {
        s.activation("input", "full", F16, &[f64::NEG_INFINITY; 64]);
        s.activation("attn", "masked_fill#2", F16, &[1.0, f64::NEG_INFINITY]).activation(
            "attn",
            "softmax",
            F16,
            &[1.0, 0.0],
        );
        s.gradient("attn", "softmax", F16, &normal(256, 1.0, i));
    }));
}

#[test]
fn a_converged_loss_whose_gradients_are_small_because_the_work_is_done() {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(60, |s, i| {
        s.applied(65536.0);
        healthy_step(s, F16, 1e-4 * (-(i as f64) / 8.0).exp2(), 65536.0, i);
    });
    assert_silent(&run);
}

#[test]
fn a_loss_that_is_exactly_zero_delivers_no_gradient_and_proves_nothing() {
    let mut run = fp16_with(5, |_, _| {});
    run.steps(6, |s, _| {
        s.loss(0.0).applied(65536.0);
        LAYERS.iter().rev().for_each(|layer| {
            s.gradient(layer, "linear", F16, &[0.0; 256]);
        });
    });
    assert!(diagnose(&run).findings().is_empty(), "{:#?}", diagnose(&run).findings());
}

#[test]
fn last_layers_that_lose_most_of_their_elements_late_in_training() {
    // Probabilities of wrong classes go to nothing: up to 70 % subnormal and 64 % lost, and no harm to the direction.
    assert_silent(&fp16_with(10, |s, i| {
        let mut logits = normal(512, 1e-6, i);
        logits.iter_mut().step_by(10).for_each(|x| *x *= 1e5);
        s.gradient("logits", "log_softmax", F16, &logits);
    }));
}

#[test]
fn calibration_from_65536() {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(20, |s, i| {
        let scale = 2f64.powi(16 - i.min(5) as i32);
        if i < 5 {
            s.skipped(scale, scale / 2.0)
        } else {
            s.applied(scale)
        };
        // A run that tells its learning rate leaves no doubt.
        s.lr(1e-3);
        healthy_step(s, F16, 3.0, scale, i);
    });
    assert_silent(&run);
}

#[test]
fn gradient_accumulation_and_weight_tying_show_a_site_twice_in_a_step() {
    assert_silent(&fp16_with(8, |s, i| {
        s.activation("emb", "linear", F16, &normal(256, 1.0, i)).activation(
            "emb",
            "linear",
            F16,
            &normal(256, 1.0, i + 99),
        );
        s.gradient("emb", "linear", F16, &normal(256, 1.0, i)).gradient(
            "emb",
            "linear",
            F16,
            &normal(256, 1.0, i + 99),
        );
    }));
}

#[test]
fn a_margin_that_is_satisfied_gives_an_exactly_zero_gradient_whatever_the_loss() {
    // The loss has a constant part, so it is not zero; what the margin passes is, from step 5 on.
    assert_silent(&fp16_with(14, |s, i| {
        let met = i >= 5;
        let left = |deviation: f64| if met { vec![0.0; 256] } else { normal(256, deviation, i) };
        let held: Vec<f64> = normal(256, 1.0, i)
            .iter()
            .enumerate()
            .map(|(k, x)| if met && k % 8 > 0 { 0.0 } else { x.max(0.0) })
            .collect();
        s.loss(0.01).activation("out", "relu", F16, &held).activation("out", "mul", F16, &left(1.0));
        s.gradient("out", "mul", F16, &[102.4; 256])
            .gradient("out", "relu", F16, &normal(256, 102.4, i))
            .via("out", "mul", F16);
        s.gradient("out", "sub", F16, &left(102.4)).via("out", "relu", F16);
        s.gradient("out", "linear", F16, &left(102.4)).via("out", "sub", F16);
        s.gradient("f2", "linear", F16, &left(50.0)).via("out", "linear", F16);
        s.gradient("f1", "linear", F16, &left(50.0)).via("f2", "linear", F16);
    }));
}

#[test]
fn saturated_units_and_a_branch_that_is_not_taken() {
    for (operator, end) in
        [("relu6", 6.0), ("clamp", 1.0), ("hardtanh", -1.0), ("sigmoid", 1.0), ("tanh", 1.0), ("where", 0.3)]
    {
        // A small gradient goes in, so that what is zero behind it could as well have been rounded away.
        for size in [1.0, 3e-5] {
            assert_silent(&fp16_with(12, |s, i| {
                let shut = i >= 5;
                let (out, grad) =
                    if shut { (vec![end; 256], vec![0.0; 256]) } else { (normal(256, 0.5, i), normal(256, 1.0, i)) };
                s.activation("unit", operator, F16, &out);
                s.gradient("unit", operator, F16, &normal(256, size, i));
                s.gradient("unit", "linear", F16, &grad).via("unit", operator, F16);
            }));
        }
    }
}

#[test]
fn a_gradient_that_an_overflowing_forward_made_zero_is_no_underflow() {
    let mut run = fp16_with(4, |_, _| {});
    run.steps(8, |s, i| {
        s.applied(65536.0);
        healthy_step(s, F16, 1e-4, 65536.0, i);
        s.activation("norm", "mul", F16, &[f64::INFINITY; 256]).gradient("norm", "mul", F16, &normal(256, 1e-6, i));
        s.gradient("fc0", "linear", F16, &[0.0; 256]).via("norm", "mul", F16);
    });
    assert!(!found(&diagnose(&run)).contains(&"AMP201"), "{:#?}", diagnose(&run).findings());
}

#[test]
fn skips_that_no_calibration_explains_are_not_called_so() {
    let calibration = |finite: bool, skips: u64| {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).steps(skips, |s, _| {
            s.loss(if finite { 1.0 } else { f64::NAN }).skipped(65536.0, 32768.0);
        });
        diagnose(&run).aggregate().scaler.calibration_skips
    };
    assert_eq!((calibration(true, 5), calibration(true, 16)), (5, 16));
    assert_eq!((calibration(true, 17), calibration(true, 120), calibration(false, 5)), (0, 0, 0));
}
