//! What is known of a run, in the terms of the dashboard. `view` has a module of the same name for each one here.

mod charts;
mod findings;
mod header;
mod layer;
mod layers;
mod order;
mod ranks;
mod rates;
mod remark;
mod run;
mod verdict;
mod window;
mod zones;

pub use charts::{AtStep, Charts};
pub use findings::{Findings, same_finding};
pub use header::{Header, RunState};
pub use layer::{LayerDetail, Quantity, Tensor, Told};
pub use layers::{Layer, SiteRow, layers};
pub use order::{Filter, Sort};
pub use ranks::{RankStatus, Ranks};
pub use rates::Rates;
#[cfg(test)]
pub use run::Judge;
pub use run::{Run, Source};
pub use window::{Window, Zone};
pub use zones::{Edges, Spread};

use crate::aggregate::{Aggregate, Coverage, Instrument};
use crate::observation::{Parameter, RunInfo};

/// Everything that one frame shows. It is owned, so that a paused screen keeps its picture while the run goes on.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The run in two lines.
    pub header: Header,
    /// Loss and loss scale over time.
    pub charts: Charts,
    /// One entry per layer, in the order of the model.
    pub layers: Vec<Layer>,
    /// What was found, and what could not be told.
    pub findings: Findings,
    /// What was sampled and what was lost.
    pub instrument: Instrument,
    /// What of the model was seen; `None` where no backward pass was scanned.
    pub coverage: Option<Coverage>,
    /// How the run began, where its first record was read.
    pub run: Option<RunInfo>,
    /// A line on every rank; empty where there is one alone.
    pub ranks: Vec<RankStatus>,
    /// The rank that is shown, where there are several.
    pub rank: Option<u32>,
    /// The rank with the gravest findings, where there are several.
    pub worst_rank: Option<u32>,
}

impl Snapshot {
    /// The picture of an aggregate and what the rules make of it.
    pub fn new(aggregate: &Aggregate, findings: Findings, header: Header) -> Self {
        Self {
            header,
            charts: Charts::new(&aggregate.timeline),
            layers: layers(aggregate, &findings.found),
            findings,
            instrument: aggregate.instrument.clone(),
            coverage: Coverage::of(aggregate),
            run: aggregate.run.clone(),
            ranks: Vec::new(),
            rank: None,
            worst_rank: None,
        }
    }

    /// The exponent of the loss scale in force; 0 where there is none.
    pub fn loss_scale_exponent(&self) -> i32 {
        let scale = self.header.loss_scale.filter(|scale| *scale > 0.0 && scale.is_finite());
        scale.map_or(0, |scale| scale.log2().round() as i32)
    }

    /// The parameters of one layer: those whose name is the layer's path, a dot and one more part.
    pub fn parameters<'a>(&'a self, layer: &'a str) -> impl Iterator<Item = &'a Parameter> {
        let parameters = self.run.iter().flat_map(|run| &run.parameters);
        parameters.filter(move |p| p.name.rsplit_once('.').map_or("", |(path, _)| path) == layer)
    }
}
