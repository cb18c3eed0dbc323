//! What-if, without training again: what FP16 would make of the gradients of a run at other loss scales, and other formats of all its tensors.
//!
//! * [`ScaleOutlook`], [`LayerOutlook`]: Ehat and the shares that would fade, be lost and overflow at each loss scale, for the run and per layer;
//! * [`Window`]: the loss scales that serve all layers, and the layers that limit it. It is computed where rules compute the scale that they advise;
//! * [`LayerFormats`]: which layer could run in which format;
//! * [`Memory`]: what is held in which dtype, and what another would save.
//!
//! A tensor that FP16 held has already lost what lay below 2^-25 at the scale of its step. At higher scales its shares are then a lower bound, and said to
//! be one. From tensors in FP32 and BF16 they are exact to the sharing out of a binade.

mod formats;
mod gradients;
mod held;
mod memory;
mod window;

use std::ops::RangeInclusive;

pub use formats::{FORMATS, Fit, Kind, LayerFormats, Shares};
pub use gradients::{AtScale, LayerOutlook, ScaleOutlook, SiteOutlook};
pub use held::Held;
pub use memory::{DtypeBytes, Memory, OptimizerState};
pub use window::Window;

use crate::aggregate::{Aggregate, Taken};

/// The loss scales that are asked about, as exponents of two.
pub const SCALES: RangeInclusive<i32> = -10..=24;

/// What would become of a run at other loss scales and in other formats.
#[derive(Clone, Debug)]
pub struct WhatIf<'a> {
    /// In what the gradients were held.
    pub held: Held,
    /// Steps of the run, of the rank that got furthest.
    pub steps: u64,
    /// Those of them whose tensors were scanned: what is said is of these.
    pub scanned_steps: u64,
    /// The loss scale in force at the end, after the scaler's last update; `None` where there was none.
    pub scale_in_force: Option<f64>,
    /// The highest scale up to the one in force, as an exponent, at which steps were taken since the latest skip at it or below, and these steps; `None`
    /// where there are none, or where several scalers are mixed. Skips are known of every step, scanned or not.
    pub borne: Option<(i32, Taken)>,
    /// Scans of gradients that held a non-finite element. They are left out.
    pub non_finite_scans: u64,
    /// Scans of gradients that were taken in.
    pub finite_scans: u64,
    /// The scales that serve all layers; `None` where no gradient had a non-zero element.
    pub window: Option<Window<'a>>,
    /// The run at each of [`SCALES`]; empty where no gradient had a non-zero element.
    pub scales: Vec<ScaleOutlook<'a>>,
    /// The layers with gradients, in the order in which they were first seen.
    pub layers: Vec<LayerOutlook<'a>>,
    /// Which layer could run in which format, in the same order.
    pub formats: Vec<LayerFormats<'a>>,
    /// What is held in which dtype, on one rank.
    pub memory: Memory,
}

impl<'a> WhatIf<'a> {
    /// The what-if of a run of one or more ranks, all together.
    pub fn of(ranks: &[&'a Aggregate]) -> Self {
        let holds = |held| ranks.iter().any(|rank| Held::of(rank) == held);
        let held = [Held::Fp16, Held::Bf16].into_iter().find(|held| holds(*held)).unwrap_or(Held::Fp32);
        let window = Window::of(ranks, held);
        let layers = gradients::layers(ranks);
        let gradients = || ranks.iter().flat_map(|rank| &rank.sites).filter(|s| s.site.probe.is_gradient());
        let steps = |of: fn(&Aggregate) -> u64| ranks.iter().map(|rank| of(rank)).max().unwrap_or(0);
        Self {
            held,
            steps: steps(|rank| rank.instrument.steps),
            scanned_steps: steps(|rank| rank.instrument.full_steps),
            scale_in_force: ranks
                .iter()
                .find_map(|rank| rank.scale_in_force().filter(|scale| *scale > 0.0 && scale.is_finite())),
            borne: ranks.iter().find_map(|rank| borne(rank)),
            non_finite_scans: gradients().map(|s| s.non_finite_samples).sum(),
            finite_scans: gradients().map(|s| s.samples - s.non_finite_samples).sum(),
            scales: gradients::run(&layers),
            layers,
            formats: formats::layers(ranks, window.as_ref().and_then(|window| window.recommended)),
            window,
            memory: ranks.first().map(|rank| Memory::of(rank)).unwrap_or_default(),
        }
    }

    /// Whether FP16 had lost a part of some gradient before it was seen, so that shares at higher scales are at least what is said.
    pub fn is_lower_bound(&self) -> bool {
        self.layers.iter().any(|layer| layer.at.iter().any(|at| at.fading_at_least))
    }

    /// The exponent of the scale at which layers are shown where none is asked for: the one in force, else the one that is recommended, else 0.
    pub fn shown_scale(&self) -> i32 {
        let in_force = self.scale_in_force.map(|scale| scale.log2().round() as i32);
        in_force.or(self.window.as_ref().and_then(|window| window.recommended)).unwrap_or(0)
    }
}

/// The highest scale up to the one in force at which steps were taken, and these steps.
fn borne(rank: &Aggregate) -> Option<(i32, Taken)> {
    let dynamics = &rank.scale_dynamics;
    let in_force =
        rank.scale_in_force().filter(|scale| *scale > 0.0 && scale.is_finite() && !dynamics.several_scalers)?;
    dynamics.tried.taken_up_to(in_force.log2().floor() as i32)
}

/// The layers of `of`, in the order in which they first come, each with what belongs to it.
fn by_layer<'a, T>(of: impl Iterator<Item = (&'a str, T)>) -> Vec<(&'a str, Vec<T>)> {
    let mut layers: Vec<(&'a str, Vec<T>)> = Vec::new();
    let mut places = std::collections::BTreeMap::new();
    for (layer, item) in of {
        let at = *places.entry(layer).or_insert_with(|| {
            layers.push((layer, Vec::new()));
            layers.len() - 1
        });
        layers[at].1.push(item);
    }
    layers
}

#[cfg(test)]
mod tests;
