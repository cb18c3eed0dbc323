//! The models learn, runs repeat, and the doctor is not noticed by what it watches.

mod common;

use common::{Run, full_steps, train_alone};

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
fn a_seed_decides_every_bit_and_another_gives_others() {
    let fingerprint =
        |seed| train_alone(&format!("--model conv --precision bf16 --steps 20 --seed {seed}"))["params_sha256"].clone();
    assert_eq!(fingerprint(1), fingerprint(1));
    assert_ne!(fingerprint(1), fingerprint(2));
}

#[test]
fn the_doctor_changes_no_bit() {
    for model in ["mlp", "conv"] {
        for precision in ["fp32", "bf16", "fp16"] {
            let arguments = format!("--model {model} --precision {precision} --steps 60");
            let run = Run::new();
            let watched = run.train(&format!("{arguments} --every 1"));
            assert_eq!(watched["params_sha256"], train_alone(&arguments)["params_sha256"], "{arguments}");
            assert_eq!(full_steps(run.diagnose().0.aggregate()), 60, "{arguments}: the doctor looked at every step");
        }
    }
}

#[test]
fn the_doctor_changes_no_bit_of_a_run_that_breaks() {
    for fault in ["underflow@20", "overflow@20", "nan@20"] {
        let arguments = format!("--model conv --steps 40 --fault {fault}");
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
fn the_scaler_obeys_its_flags() {
    let scale = |flags: &str| train_alone(&format!("--steps 12 {flags}"))["scale"].as_f64();
    assert_eq!(scale("--init-scale 1024"), Some(1024.0));
    assert_eq!(scale("--init-scale 1024 --growth-interval 5"), Some(4096.0));
    assert_eq!(scale("--static-scale 512"), Some(512.0));
    assert_eq!(scale("--precision fp32"), None);
}
