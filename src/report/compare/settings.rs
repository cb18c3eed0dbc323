//! Settings in which two runs differ, as far as their recordings tell: the command line, the scaler, the learning rate, where they ran.

use super::super::Run;
use super::super::number::readable;
use crate::aggregate::Aggregate;
use crate::observation::{RunInfo, Sampling, ScalerConfig};

/// A setting that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingChange {
    /// What it is called: `--lr`, `init_scale`.
    pub name: String,
    /// What it was in the base; `None` where it was not set.
    pub base: Option<String>,
    /// What it is in the run.
    pub run: Option<String>,
}

/// The settings that differ, of the first rank of each run.
pub(super) fn changes(base: &Run<'_>, run: &Run<'_>) -> Vec<SettingChange> {
    // The settings of a scaler are of interest where both runs have one.
    let has_scaler = |of: &Run<'_>| of.ranks.first().is_some_and(|rank| rank.aggregate.scaler_config.is_some());
    let scalers = has_scaler(base) && has_scaler(run);
    let settings = |of: &Run<'_>| of.ranks.first().map(|rank| settings(rank.aggregate, scalers)).unwrap_or_default();
    let (before, after) = (settings(base), settings(run));
    let value =
        |of: &[(String, String)], name: &str| of.iter().find(|(known, _)| known == name).map(|(_, v)| v.clone());
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in before.iter().chain(&after) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let all = names.into_iter().map(|name| SettingChange {
        name: name.clone(),
        base: value(&before, name),
        run: value(&after, name),
    });
    all.filter(|setting| setting.base != setting.run).collect()
}

fn settings(aggregate: &Aggregate, scalers: bool) -> Vec<(String, String)> {
    let mut all = Vec::new();
    if let Some(info) = &aggregate.run {
        // Where a run is recorded is its name, and no setting.
        all.extend(options(&info.command).into_iter().filter(|(_, value)| !names(value, &info.name)));
        all.extend(place(info));
    }
    let scaler = aggregate.scaler_config.as_ref();
    let kind = scaler.map_or("none", |scaler| if scaler.is_static() { "static" } else { "dynamic" });
    all.push(("loss scaler".into(), kind.into()));
    all.extend(scaler.filter(|_| scalers).into_iter().flat_map(scaler_settings));
    let lr = aggregate.losses.recent.iter().rev().find_map(|at| at.lr);
    all.extend(lr.map(|lr| ("learning rate at the end".into(), readable(lr))));
    all
}

/// Whether a value is the path of the run of this name.
fn names(value: &str, run: &str) -> bool {
    std::path::Path::new(value).file_name().is_some_and(|name| name == run)
}

/// The options of a command line with their values, the program and other words by their place. A flag without a value is `set`.
fn options(command: &[String]) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    let mut words = command.iter().peekable();
    let mut place = 0;
    while let Some(word) = words.next() {
        let is_option = |word: &str| word.starts_with('-') && word.parse::<f64>().is_err();
        match word.split_once('=') {
            Some((name, value)) if is_option(name) => all.push((name.into(), value.into())),
            _ if is_option(word) => {
                let value = words.next_if(|next| !is_option(next));
                all.push((word.clone(), value.map_or("set", String::as_str).into()));
            }
            _ => {
                let name = if place == 0 { "program".into() } else { format!("argument {place}") };
                place += 1;
                all.push((name, word.clone()));
            }
        }
    }
    all
}

fn place(info: &RunInfo) -> Vec<(String, String)> {
    let trained = || info.parameters.iter().filter(|parameter| parameter.trainable);
    let mut dtypes: Vec<&str> = trained().map(|parameter| parameter.dtype.as_str()).collect();
    dtypes.sort_unstable();
    dtypes.dedup();
    let sampling = match info.sampling {
        Sampling::Every(n) => format!("every {n}"),
        Sampling::Budget(share) => format!("budget {}", readable(share)),
        Sampling::Off => "off".into(),
    };
    [
        ("framework", info.framework.clone()),
        ("device", info.device.clone()),
        ("threads", info.threads.to_string()),
        ("sampling", sampling),
        ("trained parameters", trained().count().to_string()),
        ("their dtypes", dtypes.join(", ")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

fn scaler_settings(scaler: &ScalerConfig) -> Vec<(String, String)> {
    let bound = |bound: Option<f64>| bound.map_or("none".into(), readable);
    [
        ("init_scale", readable(scaler.init_scale)),
        ("growth_factor", readable(scaler.growth_factor)),
        ("backoff_factor", readable(scaler.backoff_factor)),
        ("growth_interval", scaler.growth_interval.to_string()),
        ("min_scale", bound(scaler.min_scale)),
        ("max_scale", bound(scaler.max_scale)),
        ("hysteresis", scaler.hysteresis.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_values_and_other_words_places() {
        let command = ["train", "--lr", "-0.1", "--mask", "--scale=2", "data", "-v", "--x"].map(String::from);
        let expected = [
            ("program", "train"),
            ("--lr", "-0.1"),
            ("--mask", "set"),
            ("--scale", "2"),
            ("argument 1", "data"),
            ("-v", "set"),
            ("--x", "set"),
        ];
        assert_eq!(options(&command), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
