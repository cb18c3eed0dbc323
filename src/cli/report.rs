//! `ampdoctor report`: a run as a document.

use anyhow::Context;

use super::args::ReportArgs;
use super::config::policy;
use super::exit::Exit;
use super::load::{load, with_hint};
use super::report_file::ReportFile;
use super::terminal::Terminal;
use crate::report::{Format, Layout};

pub(super) fn report(args: ReportArgs, terminal: &Terminal) -> anyhow::Result<Exit> {
    let format = Format::named(&args.format).context("there is no such format")?;
    let file = args.output.map(ReportFile::prepare).transpose()?;
    let recording = load(&args.run, &policy(args.config.config.as_deref())?, terminal).map_err(with_hint)?;
    let run = recording.run();
    match file {
        Some(file) => file.write(&(format.render)(&run, &Layout::default()))?,
        None => terminal.print(&(format.render)(&run, &terminal.layout))?,
    }
    Ok(Exit::Success)
}
