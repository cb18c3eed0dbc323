use half::{bf16, f16};

use crate::observation::Rounding;
use crate::observation::scenario::{Scenario, normal};
use crate::rules::silence::{diagnose, found};
use crate::rules::{Diagnosis, Finding, Severity, Value};
use crate::scan::Dtype::{self, Bf16, F16, F32};
use crate::scan::{Fidelity, fidelity};

fn round(dtype: Dtype, x: f64) -> f64 {
    match dtype {
        F16 => f64::from(f16::from_f64(x)),
        Bf16 => f64::from(bf16::from_f64(x)),
        _ => x,
    }
}

fn memory(dtype: Dtype, values: &[f64]) -> Vec<u8> {
    let bytes = |x: f64| match dtype {
        F16 => f16::from_f64(x).to_ne_bytes(),
        _ => bf16::from_f64(x).to_ne_bytes(),
    };
    values.iter().flat_map(|&x| bytes(x)).collect()
}

/// Steps weights in `dtype` by `update`, as an optimizer does that has no copies; what is left of it.
fn take_step(dtype: Dtype, weights: &mut [f64], update: &[f64]) -> Fidelity {
    let before = memory(dtype, weights);
    weights.iter_mut().zip(update).for_each(|(w, u)| *w = round(dtype, *w + u));
    fidelity(dtype, &before, &memory(dtype, weights), &update.iter().map(|&u| u as f32).collect::<Vec<_>>())
}

/// A run whose optimizer steps weights of N(0, `deviation`) in `dtype` by updates of the magnitude that `size` gives, of either sign.
fn run(dtype: Dtype, deviation: f64, steps: u64, size: impl Fn(u64) -> f64) -> Scenario {
    let mut weights: Vec<f64> = normal(50_000, deviation, 1).iter().map(|&w| round(dtype, w)).collect();
    let mut run = Scenario::new();
    run.steps(steps, |s, i| {
        let update: Vec<f64> = normal(weights.len(), 1.0, 100 + i).iter().map(|x| x.signum() * size(i)).collect();
        let stepped = take_step(dtype, &mut weights, &update);
        s.loss(1.0).update_in("fc", "add_", "weight", dtype, &update);
        s.rounding(Rounding { stepped: Some(stepped), ..Rounding::default() });
        s.param("fc", "weight", dtype, &weights);
    });
    run
}

fn only(d: &Diagnosis) -> Finding {
    assert_eq!(found(d), ["AMP401"], "{:#?}", d.findings());
    d.findings()[0].clone()
}

fn number(f: &Finding, name: &str) -> f64 {
    match f.evidence.iter().find(|e| e.name == name).map(|e| &e.value) {
        Some(Value::Number(x)) => *x,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn case_22_updates_that_fp16_loses_are_found_with_the_figures_of_the_arithmetic() {
    for (size, dead, phi) in [(3e-6, 0.697, 0.36), (1e-6, 0.845, 0.22), (1e-7, 0.99, 0.012)] {
        let f = only(&diagnose(&run(F16, 0.02, 6, |_| size)));
        assert_eq!((f.severity, f.onset_step), (Severity::Error, 0));
        let (p, d) = (number(&f, "phi"), number(&f, "dead_share"));
        assert!((p - phi).abs() < 0.008 && (p / phi - 1.0).abs() < 0.08, "{size:e}: phi {p}, not {phi}");
        assert!((d - dead).abs() < 0.008, "{size:e}: {d} dead, not {dead}");
    }
    assert!(found(&diagnose(&run(F16, 0.02, 6, |_| 1e-5))).is_empty(), "12 % are dead there, and phi is 1");
}

#[test]
fn updates_that_fp16_keeps_are_lost_in_bf16() {
    assert!(found(&diagnose(&run(F16, 0.02, 8, |_| 3e-5))).is_empty());
    let f = only(&diagnose(&run(Bf16, 0.02, 8, |_| 3e-5)));
    assert!(f.explanation.contains("held in BF16") && number(&f, "phi") < 0.6, "{f:#?}");
}

#[test]
fn rounding_that_amplifies_is_an_error_with_twice_the_step() {
    let mut weights = vec![1.0];
    let mut run = Scenario::new();
    run.steps(1000, |s, _| {
        let stepped = take_step(F16, &mut weights, &[-2.5e-4]);
        s.loss(1.0).update_in("gain", "add_", "weight", F16, &[-2.5e-4]);
        s.rounding(Rounding { stepped: Some(stepped), ..Rounding::default() }).param("gain", "weight", F16, &weights);
    });
    assert!((weights[0] - 0.512).abs() < 5e-4, "{}", weights[0]);
    let f = only(&diagnose(&run));
    assert_eq!(f.severity, Severity::Error);
    assert!((number(&f, "phi") - 1.95).abs() < 0.01, "{f:#?}");
    assert!(f.explanation.contains("times as large as it intended"), "{}", f.explanation);
}

#[test]
fn a_learning_rate_that_falls_makes_it_begin_where_it_falls() {
    // Energy is what counts, so the small steps must first outweigh the large ones that the window still holds.
    let d = diagnose(&run(F16, 0.02, 90, |i| if i < 40 { 3e-5 } else { 2e-6 }));
    let f = d.findings().iter().find(|f| f.code == "AMP401").expect("found");
    assert!((40..=45).contains(&f.onset_step), "{}", f.onset_step);
}

#[test]
fn four_steps_are_too_few_and_say_so() {
    let d = diagnose(&run(F16, 0.02, 4, |_| 1e-6));
    assert!(found(&d).is_empty() && d.doubts().iter().any(|doubt| doubt.code == "AMP401"), "{:?}", d.doubts());
}

#[test]
fn under_fp32_masters_what_would_be_lost_is_no_finding() {
    let mut run = Scenario::new();
    let lost = Fidelity { intended: 100, dead: 99, non_finite: 0, dot: 0.01, energy: 1.0 };
    run.steps(40, |s, i| {
        s.loss(1.0).update("fc", "addcdiv_", "weight", &normal(256, 1e-7, i));
        s.rounding(Rounding { without_masters: Some(lost), ..Rounding::default() });
        s.param("fc", "weight", F32, &normal(256, 0.02, i)).param("fc", "weight", F16, &normal(256, 0.02, 1));
        s.rounding(Rounding { unlike_master: Some(0), ..Rounding::default() });
    });
    assert!(!found(&diagnose(&run)).contains(&"AMP401"));
}

#[test]
fn a_gain_that_stands_still_beside_a_matrix_that_moves_harms_nobody() {
    let mut run = Scenario::new();
    let of = |phi: f64, energy: f64| Fidelity { intended: 64, dead: 30, non_finite: 0, dot: phi * energy, energy };
    run.steps(10, |s, i| {
        for (layer, f) in [("norm", of(0.05, 1e-9)), ("fc", of(0.99, 1e-3))] {
            s.loss(1.0).update_in(layer, "add_", "weight", F16, &normal(64, 1e-3, i));
            s.rounding(Rounding { stepped: Some(f), ..Rounding::default() });
            s.param(layer, "weight", F16, &normal(64, 0.5, i));
        }
    });
    assert!(found(&diagnose(&run)).is_empty());
}

#[test]
fn the_parameter_that_loses_most_and_the_line_to_write_are_named() {
    let mut run = Scenario::new();
    let of = |phi: f64, energy: f64| Fidelity { intended: 64, dead: 30, non_finite: 0, dot: phi * energy, energy };
    run.steps(6, |s, i| {
        for (layer, f) in [("a", of(0.9, 1.0)), ("b", of(0.1, 1.0)), ("c", of(0.5, 0.01))] {
            s.loss(1.0).lr(3e-4).update_in(layer, "addcdiv_", "weight", F16, &normal(64, 1e-3, i));
            s.rounding(Rounding { stepped: Some(f), decay: Some(of(0.0, 1e-6)), ..Rounding::default() });
            s.param(layer, "weight", F16, &normal(64, 0.5, i));
        }
    });
    let f = only(&diagnose(&run));
    assert!(f.explanation.contains("It costs most at `b.weight`, `a.weight`, `c.weight`."), "{}", f.explanation);
    assert!(f.explanation.contains("Of the weight decay none arrives."), "{}", f.explanation);
    assert!(f.remedy.text.contains("MasterWeights::new(&vs)?.build(config, 3.00e-4)?"), "{}", f.remedy.text);
}

#[test]
fn it_begins_no_earlier_than_low_precision_was_first_stepped() {
    let mut run = Scenario::new();
    let lost = Fidelity { intended: 64, dead: 60, non_finite: 0, dot: 0.1, energy: 1.0 };
    run.steps(30, |s, i| {
        let dtype = if i < 20 { F32 } else { F16 };
        s.loss(1.0).update_in("fc", "add_", "weight", dtype, &normal(64, 1e-3, i));
        if i >= 20 {
            s.rounding(Rounding { stepped: Some(lost), ..Rounding::default() });
        }
        s.param("fc", "weight", dtype, &normal(64, 0.5, i));
    });
    assert_eq!(only(&diagnose(&run)).onset_step, 20);
}

#[test]
fn a_weight_that_is_changed_behind_its_copy_is_not_what_the_optimizer_steps() {
    let mut run = Scenario::new();
    let lost = Fidelity { intended: 64, dead: 60, non_finite: 0, dot: 0.1, energy: 1.0 };
    run.steps(30, |s, i| {
        s.loss(1.0).update("fc", "add_", "weight", &normal(64, 1e-3, i)).param(
            "fc",
            "weight",
            F32,
            &normal(64, 0.5, i),
        );
        s.update_in("fc", "mul_", "weight", F16, &normal(64, 1e-3, i));
        s.rounding(Rounding { stepped: Some(lost), ..Rounding::default() });
        s.param("fc", "weight", F16, &normal(64, 0.5, i));
    });
    assert!(!found(&diagnose(&run)).contains(&"AMP401"), "{:?}", found(&diagnose(&run)));
}
