//! What the doctor costs: a training step under it against the same step alone, and its scan against a plain read.
//!
//! Contestants take turns, so that a machine that slows down slows all of them; figures are ratios, because absolute ones say more
//! of the machine than of the doctor. One thread. A contestant without a doctor runs twice in each round: how far its own
//! ratio is from 1 says how far the others can be trusted.

mod clock;
mod machine;
mod models;
mod scan;
mod step;
mod table;
mod ways;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use table::Table;

/// Measures what the doctor costs.
#[derive(Parser)]
#[command(name = "ampdoctor-bench", version)]
struct Options {
    /// Rounds in which every contestant runs once; the medians are taken over them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure only the shapes with this text in their name: transformer, conv, mlp, scan; `ways`, which is measured only on demand, is other ways to use the doctor
    #[arg(long, default_value = "")]
    only: String,
    /// Write what was measured here as well, as a page of the documentation
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
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
    let mut page = introduction(options);
    let mut part = |text: &str, titles: &[&str], rows: Vec<Vec<String>>| -> Result<()> {
        let mut table = Table::new(titles);
        rows.into_iter().for_each(|row| table.push(row));
        let part = format!("{text}\n\n{}\n", table.markdown());
        page.push_str(&part);
        say(&part)
    };
    let mut steps = Vec::new();
    for shape in models::SHAPES.iter().filter(|shape| shape.name.contains(&options.only)) {
        eprintln!("measuring {}: about {} s", shape.name, step::seconds(options.rounds));
        steps.extend(step::measure(shape, options.rounds)?);
    }
    if !steps.is_empty() {
        part(STEP, step::TITLES, steps)?;
    }
    if "scan".contains(&options.only) {
        eprintln!("measuring the scan");
        part(LARGE, scan::LARGE_TITLES, scan::large(options.rounds)?)?;
        part(SMALL, scan::SMALL_TITLES, scan::small(options.rounds)?)?;
    }
    if options.only == "ways" {
        let conv = models::SHAPES.iter().find(|shape| shape.name == "conv").context("there is no convolution net")?;
        part(WAYS, ways::TITLES, ways::measure(conv, options.rounds)?)?;
    }
    let Some(path) = &options.page else { return Ok(()) };
    std::fs::write(path, page.trim_end().to_owned() + "\n")
        .with_context(|| format!("the page could not be written; is its folder there? {}", path.display()))
}

const STEP: &str = "\
## A step

A step of training under the doctor against the same step alone: FP32, Adam, one thread. *None again* is the step alone once more:
how far its ratio is from 1 says how far the others can be trusted. *Off* records no tensor; *default* scans as many steps as cost
2 % of the time; *full* scans every step. The ratios are of processor time, of all threads, the recorder's writer among them: the
median round, and the least and the most of all rounds. *It says* is the ratio that the doctor itself puts into its report.";

const LARGE: &str = "\
## The scan of 64 MB

The complete scan (counts, extremes, sums, exact histogram of the exponents) of standard normal elements against a plain read of the
same memory, and against ATen's `aminmax`, which finds the extremes alone. One thread.";

const SMALL: &str = "\
## The scan of 64 kB

The complete scan against what ATen has of it: `aminmax`, `norm` and `isfinite().all()`, read on the host. In the cache, one thread.";

const WAYS: &str = "\
## Ways to use it

The convolution net's step under the doctor against the same step alone, with what the row says done in both. Processor time of all threads; the median round.";

fn introduction(options: &Options) -> String {
    let only = if options.only.is_empty() { String::new() } else { format!(" --only {}", options.only) };
    format!(
        "# What it costs\n\nMeasured by `ampdoctor-bench --rounds {}{only}` (`make bench`) on {}; do not edit. Contestants take turns, so \
         that a machine that slows\ndown slows all of them, and all figures to compare are ratios of the same run.\n\n",
        options.rounds,
        machine::describe(),
    )
}

/// Unlike `println!`, does not panic when nobody reads any more.
fn say(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{line}")?)
}
