//! `--shadow-every`: it finds what it should, stays silent where nothing is wrong, and changes nothing.

mod common;

use common::{Run, assert_silent, everything, findings, train_alone};

#[test]
fn healthy_runs_compared_with_fp32_are_silent_in_every_precision() {
    for precision in ["fp32", "bf16", "fp16", "fp16-masters", "bf16-masters"] {
        let run = Run::new();
        let arguments = format!("--model conv --precision {precision} --steps 40");
        let watched = run.train(&format!("{arguments} --shadow-every 4"));
        assert_eq!(watched["params_sha256"], train_alone(&arguments)["params_sha256"], "{precision}");
        let (diagnosis, _) = run.diagnose();
        assert_silent(&diagnosis, precision);
        let shadows = &diagnosis.aggregate().shadows;
        assert_eq!((shadows.taken, shadows.failed, shadows.recomputed), (10, 0, 0), "{precision}");
        let off = shadows.recent.iter().map(|s| 1.0 - s.likeness.cosine().unwrap()).fold(0.0, f64::max);
        assert!(off < if precision == "fp32" { 1e-9 } else { 0.05 }, "{precision}: {off}");
    }
}

#[test]
fn a_scale_far_too_low_is_measured_though_nothing_is_scanned_when_it_shows() {
    let run = Run::new();
    run.train("--model conv --precision fp16 --static-scale 6.1e-5 --steps 60 --every 1000 --shadow-every 10");
    let (diagnosis, _) = run.diagnose();
    let found = everything(&diagnosis).find(|f| f.code == "AMP205");
    let found = found.unwrap_or_else(|| panic!("no AMP205 in {:?}", findings(&diagnosis)));
    assert!(found.explanation.contains("it is backward that loses it"), "{}", found.explanation);
    assert_eq!(found.onset_step, 0);
}

#[test]
fn micro_batches_are_compared_one_by_one() {
    let run = Run::new();
    run.train("--model mlp --precision fp16 --accumulate 2 --steps 20 --shadow-every 5");
    let (diagnosis, _) = run.diagnose();
    let shadows = &diagnosis.aggregate().shadows;
    assert_eq!((shadows.taken, shadows.recomputed), (4, 4));
    assert_silent(&diagnosis, "accumulation");
}
