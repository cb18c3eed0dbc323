use super::*;
use crate::aggregate::Aggregate;
use crate::observation::Rounding;
use crate::observation::scenario::{Scenario, normal};
use crate::scan::Dtype::{F16, F32};

fn kept(phi: f64) -> Fidelity {
    Fidelity { intended: 100, dead: 50, non_finite: 0, dot: phi, energy: 1.0 }
}

#[test]
fn ratios_are_of_the_matrices_and_unscaled_gradients_go_with_them() {
    let mut run = Scenario::new();
    run.step(|s| {
        s.loss_scale(1024.0).param_grad("fc", "weight", F32, &[1024.0; 64]).param_grad("fc", "bias", F32, &[1.0; 64]);
        s.update("fc", "add_", "weight", &[1e-3; 64]).param("fc", "weight", F32, &[0.1; 64]);
        s.update("fc", "add_", "bias", &[1.0; 64]).param("fc", "bias", F32, &[1.0; 64]);
        s.update("gain", "add_", "scale", &[1.0; 8]).param("gain", "scale", F32, &[1.0; 8]);
    });
    let a = Aggregate::of(&run);
    let step = a.weights.steps[0];
    assert!((step.median_ratio.unwrap() - 0.01).abs() < 1e-6 && (step.energy_ratio.unwrap() - 0.01).abs() < 1e-6);
    assert_eq!(step.gradient_norm, Some(8.0));
    assert!(a.weights.get("fc", "weight").unwrap().is_matrix && !a.weights.get("fc", "bias").unwrap().is_matrix);
    assert_eq!(a.weights.stepped_now().count(), 3);
}

#[test]
fn a_weight_that_moves_by_its_decay_alone_does_not_count_as_moved() {
    let mut run = Scenario::new();
    run.step(|s| {
        s.param_grad("fc", "weight", F32, &[0.0; 64]).update("fc", "add_", "weight", &[1e-3; 64]);
        s.param("fc", "weight", F32, &[0.1; 64]);
    });
    let a = Aggregate::of(&run);
    assert_eq!(a.weights.steps[0].median_ratio, Some(0.0));
}

#[test]
fn a_gate_that_starts_at_zero_has_no_ratio() {
    let mut run = Scenario::new();
    run.step(|s| {
        s.update("gate", "add_", "weight", &[1e-3; 64]).param("gate", "weight", F32, &[0.0; 64]);
    });
    let step = Aggregate::of(&run).weights.steps[0];
    assert_eq!((step.median_ratio, step.energy_ratio), (None, None));
}

#[test]
fn what_is_stepped_and_what_would_be_lost_are_kept_apart() {
    let mut run = Scenario::new();
    run.steps(40, |s, _| {
        s.update_in("a", "add_", "weight", F16, &[1e-3; 64]);
        s.rounding(Rounding { stepped: Some(kept(0.5)), decay: Some(kept(0.0)), ..Rounding::default() });
        s.update("b", "add_", "weight", &[1e-3; 64]);
        s.rounding(Rounding { without_masters: Some(kept(0.25)), decay: Some(kept(0.9)), ..Rounding::default() });
        s.param("b", "weight", F16, &[0.1; 64]);
        s.rounding(Rounding { unlike_master: Some(3), ..Rounding::default() });
    });
    let a = Aggregate::of(&run);
    let w = &a.weights;
    assert_eq!(w.fidelity(|s| s.stepped).phi(), Some(0.5));
    assert_eq!(w.fidelity(|s| s.decay).phi(), Some(0.0));
    assert_eq!(w.fidelity(|s| s.without_masters).phi(), Some(0.25));
    assert_eq!((w.steps.len(), w.stepped), (Weights::WINDOW, 40));
    let b = w.get("b", "weight").unwrap();
    assert_eq!((b.written_back_to, b.copied.len(), b.recent.len()), (Some(F16), Weights::WINDOW, Weights::WINDOW));
    assert_eq!(b.copied.back(), Some(&Copied { step: 39, unlike: 3, elements: 64, changed: false }));
    let site = |label: &str, probe| a.sites.iter().find(|s| s.site.label() == label && s.site.probe == probe).unwrap();
    let totals = |label, probe| *site(label, probe).rounding.as_deref().unwrap();
    assert_eq!(totals("a.weight", Probe::Update).stepped.unwrap().intended, 4000);
    assert_eq!(totals("b.weight", Probe::Param).unlike_master, Some(120));
}

#[test]
fn the_highest_ratio_is_one_that_was_kept_for_three_steps() {
    let mut run = Scenario::new();
    run.steps(10, |s, i| {
        let size = if i == 4 { 1.0 } else { 1e-3 };
        s.update("fc", "add_", "weight", &normal(4096, size, i)).param("fc", "weight", F32, &normal(4096, 1.0, i));
    });
    let last = *Aggregate::of(&run).weights.steps.back().unwrap();
    assert!((last.highest_before - 1e-3).abs() < 1e-4, "{last:?}");
}
