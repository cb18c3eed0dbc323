//! The words of this program, and of mixed precision, that a rule's page explains where it uses them.

/// A word, and what it means in a sentence or two.
struct Word {
    /// How it stands on a page; the first is how it is listed.
    spellings: &'static [&'static str],
    meaning: &'static str,
}

const WORDS: [Word; 13] = [
    Word {
        spellings: &["Ehat", "ehat"],
        meaning: "the predicted `1 - cosine` between a tensor and what FP16 keeps of it, from the histogram of its exponents. 0: the direction is \
                  kept, 1: nothing is left of it. FP16's ordinary rounding gives 2e-8; training suffers from about 1e-3 on.",
    },
    Word {
        spellings: &["phi", "Phi"],
        meaning: "the part of the intended update that arrives in the weights after rounding: `<applied, intended> / <intended, intended>`. 1: all \
                  of it, 0: none; above 1 rounding made the step larger.",
    },
    Word { spellings: &["octave", "octaves"], meaning: "a factor of two: six octaves are a factor of 64." },
    Word {
        spellings: &["headroom"],
        meaning: "how far the largest value stands below 65504, the largest number of FP16. One bit of headroom is a factor of two.",
    },
    Word {
        spellings: &["subnormal", "subnormals", "fade", "fades", "fading"],
        meaning: "smaller than 2^-14 = 6.1e-5, FP16's smallest normal number. From there down to 2^-24 = 6.0e-8 a number keeps one bit less with each \
                  halving: it fades. At 2^-25 and below it is rounded to zero: it is lost.",
    },
    Word {
        spellings: &["scanned step", "scanned steps", "scans"],
        meaning: "a step at which the doctor looked into the tensors. With `Doctor::builder().every(1)` that is each step; by default as many as fit \
                  into 2 % of the run's time. So 3 scanned steps in a row may be 3 steps or 300.",
    },
    Word {
        spellings: &["watched step", "watched steps"],
        meaning: "a step at which the doctor saw the calls of the loop (backward, unscale, step, update): the first four, and each scanned one.",
    },
    Word {
        spellings: &["shadow"],
        meaning: "`doctor.shadow(closure)`, right after backward, computes loss and gradients of this batch once more in FP32 and compares them. Nothing \
                  of the run changes.",
    },
    Word {
        spellings: &["ceiling"],
        meaning: "the loss scale above which gradients overflow, or `max_scale` where that is lower. A dynamic scaler probes it: after \
                  `growth_interval` clean steps it doubles the scale, and where that overflows it skips a step and halves it again.",
    },
    Word {
        spellings: &["calibration"],
        meaning: "the first steps of a dynamic scaler. It begins too high on purpose, and each skipped step halves the scale until gradients fit.",
    },
    Word {
        spellings: &["FP32 copies", "FP32 copy", "masters", "master weights"],
        meaning: "FP32 twins of weights that the model holds in FP16 or BF16: the optimizer steps the copies, and they are rounded into the model after \
                  each step. `MasterWeights` does that.",
    },
    Word {
        spellings: &["no_autocast"],
        meaning: "`ampdoctor_torch::no_autocast(|| ...)` switches autocast off for what is in it. What enters has to be cast, `x.to_kind(Kind::Float)`. \
                  After `vs.half()` the weights are FP16 too: the layer then needs a `VarStore` of its own that stays in FP32.",
    },
    Word {
        spellings: &["healthy runs", "healthy ones", "harmed runs", "harmed ones"],
        meaning: "the runs on which thresholds were chosen: in FP16, 28 that ended as their twins in FP32 did, and others with a fault that ended worse. \
                  They are small (MLP, CNN, transformer, LSTM, GRU; up to 0.3 million weights).",
    },
];

/// The words of this text that need a word, as a list in Markdown; empty where there is none.
pub(super) fn words_of(page: &str) -> String {
    let used = WORDS.iter().filter(|word| word.spellings.iter().any(|spelling| stands_in(page, spelling)));
    used.map(|word| format!("- {}: {}\n", word.spellings[0], word.meaning)).collect()
}

/// Whether `word` stands in `text` by itself, and not within a longer one: `phi` is not in `graphite`, nor `ehat` in `ehat-error`.
fn stands_in(text: &str, word: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(joins) && !after.is_some_and(joins)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_counts_where_it_stands_by_itself() {
        assert!(stands_in("phi (rule x)", "phi") && stands_in("below phi.", "phi") && stands_in("phi", "phi"));
        assert!(!stands_in("graphite, phi-like", "phi") && !stands_in("", "phi"));
    }

    #[test]
    fn only_words_that_are_used_are_explained() {
        let words = words_of("Six octaves of headroom.");
        assert_eq!(words.lines().count(), 2, "{words}");
        assert!(words.starts_with("- octave: a factor of two") && words.contains("\n- headroom: "), "{words}");
        assert_eq!(words_of("Gradients are infinite."), "");
    }
}
