//! The command line: what was typed.

use std::path::PathBuf;

use ampdoctor::recording::{LEAST_LIMIT, parse_size};
use clap::{Parser, ValueEnum};

use crate::fault::{BrokenRecipe, FaultSpec};
use crate::model::{Fp32Layers, ModelKind, UnknownLayer};
use crate::optimizer::{OptimizerKind, OptimizerSettings};
use crate::precision::Precision;
use crate::schedule::Schedule;
use crate::summary::SummaryFormat;

/// Trains a small model on 8x8 digits or on characters, in FP32, BF16 or FP16, under the eyes of ampdoctor; can plant faults.
#[derive(Clone, Debug, Parser)]
#[command(name = "ampdoctor-trainer", version)]
pub struct Options {
    /// The model
    #[arg(long, value_enum, default_value = "mlp")]
    pub model: ModelKind,
    /// The precision of the forward pass and of the parameters
    #[arg(long, value_enum, default_value = "fp16")]
    pub precision: Precision,
    /// Layers kept in FP32 whatever the precision, with commas between: fc2,conv1. A module stands for all that is in it: block.0.attn
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    pub fp32_layers: Vec<String>,
    /// The optimizer [default: adam; sgd for parameters stepped in 16 bits, where Adam's epsilon vanishes]
    #[arg(long, value_enum)]
    pub optimizer: Option<OptimizerKind>,
    /// Learning rate [default: one at which the optimizer learns]
    #[arg(long, value_parser = positive)]
    pub lr: Option<f64>,
    /// What Adam adds to the root of its second moment [default: 1e-8]
    #[arg(long, value_parser = positive)]
    pub eps: Option<f64>,
    /// How the learning rate changes over the run
    #[arg(long, value_enum, default_value = "constant")]
    pub schedule: Schedule,
    /// Images, or rows of characters, in a micro-batch [default: 64 images, 8 rows]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub batch: Option<u64>,
    /// Micro-batches whose gradients add up to a step
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub accumulate: u64,
    /// Clip the gradients to this norm, after they were unscaled
    #[arg(long, value_name = "NORM", value_parser = positive)]
    pub clip: Option<f64>,
    /// Steps to train
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
    /// Evaluate on the held-out data after every n-th step
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub eval_every: Option<u64>,
    /// Seed of the parameters and of the order of the examples
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
    /// A floor of the loss scale (FP16)
    #[arg(long, value_parser = positive)]
    pub min_scale: Option<f64>,
    /// A ceiling of the loss scale (FP16); it begins there at most
    #[arg(long, value_parser = positive)]
    pub max_scale: Option<f64>,
    /// A loss scale that never changes, in place of the dynamic one (FP16)
    #[arg(long, value_parser = positive)]
    pub static_scale: Option<f64>,
    /// Scan every n-th step
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub every: u64,
    /// Space the scanned steps so that the doctor takes at most this share of the time: 2% or 0.02
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "every")]
    pub budget: Option<f64>,
    /// Compare the gradient of every n-th step with the one that FP32 gives for its batch
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub shadow_every: Option<u64>,
    /// Directory to record into [default: AMPDOCTOR_RUN, or the doctor's own choice]
    #[arg(long, value_name = "DIR")]
    pub run: Option<PathBuf>,
    /// Keep the recording below this size: 64M, 1G, or off [default: AMPDOCTOR_LIMIT, or 256M]
    #[arg(long, value_name = "SIZE", value_parser = limit)]
    pub limit: Option<u64>,
    /// Train without the doctor
    #[arg(long, conflicts_with_all = ["every", "budget", "run", "shadow_every", "limit"])]
    pub no_doctor: bool,
    /// Plant a fault: `NAME[=STRENGTH][@STEP][:LAYER]`; see --list-faults
    #[arg(long, value_name = "FAULT")]
    pub fault: Option<FaultSpec>,
    /// Leave the settings as they were typed, those too that the fault would change: to see it under a remedy, or in FP32
    #[arg(long, requires = "fault")]
    pub keep_settings: bool,
    /// Steps, with commas between, whose update is left out as a loss scaler skips them (FP32, BF16): to hold a run with skips against
    #[arg(long, value_name = "STEPS", value_delimiter = ',')]
    pub leave_out: Vec<u64>,
    /// List the faults, one a line, the name first
    #[arg(long)]
    pub list_faults: bool,
    /// How the end is written to standard output
    #[arg(long, value_enum, default_value = "text")]
    pub summary: SummaryFormat,
}

impl Options {
    /// Sets what the fault needs otherwise, unless the settings are to be kept; says which flags were overridden.
    pub fn apply_fault(&mut self) -> Vec<String> {
        match self.fault.clone().filter(|_| !self.keep_settings) {
            Some(spec) => spec.fault.prepare(self),
            None => Vec::new(),
        }
    }

    /// The layers that are kept in FP32, if the model has them.
    pub fn fp32_layers(&self) -> Result<Fp32Layers, UnknownLayer> {
        Fp32Layers::of(self.model, &self.fp32_layers)
    }

    /// Sets the precision; the flag, when that is a change.
    pub fn need_precision(&mut self, precision: Precision) -> Option<String> {
        let before = std::mem::replace(&mut self.precision, precision);
        (before != precision).then(|| format!("--precision {precision}"))
    }

    /// Sets the optimizer; the flag, when that is a change of what was asked for.
    pub fn need_optimizer(&mut self, optimizer: OptimizerKind) -> Option<String> {
        let before = self.optimizer.replace(optimizer);
        let name = optimizer.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
        before.is_some_and(|before| before != optimizer).then(|| format!("--optimizer {name}"))
    }

    /// Sets a precision with a loss scaler, unless it has one; the flag, when that is a change.
    pub fn need_scaler(&mut self) -> Vec<String> {
        if self.precision.scales_loss() {
            return Vec::new();
        }
        self.need_precision(Precision::Fp16).into_iter().collect()
    }

    /// Whether the loss is scaled: as the precision needs it, or a fault.
    pub fn scales_loss(&self) -> bool {
        let faulty = self.fault.as_ref().and_then(|spec| spec.fault.breaks_recipe());
        self.precision.scales_loss() || faulty == Some(BrokenRecipe::HalfParameters)
    }

    /// Flags that were typed and do nothing in this run, each with the reason. `given` says which were typed.
    pub fn without_effect(&self, given: impl Fn(&str) -> bool) -> Vec<String> {
        let adds_scaler = self.fault.as_ref().is_some_and(|spec| spec.fault.adds_scaler());
        let of_the_scale = ["init_scale", "growth_interval", "static_scale", "min_scale", "max_scale"];
        let idle: &[&str] = match (self.scales_loss() || adds_scaler, self.static_scale) {
            (false, _) => &of_the_scale,
            (true, Some(_)) => &["init_scale", "growth_interval", "min_scale", "max_scale"],
            (true, None) => &[],
        };
        let why = if self.static_scale.is_some() && self.scales_loss() {
            "the loss scale is static".to_owned()
        } else {
            format!("precision {} has no loss scaler", self.precision)
        };
        let flag = |id: &&str| format!("--{} has no effect: {why}", id.replace('_', "-"));
        idle.iter().filter(|id| given(id)).map(flag).chain(self.fault_without_effect()).collect()
    }

    /// A fault of FP16 in a run that has none.
    fn fault_without_effect(&self) -> Option<String> {
        let is_fp16 = matches!(self.precision, Precision::Fp16 | Precision::Fp16Masters | Precision::Fp16Pure);
        let fault = self.fault.as_ref().filter(|spec| spec.fault.is_felt_in_fp16_alone() && !is_fp16)?.fault;
        Some(format!(
            "--fault {} does its harm in FP16; it is planted, and precision {} may not feel it",
            fault.name(),
            self.precision
        ))
    }

    /// The optimizer that is used.
    pub fn optimizer(&self) -> OptimizerKind {
        let default = if self.precision.is_pure() { OptimizerKind::Sgd } else { OptimizerKind::Adam };
        self.optimizer.unwrap_or(default)
    }

    /// The optimizer that is used, with its settings, to be built.
    pub fn optimizer_config(&self) -> OptimizerSettings {
        OptimizerSettings { kind: self.optimizer(), eps: self.eps }
    }

    /// The learning rate that the schedule begins with or rises to.
    pub fn learning_rate(&self) -> f64 {
        self.lr.unwrap_or_else(|| self.optimizer().default_lr())
    }

    /// Examples in a micro-batch.
    pub fn batch(&self) -> u64 {
        self.batch.unwrap_or_else(|| self.model.default_batch())
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("a finite number above 0 is needed".to_owned()),
    }
}

/// A size, as `64M` or `1G`; `off` is none.
fn limit(text: &str) -> Result<u64, String> {
    if text == "off" {
        return Ok(u64::MAX);
    }
    match parse_size(text) {
        Some(bytes) if bytes >= LEAST_LIMIT => Ok(bytes),
        _ => Err(format!("a size of at least {} KiB is needed, such as 64M, or off", LEAST_LIMIT >> 10)),
    }
}

/// A share of the time, as `2%` or `0.02`.
fn share(text: &str) -> Result<f64, String> {
    let parsed = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse::<f64>(),
    };
    match parsed {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("a share between 0 and 1 is needed, such as 2% or 0.02".to_owned()),
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
    use clap::parser::ValueSource;
    use clap::{CommandFactory, FromArgMatches};

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
        let mut options = parse("t --precision fp32 --fault scale-low");
        assert_eq!(options.apply_fault(), ["--precision fp16"]);
        assert_eq!(options.precision, Precision::Fp16);
        assert_eq!(parse("t --fault scale-low").apply_fault(), Vec::<String>::new());
        assert_eq!(parse("t --precision fp16-masters --fault scale-low").apply_fault(), Vec::<String>::new());
        assert_eq!(
            parse("t --precision bf16-pure --optimizer sgd --fault lost-decay").apply_fault(),
            ["--optimizer adamw"]
        );
        assert_eq!(parse("t --precision bf16-pure --fault dead-updates").apply_fault(), Vec::<String>::new());
        assert_eq!(
            parse("t --precision fp16-masters --fault masters-unused").apply_fault(),
            ["--precision bf16-masters"]
        );
        assert_eq!(parse("t --precision fp32 --fault nan").apply_fault(), Vec::<String>::new());
        assert_eq!(parse("t --precision bf16 --fault underflow").apply_fault(), ["--precision fp16"]);
    }

    #[test]
    fn a_fault_in_a_layer_is_planted_in_any_precision_so_that_a_remedy_can_be_tried() {
        let parse = |text: &str| Options::try_parse_from(text.split(' ')).unwrap();
        for fault in ["overflow", "underflow:fc2", "inflated-gradient", "half-norm", "backward-overflow"] {
            let mut options = parse(&format!("t --precision bf16 --fault {fault}"));
            assert_eq!(options.apply_fault(), Vec::<String>::new(), "{fault}");
            let warnings = options.without_effect(|_| false);
            assert!(warnings.len() == 1 && warnings[0].contains("does its harm in FP16"), "{fault}: {warnings:?}");
        }
        assert!(parse("t --fault overflow").without_effect(|_| false).is_empty());
    }

    #[test]
    fn layers_are_a_list_with_commas() {
        let options = Options::try_parse_from(["t", "--fp32-layers", "fc2,fc1"]).unwrap();
        assert!(
            options.fp32_layers().is_ok_and(|kept| kept.covers("fc1") && kept.covers("fc2") && !kept.covers("fc3"))
        );
        assert!(Options::try_parse_from(["t", "--fp32-layers", "fc9"]).unwrap().fp32_layers().is_err());
        assert!(Options::try_parse_from(["t"]).unwrap().fp32_layers().is_ok_and(|kept| kept == Fp32Layers::none()));
    }

    #[test]
    fn settings_that_are_kept_are_not_overridden() {
        let mut options =
            Options::try_parse_from(["t", "--precision", "fp32", "--fault", "overflow", "--keep-settings"]).unwrap();
        assert_eq!((options.apply_fault(), options.precision), (Vec::new(), Precision::Fp32));
        assert!(Options::try_parse_from(["t", "--keep-settings"]).is_err());
    }

    #[test]
    fn a_limit_is_a_size_or_off() {
        let limit = |text: &str| Options::try_parse_from(["t", "--limit", text]).map(|options| options.limit);
        assert_eq!(limit("64M").unwrap(), Some(64 << 20));
        assert_eq!(limit("off").unwrap(), Some(u64::MAX));
        assert!(limit("1k").is_err() && limit("much").is_err());
    }

    #[test]
    fn a_budget_is_a_share_or_a_percentage() {
        let budget = |text: &str| Options::try_parse_from(["t", "--budget", text]).unwrap().budget.unwrap();
        assert_eq!((budget("2%"), budget("0.02"), budget("100 %")), (0.02, 0.02, 1.0));
        assert!(Options::try_parse_from(["t", "--budget", "2%", "--every", "3"]).is_err());
    }

    #[test]
    fn a_model_in_16_bits_is_not_given_to_adam_unless_asked() {
        let optimizer = |text: &str| Options::try_parse_from(text.split(' ')).unwrap().optimizer();
        assert_eq!(optimizer("t --precision fp16-pure"), OptimizerKind::Sgd);
        assert_eq!(optimizer("t --precision fp16-pure --optimizer adam"), OptimizerKind::Adam);
        assert_eq!(optimizer("t --precision fp16-masters"), OptimizerKind::Adam);
    }

    #[test]
    fn flags_that_do_nothing_are_told_with_the_reason() {
        let told = |text: &str| {
            let matches = Options::command().get_matches_from(text.split(' '));
            let options = Options::from_arg_matches(&matches).unwrap();
            options.without_effect(|id| matches.value_source(id) == Some(ValueSource::CommandLine))
        };
        assert_eq!(
            told("t --precision bf16 --static-scale 8"),
            ["--static-scale has no effect: precision bf16 has no loss scaler"]
        );
        assert_eq!(
            told("t --static-scale 8 --growth-interval 9"),
            ["--growth-interval has no effect: the loss scale is static"]
        );
        assert!(told("t --growth-interval 9 --init-scale 4").is_empty());
        assert!(told("t --precision fp32").is_empty());
    }

    #[test]
    fn nonsense_is_refused() {
        for typed in [
            "t --lr 0",
            "t --lr nan",
            "t --steps 0",
            "t --init-scale -1",
            "t --fault none",
            "t --threads 0",
            "t --batch 0",
            "t --budget 0",
            "t --budget 101%",
        ] {
            assert!(Options::try_parse_from(typed.split(' ')).is_err(), "{typed}");
        }
    }
}
