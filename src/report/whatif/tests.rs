use super::*;
use crate::numerics::Format;
use crate::observation::scenario::{Scenario, normal};
use crate::recording::Records;
use crate::report::Layout;
use crate::report::fixture::Fixture;
use crate::rules::Diagnosis;
use crate::rules::whatif::WhatIf;
use crate::scan::Dtype;

#[test]
fn a_pattern_is_a_glob() {
    for (pattern, text, expected) in [
        ("*", "", true),
        ("*", "block.0.attn", true),
        ("block.*", "block.0.attn", true),
        ("*.attn", "block.0.attn", true),
        ("*.attn*", "block.0.attn.qkv", true),
        ("block.?.attn", "block.0.attn", true),
        ("block.?.attn", "block.10.attn", false),
        ("fc1", "fc1", true),
        ("fc", "fc1", false),
        ("*b*b", "abab", true),
        ("*b*c", "abab", false),
        ("", "x", false),
    ] {
        assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
    }
}

#[test]
fn a_gradient_of_which_nothing_is_left_is_not_passed_over_in_silence() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/corpus/underflow.amprec");
    let mut diagnosis = Diagnosis::new();
    let records = Records::open(std::path::Path::new(file)).expect("a recording");
    records.for_each(|record| diagnosis.apply(record.expect("a whole recording")));
    let whatif = WhatIf::of(&[diagnosis.aggregate()]);
    let text = whatif_text(&whatif, &Selection::default(), &Layout { width: 400, colour: false }, true);
    assert!(text.contains("which left nothing of one or more"), "{text}");
    assert!(text.contains("Change layer `"), "{text}");
}

fn diagnosed(scenario: &Scenario) -> Diagnosis {
    let mut diagnosis = Diagnosis::new();
    scenario.records().iter().for_each(|record| diagnosis.apply(record.clone()));
    diagnosis
}

fn text_of(diagnosis: &Diagnosis, selection: &Selection, unicode: bool) -> String {
    whatif_text(&WhatIf::of(&[diagnosis.aggregate()]), selection, &Layout { width: 80, colour: false }, unicode)
}

#[test]
fn a_share_that_no_histogram_tells_is_printed_as_its_bounds_and_one_that_it_tells_as_a_number() {
    let mut alike = vec![0.8 * Format::E5M2.min_normal(); 600];
    alike.extend([1e-6, 1.0]);
    let mut run = Scenario::new();
    run.steps(3, |s, _| {
        s.activation("fc1", "linear", Dtype::F32, &alike);
    });
    let diagnosis = diagnosed(&run);
    let one = Selection { layers: Some("fc1".into()), scale: None };
    let text = text_of(&diagnosis, &one, true);
    let row = |format: &str| text.lines().find(|line| line.contains(format)).expect("the row").to_owned();
    assert!(row("fp8_e5m2").contains("0 to 100 %"), "{text}");
    assert!(row("activations fp16").contains("100 %") && !row("activations fp16").contains(" to "), "{text}");
    assert!(text.contains("Of two numbers the share lies between them"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(
        !text_of(&diagnosis, &Selection::default(), true).contains("fp8_e5m2"),
        "only of layers that were asked for"
    );
}

#[test]
fn shares_behind_a_gradient_that_loses_a_part_are_printed_as_bounds() {
    let mut run = Scenario::new();
    run.steps(4, |s, i| {
        s.gradient("last", "linear", Dtype::F32, &normal(512, 1e-3, i));
        s.gradient("scores", "matmul", Dtype::F32, &normal(512, 1e-6, 100 + i));
        s.gradient("first", "linear", Dtype::F32, &normal(512, 1e-5, 200 + i));
    });
    let diagnosis = diagnosed(&run);
    let at = |exponent| Selection { layers: None, scale: Some(exponent) };
    for (unicode, less, more) in [(true, "≤", "≥"), (false, "<=", ">=")] {
        let text = text_of(&diagnosis, &at(0), unicode);
        let table = text.split("Each layer at 2^0").nth(1).expect("the table");
        let row = |layer: &str| table.lines().find(|line| line.starts_with(layer)).expect("the row").to_owned();
        assert!(row("first").contains(less) && row("first").contains(more), "{text}");
        assert!(!row("scores").contains(more) && !row("last").contains(more), "{text}");
        assert!(table.contains("a gradient computed before it"), "{text}");
        assert!(text.contains(if unicode { "lost ≥" } else { "lost >" }), "{text}");
    }
    let text = text_of(&diagnosis, &at(14), true);
    assert!(!text.contains("a gradient computed before it"), "{text}");
}

#[test]
fn the_text_fits_the_width_and_needs_no_unicode() {
    let fixture = Fixture::sick();
    let run = fixture.run();
    let aggregates: Vec<_> = run.ranks.iter().map(|rank| rank.aggregate).collect();
    let whatif = WhatIf::of(&aggregates);
    for width in [60, 80, 100] {
        for unicode in [true, false] {
            let layout = Layout { width, colour: false };
            let text = whatif_text(&whatif, &Selection::default(), &layout, unicode);
            let longest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
            assert!(longest <= width.max(80), "{longest} columns of {width}:\n{text}");
            assert!(unicode || text.is_ascii(), "{text}");
        }
    }
}

/// Early gradients that a scale of 2^13 leaves a bit of headroom, later ones 2^9 times smaller; the scale in force at the end is `2^last`.
fn grown_to(last: i32) -> Scenario {
    let mut run = Scenario::new();
    run.dynamic_scaler(8192.0).steps(40, |s, i| {
        let (exponent, deviation) = if i < 20 { (13, 0.8) } else { (last, 0.8 / 512.0) };
        let scale = f64::from(exponent).exp2();
        s.loss(1.0).applied(scale);
        s.gradient("fc", "linear", Dtype::F16, &normal(512, deviation * scale, i));
    });
    run
}

#[test]
fn what_the_run_bears_at_the_scale_in_force_is_not_said_to_overflow() {
    let one_line = |run: &Scenario| text_of(&diagnosed(run), &Selection::default(), true).replace('\n', " ");
    let far = one_line(&grown_to(21));
    assert!(far.contains("in force 2^21 (no step skipped since step 20; the largest gradients, which came before, would overflow there)"), "{far}");
    assert!(!far.contains("above:"), "{far}");
    let near = one_line(&grown_to(14));
    assert!(
        near.contains(
            "in force 2^14 (no step skipped since step 20; the largest gradients leave less than a bit of headroom)"
        ),
        "{near}"
    );
}

#[test]
fn a_scale_that_no_step_was_taken_at_yet_is_said_to_be_so() {
    let mut run = grown_to(14);
    run.step(|s| {
        s.loss(1.0).moved(16384.0, 32768.0);
    });
    let text = text_of(&diagnosed(&run), &Selection::default(), true).replace('\n', " ");
    assert!(text.contains("in force 2^15 (not tried yet; at 2^14 no step skipped since step 20)"), "{text}");
}

#[test]
fn an_impossible_scale_is_no_recommendation_and_no_number_is_endless() {
    let mut run = Scenario::new();
    run.steps(6, |s, i| {
        s.loss(1.0).gradient("fc", "linear", Dtype::F32, &normal(512, 1e30, i));
    });
    let text = text_of(&diagnosed(&run), &Selection::default(), true).replace('\n', " ");
    assert!(text.contains("none is to be recommended: `fc/linear` overflows"), "{text}");
    assert!(!text.contains("recommended 2^") && !text.contains("0.0000000"), "{text}");
}
