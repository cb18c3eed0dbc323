use super::super::Rank;
use super::*;
use crate::observation::scenario::{Scenario, normal};
use crate::observation::{End, EndReason, Record};
use crate::report::Layout;
use crate::rules::{Diagnosis, Finding};
use crate::scan::Dtype::F16;

/// A run of sixty steps in which `fc2` overflows from step 20 on, or does not, with gradients of this size.
fn run(overflows: bool, gradient: f64) -> Diagnosis {
    let mut run = Scenario::new();
    run.dynamic_scaler(if overflows { 65536.0 } else { 1024.0 }).steps(60, |s, i| {
        let broken = overflows && i >= 20;
        s.loss(2.0 - 0.02 * i as f64).activation("fc1", "linear", F16, &normal(64, 1.0, i));
        let value = if broken { f64::INFINITY } else { 2.0 };
        s.activation("fc2", "linear", F16, &[value; 16]);
        s.gradient("fc2", "linear", F16, &normal(64, gradient, i)).gradient("fc1", "linear", F16, &normal(64, 1.0, i));
        match broken {
            true => s.skipped(65536.0, 65536.0),
            false => s.applied(1024.0),
        };
    });
    let mut diagnosis = Diagnosis::new();
    run.records().iter().cloned().for_each(|record| diagnosis.apply(record));
    diagnosis.apply(Record::End(End { steps: 60, dropped_steps: 0, reason: EndReason::Finished }));
    diagnosis
}

fn single(diagnosis: &Diagnosis) -> Run<'_> {
    Run::single(Rank::of(diagnosis))
}

fn codes(findings: &[&Finding]) -> Vec<(&'static str, String)> {
    findings.iter().map(|finding| (finding.code, finding.layer.clone())).collect()
}

#[test]
fn a_fault_that_is_mended_is_gone_and_one_that_came_makes_it_worse() {
    let (sick, well) = (run(true, 1.0), run(false, 1.0));
    let (before, after) = (single(&sick), single(&well));
    let mended = Comparison::of(&before, &after);
    assert!(codes(&mended.findings.gone).contains(&("AMP102", "fc2".into())), "{:?}", codes(&mended.findings.gone));
    assert_eq!((mended.judgement(), mended.findings.new.len()), (Judgement::NoWorse, 0));
    let (before, after) = (single(&well), single(&sick));
    let broken = Comparison::of(&before, &after);
    assert_eq!((broken.judgement(), broken.findings.gone.len()), (Judgement::Worse, 0));
    assert_eq!(broken.findings.new.len(), mended.findings.gone.len());
}

#[test]
fn a_run_held_against_itself_differs_in_nothing() {
    let sick = run(true, 1.0);
    let (before, after) = (single(&sick), single(&sick));
    let same = Comparison::of(&before, &after);
    assert_eq!((same.findings.new.len(), same.findings.gone.len()), (0, 0));
    assert!(!same.findings.remaining.is_empty() && same.layers.is_empty() && same.settings.is_empty());
    assert_eq!((same.judgement(), &same.base), (Judgement::NoWorse, &same.run));
}

#[test]
fn of_a_run_that_was_not_seen_nothing_is_said() {
    let (well, nothing) = (run(false, 1.0), Diagnosis::new());
    assert_eq!(Comparison::of(&single(&well), &single(&nothing)).judgement(), Judgement::Unknown);
}

#[test]
fn layers_are_told_where_their_gradients_fade_and_not_for_another_order_of_the_batches() {
    let (small, normal) = (run(false, 1e-5), run(false, 1.0));
    let (before, after) = (single(&small), single(&normal));
    let comparison = Comparison::of(&before, &after);
    let [change] = &comparison.layers[..] else { panic!("{:?}", comparison.layers) };
    assert_eq!(change.layer, "fc2");
    assert!(change.base.fading_gradient_share > Some(0.9) && change.run.fading_gradient_share < Some(0.1));
    assert!(Comparison::of(&single(&normal), &single(&run(false, 1.3))).layers.is_empty());
}

#[test]
fn a_scaler_that_is_gone_is_one_setting() {
    let mut plain = Scenario::new();
    plain.steps(3, |s, _| {
        s.loss(1.0);
    });
    let mut without = Diagnosis::new();
    plain.records().iter().cloned().for_each(|record| without.apply(record));
    let with = run(false, 1.0);
    let (before, after) = (single(&with), single(&without));
    let comparison = Comparison::of(&before, &after);
    let named: Vec<&str> = comparison.settings.iter().map(|setting| setting.name.as_str()).collect();
    assert_eq!(named, ["loss scaler"]);
}

#[test]
fn a_loss_that_ends_higher_is_said_though_no_finding_is_new() {
    let of = |loss: f64| {
        let mut run = Scenario::new();
        run.steps(60, |s, i| {
            s.loss(loss + 0.01 * (i % 2) as f64).activation("fc", "linear", F16, &normal(64, 1.0, i));
        });
        let mut diagnosis = Diagnosis::new();
        run.records().iter().cloned().for_each(|record| diagnosis.apply(record));
        diagnosis
    };
    let said = |base: f64, run: f64| {
        compare_text(&Comparison::of(&single(&of(base)), &single(&of(run))), &Layout::default()).contains("ends higher")
    };
    assert_eq!([said(0.3, 2.3), said(2.3, 0.3), said(0.3, 0.301)], [true, false, false]);
}

#[test]
fn the_end_of_the_loss_is_the_mean_of_its_last_steps() {
    let well = run(false, 1.0);
    let loss = Outcome::of(&single(&well)).loss.expect("a loss");
    // Of 2 - 0.02 i for i from 10 to 59.
    assert!((loss.mean - (2.0 - 0.02 * 34.5)).abs() < 1e-9, "{loss:?}");
    assert_eq!((loss.losses, loss.non_finite), (50, 0));
    assert_eq!(Outcome::of(&single(&Diagnosis::new())).loss, None);
}

#[test]
fn the_text_says_what_it_comes_to_first() {
    let (sick, well) = (run(true, 1.0), run(false, 1.0));
    let layout = Layout { width: 80, colour: false };
    insta::assert_snapshot!(compare_text(&Comparison::of(&single(&sick), &single(&well)), &layout));
}
