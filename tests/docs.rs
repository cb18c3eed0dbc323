//! What is generated from the program, against what is committed under docs/. `AMPDOCTOR_RENEW=1 cargo test --release --test docs`
//! writes it anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ampdoctor::aggregate::Aggregate;
use ampdoctor::observation::scenario::{Scenario, normal};
use ampdoctor::observation::{Sampling, Tier};
use ampdoctor::report::{page, page_file_name, page_index};
use ampdoctor::rules::{self, RuleInfo, Standing};
use ampdoctor::scan::Dtype;

const RENEW: &str = "AMPDOCTOR_RENEW=1 cargo test --release --test docs";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

fn renewing() -> bool {
    std::env::var_os("AMPDOCTOR_RENEW").is_some()
}

/// Compares a file with what it should be, or writes it where that is asked for.
fn keep(path: &Path, expected: &str) {
    if renewing() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, expected).unwrap();
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(found == expected, "{} is stale. Renew it with\n  {RENEW}", path.display());
}

fn rule_pages() -> BTreeMap<String, String> {
    let infos: Vec<&RuleInfo> = rules::all().iter().map(|rule| rule.info()).collect();
    let mut pages: BTreeMap<_, _> =
        rules::all().iter().map(|rule| (page_file_name(rule.info()), page(*rule))).collect();
    pages.insert("README.md".into(), page_index(&infos));
    pages
}

#[test]
fn every_rule_has_its_page_and_the_index_names_it() {
    for (name, text) in rule_pages() {
        keep(&docs().join("rules").join(name), &text);
    }
}

#[test]
fn no_page_outlives_its_rule() {
    let pages = rule_pages();
    for entry in fs::read_dir(docs().join("rules")).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match pages.contains_key(&name) {
            true => {}
            false if renewing() => fs::remove_file(&path).unwrap(),
            false => panic!("{name} belongs to no rule. Remove it with\n  {RENEW}"),
        }
    }
}

#[test]
fn a_page_has_sections_and_its_rule_a_summary_of_one_line() {
    for rule in rules::all() {
        let (info, text) = (rule.info(), page(*rule));
        assert!(text.matches("\n## ").count() >= 2, "the page of {} has no sections:\n{text}", info.code);
        assert!(!info.summary.is_empty() && !info.summary.contains('\n'), "{} needs a summary of one line", info.code);
    }
}

#[test]
fn a_page_says_what_to_type_before_how_it_was_decided_and_explains_its_words() {
    for rule in rules::all() {
        let (code, text) = (rule.info().code, page(*rule));
        let (before, after) =
            text.split_once("\n## How it decides\n").unwrap_or_else(|| panic!("{code} decides nothing"));
        let todo = before.split_once("\n## What to do\n").unwrap_or_else(|| panic!("{code} has nothing to do")).1;
        assert!(todo.contains('`'), "{code} says nothing to type:\n{todo}");
        for word in ["Ehat", "octave", "headroom", "no_autocast"] {
            let used = before.contains(word) || after.contains(word);
            assert!(!used || after.contains(&format!("\n- {word}: ")), "{code} does not explain {word}");
        }
    }
}

/// Runs of FP16 that are watched less and less closely, and what a scan of theirs shows.
fn watched() -> [(&'static str, Aggregate); 5] {
    [
        ("every step", watch(Sampling::Every(1), 120, true)),
        ("2 scanned steps", watch(Sampling::Budget(0.02), 2, true)),
        ("no scan", watch(Sampling::Every(100), 0, true)),
        ("no scan, scaler of somebody else", watch(Sampling::Every(100), 0, false)),
        ("off", watch(Sampling::Off, 0, true)),
    ]
}

/// A hundred and twenty steps of which the first `scanned` are; without a scaler of the library's own one has been seen only at a scanned step.
fn watch(sampling: Sampling, scanned: u64, own_scaler: bool) -> Aggregate {
    let mut run = Scenario::sampled(sampling);
    if own_scaler {
        run.dynamic_scaler(1024.0);
    }
    run.steps(120, |s, i| {
        s.loss(1.0);
        if own_scaler {
            s.applied(1024.0);
        }
        if i >= scanned {
            s.tier(Tier::Off);
            return;
        }
        s.activation("fc", "linear", Dtype::F16, &normal(256, 1.0, i));
        s.gradient("fc", "linear", Dtype::F16, &normal(256, 1.0, i));
        s.update("fc", "addcdiv_", "weight", &normal(64, 1e-3, i)).param(
            "fc",
            "weight",
            Dtype::F32,
            &normal(64, 1.0, i),
        );
    });
    let mut aggregate = Aggregate::default();
    run.records().iter().cloned().for_each(|record| aggregate.apply(record));
    aggregate
}

fn sampling_page() -> String {
    let mut text = String::from(SAMPLING);
    let runs = watched();
    let names: Vec<&str> = runs.iter().map(|(name, _)| *name).collect();
    text.push_str(&format!("| rule | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(runs.len())));
    for rule in rules::all() {
        let cells: Vec<&str> = runs.iter().map(|(_, aggregate)| cell(&rules::standing(*rule, aggregate))).collect();
        let RuleInfo { code, name, .. } = rule.info();
        text.push_str(&format!("| {code} {name} | {} |\n", cells.join(" | ")));
    }
    text
}

fn cell(standing: &Standing) -> &'static str {
    match standing {
        Standing::Judged => "judged",
        Standing::Unsure(_) => "**unsure**",
        Standing::NotApplicable => "not applicable",
    }
}

const SAMPLING: &str = "\
# What sampling leaves unsure

How many steps are scanned is your choice: `Doctor::builder().every(n)`, a budget (the default: 2 % of the step time), or `off()`. A rule that has not seen
what it needs says so, under \"could not tell\", with what to set; the verdict is \"unknown\" where no step was scanned at all. Between scanned steps the library's own
scaler is recorded at every step, in any tier; a scaler of somebody else's from the first scanned step on. The first four steps are watched without a scan at least (unless it is `off()`):
that is where a loop shows whether it keeps to the recipe.

A recording that comes near its limit (256 MiB, or what `Doctor::builder().limit(bytes)` or `AMPDOCTOR_LIMIT=1G` says) is thinned: of the older scanned steps only those divisible by a power of two
keep their tensors, evenly over the run, and all steps with an event do: a skip, a change of the scale, a value that becomes not finite, a loss that stands apart. Loss, loss scale and what the loop did
stay of all of them as long as there is room. `check`, `report` and `watch` say which steps are left; [format.md](format.md#a-recording-stays-below-its-size) has the details. A rule
judges what is left, as it does where fewer steps were scanned.

Below, an FP16 run with FP32 weights and a dynamic scaler, 120 steps. *Judged*: the rule has seen what it needs. *Not applicable*: there is nothing of its kind in this run, as a static
scale or weights that are stepped in FP16.

";

#[test]
fn what_sampling_leaves_unsure_is_documented() {
    keep(&docs().join("sampling.md"), &sampling_page());
}

#[test]
fn every_rule_is_judged_or_has_nothing_to_judge_where_every_step_is_scanned() {
    let [(_, every), .., (_, off)] = &watched();
    for rule in rules::all() {
        assert!(!matches!(rules::standing(*rule, every), Standing::Unsure(_)), "{}", rule.info().code);
        if let Standing::Unsure(reason) = rules::standing(*rule, off) {
            assert!(
                reason.contains("sampling is off") && reason.contains("every(100)"),
                "{}: {reason}",
                rule.info().code
            );
        }
    }
}

#[test]
fn the_command_line_is_documented_as_it_is() {
    let mut text = String::from("# The command line\n\nWhat each command prints with `--help`.\n");
    for (name, help) in ampdoctor::cli::help_pages() {
        let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
        text.push_str(&format!("\n## {name}\n\n```text\n{}\n```\n", lines.join("\n")));
    }
    keep(&docs().join("cli.md"), &text);
}

#[test]
fn the_readme_shows_the_dashboard_as_the_program_draws_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let arguments = ["watch", "fixtures/recordings/digits-fp16", "--once", "--size", "100x30"];
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_ampdoctor"))
        .args(arguments)
        .current_dir(root)
        .env_clear()
        .env("LANG", "C.UTF-8")
        .output()
        .unwrap();
    let frame = String::from_utf8(output.stdout).unwrap();
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let (before, rest) = readme.split_once("--once --size 100x30` -->\n```text\n").expect("the place of the picture");
    let (_, after) = rest.split_once("```\n").expect("its end");
    let lines: Vec<&str> = frame.trim_end().lines().map(str::trim_end).collect();
    let expected = format!("{before}--once --size 100x30` -->\n```text\n{}\n```\n{after}", lines.join("\n"));
    keep(&root.join("README.md"), &expected);
}
