use super::*;

/// A rule with a threshold that may differ by layer, one that counts, and a share.
const RULES: &str = "[rules.scale-thrash]\nlevel = \"info\"\nskip-share = 0.05\nfewest-skips = 20\n";

fn parsed(text: &str) -> Policy {
    parse(text, "ampdoctor.toml").unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn refused(text: &str) -> String {
    parse(text, "ampdoctor.toml").err().unwrap_or_else(|| panic!("it was read: {text}")).to_string()
}

#[test]
fn thresholds_and_levels_are_read_by_the_code_or_the_name_of_the_rule() {
    for text in [RULES.to_string(), RULES.replace("scale-thrash", "AMP301"), RULES.replace("scale-thrash", "amp301")] {
        let policy = parsed(&text);
        let set: Vec<_> =
            policy.limits.changed().iter().map(|l| (l.threshold.rule, l.threshold.name, l.value)).collect();
        assert_eq!(set, [("scale-thrash", "skip-share", 0.05), ("scale-thrash", "fewest-skips", 20.0)]);
        assert_eq!((policy.levels[0].code, policy.levels[0].severity), ("AMP301", Some(Severity::Info)));
        assert_eq!(policy.file.as_deref(), Some("ampdoctor.toml"));
    }
}

#[test]
fn layers_are_patterns_and_levels_may_be_off() {
    let policy =
        parsed("[layers.\"enc.*\".activation-near-overflow]\nnear = 16384\n[layers.head.AMP201]\nlevel = \"off\"\n");
    let near = &policy.limits.changed()[0];
    assert_eq!((near.layers.clone(), near.value), (Some(Pattern::new("enc.*")), 16384.0));
    assert_eq!((policy.levels[0].layers.clone(), policy.levels[0].severity), (Some(Pattern::new("head")), None));
}

#[test]
fn an_acceptance_has_a_code_and_a_reason() {
    let policy = parsed("[[allow]]\ncode = \"gradient-overflow\"\nlayer = \"head\"\nreason = \" known \"\n");
    assert_eq!(policy.allow, [Allow { code: "AMP202", layers: Some(Pattern::new("head")), reason: "known".into() }]);
    for (text, said) in [
        ("[[allow]]\ncode = \"AMP202\"\n", "needs a `reason`"),
        ("[[allow]]\ncode = \"AMP202\"\nreason = \" \"\n", "needs a `reason`"),
        ("[[allow]]\nreason = \"known\"\n", "needs a `code`"),
        ("\n\n[[allow]]\ncode = \"AMP202\"\nreasn = \"known\"\n", "Did you mean `reason`? "),
        ("[[allow]]\ncode = \"AMP999\"\nreason = \"known\"\n", "there is no rule `AMP999`"),
    ] {
        assert!(refused(text).contains(said), "{}", refused(text));
    }
}

#[test]
fn what_is_not_known_is_refused_with_its_line_and_the_nearest_name() {
    for (text, said, line) in [
        ("\n[rules.scale-trash]\n", "there is no rule `scale-trash`. Did you mean `scale-thrash`? ", 2),
        ("[rules.AMP301]\n\nskip-shar = 0.1\n", "has no threshold `skip-shar`. Did you mean `skip-share`? ", 3),
        ("[rules.AMP301]\nlevel = \"warn\"\n", "there is no level `warn`. The levels are off, info, warning, error", 2),
        ("[rules.AMP301]\nlevel = \"erorr\"\n", "Did you mean `error`? ", 2),
        ("[rule.AMP301]\n", "there is nothing called `rule`. Did you mean `rules`? ", 1),
        ("a = 1\n[rules\n", "this is no TOML", 2),
    ] {
        let error = refused(text);
        assert!(error.contains(said) && error.ends_with(&format!(": ampdoctor.toml:{line}")), "{error}");
    }
}

#[test]
fn a_rule_under_its_code_and_its_name_is_one_rule_and_set_once() {
    let error = refused("[rules.AMP302]\nlevel = \"info\"\n\n[rules.scale-ratchet]\nlevel = \"error\"\n");
    assert!(error.contains("`AMP302` and `scale-ratchet` are one rule, AMP302 scale-ratchet"), "{error}");
    assert!(error.ends_with(": ampdoctor.toml:4"), "{error}");
    let elsewhere = "[rules.AMP202]\nlevel = \"info\"\n[layers.\"a.*\".gradient-overflow]\nlevel = \"off\"\n";
    assert!(parse(elsewhere, FILE).is_ok(), "for some layers it may differ");
}

#[test]
fn a_named_file_that_is_not_there_is_an_error_that_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let error = policy(Some(&dir.path().join("none.toml"))).unwrap_err().to_string();
    assert!(error.contains("leave --config out") && error.ends_with("none.toml"), "{error}");
}

#[test]
fn a_rule_of_the_run_cannot_be_set_or_accepted_for_some_layers() {
    for (text, said) in [
        ("[layers.\"fc*\".AMP302]\nlevel = \"off\"\n", "AMP302 scale-ratchet judges the run as a whole"),
        ("[[allow]]\ncode = \"AMP302\"\nlayer = \"fc\"\nreason = \"known\"\n", "leave out `layer = \"fc\"`"),
        ("[[allow]]\ncode = \"AMP001\"\nreason = \"known\"\n", "makes no finding that could be accepted"),
    ] {
        assert!(refused(text).contains(said), "{}", refused(text));
    }
    assert!(
        parse("[[allow]]\ncode = \"AMP302\"\nlayer = \"**\"\nreason = \"known\"\n", FILE).is_ok(),
        "it meets the run"
    );
}

#[test]
fn all_mistakes_are_told_at_once() {
    let text = "rule = 1\n[rules.AMP301]\nskip-shar = 1\nskip-share = 2\n[rules.AMP999]\n[layers.fc.AMP302]\nlevel = \"off\"\n";
    let said = refused(text);
    let lines: Vec<&str> = said.lines().filter_map(|line| line.rsplit(':').next()).collect();
    assert_eq!(lines, ["1", "3", "4", "5", "6"], "{said}");
}

#[test]
fn what_a_file_sets_is_told() {
    let policy = parsed(&format!("{RULES}[[allow]]\ncode = \"AMP202\"\nlayer = \"head\"\nreason = \"known\"\n"));
    insta::assert_snapshot!(told(&policy, &Layout::default()));
    assert_eq!(told(&parsed(""), &Layout::default()), "ampdoctor.toml is read without a mistake, and sets nothing\n");
}

#[test]
fn values_that_cannot_be_meant_are_refused() {
    for (value, said) in [
        ("nan", "`skip-share` cannot be NaN: it has to be a finite number"),
        ("inf", "finite"),
        ("-0.1", "cannot be -0.1: it cannot be negative"),
        ("2", "a share lies between 0 and 1"),
        ("\"0.1\"", "`skip-share` is a number"),
        ("true", "`skip-share` is a number"),
    ] {
        let error = refused(&format!("[rules.AMP301]\nskip-share = {value}\n"));
        assert!(error.contains(said) && error.ends_with(":2"), "{error}");
    }
    assert!(refused("[rules.AMP301]\nfewest-skips = 2.5\n").contains("a whole number"));
    assert!(refused("rules = 1\n").contains("here a table is wanted, not a integer"));
    assert!(refused("allow = 1\n").contains("`[[allow]]`"));
}

#[test]
fn a_threshold_of_the_whole_run_cannot_be_set_for_some_layers() {
    let error = refused("[layers.fc.non-finite-origin]\nrepeated = 3\n");
    assert!(error.contains("is judged over the whole run"), "{error}");
}

#[test]
fn numbers_may_be_written_in_every_way_of_toml() {
    for (written, value) in [("1_000", 1000.0), ("1e4", 10000.0), ("0x10", 16.0), ("1_0.5", 10.5)] {
        let policy = parsed(&format!("[rules.AMP101]\nnear = {written}\n"));
        assert_eq!(policy.limits.changed()[0].value, value, "{written}");
    }
}

#[test]
fn the_example_of_the_documentation_is_read() {
    let example = include_str!("../../../docs/ampdoctor.toml");
    let policy = parsed(example);
    assert!(!policy.allow.is_empty() && !policy.levels.is_empty() && !policy.limits.changed().is_empty());
}
