//! Faults of a whole run are found by their code, from their step on. A fast part of `make acceptance`.

mod common;

use common::{Run, everything, findings};

/// Trains with a fault from step `at` on; what was found of it must be `code`, begin within so many steps, and nothing may begin before.
fn finds(code: &str, fault: &str, at: u64, within: u64, arguments: &str) {
    let run = Run::new();
    run.train(&format!("{arguments} --fault {fault}@{at}"));
    let (diagnosis, _) = run.diagnose();
    let all = findings(&diagnosis);
    let first = everything(&diagnosis).filter(|f| f.code == code).map(|f| f.onset_step).min();
    let first = first.unwrap_or_else(|| panic!("{fault}, {arguments}: no {code} in {all:?}"));
    assert!((at..=at + within).contains(&first), "{fault}, {arguments}: {all:?}");
    assert!(everything(&diagnosis).all(|f| f.onset_step >= at), "{fault}, {arguments}: {all:?}");
}

#[test]
fn a_growth_interval_that_is_too_short_is_found_within_three_of_them() {
    // 2^19: where the gradients of this model begin to overflow.
    finds("AMP301", "short-interval", 50, 30, "--steps 250 --init-scale 524288");
}

#[test]
fn bad_batches_that_the_interval_cannot_make_good_are_found() {
    finds("AMP302", "bad-batches=0.05", 0, 300, "--steps 800 --growth-interval 100");
    finds("AMP302", "bad-batches=0.05", 0, 300, "--steps 800 --growth-interval 100 --precision fp16-masters");
}

#[test]
fn bad_batches_are_found_where_they_begin_in_any_precision() {
    for precision in ["fp16", "bf16", "bf16-masters"] {
        finds("AMP501", "bad-batches=0.5", 20, 10, &format!("--steps 40 --precision {precision}"));
    }
}

#[test]
fn a_static_scale_that_is_wrong_is_found() {
    for precision in ["fp16", "fp16-masters"] {
        finds("AMP307", "scale-high", 0, 10, &format!("--steps 40 --precision {precision}"));
        finds("AMP307", "scale-low", 0, 10, &format!("--steps 40 --precision {precision}"));
    }
}

#[test]
fn a_loss_scale_that_is_missing_is_found() {
    for model in ["mlp", "conv"] {
        finds("AMP308", "no-scaler", 0, 10, &format!("--steps 40 --model {model}"));
    }
}

#[test]
fn updates_that_16_bits_round_away_are_found() {
    for (model, precision) in [("mlp", "fp16-pure"), ("mlp", "bf16-pure"), ("conv", "fp16-pure")] {
        finds("AMP401", "dead-updates", 0, 10, &format!("--steps 40 --model {model} --precision {precision}"));
    }
}

#[test]
fn a_learning_rate_that_throws_the_weights_about_is_found() {
    for precision in ["fp32", "fp16", "bf16-masters"] {
        finds("AMP403", "lr-high", 40, 10, &format!("--steps 100 --precision {precision}"));
    }
}

#[test]
fn a_decay_that_16_bits_round_away_is_found() {
    finds("AMP404", "lost-decay", 0, 10, "--steps 40");
}

#[test]
fn an_epsilon_that_16_bits_round_away_is_found() {
    finds("AMP407", "vanishing-eps", 0, 10, "--steps 20");
}

#[test]
fn masters_that_a_loop_breaks_are_found() {
    finds("AMP405", "model-changed", 20, 10, "--steps 40 --precision fp16-masters");
    finds("AMP405", "masters-bypassed", 20, 10, "--steps 80");
    finds("AMP405", "masters-unused", 20, 10, "--steps 80");
    finds("AMP405", "masters-unwritten", 20, 10, "--steps 40 --precision fp16-masters");
    finds("AMP405", "masters-unwritten", 20, 10, "--steps 40 --precision bf16-masters");
}
