//! The table of rules, and how one is found by what people type.

use super::{
    Rule, RuleInfo, activation_near_overflow, activation_overflow, blind_spots, gradient_overflow, gradient_underflow,
    non_finite_origin, nothing_observed,
};

/// All rules, by code.
pub fn all() -> &'static [&'static dyn Rule] {
    &[
        &nothing_observed::NothingObserved,
        &blind_spots::BlindSpots,
        &activation_near_overflow::ActivationNearOverflow,
        &activation_overflow::ActivationOverflow,
        &gradient_underflow::GradientUnderflow,
        &gradient_overflow::GradientOverflow,
        &non_finite_origin::NonFiniteOrigin,
    ]
}

/// No rule has this code or name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no rule `{asked}`; the nearest is {code} `{name}`. `ampdoctor rules` lists all of them")]
pub struct UnknownRule {
    /// What was asked for.
    pub asked: String,
    /// The code of the nearest rule.
    pub code: &'static str,
    /// The name of the nearest rule.
    pub name: &'static str,
}

/// The rule of this code (`AMP201`, `amp201`, `201`) or name (`gradient-underflow`).
pub fn find(code_or_name: &str) -> Result<&'static dyn Rule, UnknownRule> {
    let asked = code_or_name.trim().to_lowercase().replace('_', "-");
    let spellings = |info: &RuleInfo| {
        let code = info.code.to_lowercase();
        [code.trim_start_matches("amp").to_string(), code, info.name.to_string()]
    };
    let distance =
        |info: &RuleInfo| spellings(info).iter().map(|s| edit_distance(&asked, s)).min().unwrap_or(usize::MAX);
    // Of equally near ones the one that begins alike: AMP502 is nearer to AMP501 than to AMP002.
    let alike = |info: &RuleInfo| spellings(info).iter().map(|s| common_prefix(&asked, s)).max().unwrap_or(0);
    let nearness = |info: &RuleInfo| (distance(info), std::cmp::Reverse(alike(info)));
    let Some(nearest) = all().iter().copied().min_by_key(|rule| nearness(rule.info())) else {
        unreachable!("the table of rules is not empty");
    };
    let info = nearest.info();
    match distance(info) {
        0 => Ok(nearest),
        _ => Err(UnknownRule { asked: code_or_name.into(), code: info.code, name: info.name }),
    }
}

/// A rule's page, as Markdown: title, code, and the prose of its file.
pub fn page(rule: &dyn Rule) -> String {
    let info = rule.info();
    let prose = info.source.lines().take_while(|line| line.starts_with("//!"));
    let prose: Vec<&str> = prose.map(|line| line.trim_start_matches("//!").strip_prefix(' ').unwrap_or("")).collect();
    format!(
        "# {} {}\n\n{}\n\nGravest severity: {}.\n\n{}\n",
        info.code,
        info.name,
        info.summary,
        info.severity.name(),
        deepen(&prose).join("\n").trim_end()
    )
}

/// Makes the headings of a file one level deeper, so that the title stands alone at the top.
fn deepen(prose: &[&str]) -> Vec<String> {
    prose.iter().map(|line| if line.starts_with('#') { format!("#{line}") } else { line.to_string() }).collect()
}

fn common_prefix(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(x, y)| x == y).count()
}

/// Insertions, deletions and replacements that turn `a` into `b` (Levenshtein).
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADINGS: [&str; 5] =
        ["# What it finds", "# Why it matters", "# How it decides", "# What to do", "# When it stays silent"];

    #[test]
    fn the_set_of_codes_is_this_one() {
        let codes: Vec<String> =
            all().iter().map(|r| format!("{} {} {}", r.info().code, r.info().name, r.info().severity.name())).collect();
        insta::assert_snapshot!(codes.join("\n"), @r"
        AMP001 nothing-observed info
        AMP002 blind-spots info
        AMP101 activation-near-overflow error
        AMP102 activation-overflow error
        AMP201 gradient-underflow error
        AMP202 gradient-overflow error
        AMP501 non-finite-origin error
        ");
    }

    #[test]
    fn rules_stand_in_the_order_of_their_codes_and_no_name_is_used_twice() {
        let infos: Vec<_> = all().iter().map(|r| r.info()).collect();
        assert!(infos.windows(2).all(|w| w[0].code < w[1].code));
        let mut names: Vec<_> = infos.iter().map(|i| i.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), infos.len());
    }

    #[test]
    fn every_page_has_the_fixed_headings_in_order() {
        for rule in all() {
            let page = page(*rule);
            let places: Vec<_> = HEADINGS.iter().map(|h| page.find(&format!("\n#{h}"))).collect();
            assert!(places.iter().all(Option::is_some), "{}: {places:?}", rule.info().code);
            assert!(places.windows(2).all(|w| w[0] < w[1]), "{}: {places:?}", rule.info().code);
        }
    }

    #[test]
    fn a_rule_is_found_by_code_number_and_name() {
        for asked in ["AMP201", "amp201", "201", " gradient-underflow ", "gradient_underflow"] {
            assert_eq!(find(asked).map(|r| r.info().code).unwrap(), "AMP201", "{asked}");
        }
    }

    #[test]
    fn a_misspelt_rule_is_answered_with_the_nearest() {
        for (asked, nearest) in [("gradient-underflw", "AMP201"), ("AMP502", "AMP501"), ("non-finit-orgin", "AMP501")] {
            let error = find(asked).err().unwrap();
            assert_eq!(error.code, nearest);
            assert!(error.to_string().contains(asked) && error.to_string().contains(nearest));
        }
    }

    #[test]
    fn edit_distance_counts_edits() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!((edit_distance("", "ab"), edit_distance("ab", ""), edit_distance("ab", "ab")), (2, 2, 0));
    }
}
