//! `ampdoctor compare`: what a change did, run against run.

use super::args::CompareArgs;
use super::config::policy;
use super::exit::Exit;
use super::load::{load, with_hint};
use super::terminal::Terminal;
use crate::report::{Comparison, Judgement, compare_json, compare_text};

pub(super) fn compare(args: CompareArgs, terminal: &Terminal) -> anyhow::Result<Exit> {
    let policy = policy(args.config.config.as_deref())?;
    let base = load(&args.base, &policy, terminal).map_err(with_hint)?;
    let run = load(&args.run, &policy, terminal).map_err(with_hint)?;
    let (base, run) = (base.run(), run.run());
    let comparison = Comparison::of(&base, &run);
    terminal.print(&match args.format.as_str() {
        "json" => compare_json(&comparison),
        _ => compare_text(&comparison, &terminal.layout),
    })?;
    Ok(match comparison.judgement() {
        Judgement::Worse => Exit::Findings,
        Judgement::Unknown => Exit::Unknown,
        Judgement::NoWorse => Exit::Success,
    })
}
