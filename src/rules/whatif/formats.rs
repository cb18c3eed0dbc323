//! Which layer could run in which format.

use super::by_layer;
use super::held::is_left_in_fp32;
use crate::aggregate::{Aggregate, FEWEST_ELEMENTS, SiteSummary};
use crate::numerics::{Format, Lost, ScaleWindow};
use crate::observation::{Probe, Site};
use crate::scan::Dtype;

/// The formats that are asked about.
pub const FORMATS: [Format; 4] = [Format::F16, Format::BF16, Format::E4M3, Format::E5M2];

/// Kinds of tensors that could be held in another format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Outputs of operators in forward.
    Activations,
    /// Gradients of these and of parameters.
    Gradients,
    /// Parameters.
    Weights,
}

impl Kind {
    /// All kinds, in the order in which reports list them.
    pub const ALL: [Kind; 3] = [Kind::Activations, Kind::Gradients, Kind::Weights];

    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Activations => "activations",
            Self::Gradients => "gradients",
            Self::Weights => "weights",
        }
    }

    fn of(probe: Probe) -> Option<Self> {
        match probe {
            Probe::Activation => Some(Self::Activations),
            Probe::ActivationGrad | Probe::CastGrad | Probe::ParamGrad => Some(Self::Gradients),
            Probe::Param => Some(Self::Weights),
            Probe::Update | Probe::Buffer | Probe::OptimizerState => None,
        }
    }
}

/// Whether a format could hold all tensors of a kind in a layer: with a bit of headroom, and with a predicted error below what is
/// [tolerated](Format::tolerated_error).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit<'a> {
    /// As they are; gradients in FP16 and FP8 at the loss scale that is recommended, in BF16 without one.
    AsIs,
    /// Only if each tensor has a scale of its own, which lies within this many octaves of 1.
    PerTensorScale(i32),
    /// Not this tensor: what keeps its small elements makes its large ones overflow.
    No(&'a Site),
}

/// One layer: which format could hold what of it.
#[derive(Clone, Debug)]
pub struct LayerFormats<'a> {
    /// Dotted path; empty for the root.
    pub layer: &'a str,
    /// A fit for each of [`FORMATS`], for each of [`Kind::ALL`]; `None` where the layer has no such tensor of 64 elements or more.
    pub fits: [Option<[Fit<'a>; FORMATS.len()]>; Kind::ALL.len()],
    /// Scans with a non-finite element that no mask had put there: what overflowed is not in the answers.
    pub non_finite_scans: u64,
}

/// The layers of all ranks, with gradients taken at the loss scale of this exponent.
pub(super) fn layers<'a>(ranks: &[&'a Aggregate], loss_scale: Option<i32>) -> Vec<LayerFormats<'a>> {
    let sites = ranks.iter().flat_map(|rank| &rank.sites).filter(|s| is_asked(s));
    by_layer(sites.map(|s| (s.site.layer.as_str(), s)))
        .into_iter()
        .map(|(layer, sites)| LayerFormats::of(layer, &sites, loss_scale.unwrap_or(0)))
        .collect()
}

/// Tensors of some size that a 16-bit run would not leave in FP32, and that the scaler did not make.
fn is_asked(summary: &SiteSummary) -> bool {
    let elements = summary.count / summary.samples.max(1);
    Kind::of(summary.site.probe).is_some()
        && elements >= FEWEST_ELEMENTS
        && summary.site.layer != "scaler"
        && !is_left_in_fp32(&summary.site)
}

impl<'a> LayerFormats<'a> {
    fn of(layer: &'a str, sites: &[&'a SiteSummary], loss_scale: i32) -> Self {
        let fit_of = |kind, format: Format| -> Option<Fit<'a>> {
            let of_kind = sites.iter().filter(|s| Kind::of(s.site.probe) == Some(kind));
            of_kind.filter_map(|s| Fit::of(s, kind, format, loss_scale)).reduce(Fit::worse)
        };
        let fits = Kind::ALL.map(|kind| {
            let fits = FORMATS.map(|format| fit_of(kind, format));
            fits.iter().all(Option::is_some).then(|| fits.map(|fit| fit.unwrap_or(Fit::AsIs)))
        });
        let non_finite_scans = sites.iter().map(|s| s.non_finite_samples - s.masked_samples).sum();
        Self { layer, fits, non_finite_scans }
    }
}

impl<'a> Fit<'a> {
    /// One tensor; `None` when it has no non-zero element.
    fn of(summary: &'a SiteSummary, kind: Kind, format: Format, loss_scale: i32) -> Option<Self> {
        let unscaled = summary.unscaled.as_deref();
        let (exponents, max_abs) = match (kind, unscaled) {
            (Kind::Gradients, Some(unscaled)) => (&unscaled.exponents, summary.max_unscaled),
            _ => (&summary.exponents, summary.max_abs),
        };
        // The lowest binades of a gradient over scans at several scales show no law: there the estimate was made scan by scan, and counts in Ehat.
        let is_held = summary.site.dtype == Dtype::F16 && kind != Kind::Gradients;
        let lost = if is_held { Lost::estimate(exponents) } else { Lost::default() };
        let window = ScaleWindow::in_format(exponents, max_abs, lost, 1.0, format)?;
        let as_is = if kind == Kind::Gradients && format != Format::BF16 { loss_scale } else { 0 };
        Some(match () {
            () if window.contains(as_is) => Self::AsIs,
            () if window.is_empty() => Self::No(&summary.site),
            () => Self::PerTensorScale(as_is.clamp(window.low, window.high) - as_is),
        })
    }

    /// What holds for both tensors.
    fn worse(self, other: Self) -> Self {
        match (self, other) {
            (Self::No(site), _) | (_, Self::No(site)) => Self::No(site),
            (Self::PerTensorScale(a), Self::PerTensorScale(b)) => {
                Self::PerTensorScale(if a.abs() >= b.abs() { a } else { b })
            }
            (Self::PerTensorScale(a), Self::AsIs) | (Self::AsIs, Self::PerTensorScale(a)) => Self::PerTensorScale(a),
            (Self::AsIs, Self::AsIs) => Self::AsIs,
        }
    }

    /// The name used in reports: `as_is`, `per_tensor_scale`, `no`.
    pub fn name(self) -> &'static str {
        match self {
            Self::AsIs => "as_is",
            Self::PerTensorScale(_) => "per_tensor_scale",
            Self::No(_) => "no",
        }
    }
}
