use super::*;
use crate::recording::Records;
use crate::report::Layout;
use crate::report::fixture::Fixture;
use crate::rules::Diagnosis;
use crate::rules::whatif::WhatIf;

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
