//! Driving the real trainer and reading what it recorded.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ampdoctor::aggregate::Aggregate;
use ampdoctor::recording::{Integrity, Recording};
use ampdoctor::rules::{Diagnosis, Finding, Health};
use serde_json::Value;

/// A run directory that is removed at the end of the test.
pub struct Run {
    folder: tempfile::TempDir,
}

impl Run {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    pub fn recording(&self) -> PathBuf {
        self.dir().join("rank-0.amprec")
    }

    /// Trains into this run; the summary.
    pub fn train(&self, arguments: &str) -> Value {
        summary(&trainer(&format!("{arguments} --run {}", self.dir().display())).output().expect("the trainer starts"))
    }

    /// Reads the recording as `ampdoctor check` does.
    pub fn diagnose(&self) -> (Diagnosis, Integrity) {
        diagnose(&self.dir())
    }
}

/// Trains without a doctor; the summary.
pub fn train_alone(arguments: &str) -> Value {
    summary(&trainer(&format!("{arguments} --no-doctor")).output().expect("the trainer starts"))
}

/// The trainer with these arguments, its end as JSON.
pub fn trainer(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ampdoctor-trainer"));
    command.args(["--summary", "json"]).args(arguments.split_whitespace());
    command.env_remove("AMPDOCTOR_RUN").stdin(Stdio::null());
    command
}

/// What the trainer said on standard error.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn summary(output: &Output) -> Value {
    assert!(output.status.success(), "the trainer failed: {}", said(output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 1, "the summary is one line: {text}");
    serde_json::from_str(&text).expect("the summary is JSON")
}

fn diagnose(run: &Path) -> (Diagnosis, Integrity) {
    let mut records = Recording::open(run).and_then(|recording| recording.records()).expect("a recording");
    let mut diagnosis = Diagnosis::new();
    for record in records.by_ref() {
        diagnosis.apply(record.expect("a whole record"));
    }
    (diagnosis, records.integrity().clone())
}

/// Every finding, whether it stands on its own or follows from another.
pub fn everything(diagnosis: &Diagnosis) -> impl Iterator<Item = &Finding> {
    diagnosis.findings().iter().flat_map(Finding::with_consequences)
}

/// Every finding in one line each, for the message of a failed test.
pub fn findings(diagnosis: &Diagnosis) -> Vec<String> {
    everything(diagnosis).map(|f| format!("{} {} @{}", f.code, f.layer, f.onset_step)).collect()
}

/// Fails unless the run is healthy and nothing at all was found.
pub fn assert_silent(diagnosis: &Diagnosis, what: &str) {
    assert_eq!(findings(diagnosis), Vec::<String>::new(), "{what}");
    assert_eq!(diagnosis.health(), Health::Healthy, "{what}: {:?}", diagnosis.doubts());
}

/// Steps that were scanned.
pub fn full_steps(aggregate: &Aggregate) -> u64 {
    aggregate.instrument.full_steps
}
