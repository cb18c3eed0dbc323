//! Loops that do not keep to the recipe are found by their code, and the same loops without the mistake are silent.

mod common;

use std::process::Output;

use ampdoctor::rules::{Diagnosis, Finding, Severity};
use common::{Run, assert_silent, findings, said, trainer};

/// The step at which the mistake begins.
const STEP: u64 = 10;

/// Trains with a mistake, to the end or to the scaler's error; what was found, and how the trainer ended.
fn diagnose(fault: &str, arguments: &str) -> (Diagnosis, Output) {
    let run = Run::new();
    let arguments = format!("--steps 30 {arguments} --fault {fault} --run {}", run.dir().display());
    let output = trainer(&arguments).output().expect("the trainer starts");
    (run.diagnose().0, output)
}

/// The finding of this code, which begins where the mistake does.
fn finds(code: &str, fault: &str, arguments: &str) -> Finding {
    let (diagnosis, output) = diagnose(&format!("{fault}@{STEP}"), arguments);
    assert!(output.status.success(), "{fault}: {}", said(&output));
    found(&diagnosis, code, STEP, &format!("{fault} {arguments}"))
}

/// The same, for a mistake that the scaler refuses: the trainer ends with its error, and the recording tells why.
fn finds_what_is_refused(code: &str, fault: &str, arguments: &str) -> Finding {
    let (diagnosis, output) = diagnose(&format!("{fault}@{STEP}"), arguments);
    assert!(!output.status.success(), "{fault} ends the run");
    found(&diagnosis, code, STEP, &format!("{fault} {arguments}"))
}

fn found(diagnosis: &Diagnosis, code: &str, at: u64, what: &str) -> Finding {
    let all = findings(diagnosis);
    let finding = diagnosis.findings().iter().find(|f| f.code == code);
    let finding = finding.unwrap_or_else(|| panic!("{what}: no {code} in {all:?}"));
    assert!((at..=at + 2).contains(&finding.onset_step), "{what}: {all:?}");
    assert!(diagnosis.findings().iter().all(|f| f.onset_step >= at), "{what}: {all:?}");
    finding.clone()
}

#[test]
fn a_second_unscale_ends_the_run_and_is_named() {
    let f = finds_what_is_refused("AMP601", "unscale-twice", "");
    assert_eq!((f.severity, f.onset_step), (Severity::Error, STEP));
}

#[test]
fn clipping_before_unscale_is_an_error_under_sgd_and_harmless_under_adam() {
    let sgd = finds("AMP602", "clip-early", "--clip 0.1");
    assert_eq!(sgd.severity, Severity::Error);
    assert!(sgd.evidence.iter().any(|e| e.name == "lost_factor"), "{sgd:#?}");
    assert_eq!(finds("AMP602", "clip-early", "--clip 1000 --optimizer adam").severity, Severity::Info);
    // What is left lies near Adam's eps.
    assert_eq!(finds("AMP602", "clip-early", "--clip 0.1 --optimizer adam").severity, Severity::Warning);
}

#[test]
fn a_missing_update_ends_the_run_at_the_next_step_and_is_named() {
    let f = finds_what_is_refused("AMP603", "no-update", "");
    assert_eq!(f.onset_step, STEP + 1);
}

#[test]
fn calls_in_the_wrong_place_are_named() {
    finds_what_is_refused("AMP604", "update-twice", "");
    let early = finds("AMP604", "update-early", "");
    assert!(early.explanation.contains("between `unscale` and `step`"), "{}", early.explanation);
    let past = finds("AMP604", "own-step", "");
    assert!(past.explanation.contains("own step"), "{}", past.explanation);
}

#[test]
fn a_step_on_scaled_gradients_is_found_in_every_model() {
    for arguments in ["", "--model conv --optimizer sgd", "--precision fp16-masters"] {
        finds("AMP605", "scaled-step", arguments);
    }
}

#[test]
fn gradients_that_are_not_cleared_are_found_in_every_precision() {
    for precision in ["fp32", "bf16", "fp16", "fp16-masters"] {
        finds("AMP606", "no-zero-grad", &format!("--precision {precision}"));
    }
}

#[test]
fn a_scale_that_is_set_between_micro_batches_is_found() {
    finds("AMP607", "moving-scale", "--accumulate 2 --batch 16");
}

#[test]
fn an_update_after_each_of_two_optimizers_is_found() {
    finds("AMP608", "split-update", "");
}

#[test]
fn a_loss_scaled_in_fp16_is_found_at_the_first_step() {
    let (diagnosis, output) = diagnose("half-loss", "");
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(found(&diagnosis, "AMP609", 0, "half-loss").severity, Severity::Error);
    assert_eq!(diagnosis.findings()[0].code, "AMP609", "what overflows is its consequence: {:?}", findings(&diagnosis));
}

#[test]
fn a_scaled_loss_that_is_reported_is_found() {
    finds("AMP610", "scaled-loss", "");
    finds("AMP610", "scaled-loss", "--accumulate 4 --batch 16");
}

#[test]
fn an_optimizer_that_the_loss_does_not_reach_is_found_by_the_scalers_error() {
    finds_what_is_refused("AMP611", "unreached", "");
}

#[test]
fn fp16_parameters_that_a_scaler_refuses_are_named() {
    let (diagnosis, output) = diagnose("half-parameters", "");
    assert!(!output.status.success());
    let f = found(&diagnosis, "AMP411", 0, "half-parameters");
    assert!(f.explanation.contains("fc1.weight") || f.explanation.contains("fc1.bias"), "{}", f.explanation);
}

#[test]
fn a_schedule_that_runs_ahead_is_found_and_needs_no_scan() {
    for flags in ["", "--every 1000"] {
        let (diagnosis, output) = diagnose("scheduler-ahead@0", flags);
        assert!(output.status.success(), "{}", said(&output));
        let all = findings(&diagnosis);
        assert!(all.iter().any(|f| f.starts_with("AMP612")), "{flags}: {all:?}");
    }
}

#[test]
fn mistakes_of_a_loop_show_under_a_budget_too() {
    for (code, fault) in [("AMP606", "no-zero-grad"), ("AMP605", "scaled-step"), ("AMP604", "own-step")] {
        let (diagnosis, output) = diagnose(&format!("{fault}@0"), "--every 1000");
        assert!(output.status.success(), "{fault}: {}", said(&output));
        let all = findings(&diagnosis);
        assert!(all.iter().any(|f| f.starts_with(code)), "{fault}: {all:?}");
    }
}

#[test]
fn the_same_loops_without_the_mistake_are_silent() {
    for arguments in [
        "",
        "--clip 0.1",
        "--clip 0.1 --optimizer sgd",
        "--precision fp16-masters --clip 0.1",
        "--accumulate 2 --batch 16 --clip 0.1",
        "--model conv --optimizer sgd",
        "--precision bf16",
        "--precision fp32",
    ] {
        let run = Run::new();
        run.train(&format!("--steps 30 {arguments}"));
        assert_silent(&run.diagnose().0, arguments);
    }
}
