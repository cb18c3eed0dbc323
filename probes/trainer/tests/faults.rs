//! Faults of a whole run are found by their code, from their step on. A fast part of `make acceptance`.

mod common;

use ampdoctor::rules::Value;
use common::{Run, assert_silent, everything, findings};

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

/// The same arguments without the fault: nothing is said.
fn is_silent(arguments: &str) {
    let run = Run::new();
    run.train(arguments);
    assert_silent(&run.diagnose().0, arguments);
}

#[test]
fn a_loss_that_is_multiplied_on_its_way_to_backward_is_found_by_its_shadow() {
    for model in ["mlp", "transformer"] {
        let arguments = format!("--steps 40 --model {model} --shadow-every 5 --init-scale 4096");
        finds("AMP205", "weighted-loss", 20, 10, &arguments);
        is_silent(&arguments);
    }
}

#[test]
fn a_scale_that_is_set_is_found_at_its_step() {
    for precision in ["fp16", "fp16-masters"] {
        let arguments = format!("--steps 40 --precision {precision}");
        finds("AMP306", "scale-raised", 20, 0, &arguments);
        is_silent(&arguments);
    }
}

#[test]
fn a_scale_that_nothing_holds_is_told_as_information() {
    let arguments = "--steps 40 --init-scale 2147483648 --growth-interval 2";
    finds("AMP304", "weighted-loss=9.3e-10", 0, 31, arguments);
}

#[test]
fn steps_written_by_hand_are_found_where_they_lose_updates_or_drop_them() {
    finds("AMP402", "copied-step", 0, 1, "--steps 40 --lr 0.0002");
    for arguments in ["--steps 80", "--steps 80 --precision bf16", "--steps 80 --model conv --precision fp32"] {
        finds("AMP408", "unassigned-step", 2, 1, arguments);
        is_silent(arguments);
    }
}

#[test]
fn what_real_models_and_loops_do_besides_is_no_fault() {
    for plant in ["two-optimizers", "zero-bias@0:fc2"] {
        for precision in ["fp32", "bf16", "fp16"] {
            is_silent(&format!("--steps 80 --model conv --precision {precision} --fault {plant}"));
        }
    }
    for precision in ["fp16", "fp16-masters"] {
        is_silent(&format!("--steps 30 --model transformer --precision {precision} --fault frozen-head@0"));
    }
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
fn a_moving_average_that_16_bits_round_away_is_found_and_one_that_moves_is_not() {
    for precision in ["fp32", "fp16", "bf16", "fp16-masters", "bf16-masters"] {
        finds("AMP409", "lost-average", 0, 15, &format!("--steps 60 --precision {precision}"));
    }
    for (average, precision) in
        [("average", "fp16"), ("quick-average", "fp16"), ("quick-average", "bf16"), ("average", "bf16-masters")]
    {
        let run = Run::new();
        run.train(&format!("--steps 150 --precision {precision} --fault {average}"));
        assert_silent(&run.diagnose().0, average);
    }
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

/// The word that a finding of this code gives for its cause.
fn cause(run: &Run, code: &str) -> Option<Value> {
    let (diagnosis, _) = run.diagnose();
    let finding = everything(&diagnosis).find(|f| f.code == code)?;
    finding.evidence.iter().find(|e| e.name == "cause").map(|e| e.value.clone())
}

#[test]
fn a_jump_of_the_loss_is_found_with_what_made_it() {
    for (fault, word, arguments) in [
        ("wrong-labels@60", "data", "--steps 85"),
        ("lr-high=30@60", "learning rate", "--steps 100 --optimizer sgd"),
        ("lr-high=30@60", "learning rate", "--steps 100 --optimizer sgd --budget 2%"),
        ("lr-high=30@60", "learning rate", "--steps 100 --model conv --optimizer sgd --precision fp32 --budget 2%"),
    ] {
        let run = Run::new();
        run.train(&format!("{arguments} --fault {fault}"));
        assert_eq!(cause(&run, "AMP701"), Some(word.into()), "{fault}, {arguments}: {:?}", findings(&run.diagnose().0));
    }
}

#[test]
fn a_scale_that_is_raised_and_skips_is_no_jump_of_the_loss() {
    let run = Run::new();
    let summary = run.train("--steps 120 --fault scale-raised@60");
    assert!(summary["skips"].as_u64() > Some(5), "{summary}");
    let (diagnosis, _) = run.diagnose();
    assert!(everything(&diagnosis).all(|f| f.code != "AMP701"), "{:?}", findings(&diagnosis));
}

#[test]
fn a_loss_that_is_flat_is_found_with_its_reason() {
    for (fault, word) in [("lr-zero", "learning rate of zero"), ("scale-high", "steps skipped")] {
        let run = Run::new();
        run.train(&format!("--steps 100 --fault {fault}"));
        assert_eq!(cause(&run, "AMP702"), Some(word.into()), "{fault}: {:?}", findings(&run.diagnose().0));
    }
}

#[test]
fn a_loss_that_is_no_number_is_found_with_what_made_it() {
    let run = Run::new();
    run.train("--steps 60 --fault nan@40:fc2");
    assert_eq!(cause(&run, "AMP703"), Some("forward".into()));
}

#[test]
fn an_evaluation_that_rounds_is_held_against_fp32() {
    finds("AMP704", "rounded-evaluation", 20, 10, "--steps 60 --eval-every 5");
}

#[test]
fn layers_whose_gradient_fades_on_its_way_are_found() {
    finds("AMP203", "fading", 5, 10, "--steps 20 --model conv");
}

#[test]
fn gradients_that_grow_under_a_static_scale_are_found_before_they_overflow() {
    let run = Run::new();
    run.train("--steps 56 --fault growing-gradients@20");
    let (diagnosis, _) = run.diagnose();
    let codes: Vec<&str> = everything(&diagnosis).map(|f| f.code).collect();
    assert_eq!(codes, ["AMP204"]);
}

#[test]
fn a_scaler_over_bf16_and_one_that_is_made_anew_are_found() {
    finds("AMP309", "needless-scaler", 0, 0, "--steps 10");
    finds("AMP310", "scaler-lost", 60, 2, "--steps 90");
}

#[test]
fn weights_that_fp16_cannot_hold_are_found_in_their_layer() {
    finds("AMP410", "huge-weights", 40, 2, "--steps 46 --model conv --optimizer sgd");
}
