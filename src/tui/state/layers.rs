//! The layers of the model, each with its sites.

use std::cmp::{Ordering, Reverse};

use super::Window;
use super::window::Zone;
use crate::aggregate::{Aggregate, Sample, SiteSummary};
use crate::observation::{Probe, Site};
use crate::rules::{Finding, Severity};
use crate::scan::Dtype;

/// One site over the recent scans.
#[derive(Clone, Debug)]
pub struct SiteRow {
    /// As people write it: `fc/relu#2`, `fc.weight`.
    pub label: String,
    /// The same within its layer: `relu#2`, `weight`.
    pub name: String,
    /// What was observed.
    pub probe: Probe,
    /// The dtype in which it was held.
    pub dtype: Dtype,
    /// Largest recent magnitude, as held; where no recent scan was finite, infinity, or NaN where none was seen.
    pub max: f64,
    /// The same, divided by the loss scale of its step.
    pub max_unscaled: f64,
    /// Zeros among the recent elements, and all of these.
    zeros: (u64, u64),
    /// Exponents of the recent scans.
    pub window: Window,
    /// NaN and infinities in the latest scan; none where they are -inf by a mask alone.
    pub non_finite_now: (u64, u64),
    /// Whether the latest non-finite was inherited from an input.
    pub inherited: bool,
    /// Scans of the whole run, and those of them with a non-finite element, masks apart.
    pub samples: (u64, u64),
    /// Whether it was once non-zero and is all zero in the latest scan.
    pub became_zero: bool,
}

impl SiteRow {
    fn new(summary: &SiteSummary) -> Self {
        let (mut window, mut zeros, mut count) = (Window::default(), 0, 0);
        let (mut max, mut max_unscaled) = (0.0f64, 0.0f64);
        for sample in &summary.recent {
            window.add(&sample.stats, sample.by_mask);
            zeros += sample.stats.zeros;
            count += sample.stats.count;
            max = max.max(sample.stats.max_abs);
            let scale = sample.loss_scale.filter(|s| *s > 0.0 && summary.site.probe.is_gradient()).unwrap_or(1.0);
            max_unscaled = max_unscaled.max(sample.stats.max_abs / scale);
        }
        let latest = summary.latest();
        if let Some(bad) = never_finite(summary) {
            (max, max_unscaled) = (bad, bad);
        }
        Self {
            label: summary.site.label(),
            name: name_in_layer(&summary.site),
            probe: summary.site.probe,
            dtype: summary.site.dtype,
            max,
            max_unscaled,
            zeros: (zeros, count),
            window,
            non_finite_now: latest
                .filter(|s| !s.by_mask)
                .map_or((0, 0), |s| (s.stats.nan, s.stats.pos_inf + s.stats.neg_inf)),
            inherited: latest.is_some_and(|s| s.inherited),
            samples: (summary.samples, summary.non_finite_samples - summary.masked_samples),
            became_zero: summary.nonzero_samples > 0 && latest.is_some_and(|s| s.stats.zeros == s.stats.count),
        }
    }

    /// Adds what another rank saw of the same site.
    fn merge(&mut self, other: &Self) {
        self.max = larger(self.max, other.max);
        self.max_unscaled = larger(self.max_unscaled, other.max_unscaled);
        self.zeros = (self.zeros.0 + other.zeros.0, self.zeros.1 + other.zeros.1);
        self.window.merge(&other.window);
        // A value that was born on one rank is no less an origin for having been inherited on another.
        self.inherited = match (self.is_non_finite(), other.is_non_finite()) {
            (true, true) => self.inherited && other.inherited,
            (false, true) => other.inherited,
            (_, false) => self.inherited,
        };
        let (nan, inf) = other.non_finite_now;
        self.non_finite_now = (self.non_finite_now.0 + nan, self.non_finite_now.1 + inf);
        self.samples = (self.samples.0 + other.samples.0, self.samples.1 + other.samples.1);
        self.became_zero &= other.became_zero;
    }

    /// Share of zeros among the recent elements; `None` without elements.
    pub fn zero_share(&self) -> Option<f64> {
        let (zeros, count) = self.zeros;
        (count > 0).then(|| zeros as f64 / count as f64)
    }

    /// Share of the non-zero elements that are subnormal in FP16; 1 for a tensor that became zero, `None` for one that always was.
    pub fn fading(&self) -> Option<f64> {
        if self.became_zero { Some(1.0) } else { self.window.zone_share(Zone::Subnormal) }
    }

    /// Whether the latest scan held a NaN or an infinity, masks apart.
    pub fn is_non_finite(&self) -> bool {
        self.non_finite_now != (0, 0)
    }
}

/// What the largest magnitude is where every recent scan held something that is not finite, masks apart: infinity where one was seen, else NaN. `None` where a
/// scan was finite: a step that is skipped now and then says nothing of the others.
fn never_finite(summary: &SiteSummary) -> Option<f64> {
    let bad = |sample: &Sample| !sample.by_mask && sample.stats.non_finite() > 0;
    let infinite = |sample: &Sample| sample.stats.pos_inf + sample.stats.neg_inf > 0;
    let recent = &summary.recent;
    let all = !recent.is_empty() && recent.iter().all(bad);
    all.then(|| if recent.iter().any(infinite) { f64::INFINITY } else { f64::NAN })
}

/// The larger of two magnitudes; a NaN is above all but infinity, for then nothing is known of the largest.
fn larger(a: f64, b: f64) -> f64 {
    match (a.is_infinite() || b.is_infinite(), a.is_nan() || b.is_nan()) {
        (true, _) => f64::INFINITY,
        (false, true) => f64::NAN,
        (false, false) => a.max(b),
    }
}

fn name_in_layer(site: &Site) -> String {
    if site.tensor.is_empty() { site.operator.clone() } else { site.tensor.clone() }
}

/// One layer over the recent scans.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Dotted path; empty for the root.
    pub path: String,
    /// Its sites, in the order of the recording.
    pub sites: Vec<SiteRow>,
    /// The gravest of its findings.
    pub severity: Option<Severity>,
    /// Distinct operators seen in forward.
    pub operators: usize,
    /// Dtypes of its activations (of all its sites, where none was seen), without repeats.
    pub dtypes: Vec<Dtype>,
    /// Largest recent activation.
    pub activation_max: Option<f64>,
    /// Largest recent gradient as it was held.
    pub gradient_max: Option<f64>,
    /// The same without the loss scale.
    pub gradient_unscaled: Option<f64>,
    /// Octaves between the largest recent FP16 value and FP16's end, of activations and gradients; negative beyond it, negative infinity where one of them is never
    /// finite for infinities, `None` where none is held in FP16 or one is never finite for NaN.
    pub headroom: Option<f64>,
    /// Share of its worst gradient that FP16 loses or fades: as it is held, and where that was seen, as it was before a cast to FP16. `None` where no
    /// gradient is held in FP16.
    pub fading: Option<f64>,
    /// [`SiteRow::fading`] of its worst gradient; pooled, a large healthy tensor would hide a small dying one.
    pub subnormal_share: Option<f64>,
    /// Share of zeros among the held gradients.
    pub zero_share: Option<f64>,
    /// Scans of its worst site with a non-finite element, masks apart.
    pub non_finite_scans: u64,
    /// Whether the latest scan of one of its sites held a non-finite element, masks apart.
    pub non_finite_now: bool,
    /// Where its gradients lie, as held and, where that was seen, as they were before a cast to FP16.
    pub gradients: Window,
    /// Where its activations lie.
    pub activations: Window,
}

impl Layer {
    fn new(path: &str, sites: Vec<SiteRow>, findings: &[Finding]) -> Self {
        let of = |probe: Probe| sites.iter().filter(move |s| s.probe == probe);
        let (activations, held) = (of(Probe::Activation).collect::<Vec<_>>(), held_gradients(&sites));
        // A gradient that is never finite is shown whatever holds it: those in FP16 may be zero for it.
        let is_bad = |s: &&SiteRow| s.probe.is_gradient() && s.probe != Probe::CastGrad && !s.max.is_finite();
        let shown_gradients: Vec<&SiteRow> = held.iter().copied().chain(sites.iter().filter(is_bad)).collect();
        let shown = |s: &&SiteRow| activations.is_empty() || s.probe == Probe::Activation;
        let mut dtypes: Vec<Dtype> = sites.iter().filter(shown).map(|s| s.dtype).collect();
        dtypes.sort();
        dtypes.dedup();
        Self {
            path: path.to_owned(),
            severity: findings
                .iter()
                .flat_map(Finding::with_consequences)
                .filter(|f| f.layer == path && !path.is_empty())
                .map(|f| f.severity)
                .max(),
            operators: activations.len(),
            dtypes,
            activation_max: largest(&activations, |s| s.max),
            gradient_max: largest(&shown_gradients, |s| s.max),
            gradient_unscaled: largest(&shown_gradients, |s| s.max_unscaled),
            headroom: headroom(&sites),
            fading: fading(&sites),
            subnormal_share: held.iter().filter_map(|s| s.fading()).reduce(f64::max),
            zero_share: mean(&held, SiteRow::zero_share),
            non_finite_scans: sites.iter().map(|s| s.samples.1).max().unwrap_or(0),
            non_finite_now: sites.iter().any(SiteRow::is_non_finite),
            gradients: merged(&of(Probe::CastGrad).chain(held.iter().copied()).collect::<Vec<_>>()),
            activations: merged(&activations),
            sites,
        }
    }

    /// More trouble sorts first. Fading counts where FP16 holds the gradients; layers alike keep the order of the model.
    pub(super) fn trouble(&self, other: &Self) -> Ordering {
        let grave = |l: &Layer| (Reverse(l.severity), Reverse(l.is_origin()), Reverse(l.non_finite_now));
        let fading = |l: &Layer| l.subnormal_share.filter(|_| l.holds_gradients_in_fp16()).unwrap_or(0.0);
        let scans = |l: &Layer| Reverse(l.non_finite_scans);
        grave(self)
            .cmp(&grave(other))
            .then_with(|| fading(other).total_cmp(&fading(self)))
            .then_with(|| scans(self).cmp(&scans(other)))
    }

    /// Whether its forward made a non-finite value in the latest scan that none of its inputs held.
    fn is_origin(&self) -> bool {
        self.sites.iter().any(|s| s.probe == Probe::Activation && s.is_non_finite() && !s.inherited)
    }

    /// Whether the gradients shown are held in FP16, so that its limits are theirs.
    pub fn holds_gradients_in_fp16(&self) -> bool {
        held_gradients(&self.sites).iter().any(|s| s.dtype == Dtype::F16)
    }
}

/// The gradients that a loss scale protects: those held in FP16; where there are none, all.
fn held_gradients(sites: &[SiteRow]) -> Vec<&SiteRow> {
    let gradients = || sites.iter().filter(|s| s.probe.is_gradient() && s.probe != Probe::CastGrad);
    let held: Vec<_> = gradients().filter(|s| s.dtype == Dtype::F16).collect();
    if held.is_empty() { gradients().collect() } else { held }
}

/// FP16's end.
const HALF_MAX: f64 = 65504.0;

fn headroom(sites: &[SiteRow]) -> Option<f64> {
    let flows = |s: &&SiteRow| s.probe == Probe::Activation || s.probe.is_gradient();
    // Of what is never finite no room is left, or none that is known.
    if let Some(bad) = sites.iter().filter(flows).map(|s| s.max).filter(|max| !max.is_finite()).reduce(larger) {
        let is_in_fp16 = sites.iter().filter(flows).any(|s| s.dtype == Dtype::F16);
        return (is_in_fp16 && bad.is_infinite()).then_some(f64::NEG_INFINITY);
    }
    let in_fp16 = sites.iter().filter(|s| s.dtype == Dtype::F16 && s.max > 0.0).filter(flows);
    in_fp16.map(|s| (HALF_MAX / s.max).log2()).reduce(f64::min)
}

fn fading(sites: &[SiteRow]) -> Option<f64> {
    let below_normal = |s: &SiteRow| Some(s.window.zone_share(Zone::Lost)? + s.window.zone_share(Zone::Subnormal)?);
    let share = |s: &SiteRow| match s.probe {
        Probe::CastGrad => below_normal(s),
        probe if probe.is_gradient() && s.dtype == Dtype::F16 => s.fading(),
        _ => None,
    };
    sites.iter().filter_map(share).reduce(f64::max)
}

fn largest(sites: &[&SiteRow], of: impl Fn(&SiteRow) -> f64) -> Option<f64> {
    sites.iter().map(|s| of(s)).reduce(larger)
}

fn mean(sites: &[&SiteRow], of: impl Fn(&SiteRow) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = sites.iter().filter_map(|s| of(s)).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn merged(sites: &[&SiteRow]) -> Window {
    let mut window = Window::default();
    sites.iter().for_each(|s| window.merge(&s.window));
    window
}

/// One layer as the ranks of a run see it together. Findings are of the ranks that were given.
pub fn layer<'a>(path: &str, ranks: impl Iterator<Item = &'a Aggregate>, findings: &[Finding]) -> Layer {
    let mut rows: Vec<(&Site, SiteRow)> = Vec::new();
    for summary in ranks.flat_map(|aggregate| aggregate.sites.iter()).filter(|summary| summary.site.layer == path) {
        let row = SiteRow::new(summary);
        match rows.iter_mut().find(|(site, _)| **site == summary.site) {
            Some((_, known)) => known.merge(&row),
            None => rows.push((&summary.site, row)),
        }
    }
    Layer::new(path, rows.into_iter().map(|(_, row)| row).collect(), findings)
}

/// The layers of a run in the order in which they were first observed.
pub fn layers(aggregate: &Aggregate, findings: &[Finding]) -> Vec<Layer> {
    let mut grouped: Vec<(&str, Vec<SiteRow>)> = Vec::new();
    let mut index = std::collections::HashMap::new();
    for summary in &aggregate.sites {
        let path = summary.site.layer.as_str();
        let at = *index.entry(path).or_insert_with(|| {
            grouped.push((path, Vec::new()));
            grouped.len() - 1
        });
        grouped[at].1.push(SiteRow::new(summary));
    }
    grouped.into_iter().map(|(path, sites)| Layer::new(path, sites, findings)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{Observation, Record, SiteId, Step};
    use crate::scan::Stats;
    use crate::tui::state::Tensor;
    use crate::tui::testing::scenario::{Fault, records, step, tensor};

    #[test]
    fn the_unscaled_gradient_is_the_held_one_without_its_scale() {
        let mut aggregate = Aggregate::default();
        records("r", Fault::None, 20, false).into_iter().for_each(|record| aggregate.apply(record));
        let head = layers(&aggregate, &[]).pop().expect("six layers");
        let recent = &aggregate.sites[16].recent;
        let expected = recent.iter().map(|s| s.stats.max_abs / s.loss_scale.unwrap_or(1.0)).fold(0.0, f64::max);
        assert_eq!(head.gradient_unscaled, Some(expected));
    }

    /// The layer after these steps of a gradient in FP16 that is zero and one of a parameter in FP32.
    fn beside_zero(steps: impl IntoIterator<Item = Stats>) -> (Layer, crate::tui::state::LayerDetail) {
        let mut aggregate = Aggregate::default();
        for (id, dtype) in [Dtype::F16, Dtype::F32].into_iter().enumerate() {
            let (probe, tensor) = match dtype {
                Dtype::F16 => (Probe::ActivationGrad, String::new()),
                _ => (Probe::ParamGrad, "weight".into()),
            };
            let site = Site { layer: "head".into(), operator: "linear".into(), tensor, probe, dtype };
            aggregate.apply(Record::Site(SiteId(id as u32), site));
        }
        let zero = Stats { count: 8, zeros: 8, ..Stats::default() };
        for (index, weight) in (0..).zip(steps) {
            let observations = vec![Observation::new(SiteId(0), zero.clone()), Observation::new(SiteId(1), weight)];
            aggregate.apply(Record::Step(Step { observations, ..step(index) }));
        }
        let runs = std::iter::once((0, &aggregate, Vec::new()));
        let detail = crate::tui::state::LayerDetail::of_runs("head", false, runs);
        (layers(&aggregate, &[]).remove(0), detail)
    }

    #[test]
    fn what_is_never_finite_is_shown_as_it_is_and_not_as_zero() {
        let of = |pos_inf, nan| Stats { count: 8, zeros: 8 - pos_inf - nan, pos_inf, nan, ..Stats::default() };
        let (layer, detail) = beside_zero([of(7, 1), of(8, 0)]);
        assert_eq!((layer.gradient_max, layer.headroom), (Some(f64::INFINITY), Some(f64::NEG_INFINITY)));
        let (_, gradient) = &detail.maxima[1];
        assert!(gradient.iter().all(|(_, stretch)| stretch.range().is_none() && stretch.non_finite > 0));
        let (layer, _) = beside_zero([of(0, 8), of(0, 1)]);
        assert!(layer.gradient_max.is_some_and(f64::is_nan) && layer.headroom.is_none());
    }

    #[test]
    fn one_skipped_step_leaves_the_largest_gradient_a_number() {
        let bad = Stats { count: 8, pos_inf: 8, ..Stats::default() };
        let (layer, detail) = beside_zero([bad, tensor(0.0, 3.0, 0.0, Dtype::F32)]);
        assert_eq!(layer.gradient_max, Some(0.0), "of those in FP16");
        let finite = detail.maxima[1].1.iter().filter(|(_, stretch)| stretch.range().is_some()).count();
        assert_eq!(finite, 1, "and the line has a gap there");
    }

    /// The layers after three steps of a mask, and of a product that inherits what it holds besides.
    fn masked(product: Stats) -> (Aggregate, Vec<Layer>) {
        let mut aggregate = Aggregate::default();
        for (id, operator) in ["masked_fill", "mul"].into_iter().enumerate() {
            let (layer, tensor) = ("attn".into(), String::new());
            let site = Site { layer, operator: operator.into(), tensor, probe: Probe::Activation, dtype: Dtype::F16 };
            aggregate.apply(Record::Site(SiteId(id as u32), site));
        }
        let of_mask = Observation::new(SiteId(0), Stats { neg_inf: 7, ..tensor(0.0, 3.0, 0.0, Dtype::F16) });
        let made = Observation { inherited: true, ..Observation::new(SiteId(1), product) };
        for index in 0..3 {
            let observations = vec![of_mask.clone(), made.clone()];
            aggregate.apply(Record::Step(Step { observations, ..step(index) }));
        }
        let layers = layers(&aggregate, &[]);
        (aggregate, layers)
    }

    #[test]
    fn what_a_mask_put_there_is_no_trouble() {
        let (aggregate, layers) = masked(Stats { neg_inf: 7, ..tensor(0.0, 3.0, 0.0, Dtype::F16) });
        let attn = &layers[0];
        assert_eq!((attn.non_finite_scans, attn.non_finite_now, attn.is_origin()), (0, false, false));
        assert_eq!(attn.activations.zone_share(Zone::Overflow), Some(0.0), "the mask is of no zone");
        let detail: Vec<Tensor> = aggregate.sites.iter().map(Tensor::new).collect();
        for tensor in &detail {
            assert_eq!((tensor.run.masked, tensor.run.inf, tensor.scans), (21, 0, (3, 0)), "and still shown");
            assert!(tensor.maxima.iter().all(|(_, stretch)| stretch.non_finite == 0 && stretch.range().is_some()));
            assert_eq!(tensor.largest.non_finite, 0);
        }
    }

    #[test]
    fn a_nan_and_an_infinity_above_count_behind_a_mask_too() {
        let made = || Stats { neg_inf: 7, ..tensor(0.0, 3.0, 0.0, Dtype::F16) };
        for bad in [Stats { nan: 1, ..made() }, Stats { pos_inf: 1, ..made() }] {
            let (aggregate, layers) = masked(bad);
            assert_eq!((layers[0].non_finite_scans, layers[0].non_finite_now), (3, true));
            let detail: Vec<Tensor> = aggregate.sites.iter().map(Tensor::new).collect();
            assert_eq!((detail[0].scans, detail[1].scans), ((3, 0), (3, 3)));
            assert!(detail[1].maxima.iter().all(|(_, stretch)| stretch.non_finite > 0));
        }
    }
}
