//! ## What it finds
//!
//! A rank of a distributed run that has another loss scale than the others, or skips other steps.
//!
//! ## Why it matters
//!
//! In data-parallel training all ranks hold the same weights because all take the same steps. A rank that skips a step which the others take, or takes one that they
//! skip, has other weights from then on, and no later step brings them together again: the run trains several models and averages their gradients. The loss may look well
//! for a long time.
//!
//! ## How it decides
//!
//! The loss scale and the number of skipped steps are compared at every step, in a long run over stretches of some steps. **Error**: at a step they are not the same on
//! all ranks. The rank that differs from most of the others is named; of two ranks, or where there is no majority, each.
//!
//! ## What to do
//!
//! The decision to skip must be one for all ranks. Reduce it before the scaler steps: a gradient that is not finite on one rank must be seen by all. Averaging the gradients
//! over all ranks *before* `scaler.unscale(&mut opt)` does it, since NaN and infinities survive a sum; so does an all-reduce of the flag itself. Each rank needs a
//! scaler with the same settings, restored from the same state: `scaler.load_state(&state)`.
//!
//! ## When it stays silent
//!
//! In a run of one rank. On ranks that are a few steps behind. Skips are not compared with a rank that could not write all its steps. A recording that is left
//! from an earlier run of the same directory is not compared. Ranks that are not to have the same weights (a search over settings, an ensemble) are runs of their own: give each a
//! directory.

use super::agreement::{Contrast, apart};
use super::ranks::{Company, OfRank};
use super::text::{counted, measured, scale};
use super::{Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::Aggregate;

/// See the page of the rule.
pub struct ScalersApart;

static INFO: RuleInfo = RuleInfo {
    code: "AMP801",
    name: "scalers-apart",
    severity: Severity::Error,
    summary: "A rank has another loss scale than the others, or skips other steps: the weights of the ranks drift apart.",
    source: include_str!("scalers_apart.rs"),
};

impl Rule for ScalersApart {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn check(&self, _: &Aggregate, _: &Limits) -> Vec<Verdict> {
        Vec::new()
    }

    fn compare(&self, company: &Company<'_>, _: &Limits) -> Vec<OfRank<Firing>> {
        let (numbers, aggregates): (Vec<u32>, Vec<&Aggregate>) =
            company.present().map(|peer| (peer.number, peer.aggregate)).unzip();
        let apart = numbers.into_iter().zip(apart(&aggregates));
        apart.filter_map(|(rank, apart)| Some(OfRank { rank, item: firing(rank, apart.scale, apart.skips)? })).collect()
    }
}

fn firing(rank: u32, scales: Option<Contrast>, skips: Option<Contrast>) -> Option<Firing> {
    let since = scales.iter().chain(&skips).map(|contrast| contrast.step).min()?;
    let mut evidence = Vec::new();
    let mut said = Vec::new();
    if let Some(skips) = skips {
        evidence.extend([counted("skips", skips.here as u64), counted("skips_of_the_others", skips.others as u64)]);
        said.push(format!(
            "at step {} it skipped {}, the others {}",
            skips.step,
            times(skips.here),
            times(skips.others)
        ));
    }
    if let Some(scales) = scales {
        evidence.extend([measured("loss_scale", scales.here), measured("loss_scale_of_the_others", scales.others)]);
        let (here, others) = (scale(scales.here), scale(scales.others));
        said.push(format!("from step {} on its loss scale is {here}, that of the others {others}", scales.step));
    }
    let explanation = format!(
        "Rank {rank} does not do what the other ranks do: {}. From then on its weights are not theirs.",
        said.join("; ")
    );
    let remedy = Remedy {
        text: "Let all ranks decide together whether to skip: average the gradients over the ranks before `scaler.unscale`, so that one that is not finite is seen by \
               all, and give each rank a scaler with the same settings and state."
            .into(),
        ..Remedy::default()
    };
    Some(Firing {
        severity: Severity::Error,
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since,
        strength: 0.0,
        evidence,
        explanation,
        remedy,
    })
}

fn times(n: f64) -> String {
    match n as u64 {
        0 => "not".into(),
        1 => "once".into(),
        n => format!("{n} times"),
    }
}
