//! The models learn, runs repeat, and the doctor is not noticed by what it watches.

mod common;

use common::{Run, full_steps, train_alone};

const PRECISIONS: [&str; 7] = ["fp32", "bf16", "fp16", "fp16-masters", "bf16-masters", "fp16-pure", "bf16-pure"];

#[test]
fn fp16_learns_the_digits_as_well_as_fp32() {
    for model in ["mlp", "conv"] {
        let reached = |precision| {
            let end = train_alone(&format!("--model {model} --precision {precision}"));
            end["accuracy"].as_f64().expect("an accuracy")
        };
        let (fp32, fp16) = (reached("fp32"), reached("fp16"));
        assert!(fp32 > 0.95 && fp16 > 0.95, "{model}: {fp32} in FP32, {fp16} in FP16");
        assert!((fp32 - fp16).abs() < 0.01, "{model}: {fp32} in FP32, {fp16} in FP16");
    }
}

#[test]
fn a_model_in_16_bits_with_fp32_copies_learns_the_digits_as_well() {
    for arguments in ["--model mlp --precision fp16-masters", "--model conv --precision bf16-masters"] {
        let accuracy = train_alone(arguments)["accuracy"].as_f64().expect("an accuracy");
        assert!(accuracy > 0.95, "{arguments}: {accuracy}");
    }
}

/// To guess by how often each character occurs costs 3.07; with the one character before it known, 2.23.
#[test]
fn the_transformer_learns_what_follows_what() {
    let end = train_alone("--model transformer --precision fp32 --steps 300");
    let loss = end["held_out_loss"].as_f64().expect("a loss");
    assert!(loss < 2.4, "{loss}");
    assert!(end["accuracy"].as_f64().expect("an accuracy") > 0.33);
}

#[test]
fn micro_batches_add_up_to_the_batch() {
    // The same 64 images a step; the sums differ in the last bits, so the losses do.
    let loss = |flags: &str| train_alone(&format!("--precision fp32 --steps 40 --seed 3 {flags}"))["loss"].as_f64();
    let (whole, parts) = (loss("--batch 64").expect("a loss"), loss("--batch 16 --accumulate 4").expect("a loss"));
    assert!((whole - parts).abs() < 0.02 * whole, "{whole} at once, {parts} in parts");
}

#[test]
fn an_evaluation_in_the_middle_changes_nothing() {
    let end = |flags: &str| {
        train_alone(&format!("--model conv --precision fp16 --steps 20 {flags}"))["params_sha256"].clone()
    };
    assert_eq!(end(""), end("--eval-every 3"));
}

#[test]
fn clipping_and_schedules_change_the_run() {
    let end = |flags: &str| train_alone(&format!("--steps 20 {flags}"))["params_sha256"].clone();
    let plain = end("");
    for flags in ["--clip 0.01 --optimizer sgd", "--schedule cosine", "--schedule warmup-cosine"] {
        assert_ne!(end(flags), plain, "{flags}");
    }
    assert_eq!(end("--clip 1000000"), plain, "a norm that is never reached clips nothing");
}

#[test]
fn a_seed_decides_every_bit_and_another_gives_others() {
    let fingerprint =
        |seed| train_alone(&format!("--model conv --precision bf16 --steps 20 --seed {seed}"))["params_sha256"].clone();
    assert_eq!(fingerprint(1), fingerprint(1));
    assert_ne!(fingerprint(1), fingerprint(2));
}

/// The fingerprint is the same with a doctor that looks at every step and without one.
fn assert_unchanged(arguments: &str, steps: u64) {
    let arguments = format!("{arguments} --steps {steps}");
    let run = Run::new();
    let watched = run.train(&format!("{arguments} --every 1"));
    assert_eq!(watched["params_sha256"], train_alone(&arguments)["params_sha256"], "{arguments}");
    assert_eq!(full_steps(run.diagnose().0.aggregate()), steps, "{arguments}: the doctor looked at every step");
}

#[test]
fn the_doctor_changes_no_bit() {
    for precision in PRECISIONS {
        for (model, steps) in [("mlp", 60), ("conv", 40), ("transformer", 8)] {
            assert_unchanged(&format!("--model {model} --precision {precision}"), steps);
        }
    }
}

#[test]
fn the_doctor_changes_no_bit_of_what_a_real_loop_does_besides() {
    for precision in ["fp32", "fp16", "fp16-masters", "bf16-masters"] {
        let extras = "--accumulate 3 --clip 0.5 --schedule warmup-cosine --eval-every 7 --batch 1";
        assert_unchanged(&format!("--model conv --precision {precision} {extras}"), 20);
    }
}

#[test]
fn the_doctor_changes_no_bit_of_a_run_that_breaks() {
    for fault in [
        "underflow@5",
        "overflow@5",
        "nan@5",
        "bad-batches=0.2",
        "short-interval=5",
        "scale-high@5",
        "no-scaler@5",
        "lr-high@5",
        "dead-updates",
        "model-changed@5",
        "lost-decay",
        "vanishing-eps@0",
        "masters-unused@5",
        "masters-bypassed@5",
        "masters-unwritten@5",
    ] {
        let arguments = format!("--model conv --steps 15 --fault {fault}");
        let watched = Run::new().train(&arguments);
        assert_eq!(watched["params_sha256"], train_alone(&arguments)["params_sha256"], "{fault}");
    }
}

#[test]
fn skipped_steps_are_counted_and_the_scale_falls() {
    let end = train_alone("--steps 40 --fault overflow@30");
    assert_eq!(end["skips"], 10);
    assert_eq!(end["scale"].as_f64(), Some(65536.0 / 1024.0));
}

#[test]
fn a_static_scale_too_high_skips_every_step() {
    for model in ["mlp", "conv", "transformer"] {
        let end = train_alone(&format!("--model {model} --steps 5 --fault scale-high"));
        assert_eq!((end["skips"].as_u64(), end["scale"].as_f64()), (Some(5), Some(67_108_864.0)), "{model}");
    }
}

#[test]
fn bad_batches_are_skipped_at_their_rate_where_there_is_a_scaler() {
    let end = train_alone("--steps 400 --fault bad-batches=0.05");
    // 20 expected; outside of this band one run in a thousand.
    assert!((7..=36).contains(&end["skips"].as_u64().expect("skips")), "{end}");
    let end = train_alone("--precision fp32 --steps 100 --fault bad-batches=0.05");
    assert_eq!(end["loss"], "NaN", "without a scaler the first one ends the run");
}

#[test]
fn a_short_interval_skips_about_one_step_in_eleven() {
    let end = train_alone("--steps 300 --init-scale 524288 --fault short-interval");
    assert!((15..=40).contains(&end["skips"].as_u64().expect("skips")), "{end}");
}

#[test]
fn what_16_bits_round_away_is_not_learned() {
    let loss = |flags: &str| {
        train_alone(&format!("--model mlp --steps 600 --optimizer sgd {flags}"))["loss"].as_f64().expect("a loss")
    };
    let (sound, dead) = (loss("--precision fp16-masters --lr 1e-4"), loss("--fault dead-updates"));
    assert!(dead > 1.02 * sound, "{dead} in FP16, {sound} with FP32 copies");
}

#[test]
fn an_epsilon_that_fp16_can_hold_keeps_adam_finite_in_fp16() {
    let loss = |flags: &str| train_alone(&format!("--steps 40 --fault vanishing-eps {flags}"))["loss"].clone();
    assert_eq!(loss(""), "NaN");
    assert!(loss("--eps 1e-4").as_f64().is_some_and(|loss| loss < 10.0), "{}", loss("--eps 1e-4"));
}

#[test]
fn the_scaler_obeys_its_flags() {
    let scale = |flags: &str| train_alone(&format!("--steps 12 {flags}"))["scale"].as_f64();
    assert_eq!(scale("--init-scale 1024"), Some(1024.0));
    assert_eq!(scale("--init-scale 1024 --growth-interval 5"), Some(4096.0));
    assert_eq!(scale("--max-scale 2048"), Some(2048.0));
    assert_eq!(scale("--min-scale 32768 --fault overflow"), Some(32768.0));
    assert_eq!(scale("--static-scale 512"), Some(512.0));
    assert_eq!(scale("--precision fp32"), None);
}
