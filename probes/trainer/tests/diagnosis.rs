//! The doctor finds what was planted, and nothing where nothing was. A fast part of `make acceptance`.

mod common;

use ampdoctor::observation::EndReason;
use common::{Run, assert_silent, everything, findings};

const STEP: u64 = 40;
const ONSET_WITHIN: u64 = 10;

#[test]
fn healthy_runs_are_silent() {
    for (precision, optimizer) in [
        ("fp32", "sgd"),
        ("bf16", "adamw"),
        ("fp16", "adam"),
        ("fp16", "sgd"),
        ("fp16-masters", "adam"),
        ("bf16-masters", "sgd"),
    ] {
        for model in ["mlp", "conv"] {
            assert_healthy(&format!("--model {model} --precision {precision} --optimizer {optimizer} --steps 150"));
        }
        assert_healthy(&format!("--model transformer --precision {precision} --steps 30"));
    }
}

fn assert_healthy(arguments: &str) {
    let run = Run::new();
    run.train(arguments);
    let (diagnosis, integrity) = run.diagnose();
    assert_silent(&diagnosis, arguments);
    assert_eq!(integrity.end.as_ref().map(|end| end.reason), Some(EndReason::Finished), "{arguments}");
}

#[test]
fn what_a_real_loop_does_besides_is_no_finding() {
    for flags in
        ["--accumulate 4 --batch 16", "--clip 0.1", "--schedule warmup-cosine", "--eval-every 10", "--budget 2%"]
    {
        assert_healthy(&format!("--model conv --precision fp16 --steps 100 {flags}"));
    }
}

fn finds(fault: &str, code: &str, layer: Option<&str>, arguments: &str) {
    let run = Run::new();
    run.train(&format!("{arguments} --steps 80 --fault {fault}"));
    let (diagnosis, _) = run.diagnose();
    let all = findings(&diagnosis);
    let first = everything(&diagnosis).find(|f| f.code == code);
    let first = first.unwrap_or_else(|| panic!("{fault}, {arguments}: no {code} in {all:?}"));
    if let Some(layer) = layer {
        assert_eq!(first.layer, layer, "{fault}, {arguments}: {all:?}");
    }
    assert!((STEP..=STEP + ONSET_WITHIN).contains(&first.onset_step), "{fault}, {arguments}: {all:?}");
    assert!(everything(&diagnosis).all(|f| f.onset_step >= STEP), "{fault}, {arguments}: {all:?}");
}

#[test]
fn a_loss_scale_of_next_to_nothing_is_found() {
    for model in ["mlp", "conv"] {
        finds("underflow@40", "AMP307", None, &format!("--model {model}"));
    }
}

#[test]
fn an_underflow_is_found_in_its_layer() {
    finds("underflow@40:fc2", "AMP201", Some("fc2"), "--model mlp");
    finds("underflow@40:conv2", "AMP201", Some("conv2"), "--model conv");
}

#[test]
fn an_overflow_is_found_in_its_layer() {
    finds("overflow@40:fc2", "AMP102", Some("fc2"), "--model mlp");
    finds("overflow@40:conv1", "AMP102", Some("conv1"), "--model conv");
}

#[test]
fn a_source_of_nan_is_found_in_its_layer_in_every_precision() {
    for precision in ["fp32", "bf16", "fp16"] {
        finds("nan@40:fc2", "AMP501", Some("fc2"), &format!("--model mlp --precision {precision}"));
    }
    finds("nan@40:block.0.mlp.up", "AMP501", Some("block.0.mlp.up"), "--model transformer --precision bf16-masters");
    finds("nan@40:bn1", "AMP501", Some("bn1"), "--model conv");
}

#[test]
fn operators_that_16_bits_ruin_are_found_in_their_layer_and_by_their_code() {
    for (fault, code) in [
        ("half-norm", "AMP105"),
        ("half-sum", "AMP106"),
        ("small-activations", "AMP104"),
        ("near-overflow", "AMP101"),
        ("saturated-log", "AMP106"),
        ("half-softmax", "AMP106"),
        ("half-positions", "AMP107"),
        ("masked-row", "AMP504"),
    ] {
        finds(&format!("{fault}@40:fc2"), code, Some("fc2"), "--model mlp");
        finds(&format!("{fault}@40:conv1"), code, Some("conv1"), "--model conv");
        finds(&format!("{fault}@40:fc1"), code, Some("fc1"), "--model mlp --precision fp16-masters --seed 3");
    }
}

#[test]
fn the_same_operators_within_their_range_are_no_fault() {
    // Planted, and not at work within the run: the operators are there from the first step on.
    for fault in ["half-norm", "half-sum", "saturated-log", "half-softmax", "half-positions", "masked-row"] {
        for model in ["mlp", "conv"] {
            assert_healthy(&format!("--model {model} --steps 60 --fault {fault}@1000"));
        }
        assert_healthy(&format!("--model transformer --steps 20 --fault {fault}@1000"));
    }
}

#[test]
fn an_overflow_that_begins_in_backward_is_found_in_its_layer() {
    // A static scale is judged once three of the last 32 steps overflowed.
    finds("backward-overflow@40:fc2", "AMP202", Some("fc2"), "--model mlp");
    finds("backward-overflow@40:conv2", "AMP202", Some("conv2"), "--model conv");
}

#[test]
fn what_one_batch_leaves_behind_is_found_with_its_step() {
    finds("overflow-once@40:conv1", "AMP502", Some("bn1"), "--model conv");
    finds("loss-spike@40", "AMP503", Some("fc1"), "--model mlp");
    finds("log-zero@40", "AMP501", Some("fc3"), "--model mlp");
}

#[test]
fn the_recording_knows_nothing_of_the_fault() {
    let run = Run::new();
    run.train("--steps 5 --fault overflow@1:fc1");
    let bytes = std::fs::read(run.recording()).expect("a recording");
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("ampdoctor-trainer"), "the command line is recorded");
    assert!(!text.contains("fault") && !text.contains("overflow"));
}
