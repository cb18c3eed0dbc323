//! What-if over whole runs, and that it agrees with the rules.

use super::*;
use crate::numerics::Format;
use crate::observation::Tier;
use crate::observation::scenario::{Scenario, StepBuilder, normal};
use crate::rules::scale_simulation::settings;
use crate::rules::silence::diagnose;
use crate::rules::{Diagnosis, Value};
use crate::scan::Dtype::{self, Bf16, F16, F32};

fn backward(s: &mut StepBuilder<'_>, dtype: Dtype, deviation: f64, seed: u64) {
    s.loss(1.0);
    for layer in (1..=4).rev() {
        let name = format!("fc{layer}");
        s.activation(&name, "linear", dtype, &normal(512, 1.0, seed + layer));
        s.gradient(&name, "linear", dtype, &normal(512, deviation, 10 * seed + layer));
    }
}

/// Gradients of this deviation without the scale, at a scale that does not move.
fn run(dtype: Dtype, deviation: f64, scale: f64, steps: u64) -> Diagnosis {
    let mut run = Scenario::new();
    run.static_scaler(scale).steps(steps, |s, i| {
        s.applied(scale);
        backward(s, dtype, deviation * scale, i);
    });
    diagnose(&run)
}

fn whatif(diagnosis: &Diagnosis) -> WhatIf<'_> {
    WhatIf::of(&[diagnosis.aggregate()])
}

fn window<'a>(whatif: &'a WhatIf<'_>) -> &'a Window<'a> {
    whatif.window.as_ref().expect("a window")
}

#[test]
fn the_recommended_scale_is_the_one_that_the_finding_names() {
    for (deviation, scale) in [(3e-6, 2f64.powi(-4)), (1e-5, 2f64.powi(-6)), (1e-7, 0.5), (3e-4, 2f64.powi(-12))] {
        let diagnosis = run(F16, deviation, scale, 6);
        let finding = diagnosis.findings().first().expect("a finding");
        let named = finding.evidence.iter().find_map(|e| match (e.name, &e.value) {
            ("recommended_loss_scale", Value::Number(x)) => Some(*x),
            _ => None,
        });
        let recommended = window(&whatif(&diagnosis)).recommended.map(|e| f64::from(e).exp2());
        assert_eq!(recommended, named, "{}", finding.remedy.text);
    }
}

#[test]
fn where_gradients_grow_after_the_gravest_step_finding_and_what_if_still_name_one_scale() {
    let mut run = Scenario::new();
    let scale = 2f64.powi(-6);
    run.static_scaler(scale).steps(24, |s, i| {
        s.applied(scale);
        // The later ones underflow less, and what is summed from them is larger.
        let (deviation, sum) = if i < 12 { (1e-5, 1e-3) } else { (1.3e-5, 1e-2) };
        backward(s, F16, deviation * scale, i);
        s.param_grad("fc1", "weight", F16, &normal(512, sum * scale, 50 + i));
    });
    let diagnosis = diagnose(&run);
    let finding = diagnosis.findings().first().expect("a finding");
    let named = finding.evidence.iter().find_map(|e| match (e.name, &e.value) {
        ("recommended_loss_scale", Value::Number(x)) => Some(*x),
        _ => None,
    });
    let recommended = window(&whatif(&diagnosis)).recommended.map(|e| f64::from(e).exp2());
    assert!(named.is_some() && recommended == named, "{named:?} {recommended:?}");
    assert!(finding.remedy.text.contains(&format!("{}", named.unwrap_or(0.0))), "{}", finding.remedy.text);
}

/// The recordings of faults that a trainer planted, whatever they are.
#[test]
fn in_every_recording_with_a_scale_to_set_what_if_recommends_the_same() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/corpus");
    let mut compared = 0;
    for file in std::fs::read_dir(folder).expect("the recordings").map(|entry| entry.expect("an entry").path()) {
        if file.extension().is_none_or(|extension| extension != "amprec") {
            continue;
        }
        let mut diagnosis = Diagnosis::new();
        let mut records = crate::recording::Records::open(&file).expect("a recording");
        records.by_ref().for_each(|record| diagnosis.apply(record.expect("a whole recording")));
        let named = diagnosis.findings().iter().flat_map(|f| &f.evidence).filter_map(|e| match (e.name, &e.value) {
            ("recommended_loss_scale", Value::Number(x)) => Some(*x),
            _ => None,
        });
        for scale in named {
            let recommended = window(&whatif(&diagnosis)).recommended.map(|e| f64::from(e).exp2());
            assert_eq!(recommended, Some(scale), "{}", file.display());
            compared += 1;
        }
    }
    assert!(compared >= 3, "{compared} scales in the recordings of faults");
}

#[test]
fn the_window_does_not_depend_on_the_scale_of_the_recording() {
    let windows: Vec<_> = [2f64.powi(6), 2f64.powi(10), 2f64.powi(13)]
        .map(|scale| window(&whatif(&run(F16, 1e-3, scale, 4))).scales)
        .into();
    assert!(windows.iter().all(|w| *w == windows[0]), "{windows:?}");
    let exact = window(&whatif(&run(F32, 1e-3, 1.0, 4))).scales;
    assert_eq!(exact, windows[0], "from FP32");
    assert_eq!(window(&whatif(&run(Bf16, 1e-3, 1.0, 4))).scales, windows[0], "from BF16");
}

#[test]
fn what_was_lost_is_a_lower_bound_at_higher_scales_and_only_there() {
    let diagnosis = run(F16, 1e-4, 2f64.powi(-8), 4);
    let whatif = whatif(&diagnosis);
    assert!(whatif.is_lower_bound());
    let layer = &whatif.layers[0];
    assert!(layer.at(0).is_some_and(|at| at.fading_at_least && at.lost_at_least));
    assert!(layer.at(-9).is_some_and(|at| !at.fading_at_least && at.lost_at_least));
    let exact = run(F32, 1e-4, 1.0, 4);
    assert!(!super::WhatIf::of(&[exact.aggregate()]).is_lower_bound());
}

#[test]
fn behind_a_gradient_that_loses_a_part_shares_are_bounds_and_only_there() {
    let mut run = Scenario::new();
    run.static_scaler(1.0).steps(4, |s, i| {
        s.applied(1.0);
        s.gradient("last", "linear", F32, &normal(512, 1e-3, i));
        s.gradient("scores", "matmul", F32, &normal(512, 1e-6, 100 + i));
        s.gradient("first", "linear", F32, &normal(512, 1e-3, 200 + i));
    });
    let diagnosis = diagnose(&run);
    let whatif = whatif(&diagnosis);
    let inherits = |layer: &str, scale| {
        let layer = whatif.layers.iter().find(|l| l.layer == layer).expect("the layer");
        layer.at(scale).expect("the scale").inherits_loss
    };
    assert_eq!(["last", "scores", "first"].map(|layer| inherits(layer, 0)), [false, false, true]);
    assert_eq!(["last", "scores", "first"].map(|layer| inherits(layer, 12)), [false; 3], "nothing is lost at 2^12");
    assert!(!whatif.is_lower_bound(), "nothing was lost before it was seen");
}

#[test]
fn what_the_gradient_of_a_parameter_loses_reaches_nobody() {
    let mut run = Scenario::new();
    run.static_scaler(1.0).steps(4, |s, i| {
        s.applied(1.0);
        s.param_grad("last", "weight", F32, &normal(512, 1e-9, i));
        s.gradient("first", "linear", F32, &normal(512, 1e-3, 200 + i));
    });
    let diagnosis = diagnose(&run);
    let whatif = whatif(&diagnosis);
    let marked = whatif.layers.iter().flat_map(|l| &l.at).filter(|at| at.inherits_loss && at.scale > -4).count();
    assert_eq!(marked, 0);
}

#[test]
fn one_layer_far_above_the_rest_leaves_no_scale_and_is_named() {
    let mut run = Scenario::new();
    run.static_scaler(1.0).steps(4, |s, i| {
        s.applied(1.0);
        backward(s, F32, 1e-9, i);
        s.gradient("blown", "linear", F32, &normal(512, 1e6, i));
    });
    let diagnosis = diagnose(&run);
    let whatif = whatif(&diagnosis);
    let window = window(&whatif);
    assert!(window.scales.is_empty() && window.recommended.is_none(), "{window:?}");
    assert_eq!(window.highest.layer, "blown");
    assert!(window.fix.as_ref().is_some_and(|fix| fix.contains("Change layer `blown`")), "{window:?}");
}

#[test]
fn of_two_ends_that_share_the_layers_between_them_the_one_that_backward_computes_later_is_to_change() {
    // The gradient of fc3 is well; from fc2 on, two of three layers, it is far too small for a scale at which fc3 does not overflow.
    let mut run = Scenario::new();
    run.steps(6, |s, i| {
        let small = if i < 2 { 1.0 } else { 1e-12 };
        s.gradient("fc3", "linear", F32, &normal(512, 1.0, i)).param_grad("fc3", "weight", F32, &normal(512, 2.0, i));
        s.gradient("fc2", "linear", F32, &normal(512, small, 10 + i));
        s.gradient("fc1", "linear", F32, &normal(512, small, 20 + i));
    });
    let diagnosis = diagnose(&run);
    let whatif = whatif(&diagnosis);
    let fix = window(&whatif).fix.clone().expect("no scale is good for all");
    assert!(fix.contains("Change layer `fc2`") && fix.contains("far smaller"), "{fix}");
}

#[test]
fn an_upper_end_above_which_gradients_were_infinite_at_a_static_scale_is_a_guess() {
    let infinite = |s: &mut StepBuilder<'_>, i| {
        let mut values = normal(512, 1e3, i);
        values[0] = f64::INFINITY;
        s.gradient("fc4", "linear", F16, &values);
    };
    let mut stuck = Scenario::new();
    stuck.static_scaler(65536.0).steps(6, |s, i| {
        s.skipped(65536.0, 65536.0);
        if i == 0 { backward(s, F16, 1.0, i) } else { infinite(s, i) }
    });
    let mut moving = Scenario::new();
    moving.dynamic_scaler(65536.0).steps(6, |s, i| {
        if i == 2 {
            s.skipped(65536.0, 32768.0);
            infinite(s, i);
        } else {
            s.applied(32768.0);
            backward(s, F16, 1.0, i);
        }
    });
    let mut mended = Scenario::new();
    mended.static_scaler(65536.0).steps(6, |s, i| {
        s.applied(65536.0);
        if i == 1 { infinite(s, i) } else { backward(s, F16, 6e4 / 4.0, i) }
    });
    let (stuck, moving, mended) = (diagnose(&stuck), diagnose(&moving), diagnose(&mended));
    assert!(window(&whatif(&stuck)).high_is_guess);
    assert!(!window(&whatif(&moving)).high_is_guess, "a dynamic scaler overflows on purpose");
    assert!(window(&whatif(&mended)).high_is_guess, "the largest was infinite, and none has been seen as large");
}

#[test]
fn a_scale_that_its_floor_holds_while_gradients_overflow_leaves_the_upper_end_a_guess() {
    let mut run = Scenario::new();
    let floor = crate::observation::ScalerConfig { min_scale: Some(1024.0), init_scale: 1024.0, ..settings(2000) };
    run.scaler_config(floor).steps(30, |s, i| {
        let bad = i >= 10;
        if bad {
            s.skipped(1024.0, 1024.0)
        } else {
            s.applied(1024.0)
        };
        backward(s, F16, 1.0, i);
        let values = if bad { vec![f64::INFINITY; 512] } else { normal(512, 1.0, 900 + i) };
        s.gradient("fc0", "linear", F16, &values);
    });
    let diagnosis = diagnose(&run);
    let whatif = whatif(&diagnosis);
    assert!(window(&whatif).high_is_guess);
    // 512 infinite elements at 2^10: 65504 times an octave for each four times as many, and a bit of headroom.
    assert_eq!((window(&whatif).scales.high, window(&whatif).highest.layer.as_str()), (4, "fc0"));
}

#[test]
fn one_step_that_is_far_larger_does_not_set_the_window() {
    let mut run = Scenario::new();
    run.steps(100, |s, i| backward(s, F32, if i == 33 { 1e20 } else { 1e-3 }, i));
    let mut plain = Scenario::new();
    plain.steps(100, |s, i| backward(s, F32, 1e-3, i));
    let (diagnosis, plain) = (diagnose(&run), diagnose(&plain));
    let (whatif, plain) = (whatif(&diagnosis), whatif(&plain));
    let (found, usual) = (window(&whatif), window(&plain));
    assert_eq!((found.scales.high, &found.outliers[..], found.fix.as_deref()), (usual.scales.high, &[33][..], None));
    assert!(usual.outliers.is_empty() && usual.high_with_outliers == usual.scales.high);
    assert!(found.high_with_outliers < -50, "{}", found.high_with_outliers);
    assert!(whatif.layers.iter().all(|layer| layer.high.is_some_and(|high| high >= usual.scales.high)));
}

#[test]
fn of_gradients_that_one_layer_inflates_that_layer_is_blamed_and_not_those_that_inherit_them() {
    for dtype in [Bf16, F32] {
        let mut run = Scenario::new();
        run.steps(20, |s, i| {
            s.loss(1.0);
            // Five layers; the third from the loss hands on 2^30 times what it gets, and each behind it a little more.
            for (at, layer) in ["fc5", "fc4", "fc3", "fc2", "fc1"].into_iter().enumerate() {
                s.activation(layer, "linear", dtype, &normal(512, 1.0, i));
                let inflated = if at >= 2 { f64::from(30 + at as i32).exp2() } else { 1.0 };
                s.gradient(layer, "linear", dtype, &normal(512, 1e-3 * inflated, 10 * i + at as u64));
            }
        });
        let diagnosis = diagnose(&run);
        let whatif = whatif(&diagnosis);
        let fix = window(&whatif).fix.clone().expect("no scale is good for all");
        assert!(fix.contains("Change layer `fc3` (of the gradients far larger than the others, the first"), "{fix}");
        assert_eq!(window(&whatif).highest.layer, "fc1", "which overflows first all the same");
    }
}

#[test]
fn what_a_layer_in_fp32_computes_sets_no_end_of_the_window() {
    let highest = |dtype: Dtype| {
        let mut run = Scenario::new();
        run.static_scaler(1024.0).steps(4, |s, i| {
            s.applied(1024.0);
            backward(s, F16, 1.0, i);
            s.gradient("wide", "linear", dtype, &normal(512, 1.0, i));
            s.param_grad("wide", "weight", F32, &normal(512, 1e9, i)).param_grad(
                "fc1",
                "weight",
                F32,
                &normal(512, 1e3, i),
            );
        });
        let diagnosis = diagnose(&run);
        window(&whatif(&diagnosis)).highest.label()
    };
    assert_eq!((highest(F32).as_str(), highest(F16).as_str()), ("fc1.weight", "wide.weight"));
}

#[test]
fn the_scale_in_force_is_the_one_after_the_last_update() {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(4, |s, i| {
        if i == 3 {
            s.skipped(65536.0, 32768.0)
        } else {
            s.applied(65536.0)
        };
        backward(s, F16, 1.0, i);
    });
    let diagnosis = diagnose(&run);
    assert_eq!(diagnosis.aggregate().scale_in_force(), Some(32768.0));
    assert_eq!((whatif(&diagnosis).scale_in_force, whatif(&diagnosis).shown_scale()), (Some(32768.0), 15));
    let mut gone = Scenario::new();
    gone.dynamic_scaler(1.0).step(|s| {
        s.skipped(1e-300, 0.0);
        backward(s, F16, 1.0, 0);
    });
    let gone = diagnose(&gone);
    assert_eq!((gone.aggregate().scale_in_force(), whatif(&gone).scale_in_force), (Some(0.0), None));
}

#[test]
fn gradients_that_shrank_leave_the_window_of_the_latest_steps() {
    let mut run = Scenario::new();
    run.steps(12, |s, i| backward(s, F32, if i < 6 { 1e-9 } else { 1e3 }, i));
    let shrank = diagnose(&run);
    assert!(window(&whatif(&shrank)).shrank, "{:?}", whatif(&shrank).window);
    let steady = super::tests::run(F32, 1e-3, 1.0, 6);
    assert!(!window(&whatif(&steady)).shrank);
}

/// A dynamic scaler from 2^16 on: steps skipped down to `2^held`, then taken there. Steps of `scanned` have gradients of this deviation without the scale.
fn calibrated(held: i32, steps: u64, scanned: impl Fn(u64) -> Option<f64>) -> Scenario {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(steps, |s, i| {
        let scale = f64::from((16 - i as i32).max(held)).exp2();
        s.loss(1.0);
        match scale > f64::from(held).exp2() {
            true => s.skipped(scale, scale / 2.0),
            false => s.applied(scale),
        };
        match scanned(i) {
            Some(deviation) => backward(s, F16, deviation * scale, i),
            None => _ = s.tier(Tier::Light),
        }
    });
    run
}

#[test]
fn a_scale_at_which_steps_were_skipped_and_none_was_taken_since_is_not_recommended_whatever_was_scanned() {
    // What was scanned, late, bears 2^12 and more.
    let diagnosis = diagnose(&calibrated(8, 40, |i| (i >= 30).then_some(1e-1)));
    let whatif = whatif(&diagnosis);
    let found = window(&whatif);
    assert_eq!((found.refused_from, found.scales.high), (Some(9), 8), "{found:?}");
    assert!(found.recommended.is_some_and(|exponent| exponent <= 8), "{found:?}");
    assert_eq!(whatif.borne.map(|(exponent, taken)| (exponent, taken.since)), Some((8, 8)));
}

#[test]
fn skips_below_what_the_gradients_need_leave_no_scale_and_no_layer_to_blame() {
    let diagnosis = diagnose(&calibrated(3, 40, |i| (i >= 30).then_some(5e-8)));
    let whatif = whatif(&diagnosis);
    let found = window(&whatif);
    assert!(found.scales.is_empty() && found.recommended.is_none(), "{found:?}");
    assert!(found.is_followed && found.fix.is_none(), "{found:?}");
}

#[test]
fn a_scale_that_was_refused_and_is_held_later_ends_no_window() {
    let mut run = calibrated(14, 8, |_| Some(1e-2));
    run.steps(8, |s, i| {
        s.applied(65536.0);
        backward(s, F16, 1e-3 * 65536.0, 100 + i);
    });
    let diagnosis = diagnose(&run);
    assert_eq!(window(&whatif(&diagnosis)).refused_from, None);
    assert_eq!(
        whatif(&diagnosis).borne.map(|(exponent, taken)| (exponent, taken.since, taken.steps)),
        Some((16, 8, 8))
    );
}

#[test]
fn of_gradients_that_moved_under_a_dynamic_scaler_no_layer_is_blamed_and_under_a_static_one_it_is() {
    let moving = |dynamic: bool| {
        let mut run = Scenario::new();
        if dynamic {
            run.dynamic_scaler(16.0)
        } else {
            run.static_scaler(16.0)
        };
        // Large at the start, and by the end too small for a scale that the start would have borne.
        run.steps(40, |s, i| {
            s.applied(16.0);
            backward(s, F32, if i < 10 { 1e3 } else { 1e-7 }, i);
        });
        diagnose(&run)
    };
    let (dynamic, fixed) = (moving(true), moving(false));
    assert!(window(&whatif(&dynamic)).scales.is_empty(), "{:?}", window(&whatif(&dynamic)));
    assert!(window(&whatif(&dynamic)).is_followed && window(&whatif(&dynamic)).fix.is_none());
    assert!(!window(&whatif(&fixed)).is_followed && window(&whatif(&fixed)).fix.is_some());
}

#[test]
fn the_gradient_of_a_parameter_that_is_largest_and_comes_first_is_not_laid_to_a_layer_behind_it() {
    let mut run = Scenario::new();
    run.static_scaler(1.0).steps(20, |s, i| {
        s.applied(1.0).loss(1.0);
        s.gradient("head", "linear", F32, &normal(512, 1.0, i));
        s.gradient("attn.v", "linear", F32, &normal(512, 1e-6, 200 + i));
        s.gradient("attn.k", "linear", F32, &normal(512, 3e4, 100 + i));
        s.param_grad("head", "weight", F32, &normal(512, 2e5, 300 + i));
    });
    let diagnosis = diagnose(&run);
    let whatif = whatif(&diagnosis);
    assert_eq!(window(&whatif).highest.layer, "head");
    let fix = window(&whatif).fix.clone().expect("no scale is good for all");
    assert!(fix.contains("Change layer `attn.v` (its gradient is far smaller than all others"), "{fix}");
}

#[test]
fn gradients_that_overflow_at_every_scale_have_none_to_be_set() {
    let diagnosis = run(F32, 1e30, 1.0, 6);
    let whatif = whatif(&diagnosis);
    let found = window(&whatif);
    assert!(found.overflows_at_all && found.recommended.is_none(), "{found:?}");
}

#[test]
fn losses_and_what_autocast_leaves_in_fp32_set_no_end_of_the_window() {
    let mut run = Scenario::new();
    run.steps(4, |s, i| {
        backward(s, F32, 1e-3, i);
        s.gradient("head", "nll_loss", F32, &[1e6]);
        s.gradient("head", "log_softmax", F32, &normal(512, 1e5, i));
    });
    let (with, without) = (diagnose(&run), super::tests::run(F32, 1e-3, 1.0, 4));
    assert_eq!(window(&whatif(&with)).scales, window(&whatif(&without)).scales);
}

#[test]
fn non_finite_scans_are_counted_and_left_out() {
    let mut run = Scenario::new();
    run.dynamic_scaler(65536.0).steps(6, |s, i| {
        if i == 2 {
            s.skipped(65536.0, 32768.0);
            s.gradient("fc1", "linear", F16, &[f64::INFINITY; 512]);
        } else {
            s.applied(32768.0);
            backward(s, F16, 1e-3 * 32768.0, i);
        }
    });
    let diagnosis = diagnose(&run);
    let whatif = whatif(&diagnosis);
    assert_eq!((whatif.non_finite_scans, whatif.finite_scans), (1, 20));
    assert!(window(&whatif).recommended.is_some());
}

#[test]
fn a_layer_fits_fp8_as_it_is_scaled_or_not_at_all() {
    let mut run = Scenario::new();
    run.steps(3, |s, i| {
        s.activation("plain", "linear", F32, &normal(512, 10.0, i));
        s.activation("small", "linear", F32, &normal(512, 1e-5, i));
        // The small ones carry most of the energy, and lie 2^20 below the one that is large.
        let wide: Vec<f64> = (0..1 << 12).map(|k| if k == 0 { 1.0 } else { 0.1 }).collect();
        s.activation("wide", "linear", F32, &wide);
        s.activation("huge", "linear", F32, &normal(512, 1e6, i));
    });
    let diagnosis = diagnose(&run);
    let whatif = whatif(&diagnosis);
    let fit = |layer: &str, format: usize| {
        let of = whatif.formats.iter().find(|of| of.layer == layer).expect("the layer");
        of.fits[0].expect("activations")[format].name()
    };
    let all = |layer: &str| [0, 1, 2, 3].map(|format| fit(layer, format));
    assert_eq!(all("plain"), ["as_is"; 4]);
    assert_eq!(all("small"), ["as_is", "as_is", "per_tensor_scale", "per_tensor_scale"]);
    assert_eq!(all("huge")[..3], ["per_tensor_scale", "as_is", "per_tensor_scale"]);
    assert!(whatif.formats[0].fits[1].is_none(), "no gradient was seen");
}

#[test]
fn what_a_format_makes_of_a_layer_is_told_in_shares_or_in_bounds() {
    let place = |format: Format| FORMATS.iter().position(|f| *f == format).expect("it is asked about");
    let mut run = Scenario::new();
    // Alike at 1.6 times the beginning of the binade below E5M2's smallest normal number, and two elements far away.
    let mut alike = vec![0.8 * Format::E5M2.min_normal(); 600];
    alike.extend([1e-6, 1.0]);
    run.steps(3, |s, i| {
        s.activation("plain", "linear", F32, &normal(512, 1.0, i));
        s.activation("alike", "linear", F32, &alike);
    });
    let diagnosis = diagnose(&run);
    let whatif = whatif(&diagnosis);
    let shares = |layer: &str, format| {
        let layer = whatif.formats.iter().find(|of| of.layer == layer).expect("the layer");
        layer.shares[Kind::Activations as usize].expect("activations")[place(format)]
    };
    let Shares { fading, lost, overflow } = shares("alike", Format::E5M2);
    assert!(!fading.told && fading.low < 0.01 && fading.high > 0.98, "{fading:?}");
    assert!(lost.told && lost.likely < 0.01 && overflow.likely == 0.0, "{lost:?} {overflow:?}");
    let in_fp16 = shares("alike", Format::F16).fading;
    assert!(in_fp16.told && in_fp16.likely > 0.98, "{in_fp16:?}");
    assert!(shares("plain", Format::E4M3).overflow.told && shares("plain", Format::E4M3).overflow.likely == 0.0);
    assert!(whatif.formats[0].shares[Kind::Gradients as usize].is_none(), "no gradient was seen");
}

#[test]
fn nothing_observed_has_no_window_and_does_no_harm() {
    let diagnosis = Diagnosis::new();
    let whatif = whatif(&diagnosis);
    assert!(whatif.window.is_none() && whatif.scales.is_empty() && whatif.layers.is_empty());
    assert_eq!(whatif.shown_scale(), 0);
    assert!(WhatIf::of(&[]).window.is_none());
}

#[test]
fn ranks_are_taken_together() {
    let (a, b) = (run(F32, 1e-3, 1.0, 3), run(F32, 1e-1, 1.0, 3));
    let both = WhatIf::of(&[a.aggregate(), b.aggregate()]);
    let (a, b, both) = (whatif(&a), whatif(&b), window(&both).clone());
    assert_eq!((both.scales.low, both.scales.high), (window(&a).scales.low, window(&b).scales.high));
    assert_eq!(both.recommended, window(&b).recommended);
}

#[test]
fn a_scaled_loss_is_left_out_and_a_layer_of_the_model_that_is_called_as_it_is_not() {
    let mut run = Scenario::new();
    run.dynamic_scaler(1024.0).steps(4, |s, i| {
        s.applied(1024.0).activation("scaler", "linear", F16, &normal(512, 1.0, i));
        s.activation("scaler", "scale_loss", F32, &normal(256, 1024.0, i));
        backward(s, F16, 1.0, i);
    });
    let diagnosis = diagnose(&run);
    let whatif = whatif(&diagnosis);
    let layer = whatif.formats.iter().find(|layer| layer.layer == "scaler").expect("the model's layer");
    assert!(matches!(layer.fits[0], Some([Fit::AsIs, ..])), "{layer:?}");
    assert!(whatif.memory.activations.iter().all(|held| held.dtype == "f16"), "{:?}", whatif.memory);
}
