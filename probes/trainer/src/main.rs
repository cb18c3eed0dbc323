//! The reference trainer of ampdoctor.

use std::io::Write;
use std::process::ExitCode;

use ampdoctor_trainer::fault::FAULTS;
use ampdoctor_trainer::options::{Options, without_fault};
use ampdoctor_trainer::summary::{Summary, SummaryFormat};
use ampdoctor_trainer::train::train;
use anyhow::Result;
use clap::Parser;

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut options: Options) -> Result<()> {
    if options.list_faults {
        return print(&fault_list());
    }
    for flag in options.apply_fault() {
        eprintln!("the fault needs {flag}; what was set there is overridden");
    }
    let summary = train(&options, without_fault(std::env::args()))?;
    print(&text(&summary, options.summary)?)
}

fn fault_list() -> String {
    let lines: Vec<String> = FAULTS.iter().map(|fault| format!("{:<18} {}", fault.name(), fault.about())).collect();
    lines.join("\n")
}

fn text(summary: &Summary, format: SummaryFormat) -> Result<String> {
    Ok(match format {
        SummaryFormat::Text => summary.to_string(),
        SummaryFormat::Json => serde_json::to_string(summary)?,
    })
}

/// Unlike `println!`, does not panic when nobody reads any more.
fn print(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{text}")?)
}
