//! Two runs that FP16 shows alike: in one the gradient was lost, in the other its zeros are by design (a ReLU's, or dead units). The doctor
//! tells them apart where backward was seen before it rounded; where it was not, it calls its share an estimate.

use ampdoctor::observation::scenario::{Scenario, StepBuilder, normal, stats_of};
use ampdoctor::rules::{Diagnosis, Finding, Severity, Value};
use ampdoctor::scan::Dtype::{F16, F32};
use ampdoctor::scan::Stats;
use half::f16;

const ELEMENTS: usize = 2048;
const STEPS: u64 = 12;

/// A gradient of which FP16 keeps a third as its two smallest numbers, and rounds the rest to zero.
fn lost(step: u64) -> Vec<f64> {
    normal(ELEMENTS, (-25.0f64).exp2(), step)
}

/// What FP16 keeps of it: sparse, and each number exact.
fn sparse(step: u64) -> Vec<f64> {
    lost(step).into_iter().map(|x| f64::from(f16::from_f64(x))).collect()
}

/// A gradient of which FP16 keeps nothing.
fn lost_whole(step: u64) -> Vec<f64> {
    normal(ELEMENTS, (-40.0f64).exp2(), step)
}

/// A gradient that is zero before FP16 holds it: that of dead units.
fn zero(_step: u64) -> Vec<f64> {
    vec![0.0; ELEMENTS]
}

/// Four layers that are well above, and below them `bottom`, whose gradient is `gradient` before FP16 holds it.
fn run(gradient: fn(u64) -> Vec<f64>, cast_is_seen: bool) -> Diagnosis {
    let mut scenario = Scenario::new();
    scenario.dynamic_scaler(65536.0).steps(STEPS, |s: &mut StepBuilder<'_>, step| {
        s.loss(1.0).applied(65536.0);
        let layers = ["fc1", "fc2", "fc3", "fc4"];
        s.activation("bottom", "linear", F16, &normal(ELEMENTS, 1.0, step));
        s.activation(
            "bottom",
            "relu",
            F16,
            &normal(ELEMENTS, 1.0, step).iter().map(|x| x.max(0.0)).collect::<Vec<_>>(),
        );
        for layer in layers {
            s.activation(layer, "linear", F16, &normal(ELEMENTS, 1.0, step));
        }
        for layer in layers.into_iter().rev() {
            s.gradient(layer, "linear", F16, &normal(ELEMENTS, 1.0, step));
        }
        let below = gradient(step);
        if cast_is_seen {
            s.cast_gradient("bottom", "linear", &below);
        }
        s.gradient("bottom", "linear", F16, &below);
    });
    let mut diagnosis = Diagnosis::new();
    scenario.records().iter().cloned().for_each(|record| diagnosis.apply(record));
    diagnosis
}

/// The FP16 gradient of `bottom`, as it was last seen.
fn held(diagnosis: &Diagnosis) -> Stats {
    let is_held = |site: &&ampdoctor::aggregate::SiteSummary| {
        site.site.layer == "bottom" && site.site.dtype == F16 && site.site.probe.is_gradient()
    };
    let site = diagnosis.aggregate().sites.iter().find(is_held).expect("a gradient of the lowest layer");
    site.latest().expect("a sample").stats.clone()
}

fn underflow(diagnosis: &Diagnosis) -> Option<&Finding> {
    diagnosis.findings().iter().find(|f| f.code == "AMP201" && f.layer == "bottom" && f.severity > Severity::Info)
}

fn evidence(finding: &Finding, name: &str) -> Option<f64> {
    finding.evidence.iter().find(|e| e.name == name).and_then(|e| match e.value {
        Value::Number(value) => Some(value),
        _ => None,
    })
}

#[test]
fn fp16_shows_the_two_alike() {
    for seen in [true, false] {
        assert_eq!(held(&run(lost, seen)), held(&run(sparse, seen)));
    }
    let stats = stats_of(&lost(0), F16);
    assert!(stats.zeros * 2 > stats.count && stats.max_abs > 0.0, "{stats:?}");
    assert_eq!(stats_of(&lost(0), F32).zeros, 0);
}

#[test]
fn where_the_cast_was_seen_what_was_lost_is_measured_in_the_one_and_nothing_in_the_other() {
    let (lost, sparse) = (run(lost, true), run(sparse, true));
    let share = |diagnosis: &Diagnosis| {
        let finding = underflow(diagnosis).unwrap_or_else(|| panic!("{:?}", diagnosis.findings()));
        evidence(finding, "lost_share").expect("a share that was measured")
    };
    assert!((0.5..0.9).contains(&share(&lost)), "{}", share(&lost));
    // What is left fades in both, which is said of both.
    assert_eq!(share(&sparse), 0.0);
}

#[test]
fn of_two_gradients_that_are_all_zero_the_lost_one_is_found_and_the_one_by_design_is_not() {
    let (lost, dead) = (run(lost_whole, true), run(zero, true));
    assert_eq!(held(&lost), held(&dead), "FP16 shows the two alike");
    let finding = underflow(&lost).unwrap_or_else(|| panic!("{:?}", lost.findings()));
    assert_eq!(evidence(finding, "lost_share"), Some(1.0));
    assert!(dead.findings().is_empty(), "{:?}", dead.findings());
}

#[test]
fn where_it_was_not_seen_the_two_are_judged_alike_and_the_share_is_called_an_estimate() {
    let (lost, sparse) = (run(lost, false), run(sparse, false));
    assert_eq!(lost.findings(), sparse.findings(), "what was recorded is the same");
    let finding = underflow(&lost).unwrap_or_else(|| panic!("{:?}", lost.findings()));
    assert_eq!(evidence(finding, "lost_share"), None, "nobody measured it");
    assert!(evidence(finding, "lost_share_estimate").is_some_and(|share| share > 0.1));
    assert!(finding.explanation.contains("estimated"), "{}", finding.explanation);
}
