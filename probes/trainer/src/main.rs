//! The reference trainer of ampdoctor.

use std::io::Write;
use std::process::ExitCode;

use ampdoctor_trainer::fault::FAULTS;
use ampdoctor_trainer::options::{Options, without_fault};
use ampdoctor_trainer::summary::{Summary, SummaryFormat};
use ampdoctor_trainer::train::train;
use anyhow::Result;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

fn main() -> ExitCode {
    let matches = Options::command().get_matches();
    let options = Options::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match run(options, &matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut options: Options, typed: &ArgMatches) -> Result<()> {
    if options.list_faults {
        return print(&fault_list());
    }
    for flag in options.apply_fault() {
        eprintln!("the fault needs {flag}; what was set there is overridden");
    }
    let was_typed = |id: &str| typed.value_source(id) == Some(ValueSource::CommandLine);
    for warning in options.without_effect(was_typed) {
        eprintln!("warning: {warning}");
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
