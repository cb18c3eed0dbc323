//! Which layer could run in which format.

use super::by_layer;
use super::held::is_left_in_fp32;
use crate::aggregate::{Aggregate, FEWEST_ELEMENTS, SiteSummary};
use crate::numerics::{Format, Lost, Outlook, ScaleWindow, Share};
use crate::observation::{Probe, Site};
use crate::scan::{Dtype, ExponentHistogram};

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
            Probe::Update | Probe::Buffer | Probe::OptimizerState | Probe::Average => None,
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

/// What a format would make of all tensors of a kind in a layer, as they are: of each share, that of the tensor with the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Share that would be subnormal.
    pub fading: Share,
    /// Share that would round to zero.
    pub lost: Share,
    /// Share that would be too large.
    pub overflow: Share,
}

/// One layer: which format could hold what of it.
#[derive(Clone, Debug)]
pub struct LayerFormats<'a> {
    /// Dotted path; empty for the root.
    pub layer: &'a str,
    /// A fit for each of [`FORMATS`], for each of [`Kind::ALL`]; `None` where the layer has no such tensor of 64 elements or more.
    pub fits: [Option<[Fit<'a>; FORMATS.len()]>; Kind::ALL.len()],
    /// What each of [`FORMATS`] would make of them, in the same places as `fits`.
    pub shares: [Option<[Shares; FORMATS.len()]>; Kind::ALL.len()],
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
        && !summary.site.is_scaled_loss()
        && !is_left_in_fp32(&summary.site)
}

impl<'a> LayerFormats<'a> {
    fn of(layer: &'a str, sites: &[&'a SiteSummary], loss_scale: i32) -> Self {
        let tensors = |kind| {
            let of_kind = sites.iter().filter(move |s| Kind::of(s.site.probe) == Some(kind));
            of_kind.map(move |s| Tensor::of(s, kind, loss_scale)).filter(|tensor| tensor.exponents.total() > 0)
        };
        let fit_of = |kind, format| tensors(kind).filter_map(|t| Fit::of(&t, format)).reduce(Fit::worse);
        let fits = Kind::ALL.map(|kind| {
            let fits = FORMATS.map(|format| fit_of(kind, format));
            fits.iter().all(Option::is_some).then(|| fits.map(|fit| fit.unwrap_or(Fit::AsIs)))
        });
        let shares_of =
            |kind, format| tensors(kind).filter_map(|t| t.outlook(format)).fold(Shares::default(), Shares::with);
        let shares =
            std::array::from_fn(|place| fits[place].map(|_| FORMATS.map(|format| shares_of(Kind::ALL[place], format))));
        let non_finite_scans = sites.iter().map(|s| s.non_finite_samples - s.masked_samples).sum();
        Self { layer, fits, shares, non_finite_scans }
    }
}

impl Shares {
    fn with(self, outlook: Outlook) -> Self {
        Self {
            fading: self.fading.larger(outlook.fading),
            lost: self.lost.larger(outlook.lost),
            overflow: self.overflow.larger(outlook.overflow),
        }
    }
}

/// One tensor as it is asked about: a gradient without its loss scale.
struct Tensor<'a> {
    site: &'a Site,
    exponents: &'a ExponentHistogram,
    extremes: (f64, f64),
    lost: Lost,
    is_gradient: bool,
    loss_scale: i32,
}

impl<'a> Tensor<'a> {
    fn of(summary: &'a SiteSummary, kind: Kind, loss_scale: i32) -> Self {
        let is_gradient = kind == Kind::Gradients;
        let (exponents, extremes) = match summary.unscaled.as_deref().filter(|_| is_gradient) {
            Some(unscaled) => (&unscaled.exponents, (unscaled.min_abs, summary.max_unscaled)),
            None => (&summary.exponents, (summary.min_abs, summary.max_abs)),
        };
        // The lowest binades of a gradient over scans at several scales show no law: there the estimate was made scan by scan, and counts in Ehat.
        let is_held = summary.site.dtype == Dtype::F16 && !is_gradient;
        let lost = if is_held { Lost::estimate(exponents) } else { Lost::default() };
        Self { site: &summary.site, exponents, extremes, lost, is_gradient, loss_scale }
    }

    /// The exponent of what it is multiplied by without a scale of its own.
    fn as_is(&self, format: Format) -> i32 {
        if self.is_gradient && format != Format::BF16 { self.loss_scale } else { 0 }
    }

    fn outlook(&self, format: Format) -> Option<Outlook> {
        Outlook::of(self.exponents, self.extremes, self.lost, format, self.as_is(format))
    }
}

impl<'a> Fit<'a> {
    /// One tensor; `None` when it has no non-zero element.
    fn of(tensor: &Tensor<'a>, format: Format) -> Option<Self> {
        let window = ScaleWindow::in_format(tensor.exponents, tensor.extremes.1, tensor.lost, 1.0, format)?;
        let as_is = tensor.as_is(format);
        Some(match () {
            () if window.contains(as_is) => Self::AsIs,
            () if window.is_empty() => Self::No(tensor.site),
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
