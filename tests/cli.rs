//! The real binary, on recordings written by the real recorder.

#[path = "cli/commands.rs"]
mod commands;
#[path = "cli/configuration.rs"]
mod configuration;
#[path = "cli/recordings.rs"]
mod recordings;
#[path = "cli/reports.rs"]
mod reports;
#[path = "cli/usage.rs"]
mod usage;
#[path = "cli/verdicts.rs"]
mod verdicts;
#[path = "cli/whatif.rs"]
mod whatif;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use recordings::{healthy, nothing_scanned, overflowing, record};
use serde_json::Value;
use tempfile::TempDir;

/// The binary, in a directory of its own and without an environment that could change what it prints.
fn ampdoctor(here: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ampdoctor"));
    command.current_dir(here).args(arguments).stdin(Stdio::null());
    for variable in ["NO_COLOR", "CLICOLOR_FORCE", "COLUMNS", "AMPDOCTOR_RUN"] {
        command.env_remove(variable);
    }
    // Wide enough that no sentence which a test looks for is broken.
    command.env("COLUMNS", "110");
    command
}

fn run(here: &TempDir, arguments: &[&str]) -> Output {
    ampdoctor(here.path(), arguments).output().expect("the binary starts")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("it ends by itself")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A directory with `runs/healthy`, `runs/sick` and `runs/blind`.
fn here() -> TempDir {
    let here = tempfile::tempdir().unwrap();
    record(&here.path().join("runs/healthy"), 0, &healthy());
    record(&here.path().join("runs/sick"), 0, &overflowing());
    record(&here.path().join("runs/blind"), 0, &nothing_scanned());
    here
}

/// What a check wrote to `report.json`.
fn report(here: &TempDir) -> Value {
    serde_json::from_str(&fs::read_to_string(here.path().join("report.json")).unwrap()).unwrap()
}
