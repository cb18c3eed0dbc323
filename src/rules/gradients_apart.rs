//! ## What it finds
//!
//! A rank of a distributed run whose whole gradient is far larger or smaller than that of the other ranks, for a good part of the run.
//!
//! ## Why it matters
//!
//! All ranks of a data-parallel run have the same weights and batches of the same kind, so that their gradients are of one size, and after they were averaged the same. One that
//! is thirty times larger decides every step alone; one that is thirty times smaller takes no part. Its data is another (labels that were read wrongly, inputs that were not
//! normalised), its weights are another, or its gradients were not averaged.
//!
//! ## How it decides
//!
//! The norm of the gradients of all parameters together, without the loss scale, is averaged over sixteen parts of the run as a logarithm. **Warning**: in four parts one after
//! the other (threshold `parts`) the norm of a rank is more than 5 octaves, a factor of 32 (threshold `octaves`), away from the median of the others. Only ranks whose parameters have
//! the same names and shapes are compared. Of two ranks each is named.
//!
//! ## What to do
//!
//! Compare a batch of that rank with one of another, as the model gets it: `x.mean(Kind::Float)`, `x.std(false)`, the labels. Where the data is alike, compare the weights: ranks that began
//! with another seed are never averaged into one, unless rank 0 sends its weights to the others first.
//!
//! ## When it stays silent
//!
//! In a run of one rank, on ranks that hold different parts of a model, and on steps that were not scanned.

use super::agreement::{Contrast, far_norms};
use super::ranks::{Company, OfRank};
use super::text::{measured, power_of_two};
use super::{Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::Aggregate;

const NAME: &str = "gradients-apart";
/// How far is far.
const OCTAVES: Threshold = Threshold::new(
    NAME,
    "octaves",
    5.0,
    "octaves between a rank and the median of the others",
    "Single batches of one kind differ by two or three octaves, their averages by less than one.",
);
/// How long.
const PARTS: Threshold = Threshold::new(
    NAME,
    "parts",
    4.0,
    "sixteenths of the run, one after the other",
    "A rank that is far for a moment has met a hard batch.",
);

/// See the page of the rule.
pub struct GradientsApart;

static INFO: RuleInfo = RuleInfo {
    code: "AMP804",
    name: NAME,
    severity: Severity::Warning,
    summary: "The gradient of a rank is far larger or smaller than that of the others.",
    source: include_str!("gradients_apart.rs"),
};

impl Rule for GradientsApart {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[OCTAVES, PARTS]
    }

    fn check(&self, _: &Aggregate, _: &Limits) -> Vec<Verdict> {
        Vec::new()
    }

    fn compare(&self, company: &Company<'_>, limits: &Limits) -> Vec<OfRank<Firing>> {
        let peers: Vec<_> = company.present().collect();
        if !peers.windows(2).all(|pair| have_same_parameters(pair[0].aggregate, pair[1].aggregate)) {
            return Vec::new();
        }
        let norms: Vec<_> = peers.iter().map(|peer| &peer.aggregate.gradient_norms).collect();
        let far = far_norms(&norms, limits.of(&OCTAVES), limits.of(&PARTS) as usize);
        let found = peers.iter().zip(far).filter_map(|(peer, far)| Some((peer.number, far?)));
        found.map(|(rank, far)| OfRank { rank, item: firing(rank, &far) }).collect()
    }
}

fn have_same_parameters(a: &Aggregate, b: &Aggregate) -> bool {
    let (Some(a), Some(b)) = (&a.run, &b.run) else { return false };
    let same = |(a, b): (&crate::observation::Parameter, &crate::observation::Parameter)| {
        a.name == b.name && a.shape == b.shape
    };
    a.parameters.len() == b.parameters.len() && a.parameters.iter().zip(&b.parameters).all(same)
}

fn firing(rank: u32, far: &Contrast) -> Firing {
    let (here, others) = (far.here.exp2(), far.others.exp2());
    let way = if far.here > far.others { "larger" } else { "smaller" };
    let explanation = format!(
        "From about step {} on the gradient of rank {rank} is far {way} than that of the others: its norm is {}, theirs {}. Ranks with the same weights and data of one kind have \
         gradients of one size.",
        far.step,
        power_of_two(here),
        power_of_two(others)
    );
    let remedy = Remedy {
        text: format!(
            "Compare a batch of rank {rank} with one of another rank as the model gets it (mean, deviation, labels); where they are alike, compare the weights: were all ranks given those of \
             rank 0, and are the gradients averaged over all?"
        ),
        ..Remedy::default()
    };
    Firing {
        severity: Severity::Warning,
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since: far.step,
        strength: (far.here - far.others).abs(),
        evidence: vec![measured("gradient_norm", here), measured("gradient_norm_of_the_others", others)],
        explanation,
        remedy,
    }
}
