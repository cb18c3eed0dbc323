//! What-if for machines: `docs/whatif.schema.json` describes the document, and the report's `whatif` is its part without layers' curves.

use serde::Serialize;

use super::super::Run;
use super::super::number::Number;
use super::memory::{WIDTHS, optimizer_note, savings};
use super::{Selection, summary};
use crate::numerics::Share;
use crate::observation::Site;
use crate::rules::whatif::{
    AtScale, FORMATS, Fit, Kind, LayerFormats, LayerOutlook, SCALES, Shares, SiteOutlook, WhatIf,
};

/// The version of the document; it changes when a reader of the old one could misread the new one, not when keys are added.
pub const WHATIF_SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    schema_version: u32,
    generator: &'static str,
    #[serde(flatten)]
    summary: WhatIfSummary,
    /// The exponents of the scales at which all lists named `at` have an entry.
    scales: Vec<i32>,
    run: RunDocument<'a>,
    layers: Vec<LayerDocument<'a>>,
    formats: Vec<FormatsDocument<'a>>,
    memory: MemoryDocument,
}

/// What the report says of it too.
#[derive(Serialize)]
pub(in crate::report) struct WhatIfSummary {
    gradients_held_in: &'static str,
    steps: u64,
    scanned_steps: u64,
    non_finite_scans: u64,
    /// Whether shares at higher scales are lower bounds.
    is_lower_bound: bool,
    scale_in_force: Option<Number>,
    window: Option<WindowDocument>,
    layer_windows: Vec<LayerWindow>,
}

/// Exponents of two.
#[derive(Serialize)]
struct WindowDocument {
    low: i32,
    high: i32,
    is_empty: bool,
    recommended: Option<i32>,
    recommended_scale: Option<Number>,
    lowest: Option<String>,
    highest: String,
    /// The lower end is a lower bound: a gradient was all zero.
    incomplete: bool,
    /// The window is of the latest steps: none was good at all.
    shrank: bool,
    /// The upper end is a guess: gradients were infinite at a scale that does not give way.
    high_is_guess: bool,
    /// The few steps whose gradients stand so far above all others that the window leaves them out.
    outlier_steps: Vec<u64>,
    /// The upper end were they counted too.
    high_with_outliers: i32,
    text: String,
}

/// Exponents of two; null where there is no end.
#[derive(Serialize)]
struct LayerWindow {
    layer: String,
    low: Option<i32>,
    high: Option<i32>,
}

/// Columns, one entry a scale.
#[derive(Serialize)]
struct RunDocument<'a> {
    ehat_worst: Vec<Option<Number>>,
    ehat_median: Vec<Option<Number>>,
    worst_layer: Vec<Option<&'a str>>,
    fading_share_worst: Vec<Number>,
    fading_share_median: Vec<Number>,
    lost_share_worst: Vec<Number>,
    overflow_share_worst: Vec<Number>,
    overflowing_layers: Vec<usize>,
}

#[derive(Serialize)]
struct LayerDocument<'a> {
    layer: &'a str,
    low: Option<i32>,
    high: Option<i32>,
    at: Columns,
    sites: Vec<SiteDocument<'a>>,
}

#[derive(Serialize)]
struct SiteDocument<'a> {
    site: String,
    operator: &'a str,
    tensor: &'a str,
    probe: &'static str,
    dtype: &'static str,
    elements: u64,
    nonzero: u64,
    unseen_share: Number,
    low: Option<i32>,
    high: Option<i32>,
    at: Columns,
}

/// Columns, one entry a scale.
#[derive(Serialize)]
struct Columns {
    ehat: Vec<Option<Number>>,
    fading_share: Vec<Number>,
    fading_at_least: Vec<bool>,
    lost_share: Vec<Number>,
    lost_at_least: bool,
    /// More is lost and less fades: a gradient that is computed before it in backward loses a part at this scale.
    inherits_loss: Vec<bool>,
    overflow_share: Vec<Number>,
}

#[derive(Serialize)]
struct FormatsDocument<'a> {
    layer: &'a str,
    kind: &'static str,
    format: &'static str,
    /// `as_is`, `per_tensor_scale`, `no`.
    fit: &'static str,
    /// Octaves by which the tensor that needs most has to be scaled.
    scale_octaves: Option<i32>,
    /// The tensor that the format cannot hold.
    site: Option<String>,
    /// As it is, without a scale of its own.
    fading_share: ShareDocument,
    lost_share: ShareDocument,
    overflow_share: ShareDocument,
    non_finite_scans: u64,
}

/// A share, and what no tensor with this histogram has less or more than.
#[derive(Serialize)]
struct ShareDocument {
    likely: Number,
    low: Number,
    high: Number,
    /// Whether `likely` is right to half a point.
    is_told: bool,
}

impl From<Share> for ShareDocument {
    fn from(of: Share) -> Self {
        Self { likely: Number(of.likely), low: Number(of.low), high: Number(of.high), is_told: of.told }
    }
}

#[derive(Serialize)]
struct MemoryDocument {
    held: Vec<SavingDocument>,
    optimizer_bytes: Option<u64>,
    optimizer_note: String,
}

#[derive(Serialize)]
struct SavingDocument {
    what: &'static str,
    bytes: u64,
    bytes_in_fp32: u64,
    bytes_in_16_bits: u64,
    bytes_in_8_bits: u64,
    note: String,
}

/// The what-if as JSON, ending in a line break. Layers that are not selected are left out.
pub fn whatif_json(whatif: &WhatIf<'_>, selection: &Selection) -> String {
    let document = Document {
        schema_version: WHATIF_SCHEMA_VERSION,
        generator: concat!("ampdoctor ", env!("CARGO_PKG_VERSION")),
        summary: WhatIfSummary::of(whatif),
        scales: SCALES.collect(),
        run: RunDocument::of(whatif),
        layers: whatif.layers.iter().filter(|l| selection.shows(l.layer)).map(LayerDocument::of).collect(),
        formats: whatif.formats.iter().filter(|l| selection.shows(l.layer)).flat_map(FormatsDocument::of).collect(),
        memory: MemoryDocument::of(whatif),
    };
    super::super::json::shallow(&document)
}

impl WhatIfSummary {
    pub(in crate::report) fn of_run(run: &Run<'_>) -> Self {
        let aggregates: Vec<_> = run.ranks.iter().map(|rank| rank.aggregate).collect();
        Self::of(&WhatIf::of(&aggregates))
    }

    fn of(whatif: &WhatIf<'_>) -> Self {
        Self {
            gradients_held_in: whatif.held.name(),
            steps: whatif.steps,
            scanned_steps: whatif.scanned_steps,
            non_finite_scans: whatif.non_finite_scans,
            is_lower_bound: whatif.is_lower_bound(),
            scale_in_force: whatif.scale_in_force.map(Number),
            window: WindowDocument::of(whatif),
            layer_windows: whatif
                .layers
                .iter()
                .map(|layer| LayerWindow { layer: layer.layer.to_owned(), low: layer.low, high: layer.high })
                .collect(),
        }
    }
}

impl WindowDocument {
    fn of(whatif: &WhatIf<'_>) -> Option<Self> {
        let window = whatif.window.as_ref()?;
        Some(Self {
            low: window.scales.low,
            high: window.scales.high,
            is_empty: window.scales.is_empty(),
            recommended: window.recommended,
            recommended_scale: window.recommended.map(|e| Number(f64::from(e).exp2())),
            lowest: window.lowest.map(Site::label),
            highest: window.highest.label(),
            incomplete: window.incomplete,
            shrank: window.shrank,
            high_is_guess: window.high_is_guess,
            outlier_steps: window.outliers.clone(),
            high_with_outliers: window.high_with_outliers,
            text: summary::window(whatif),
        })
    }
}

impl<'a> RunDocument<'a> {
    fn of(whatif: &WhatIf<'a>) -> Self {
        let scales = &whatif.scales;
        Self {
            ehat_worst: scales.iter().map(|at| at.worst.ehat.map(Number)).collect(),
            ehat_median: scales.iter().map(|at| at.median.ehat.map(Number)).collect(),
            worst_layer: scales.iter().map(|at| at.worst_layer).collect(),
            fading_share_worst: scales.iter().map(|at| Number(at.worst.fading_share)).collect(),
            fading_share_median: scales.iter().map(|at| Number(at.median.fading_share)).collect(),
            lost_share_worst: scales.iter().map(|at| Number(at.worst.lost_share)).collect(),
            overflow_share_worst: scales.iter().map(|at| Number(at.worst.overflow_share)).collect(),
            overflowing_layers: scales.iter().map(|at| at.overflowing_layers).collect(),
        }
    }
}

impl<'a> LayerDocument<'a> {
    fn of(layer: &LayerOutlook<'a>) -> Self {
        let sites = layer.sites.iter().map(SiteDocument::of).collect();
        Self { layer: layer.layer, low: layer.low, high: layer.high, at: Columns::of(&layer.at), sites }
    }
}

impl<'a> SiteDocument<'a> {
    fn of(outlook: &SiteOutlook<'a>) -> Self {
        let site = outlook.site;
        Self {
            site: site.label(),
            operator: &site.operator,
            tensor: &site.tensor,
            probe: site.probe.name(),
            dtype: site.dtype.name(),
            elements: outlook.elements,
            nonzero: outlook.nonzero,
            unseen_share: Number(outlook.unseen_share),
            low: outlook.low,
            high: outlook.high,
            at: Columns::of(&outlook.at),
        }
    }
}

impl Columns {
    fn of(at: &[AtScale]) -> Self {
        Self {
            ehat: at.iter().map(|at| at.ehat.map(Number)).collect(),
            fading_share: at.iter().map(|at| Number(at.fading_share)).collect(),
            fading_at_least: at.iter().map(|at| at.fading_at_least).collect(),
            lost_share: at.iter().map(|at| Number(at.lost_share)).collect(),
            lost_at_least: at.iter().any(|at| at.lost_at_least),
            inherits_loss: at.iter().map(|at| at.inherits_loss).collect(),
            overflow_share: at.iter().map(|at| Number(at.overflow_share)).collect(),
        }
    }
}

impl<'a> FormatsDocument<'a> {
    fn of(of: &LayerFormats<'a>) -> Vec<Self> {
        let row = |kind: Kind, format: &'static str, fit: Fit<'_>, shares: Shares| Self {
            layer: of.layer,
            kind: kind.name(),
            format,
            fit: fit.name(),
            scale_octaves: if let Fit::PerTensorScale(octaves) = fit { Some(octaves) } else { None },
            site: if let Fit::No(site) = fit { Some(site.label()) } else { None },
            fading_share: shares.fading.into(),
            lost_share: shares.lost.into(),
            overflow_share: shares.overflow.into(),
            non_finite_scans: of.non_finite_scans,
        };
        let known = Kind::ALL.into_iter().zip(of.fits.into_iter().zip(of.shares));
        let known = known.filter_map(|(kind, (fits, shares))| Some((kind, fits?.into_iter().zip(shares?))));
        known
            .flat_map(|(kind, answers)| {
                FORMATS.iter().zip(answers).map(move |(format, (fit, shares))| row(kind, format.name, fit, shares))
            })
            .collect()
    }
}

impl MemoryDocument {
    fn of(whatif: &WhatIf<'_>) -> Self {
        debug_assert_eq!(WIDTHS.map(|(width, _)| width), [4, 2, 1]);
        let row = |of: super::memory::Saving| SavingDocument {
            what: of.name,
            bytes: of.now,
            bytes_in_fp32: of.at_width[0],
            bytes_in_16_bits: of.at_width[1],
            bytes_in_8_bits: of.at_width[2],
            note: of.note,
        };
        Self {
            held: savings(&whatif.memory).into_iter().map(row).collect(),
            optimizer_bytes: whatif.memory.optimizer_bytes(),
            optimizer_note: optimizer_note(&whatif.memory),
        }
    }
}
