//! What was typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Parser, Subcommand};

use crate::report::FORMATS;

/// Says whether a mixed-precision training run is numerically healthy: which layer is not, since which step, why, and what to change
#[derive(Debug, Parser)]
#[command(name = "ampdoctor", version, after_help = ROOT_EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

const ROOT_EXAMPLES: &str = "\
Examples:
  ampdoctor watch -- target/release/train   start a trainer and watch it
  ampdoctor check runs/fp16                 the verdict on a recorded run
  ampdoctor explain AMP201                  what a finding means

A trainer records where AMPDOCTOR_RUN says, or in the directory it was given.
NO_COLOR=1 turns colours off. In a pipe, text is as wide as COLUMNS says, or 80.";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Watch a run live, or replay one that has ended
    Watch(WatchArgs),
    /// Judge a run: the verdict is the exit status
    Check(CheckArgs),
    /// Write the report of a run
    Report(ReportArgs),
    /// Hold a run against another: what a change did
    Compare(CompareArgs),
    /// What other loss scales and formats would make of a run, without training again
    Whatif(WhatifArgs),
    /// Read a configuration without a run, and say what it sets
    Config(ConfigFileArgs),
    /// List the rules
    Rules(RulesArgs),
    /// Explain a rule: what it finds, its thresholds and their reasons
    Explain(ExplainArgs),
}

/// A run that is there, or a command that makes one.
#[derive(Debug, Args)]
pub(super) struct TargetArgs {
    /// Run directory, or one recording of it (rank-0.amprec)
    #[arg(value_name = "RUN", required_unless_present = "command", conflicts_with = "command")]
    pub run: Option<PathBuf>,

    /// Where the command records [default: ampdoctor-runs/<time>-<program>]
    #[arg(long = "run", value_name = "DIR", requires = "command", conflicts_with = "run")]
    pub run_dir: Option<PathBuf>,

    /// The command to start; it finds its run directory in AMPDOCTOR_RUN
    #[arg(value_name = "COMMAND", last = true)]
    pub command: Vec<OsString>,
}

/// What was decided about the rules.
#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    /// Thresholds, levels and accepted findings [default: ampdoctor.toml, where there is one here]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// A configuration by itself.
#[derive(Debug, Args)]
#[command(after_help = CONFIG_HELP)]
pub(super) struct ConfigFileArgs {
    /// The file [default: ampdoctor.toml]
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
}

const CONFIG_HELP: &str = "\
All mistakes are told at once, each with its line and the nearest name. Whether
its patterns match layers is said in the report of a run.

Exit status:
  0  it is read without a mistake
  2  it has mistakes, or cannot be read

Examples:
  ampdoctor config
  ampdoctor config ci/ampdoctor.toml";

#[derive(Debug, Args)]
#[command(override_usage = WATCH_USAGE, after_help = WATCH_HELP)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    pub target: TargetArgs,

    #[command(flatten)]
    pub config: ConfigArgs,

    /// Leave when the run ends, without waiting for a key
    #[arg(long)]
    pub exit_at_end: bool,

    /// Print plain lines even on a terminal
    #[arg(long)]
    pub plain: bool,

    /// Print one frame as text, and leave
    #[arg(long, conflicts_with = "plain")]
    pub once: bool,

    /// Columns and rows of that frame [default: 120x40]
    #[arg(long, value_name = "WxH", value_parser = frame_size, requires = "once")]
    pub size: Option<(u16, u16)>,
}

const WATCH_USAGE: &str = "\
ampdoctor watch [OPTIONS] RUN
       ampdoctor watch [OPTIONS] -- COMMAND...";

const WATCH_HELP: &str = "\
Exit status:
  that of the command that was started; 0 for a run that was only watched;
  2 wrong usage or unreadable; 128 + n where signal n ended the watching

SIGINT and SIGTERM stop the command too. It goes on when the terminal goes away
(SIGHUP). What it prints goes to output.log in the run directory; while it is
watched, of more than 8 MB the last part is kept.

Examples:
  ampdoctor watch runs/fp16
  ampdoctor watch -- target/release/train --lr 0.1";

#[derive(Debug, Args)]
#[command(override_usage = CHECK_USAGE, after_help = CHECK_HELP)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    pub target: TargetArgs,

    #[command(flatten)]
    pub config: ConfigArgs,

    /// Form in which the verdict is printed
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = formats())]
    pub format: String,

    /// Also write the JSON report to this file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

const CHECK_USAGE: &str = "\
ampdoctor check [OPTIONS] RUN
       ampdoctor check [OPTIONS] -- COMMAND...";

const CHECK_HELP: &str = "\
Exit status:
  0  healthy: observed, and nothing found that is at least a warning
  1  findings: at least one warning or error
  2  wrong usage, or nothing could be read, or the report could not be written
  3  could not tell: too little was observed, or nothing was found and the run
     did not end in order: it was killed, it panicked, or it still goes on
  4  the command failed; its own status is printed, and the findings up to then

Where a command records more than one run, as a program with two doctors does,
each is judged and named, and the worst counts.

Examples:
  ampdoctor check runs/fp16
  ampdoctor check --report report.json -- target/release/train --steps 300
  ampdoctor check runs/fp16 --format markdown >> \"$GITHUB_STEP_SUMMARY\"";

#[derive(Debug, Args)]
#[command(after_help = REPORT_HELP)]
pub(super) struct ReportArgs {
    /// Run directory, or one recording of it (rank-0.amprec)
    #[arg(value_name = "RUN")]
    pub run: PathBuf,

    #[command(flatten)]
    pub config: ConfigArgs,

    /// Form of the report
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = formats())]
    pub format: String,

    /// Write to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

const REPORT_HELP: &str = "\
Exit status:
  0  written, whatever the verdict (`ampdoctor check` judges)
  2  wrong usage, or nothing could be read, or the report could not be written

Examples:
  ampdoctor report runs/fp16
  ampdoctor report runs/fp16 --format brief
  ampdoctor report runs/fp16 --format junit -o ampdoctor.xml
  ampdoctor report runs/fp16 --format json | jq '.findings[] | {code, layer, remedy}'";

#[derive(Debug, Args)]
#[command(after_help = COMPARE_HELP)]
pub(super) struct CompareArgs {
    /// The run that is held against: a run directory, or one recording
    #[arg(value_name = "BASE")]
    pub base: PathBuf,

    /// The run that is judged
    #[arg(value_name = "RUN")]
    pub run: PathBuf,

    #[command(flatten)]
    pub config: ConfigArgs,

    /// Form of the answer; json is described by docs/compare.schema.json
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    pub format: String,
}

const COMPARE_HELP: &str = "\
What it shows:
  findings that are new, gone and still there (the same rule in the same layer);
  the loss over the last 50 steps, the loss scale and the skipped steps of both;
  layers whose use of FP16's range differs so much that it matters; settings
  that differ, as far as the recordings tell.

Exit status:
  0  no new finding is an error
  1  a new finding is an error
  2  wrong usage, or nothing could be read
  3  could not tell: of RUN not enough was observed

Examples:
  ampdoctor compare runs/before runs/after
  ampdoctor compare baseline runs/ci --format json | jq .findings.new";

#[derive(Debug, Args)]
#[command(after_help = WHATIF_HELP)]
pub(super) struct WhatifArgs {
    /// Run directory, or one recording of it (rank-0.amprec)
    #[arg(value_name = "RUN")]
    pub run: PathBuf,

    /// The loss scale at which each layer is shown: 2^13, 8192 [default: the one in force at the end]
    #[arg(long, value_name = "SCALE", value_parser = loss_scale, allow_hyphen_values = true)]
    pub scale: Option<i32>,

    /// Only layers that match: * stands for any text, ? for one character
    #[arg(long, value_name = "GLOB")]
    pub layer: Option<String>,

    /// Form of the answer; json is described by docs/whatif.schema.json
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    pub format: String,
}

const WHATIF_HELP: &str = "\
What it shows:
  the window   loss scales at which no layer loses the direction of its gradient
               and none overflows, and the layers that limit it; where no scale
               serves all layers, the one to change
  the chart    Ehat, the predicted 1 - cosine between a gradient and what FP16
               keeps of it, and the shares of its elements that would be
               subnormal (fading), zero (lost) or too large (overflow), at every
               loss scale from 2^-10 to 2^24
  the layers   the window of each, and its numbers at one scale (--scale)
  the formats  which layer could hold its activations, gradients and weights in
               FP16, BF16, FP8 E4M3 and E5M2: as they are, or only with a scale
               of its own for each tensor
  the memory   what is held in which dtype, and what another would take

With --layer the chart and the memory, which are of the whole run, are left out.

All of it is computed from the exponents that were recorded. A run in FP32 or
BF16 tells exactly what FP16 would do. One in FP16 has lost what lay below 2^-25
at its own loss scale: at higher scales the shares are \"at least\".

There is no --config: no threshold of a rule is used here. What limits the
window is FP16 itself, an Ehat of 1e-4 below and a bit of headroom above.

Exit status:
  0  written
  2  wrong usage, a layer that is not there, or nothing could be read

Examples:
  ampdoctor whatif runs/fp32
  ampdoctor whatif runs/fp16 --scale 2^7 --layer 'block.*.attn*'
  ampdoctor whatif runs/fp16 --format json | jq .window";

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ampdoctor rules\n  ampdoctor rules --format json")]
pub(super) struct RulesArgs {
    /// Form of the list
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    pub format: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit status:\n  0  explained\n  2  there is no such rule\n\nExamples:\n  ampdoctor explain AMP201\n  ampdoctor explain gradient-underflow"
)]
pub(super) struct ExplainArgs {
    /// Code or name of the rule
    #[arg(value_name = "RULE")]
    pub rule: String,
}

fn formats() -> PossibleValuesParser {
    PossibleValuesParser::new(FORMATS.iter().map(|format| PossibleValue::new(format.name).help(format.summary)))
}

/// Columns and rows below which a frame is all borders and names cut short.
const SMALLEST_FRAME: (u16, u16) = (40, 10);

fn frame_size(text: &str) -> Result<(u16, u16), String> {
    let parsed = text.split_once(['x', 'X']).and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
    match parsed {
        Some((w, h)) if w >= SMALLEST_FRAME.0 && h >= SMALLEST_FRAME.1 => Ok((w, h)),
        Some(_) => Err(format!("a frame shows nothing below {}x{}", SMALLEST_FRAME.0, SMALLEST_FRAME.1)),
        None => Err("a size is columns x rows, as in 120x40".into()),
    }
}

/// A loss scale as the exponent of the nearest power of two.
fn loss_scale(text: &str) -> Result<i32, String> {
    let exponent = match text.split_once('^') {
        Some(("2", exponent)) => exponent.parse::<i32>().ok().map(f64::from),
        Some(_) => None,
        None => text.parse::<f64>().ok().filter(|scale| *scale > 0.0).map(f64::log2),
    };
    let known = exponent.filter(|exponent| exponent.abs() <= 1000.0);
    known
        .map(|exponent| exponent.round() as i32)
        .ok_or_else(|| "a loss scale is a positive number, as in 2^13 or 8192".into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(words: &[&str]) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from([&["ampdoctor"], words].concat())
    }

    #[test]
    fn no_line_of_a_help_text_is_wider_than_a_terminal() {
        for command in Arguments::command().get_subcommands().chain([&Arguments::command()]) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in text.lines() {
                assert!(line.chars().count() <= 80 || line.contains(" | jq"), "{}: {line}", command.get_name());
            }
        }
    }

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_target_is_a_run_or_a_command_and_not_both() {
        assert!(parse(&["check", "runs/a"]).is_ok());
        assert!(parse(&["check", "--", "train", "--report", "x"]).is_ok());
        assert!(parse(&["check"]).is_err());
        assert!(parse(&["check", "runs/a", "--", "train"]).is_err());
        assert!(parse(&["check", "runs/a", "--run", "d"]).is_err());
    }

    #[test]
    fn what_follows_the_dashes_belongs_to_the_command() {
        let Command::Check(check) =
            parse(&["check", "--report", "r.json", "--", "train", "--report", "x"]).unwrap().command
        else {
            panic!("not a check")
        };
        assert_eq!(check.target.command, ["train", "--report", "x"]);
        assert_eq!(check.report, Some("r.json".into()));
    }

    #[test]
    fn a_frame_has_two_sides_and_room_for_something() {
        assert_eq!(frame_size("120x40"), Ok((120, 40)));
        assert_eq!(frame_size("40X10"), Ok((40, 10)));
        assert!(frame_size("10x5").unwrap_err().contains("below 40x10"));
        for wrong in ["", "120", "x40", "0x40", "120x40x2", "-1x2"] {
            assert!(frame_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_loss_scale_is_a_power_of_two_or_a_number() {
        for (text, exponent) in [("2^13", 13), ("2^-4", -4), ("8192", 13), ("0.5", -1), ("1e4", 13)] {
            assert_eq!(loss_scale(text), Ok(exponent), "{text}");
        }
        for wrong in ["", "0", "-1", "3^2", "2^", "2^x", "nan", "inf", "2^99999"] {
            assert!(loss_scale(wrong).is_err(), "{wrong}");
        }
    }
}
