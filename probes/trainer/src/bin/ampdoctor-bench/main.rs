//! What the doctor costs: a training step under it against the same step alone, and its scan against a plain read.
//!
//! Contestants take turns, so that a machine that slows down slows all of them; figures are ratios, because absolute ones say more
//! of the machine than of the doctor. One thread. A contestant without a doctor runs twice in each round: how far its own
//! ratio is from 1 says how far the others can be trusted.

mod clock;
mod models;
mod scan;
mod step;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// Measures what the doctor costs.
#[derive(Parser)]
#[command(name = "ampdoctor-bench", version)]
struct Options {
    /// Rounds in which every contestant runs once; the medians are taken over them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure only the shapes with this text in their name: transformer, conv, mlp, scan
    #[arg(long, default_value = "")]
    only: String,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    tch::set_num_threads(1);
    say(step::HEADER)?;
    for shape in models::SHAPES.iter().filter(|shape| shape.name.contains(&options.only)) {
        for line in step::measure(shape, options.rounds)? {
            say(&line)?;
        }
    }
    if "scan".contains(&options.only) {
        say(scan::HEADER)?;
        for line in scan::measure(options.rounds)? {
            say(&line)?;
        }
    }
    Ok(())
}

/// Unlike `println!`, does not panic when nobody reads any more.
fn say(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{line}")?)
}
