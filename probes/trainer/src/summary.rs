//! What is said at the end of a run.

use std::fmt;

use clap::ValueEnum;
use serde::{Serialize, Serializer};

/// How the end of a run is written to standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SummaryFormat {
    /// For people.
    Text,
    /// One line of JSON.
    Json,
}

/// The end of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The model's name.
    pub model: String,
    /// The precision's name.
    pub precision: String,
    /// The optimizer's name.
    pub optimizer: String,
    /// The learning rate that the run was given, before its schedule.
    pub lr: f64,
    /// The seed.
    pub seed: u64,
    /// Share of the held-out images, or next characters, that were said right.
    pub accuracy: f64,
    /// Mean loss on what was held out; "NaN" or "inf" where it is no number.
    #[serde(serialize_with = "finite_or_text")]
    pub held_out_loss: f64,
    /// Mean training loss of the last steps (at most 50); "NaN" or "inf" where it is no number.
    #[serde(serialize_with = "finite_or_text")]
    pub loss: f64,
    /// Optimizer steps asked for, skipped ones included.
    pub steps: u64,
    /// Steps that the scaler skipped.
    pub skips: u64,
    /// Which they are.
    pub skipped_steps: Vec<u64>,
    /// The loss scale at the end; none without a scaler.
    pub scale: Option<f64>,
    /// Wall time of the training loop.
    pub seconds: f64,
    /// Where the run was recorded; none without a doctor.
    pub run: Option<String>,
    /// Fingerprint of parameters, buffers and the random state.
    pub params_sha256: String,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "accuracy  {:.2} %", 100.0 * self.accuracy)?;
        writeln!(f, "loss      {:.4}, held out {:.4}", self.loss, self.held_out_loss)?;
        writeln!(f, "steps     {} in {:.1} s, {} skipped", self.steps, self.seconds, self.skips)?;
        if let Some(scale) = self.scale {
            writeln!(f, "scale     {scale}")?;
        }
        if let Some(run) = &self.run {
            writeln!(f, "recorded  {run}")?;
        }
        write!(f, "sha256    {}", self.params_sha256)
    }
}

/// JSON has no NaN and no infinity.
fn finite_or_text<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() { serializer.serialize_f64(*value) } else { serializer.collect_str(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(loss: f64) -> Summary {
        Summary {
            model: "mlp".into(),
            precision: "fp16".into(),
            optimizer: "adam".into(),
            lr: 3e-3,
            seed: 1,
            accuracy: 0.975,
            held_out_loss: loss,
            loss,
            steps: 300,
            skips: 2,
            skipped_steps: vec![0, 7],
            scale: Some(65536.0),
            seconds: 1.25,
            run: None,
            params_sha256: "ab".into(),
        }
    }

    #[test]
    fn json_is_one_line_whatever_the_loss() {
        for (loss, text) in [(0.5, "0.5"), (f64::NAN, "\"NaN\""), (f64::INFINITY, "\"inf\"")] {
            let json = serde_json::to_string(&summary(loss)).unwrap();
            assert!(!json.contains('\n'));
            assert!(json.contains(&format!("\"loss\":{text},")), "{json}");
            assert!(json.contains(&format!("\"held_out_loss\":{text},")), "{json}");
        }
    }

    #[test]
    fn the_text_names_what_people_ask_for() {
        let text = summary(0.1234).to_string();
        for part in ["97.50 %", "0.1234", "300 in 1.2 s, 2 skipped", "65536", "ab"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
