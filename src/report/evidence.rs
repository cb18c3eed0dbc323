//! The numbers that a finding stands on, in words: rules name them by keys, which JSON keeps and people need not read.

use super::Layout;
use super::number::{percent, readable};
use crate::rules::{Evidence, Value};

/// Keys whose words say too little.
const LABELS: [(&str, &str); 10] = [
    ("largest_max_abs", "largest magnitude of all of them"),
    ("ehat", "Ehat (predicted 1 - cosine)"),
    ("layer_ehat", "Ehat of the layer"),
    ("median_ehat", "median Ehat"),
    ("phi", "phi (part of the update that arrives)"),
    ("decay_phi", "phi of the decay"),
    ("lr", "learning rate"),
    ("times", "seen at steps"),
    ("update_over_weights", "update / weights"),
    ("update_over_weights_before", "update / weights before"),
];

/// What a user types stands as it is typed.
const SETTINGS: [&str; 4] = ["init_scale", "min_scale", "max_scale", "growth_interval"];

/// Words of a key that are written otherwise for people.
const WORDS: [(&str, &str); 9] = [
    ("lr", "learning rate"),
    ("fp16", "FP16"),
    ("fp32", "FP32"),
    ("nan", "NaN"),
    ("ehat", "Ehat"),
    ("l1", "L1"),
    ("rms", "RMS"),
    ("estimate", "(estimate)"),
    ("abs", "magnitude"),
];

/// One number of evidence for people, its name and its value: `largest magnitude`, `6.104e-5`. A share is a percentage, and a loss scale also a power
/// of two.
pub fn evidence_words(evidence: &Evidence) -> (String, String) {
    (label(evidence.name), value(evidence))
}

/// The same in one: `largest magnitude = 6.104e-5`.
pub fn evidence_text(evidence: &Evidence) -> String {
    format!("{} = {}", label(evidence.name), value(evidence))
}

/// All of them, none broken between two lines where it fits into one; those of the same name together.
pub(super) fn evidence_lines(first: &str, indent: &str, evidence: &[Evidence], layout: &Layout) -> String {
    let alike = evidence.chunk_by(|a, b| a.name == b.name);
    let parts: Vec<String> = alike
        .filter_map(|alike| {
            let label = label(alike.first()?.name);
            let values: Vec<String> = alike.iter().map(value).collect();
            Some(format!("{label} = {}", values.join(", ")))
        })
        .collect();
    layout.wrap_parts(first, indent, &parts, "; ")
}

fn value(evidence: &Evidence) -> String {
    let Evidence { name, value } = evidence;
    match value {
        Value::Number(x) if has_word(name, "share") => percent(*x),
        Value::Number(x) if has_word(name, "scale") => scale(*x),
        Value::Number(x) => readable(*x),
        Value::Count(n) => n.to_string(),
        Value::Text(text) => text.clone(),
    }
}

/// `65536 (2^16)`; what is no power of two, or is written as one already, as it is.
pub(super) fn scale(x: f64) -> String {
    let text = readable(x);
    match x.log2() {
        exponent if exponent.is_finite() && exponent.fract() == 0.0 && !text.contains('^') => {
            format!("{text} (2^{exponent:.0})")
        }
        _ => text,
    }
}

fn has_word(name: &str, word: &str) -> bool {
    name.split('_').any(|of| of == word)
}

fn label(name: &str) -> String {
    if let Some((_, label)) = LABELS.iter().find(|(key, _)| *key == name) {
        return (*label).to_owned();
    }
    if let Some((before, setting)) = SETTINGS.iter().find_map(|s| Some((name.strip_suffix(s)?, s))) {
        return format!("{}{setting}", before.replace('_', " "));
    }
    let name = name.replace("max_abs", "largest_abs").replace("largest_largest", "largest");
    let words = name.split('_').map(|word| WORDS.iter().find(|(of, _)| *of == word).map_or(word, |(_, said)| said));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &'static str, value: Value) -> String {
        evidence_text(&Evidence { name, value })
    }

    #[test]
    fn keys_are_words_and_numbers_have_units() {
        let cases = [
            ("max_abs_before", 3.779, "largest magnitude before = 3.779"),
            ("largest_max_abs", 4.0, "largest magnitude of all of them = 4"),
            ("lost_share_estimate", 0.381, "lost share (estimate) = 38 %"),
            ("loss_scale_before", 65536.0, "loss scale before = 65536 (2^16)"),
            ("loss_scale", 2f64.powi(28), "loss scale = 2^28"),
            ("loss_scale", 1000.0, "loss scale = 1000"),
            ("loss_scale", 0.0, "loss scale = 0"),
            ("recommended_growth_interval", 100.0, "recommended growth_interval = 100"),
            ("init_scale", 1024.0, "init_scale = 1024 (2^10)"),
            ("lr_before", 0.003, "learning rate before = 0.003"),
            ("headroom_bits", 1.25, "headroom bits = 1.25"),
        ];
        for (name, value, said) in cases {
            assert_eq!(text(name, Value::Number(value)), said);
        }
        assert_eq!(text("nan_elements", Value::Count(8)), "NaN elements = 8");
    }

    #[test]
    fn those_of_one_name_stand_together_and_none_is_broken() {
        let of = |name, value: &str| Evidence { name, value: Value::Text(value.into()) };
        let all = [of("loses_most", "a.weight (phi 0.1)"), of("loses_most", "b"), of("steps_in_a_row", "7")];
        let layout = Layout { width: 44, colour: false };
        assert_eq!(
            evidence_lines("  ", "  ", &all, &layout),
            "  loses most = a.weight (phi 0.1), b;\n  steps in a row = 7\n"
        );
    }
}
