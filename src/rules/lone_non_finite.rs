//! ## What it finds
//!
//! A rank of a distributed run whose forward pass held a NaN or an infinity before any other rank's did.
//!
//! ## Why it matters
//!
//! The gradients of all ranks are averaged, so that one rank's NaN is everybody's a moment later: each rank then reports gradients that are not finite, and the findings of
//! the others are only echoes. This names the rank to look at. All ranks run the same model with the same weights: what is not finite on one alone comes from its data or its
//! device.
//!
//! ## How it decides
//!
//! The first step at which an activation was not finite, masks apart, is compared. The rank that is alone with it, or first, is named: **warning** where two or more of its
//! scans (threshold `scans`) were not finite, else **information**: one bad step is no trend, and a loss scaler steps over it.
//!
//! ## What to do
//!
//! Look at the batch of that step on that rank: an empty sample, a label out of range, a corrupt file in its shard. Where its data is sound, run the shard on another device;
//! a device that computes wrong values does it again. `doctor.metric("batch_id", id)` leaves the batch's number in the recording.
//!
//! ## When it stays silent
//!
//! In a run of one rank, where several ranks were not finite first at the same step, and for values that a mask put there on purpose.

use super::agreement::{first_alone, first_non_finite};
use super::ranks::{Company, OfRank};
use super::text::counted;
use super::{Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::Aggregate;
use crate::observation::Probe;

const NAME: &str = "lone-non-finite";
/// Scans that make it a warning.
const SCANS: Threshold = Threshold::new(
    NAME,
    "scans",
    2.0,
    "scans that are not finite",
    "One bad batch is no trend, and a loss scaler steps over it.",
);

/// See the page of the rule.
pub struct LoneNonFinite;

static INFO: RuleInfo = RuleInfo {
    code: "AMP803",
    name: NAME,
    severity: Severity::Warning,
    summary: "One rank alone, or before all others, held a NaN or an infinity in forward: its data or its device is to blame.",
    source: include_str!("lone_non_finite.rs"),
};

impl Rule for LoneNonFinite {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[SCANS]
    }

    fn check(&self, _: &Aggregate, _: &Limits) -> Vec<Verdict> {
        Vec::new()
    }

    fn compare(&self, company: &Company<'_>, limits: &Limits) -> Vec<OfRank<Firing>> {
        let peers: Vec<_> = company.present().collect();
        let first: Vec<Option<u64>> = peers.iter().map(|peer| first_non_finite(peer.aggregate)).collect();
        let alone =
            first_alone(&first).and_then(|at| Some((peers[at], first[at]?, first.iter().flatten().count() > 1)));
        let scans = limits.of(&SCANS) as u64;
        alone
            .map(|(peer, step, later)| OfRank {
                rank: peer.number,
                item: firing(peer.number, peer.aggregate, step, later, scans),
            })
            .into_iter()
            .collect()
    }
}

fn firing(rank: u32, aggregate: &Aggregate, step: u64, others_later: bool, enough: u64) -> Firing {
    let in_forward = aggregate.sites.iter().filter(|s| s.site.probe == Probe::Activation);
    let scans = in_forward.map(|s| s.non_finite_samples - s.masked_samples).max().unwrap_or(0);
    let others = if others_later { "the other ranks only later" } else { "no other rank" };
    let origin = aggregate.non_finite.first_origin.filter(|origin| origin.step == step);
    let place = origin
        .and_then(|origin| aggregate.site(origin.site))
        .map_or(String::new(), |s| format!(" in `{}`", s.site.label()));
    let explanation = format!(
        "Rank {rank} held values that are not finite{place} at step {step}, and {others}. All ranks run the same model: its batch, or its device, made them."
    );
    let remedy = Remedy {
        text: format!(
            "Look at the batch that rank {rank} had at step {step}: an empty or corrupt sample, a label out of range. Where it is sound, run this part of the data on another \
             device."
        ),
        ..Remedy::default()
    };
    Firing {
        severity: if scans >= enough { Severity::Warning } else { Severity::Info },
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since: step,
        strength: scans as f64,
        evidence: vec![counted("non_finite_scans", scans)],
        explanation,
        remedy,
    }
}
