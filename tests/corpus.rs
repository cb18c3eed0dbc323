//! The corpus, replayed: small recordings of every fault and of healthy runs, judged without LibTorch. `make fixtures` renews them,
//! `make corpus` judges the doctor on the whole of it.

use std::path::{Path, PathBuf};

use ampdoctor::report::read_run;
use ampdoctor::rules::{Diagnosis, Finding, Severity};
use serde_json::Value;

/// A recording of the index.
struct Entry {
    file: String,
    /// Codes of which one has to be found; none for a run that is well.
    codes: Vec<String>,
    /// Codes that may come first besides.
    beside: Vec<String>,
    /// The layer to name; none where any will do.
    layer: Option<String>,
    /// The step of the fault.
    planted: u64,
    /// The step after which the finding stood.
    found: Option<u64>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/corpus")
}

fn entries() -> Vec<Entry> {
    let text = std::fs::read_to_string(folder().join("index.json")).expect("fixtures/corpus/index.json");
    let index: Value = serde_json::from_str(&text).expect("an index in JSON");
    let words = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|word| Some(word.as_str()?.to_owned())).collect()
    };
    let entry = |value: &Value| Entry {
        file: value["file"].as_str().expect("a file").to_owned(),
        codes: words(&value["codes"]),
        beside: words(&value["beside"]),
        layer: value["layer"].as_str().map(str::to_owned),
        planted: value["planted"].as_u64().unwrap_or(0),
        found: value["found"].as_u64(),
    };
    index.as_array().expect("a list").iter().map(entry).collect()
}

fn diagnosis(entry: &Entry) -> Diagnosis {
    let mut run = read_run(&folder().join(&entry.file), &mut |_| {}).unwrap_or_else(|e| panic!("{}: {e}", entry.file));
    let rank = run.ranks.pop().unwrap_or_else(|| panic!("{}: no rank", entry.file));
    assert_eq!(rank.integrity.damage_count, 0, "{}", entry.file);
    rank.diagnosis
}

#[test]
fn a_rule_of_the_run_names_no_layer() {
    for entry in entries() {
        for finding in diagnosis(&entry).findings().iter().flat_map(Finding::with_consequences) {
            let is_of_a_layer = ampdoctor::rules::names_layers(finding.code);
            assert!(is_of_a_layer || finding.layer.is_empty(), "{}: {} in {}", entry.file, finding.code, finding.layer);
        }
    }
}

/// The findings that are a diagnosis: a remark counts only where it is asked for.
fn counted<'a>(entry: &'a Entry, diagnosis: &'a Diagnosis) -> Vec<&'a Finding> {
    let counts =
        |finding: &&Finding| finding.severity > Severity::Info || entry.codes.iter().any(|c| c == finding.code);
    diagnosis.findings().iter().filter(counts).collect()
}

/// Whether it is the finding that has to be made, or a cause that the case knows with it among what follows.
fn stands(entry: &Entry, finding: &Finding) -> bool {
    let has_place = |one: &Finding| entry.layer.as_ref().is_none_or(|layer| *layer == one.layer);
    let knows_cause = entry.beside.iter().any(|code| code == finding.code);
    let shown = finding.with_consequences().take(if knows_cause { usize::MAX } else { 1 });
    shown.into_iter().any(|one| entry.codes.iter().any(|code| code == one.code) && has_place(one))
}

fn brief(findings: &[&Finding]) -> Vec<String> {
    findings.iter().map(|f| format!("{} {:?} @{}", f.code, f.layer, f.onset_step)).collect()
}

#[test]
fn every_planted_fault_is_named_first_at_its_layer_and_not_before_its_step() {
    let faulty: Vec<Entry> = entries().into_iter().filter(|entry| !entry.codes.is_empty()).collect();
    assert!(faulty.len() >= 16, "{} faulty recordings", faulty.len());
    for entry in faulty {
        let diagnosis = diagnosis(&entry);
        let found = counted(&entry, &diagnosis);
        let said = brief(&found);
        let first = found.iter().find(|f| stands(&entry, f) || !entry.beside.iter().any(|code| code == f.code));
        assert!(first.is_some_and(|f| stands(&entry, f)), "{}: {said:?}", entry.file);
        assert!(found.iter().all(|finding| finding.onset_step >= entry.planted), "{}: {said:?}", entry.file);
        let stood = entry.found.unwrap_or_else(|| panic!("{}: no step of finding", entry.file));
        assert!(
            found.iter().find(|f| stands(&entry, f)).is_some_and(|finding| finding.onset_step <= stood),
            "{}: {said:?}",
            entry.file
        );
    }
}

#[test]
fn of_runs_that_are_well_nothing_is_said() {
    let healthy: Vec<Entry> = entries().into_iter().filter(|entry| entry.codes.is_empty()).collect();
    assert!(healthy.len() >= 5, "{} healthy recordings", healthy.len());
    for entry in healthy {
        let diagnosis = diagnosis(&entry);
        assert!(counted(&entry, &diagnosis).is_empty(), "{}: {:?}", entry.file, brief(&counted(&entry, &diagnosis)));
        assert!(diagnosis.aggregate().instrument.full_steps > 0, "{}: nothing was scanned", entry.file);
    }
}

#[test]
fn no_recording_lies_there_that_the_index_does_not_name() {
    let mut named: Vec<String> = entries().into_iter().map(|entry| entry.file).collect();
    let mut there: Vec<String> = std::fs::read_dir(folder())
        .expect("fixtures/corpus")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".amprec"))
        .collect();
    named.sort();
    there.sort();
    assert_eq!(named, there);
}
