//! The command line: what was typed.

use std::path::PathBuf;

use clap::Parser;

use crate::amp::Precision;
use crate::fault::FaultSpec;
use crate::model::ModelKind;
use crate::optimizer::OptimizerKind;
use crate::summary::SummaryFormat;

/// Trains a small model on the 8x8 digits in FP32, BF16 or FP16, under the eyes of ampdoctor; can plant faults.
#[derive(Clone, Debug, Parser)]
#[command(name = "ampdoctor-trainer", version)]
pub struct Options {
    /// The model
    #[arg(long, value_enum, default_value = "mlp")]
    pub model: ModelKind,
    /// The precision of the forward pass; parameters are always FP32
    #[arg(long, value_enum, default_value = "fp16")]
    pub precision: Precision,
    /// The optimizer
    #[arg(long, value_enum, default_value = "adam")]
    pub optimizer: OptimizerKind,
    /// Learning rate [default: one at which the optimizer learns]
    #[arg(long, value_parser = positive)]
    pub lr: Option<f64>,
    /// Images a step
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(2..))]
    pub batch: u64,
    /// Steps to train
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
    /// Seed of the parameters and of the order of the images
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Threads within an operator; small models are slower with more
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    pub threads: i32,
    /// Loss scale to begin with (FP16)
    #[arg(long, default_value_t = 65536.0, value_parser = positive)]
    pub init_scale: f64,
    /// Steps without an overflow after which the loss scale doubles (FP16)
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    pub growth_interval: u32,
    /// A loss scale that never changes, in place of the dynamic one (FP16)
    #[arg(long, value_parser = positive)]
    pub static_scale: Option<f64>,
    /// Scan every n-th step
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub every: u64,
    /// Directory to record into [default: AMPDOCTOR_RUN, or the doctor's own choice]
    #[arg(long, value_name = "DIR")]
    pub run: Option<PathBuf>,
    /// Train without the doctor
    #[arg(long, conflicts_with_all = ["every", "run"])]
    pub no_doctor: bool,
    /// Plant a fault: `NAME[@STEP][:LAYER]`; see --list-faults
    #[arg(long, value_name = "FAULT")]
    pub fault: Option<FaultSpec>,
    /// List the faults, one a line, the name first
    #[arg(long)]
    pub list_faults: bool,
    /// How the end is written to standard output
    #[arg(long, value_enum, default_value = "text")]
    pub summary: SummaryFormat,
}

impl Options {
    /// Sets what the fault needs otherwise; says which flags were overridden.
    pub fn apply_fault(&mut self) -> Vec<String> {
        match self.fault.clone() {
            Some(spec) => spec.fault.prepare(self),
            None => Vec::new(),
        }
    }

    /// Sets the precision; the flag, when that is a change.
    pub fn need_precision(&mut self, precision: Precision) -> Option<String> {
        let before = std::mem::replace(&mut self.precision, precision);
        (before != precision).then(|| format!("--precision {precision}"))
    }

    /// The learning rate that holds.
    pub fn learning_rate(&self) -> f64 {
        self.lr.unwrap_or_else(|| self.optimizer.default_lr())
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("a finite number above 0 is needed".to_owned()),
    }
}

/// A command line without the fault in it: what the recording may know.
///
/// A doctor that could read the diagnosis off the command line would prove nothing.
pub fn without_fault(command: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut clean = Vec::new();
    let mut arguments = command.into_iter();
    while let Some(argument) = arguments.next() {
        if argument == "--fault" {
            arguments.next();
        } else if !argument.starts_with("--fault=") {
            clean.push(argument);
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn the_fault_leaves_no_trace_in_the_command() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for typed in ["t --fault nan@3 --steps 9", "t --steps 9 --fault=nan", "t --steps 9 --fault nan:fc1"] {
            assert_eq!(without_fault(words(typed)), ["t", "--steps", "9"], "{typed}");
        }
    }

    #[test]
    fn a_fault_overrides_the_precision_it_needs_and_says_so() {
        let parse = |text: &str| Options::try_parse_from(text.split(' ')).unwrap();
        let mut options = parse("t --precision fp32 --fault overflow");
        assert_eq!(options.apply_fault(), ["--precision fp16"]);
        assert_eq!(options.precision, Precision::Fp16);
        assert_eq!(parse("t --fault overflow").apply_fault(), Vec::<String>::new());
        assert_eq!(parse("t --precision fp32 --fault nan").apply_fault(), Vec::<String>::new());
    }

    #[test]
    fn nonsense_is_refused() {
        for typed in ["t --lr 0", "t --lr nan", "t --steps 0", "t --init-scale -1", "t --fault none", "t --threads 0"] {
            assert!(Options::try_parse_from(typed.split(' ')).is_err(), "{typed}");
        }
    }
}
