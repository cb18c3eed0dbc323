//! One layer over the whole run: what the layer view shows beside its row in the table.

use std::cmp::Reverse;

use crate::aggregate::{Aggregate, MagnitudeHistogram, Maxima, Sample, ShadowSample, SiteSummary};
use crate::numerics::Format;
use crate::observation::{Probe, Site};
use crate::rules::Finding;
use crate::scan::Dtype;

use super::layers::{Layer, layer};
use super::zones::{Edges, Spread};

/// One tensor of a layer.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Where it was observed.
    pub site: Site,
    /// The latest scans, at most [`SiteSummary::WINDOW`] of each rank.
    pub recent: Spread,
    /// All scans; of a gradient those without a non-finite element, which say nothing of its range.
    pub run: Spread,
    /// Scans of the run, and those of them with a non-finite element, masks apart.
    pub scans: (u64, u64),
    /// Its zones.
    pub edges: Option<Edges>,
    /// Largest magnitude of each step.
    pub largest: MagnitudeHistogram,
    /// Smallest non-zero magnitude of each step: of activations.
    pub smallest: MagnitudeHistogram,
    /// Largest magnitude over time.
    pub maxima: Maxima,
    /// The loss scale that the latest scan of a gradient carried.
    pub loss_scale: Option<f64>,
}

impl Tensor {
    pub(super) fn new(summary: &SiteSummary) -> Self {
        let mut recent = Spread::default();
        summary.recent.iter().for_each(|sample| recent.merge(&spread_of(sample)));
        let scaled = summary.latest().filter(|_| summary.site.probe.is_gradient());
        Self {
            site: summary.site.clone(),
            recent,
            run: spread_of_the_run(summary),
            scans: (summary.samples, summary.non_finite_samples - summary.masked_samples),
            edges: Edges::of(&summary.site),
            largest: summary.step_max.clone(),
            smallest: summary.step_min.clone(),
            maxima: summary.maxima.clone(),
            loss_scale: scaled.and_then(|sample| sample.loss_scale),
        }
    }

    /// Adds what another rank saw of the same tensor.
    fn merge(&mut self, other: Self) {
        self.recent.merge(&other.recent);
        self.run.merge(&other.run);
        self.scans = (self.scans.0 + other.scans.0, self.scans.1 + other.scans.1);
        self.largest.merge(&other.largest);
        self.smallest.merge(&other.smallest);
        self.maxima.merge(&other.maxima);
        self.loss_scale = self.loss_scale.or(other.loss_scale);
    }

    /// The name within its layer: `relu#2`, `weight`.
    pub fn name(&self) -> &str {
        if self.site.tensor.is_empty() { &self.site.operator } else { &self.site.tensor }
    }
}

fn spread_of(sample: &Sample) -> Spread {
    let stats = &sample.stats;
    Spread {
        exponents: stats.exponents.clone(),
        count: stats.count,
        zeros: stats.zeros,
        nan: stats.nan,
        inf: stats.pos_inf + if sample.by_mask { 0 } else { stats.neg_inf },
        masked: if sample.by_mask { stats.neg_inf } else { 0 },
        scans: 1,
    }
}

fn spread_of_the_run(summary: &SiteSummary) -> Spread {
    // Of a scan whose exponents are left out the infinities are too: they would be a share of nothing.
    let left_out = summary.site.probe.is_gradient();
    let (nan, inf) = if left_out { (0, 0) } else { (summary.nan, summary.inf - summary.masked) };
    let scans = summary.samples - if left_out { summary.non_finite_samples } else { 0 };
    Spread {
        exponents: summary.exponents.clone(),
        count: summary.count,
        zeros: summary.zeros,
        nan,
        inf,
        masked: summary.masked,
        scans,
    }
}

/// A quantity of a layer that is followed over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// The largest activation.
    Activation,
    /// The largest gradient as it was held, times the loss scale.
    Gradient,
    /// The largest change of a parameter.
    Update,
}

impl Quantity {
    /// All, in the order in which they are named.
    pub const ALL: [Quantity; 3] = [Quantity::Activation, Quantity::Gradient, Quantity::Update];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Quantity::Activation => "activation",
            Quantity::Gradient => "gradient",
            Quantity::Update => "update",
        }
    }
}

/// A finding and the ranks that have it.
#[derive(Clone, Debug)]
pub struct Told {
    /// Numbers of the ranks, rising.
    pub ranks: Vec<u32>,
    /// The finding, as the first of them has it that has it at its gravest.
    pub finding: Finding,
    /// What it follows from, where it does: `AMP403 exploding-updates`.
    pub follows_from: Option<String>,
}

/// One layer over the whole run, of one rank or of all.
#[derive(Clone, Debug)]
pub struct LayerDetail {
    /// Dotted path; empty for the root.
    pub path: String,
    /// The layer over the recent scans.
    pub layer: Layer,
    /// Its findings, gravest first.
    pub findings: Vec<Told>,
    /// The ranks that were taken together.
    pub ranks: Vec<u32>,
    /// Whether those are all there are.
    pub of_all: bool,
    /// Its tensors, in the order of the recording.
    pub tensors: Vec<Tensor>,
    /// The largest magnitude of each quantity over time; those that were never seen are empty. Of several tensors the largest at each step.
    pub maxima: [(Quantity, Maxima); 3],
    /// Its gradient beside FP32's in the latest comparison, all its parameters as one; of several ranks the sum. `None` where none was asked for.
    pub shadow: Option<ShadowSample>,
}

impl LayerDetail {
    /// What the ranks of a run saw of a layer: their numbers, what is known of each, and what was found on it.
    pub fn of_runs<'a>(
        path: &str,
        of_all: bool,
        runs: impl Iterator<Item = (u32, &'a Aggregate, Vec<Finding>)>,
    ) -> Self {
        let (mut tensors, mut findings, mut ranks): (Vec<Tensor>, _, _) = (Vec::new(), Vec::new(), Vec::new());
        let mut aggregates = Vec::new();
        for (number, aggregate, found) in runs {
            ranks.push(number);
            aggregates.push(aggregate);
            for root in found.iter().filter(|_| !path.is_empty()) {
                let of_the_layer = root.with_consequences().filter(|f| f.layer == path);
                of_the_layer.for_each(|finding| tell(&mut findings, number, finding, root));
            }
            let here = aggregate.sites.iter().filter(|summary| summary.site.layer == path);
            for tensor in here.map(Tensor::new) {
                match tensors.iter_mut().find(|known| known.site == tensor.site) {
                    Some(known) => known.merge(tensor),
                    None => tensors.push(tensor),
                }
            }
        }
        findings.sort_by_key(|told| (Reverse(told.finding.severity), told.finding.onset_step, told.finding.code));
        let found: Vec<Finding> = findings.iter().map(|told| told.finding.clone()).collect();
        let layer = layer(path, aggregates.iter().copied(), &found);
        let maxima = Quantity::ALL.map(|quantity| (quantity, largest(&tensors, quantity)));
        let shadow = shadow(path, &aggregates);
        Self { path: path.to_owned(), layer, findings, ranks, of_all, tensors, maxima, shadow }
    }

    /// A layer of which only this is known.
    #[cfg(test)]
    pub fn of_maxima(maxima: [(Quantity, Maxima); 3]) -> Self {
        let layer = layer("fc", std::iter::empty(), &[]);
        Self {
            path: "fc".into(),
            layer,
            findings: Vec::new(),
            ranks: vec![0],
            of_all: false,
            tensors: Vec::new(),
            maxima,
            shadow: None,
        }
    }

    /// Whether the limits of FP16 say something of one of its tensors: it is held in FP16, or it is a gradient in FP32.
    pub fn is_held_against_fp16(&self) -> bool {
        let by_fp16 = |tensor: &Tensor| tensor.edges.as_ref().is_some_and(|edges| edges.format == Format::F16);
        self.tensors.is_empty() || self.tensors.iter().any(by_fp16)
    }

    /// First and last step of the maxima.
    pub fn steps(&self) -> Option<(u64, u64)> {
        let covered = self.maxima.iter().filter_map(|(_, maxima)| maxima.steps());
        covered.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }
}

/// Adds a finding of a rank; the same fault on several ranks is told once.
fn tell(findings: &mut Vec<Told>, rank: u32, finding: &Finding, root: &Finding) {
    let follows_from = (!std::ptr::eq(finding, root)).then(|| format!("{} {}", root.code, root.name));
    let finding = finding.clone();
    let same = |told: &&mut Told| (told.finding.code, &told.finding.layer) == (finding.code, &finding.layer);
    match findings.iter_mut().find(same) {
        Some(told) => {
            told.ranks.push(rank);
            if finding.severity > told.finding.severity {
                (told.finding, told.follows_from) = (finding, follows_from);
            }
        }
        None => findings.push(Told { ranks: vec![rank], finding, follows_from }),
    }
}

/// The latest comparison with FP32 of each rank, summed.
fn shadow(path: &str, aggregates: &[&Aggregate]) -> Option<ShadowSample> {
    let latest = aggregates.iter().filter_map(|a| a.shadows.of_layer(path, &a.sites).pop());
    latest.reduce(|mut sum, sample| {
        sum.likeness.merge(&sample.likeness);
        sum.step = sum.step.max(sample.step);
        sum
    })
}

/// The tensors that stand for a quantity. Of activations and gradients those held in FP16, which the thresholds are of; where there is none, all.
fn largest(tensors: &[Tensor], quantity: Quantity) -> Maxima {
    let stands = |t: &&Tensor| match quantity {
        Quantity::Activation => t.site.probe == Probe::Activation,
        Quantity::Gradient => t.site.probe.is_gradient() && t.site.probe != Probe::CastGrad,
        Quantity::Update => t.site.probe == Probe::Update,
    };
    let all: Vec<&Tensor> = tensors.iter().filter(stands).collect();
    let in_fp16 = |t: &&&Tensor| t.site.dtype == Dtype::F16;
    let narrowed = quantity != Quantity::Update && all.iter().any(|t| in_fp16(&t));
    let mut maxima = Maxima::default();
    all.iter().filter(|t| !narrowed || in_fp16(t)).for_each(|t| maxima.raise(&t.maxima));
    // A gradient in FP32 that is not finite is no matter of its format.
    all.iter().filter(|t| narrowed && !in_fp16(t)).for_each(|t| maxima.raise(&t.maxima.never_finite()));
    maxima
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::testing::scenario::{Fault, records};
    use crate::tui::testing::underflow;

    fn aggregate(steps: u64) -> Aggregate {
        let mut aggregate = Aggregate::default();
        records("r", Fault::None, steps, false).into_iter().for_each(|record| aggregate.apply(record));
        aggregate
    }

    fn detail(path: &str, ranks: &[&Aggregate]) -> LayerDetail {
        let ranks = (0..).zip(ranks).map(|(number, aggregate)| (number, *aggregate, underflow()));
        LayerDetail::of_runs(path, true, ranks)
    }

    #[test]
    fn a_layer_has_its_tensors_and_the_maxima_of_what_was_seen() {
        let seen = detail("head", &[&aggregate(40)]);
        let kinds: Vec<Probe> = seen.tensors.iter().map(|tensor| tensor.site.probe).collect();
        assert_eq!(kinds, [Probe::Activation, Probe::ActivationGrad, Probe::ParamGrad]);
        assert_eq!(seen.steps(), Some((0, 39)));
        let [(_, activation), (_, gradient), (_, update)] = &seen.maxima;
        assert!(update.steps().is_none());
        assert_eq!(activation.iter().next().and_then(|(_, s)| s.range()), Some((1536.0, 1536.0)));
        assert_eq!(gradient.iter().filter(|(_, s)| s.non_finite > 0).count(), 2, "the calibration");
    }

    #[test]
    fn infinities_of_scans_that_are_left_out_are_left_out_too() {
        let seen = detail("head", &[&aggregate(40)]);
        let gradient = &seen.tensors[1];
        assert_eq!((gradient.run.inf, gradient.run.scans, gradient.scans), (0, 38, (40, 2)));
        assert!(gradient.recent.scans == 32 && seen.tensors[0].run.scans == 40);
    }

    #[test]
    fn ranks_are_merged_tensor_by_tensor() {
        let (a, b) = (aggregate(40), aggregate(60));
        let (one, other) = (detail("head", &[&a]), detail("head", &[&b]));
        let both = detail("head", &[&a, &b]);
        assert_eq!(both.tensors.len(), one.tensors.len());
        for (i, tensor) in both.tensors.iter().enumerate() {
            let (one, other) = (&one.tensors[i], &other.tensors[i]);
            assert_eq!(tensor.run.count, one.run.count + other.run.count);
            assert_eq!(tensor.run.exponents.total(), one.run.exponents.total() + other.run.exponents.total());
            assert_eq!(tensor.largest.len(), one.largest.len() + other.largest.len());
            assert_eq!(tensor.maxima.steps(), Some((0, 59)));
        }
    }

    #[test]
    fn the_same_finding_on_two_ranks_is_told_once() {
        let seen = detail("conv1", &[&aggregate(10), &aggregate(10)]);
        let told: Vec<_> = seen.findings.iter().map(|told| (told.finding.code, told.ranks.as_slice())).collect();
        assert_eq!(told, [("AMP201", &[0, 1][..])]);
        assert_eq!((seen.layer.severity, seen.ranks), (Some(crate::rules::Severity::Warning), vec![0, 1]));
    }

    #[test]
    fn a_layer_that_was_never_seen_is_empty() {
        let seen = detail("nowhere", &[&aggregate(3)]);
        assert!(seen.tensors.is_empty() && seen.steps().is_none());
    }
}
