//! What the doctor costs: a training step under it against the same step alone, and its scan against a plain read.
//!
//! Contestants take turns, so that a machine that slows down slows all of them; figures are ratios, because absolute ones say more
//! of the machine than of the doctor. One thread. A contestant without a doctor runs twice in each round: how far its own
//! ratio is from 1 says how far the others can be trusted.

mod clock;
mod contestant;
mod machine;
mod models;
mod page;
mod recorded;
mod scan;
mod step;
mod table;
mod ways;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use contestant::Contestant;
use models::Shape;
use page::Page;
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
    /// Be a contestant, and train as standard input says
    #[arg(long, hide = true, requires = "only")]
    contestant: Option<Contestant>,
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
    if let Some(who) = options.contestant {
        let shape = models::SHAPES.iter().find(|shape| shape.name == options.only);
        return worker::work(shape.context("a contestant trains one shape")?, who);
    }
    let mut page = Page::new(introduction(options));
    let shapes: Vec<&Shape> = models::SHAPES.iter().filter(|shape| shape.name.contains(&options.only)).collect();
    if !shapes.is_empty() {
        steps(&mut page, &shapes, options.rounds)?;
    }
    if "scan".contains(&options.only) {
        scans(&mut page, options.rounds)?;
    }
    if options.only == "ways" {
        ways(&mut page, options.rounds)?;
    }
    options.page.as_deref().map_or(Ok(()), |path| page.write(path))
}

fn steps(page: &mut Page, shapes: &[&Shape], rounds: u32) -> Result<()> {
    let table = Table::new(step::TITLES, "transformer, none again".len());
    page.part(STEP, &table)?;
    let mut recordings = Vec::new();
    for shape in shapes {
        let measured = step::measure(shape, rounds, page)?;
        measured.rows.iter().try_for_each(|row| page.row(&table, row))?;
        recordings.push(measured.recording);
    }
    let table = Table::new(step::RECORDING_TITLES, "transformer".len());
    page.part(RECORDING, &table)?;
    recordings.iter().try_for_each(|row| page.row(&table, row))
}

fn scans(page: &mut Page, rounds: u32) -> Result<()> {
    tch::manual_seed(1);
    let (large, small) = (Table::new(scan::LARGE_TITLES, 0), Table::new(scan::SMALL_TITLES, 0));
    page.part(LARGE, &large)?;
    for dtype in scan::DTYPES {
        page.begin(&format!("the scan of 64 MB of {}", dtype.name()));
        page.row(&large, &scan::large(*dtype, rounds)?)?;
    }
    page.part(SMALL, &small)?;
    for dtype in scan::DTYPES {
        page.row(&small, &scan::small(*dtype, rounds)?)?;
    }
    Ok(())
}

fn ways(page: &mut Page, rounds: u32) -> Result<()> {
    let conv = models::SHAPES.iter().find(|shape| shape.name == "conv").context("there is no convolution net")?;
    let table = Table::new(ways::TITLES, ways::names().map(str::len).max().unwrap_or(0));
    page.part(WAYS, &table)?;
    page.begin(conv.name);
    ways::measure(conv, rounds)?.iter().try_for_each(|row| page.row(&table, row))
}

const STEP: &str = "\
## A step

A step of training under the doctor against the same step alone: FP32, Adam, one thread, each contestant in a process of its own (in all
of which glibc's allocator keeps freed memory and asks for huge pages: a step's time depends on luck otherwise). They take turns of half a second, or five steps, and each turn is compared with the turns of the step alone
before and after it, by the line between them. The ratios are of processor time, of all threads, the recorder's writer among them: the median turn,
and between what this median lies 19 times in 20 (*from*, *to*; the luck of a process, some 0.3 %, comes on top). *None again* is the step alone once more: how far it is from 1 says how far the others
can be trusted. *Off* records no tensor; *default* scans as many steps as cost 2 % of the time; *full* scans every step. *It says* is the ratio that
the doctor itself puts into its report.";

const RECORDING: &str = "\
## The recording

What a run takes that scans every step: the observations, what else a step holds (cost, loss, what the loop did, the frame), and what stands there
once (the names of the sites).";

const LARGE: &str = "\
## The scan of 64 MB

The complete scan (counts, extremes, sums, exact histogram of the exponents) of standard normal elements, and the summary, which is the
scan without the histogram, against a plain read of the same memory, and against ATen's `aminmax`, which finds the extremes alone. One thread.";

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
         that a machine that slows\ndown slows all of them, and all figures to compare are ratios of the same run.\n",
        options.rounds,
        machine::describe(),
    )
}
