//! Whether something changed in forward where a loss jumped: the first operator whose output is another size from there on.

use crate::aggregate::{Aggregate, Sample, SiteSummary, median};
use crate::observation::Probe;
use crate::rules::Evidence;
use crate::rules::graph::Graph;
use crate::rules::range::swamped_behind;
use crate::rules::text::{layer_name, measured, number, power_of_two, said};

/// Factor by which an output must have grown or shrunk: training moves it by much less from one step to the next.
const FACTOR: f64 = 64.0;
/// Scans before the jump whose median is the usual size.
const BEFORE: usize = 4;
/// Elements that a tensor needs: a single number, a loss, may be anything.
const FEWEST_ELEMENTS: u64 = 64;

/// An operator whose output changed.
pub(in crate::rules) struct Changed {
    layer: String,
    label: String,
    /// Root mean squares before and after.
    from: f64,
    to: f64,
    /// The scan that shows it.
    step: u64,
    /// The normalisation behind it whose epsilon is all that it divides by now.
    norm: Option<String>,
}

/// The first operator, in the order of forward, whose output changed size between the last scan before a step and the first from it on.
pub(super) fn changed(aggregate: &Aggregate, onset: u64) -> Option<Changed> {
    let activations = aggregate.sites.iter().filter(|s| s.site.probe == Probe::Activation);
    let (summary, from, after) =
        activations.filter_map(|s| Some((s, of(s, onset)?))).map(|(s, (f, a))| (s, f, a)).next()?;
    let to = after.stats.rms().unwrap_or(0.0);
    let graph = Graph::of(aggregate);
    let norm = place_of(&graph, summary).and_then(|place| swamped_behind(&graph, place));
    let layer = layer_name(&summary.site).to_owned();
    Some(Changed { layer, label: summary.site.label(), from, to, step: after.step, norm })
}

/// The usual size before, and the first sample since, where they are that far apart.
fn of(summary: &SiteSummary, onset: u64) -> Option<(f64, &Sample)> {
    let size = |s: &Sample| s.stats.rms().filter(|&x| x > 0.0);
    let before = summary.recent.iter().rev().filter(|s| s.step < onset).take(BEFORE);
    let from = median(before.filter_map(size))?;
    let after = summary.recent.iter().find(|s| s.step >= onset)?;
    if after.stats.count < FEWEST_ELEMENTS || after.stats.non_finite() > 0 {
        return None;
    }
    let to = size(after)?;
    (to >= FACTOR * from || to * FACTOR <= from).then_some((from, after))
}

/// The place of a site's operator in the latest step.
fn place_of(graph: &Graph<'_>, summary: &SiteSummary) -> Option<usize> {
    graph.iter().find(|(_, node)| std::ptr::eq(node.summary, summary)).map(|(place, _)| place)
}

impl Changed {
    pub(super) fn evidence(&self) -> Vec<Evidence> {
        vec![said("changed", self.label.clone()), measured("rms_before", self.from), measured("rms_after", self.to)]
    }

    pub(super) fn text(&self) -> String {
        let factor = self.to / self.from;
        let how = match factor < 1.0 {
            true => format!("{} times smaller", power_of_two((1.0 / factor).log2().round().exp2())),
            false => format!("{} times larger", power_of_two(factor.log2().round().exp2())),
        };
        let norm = self.norm.as_ref().map_or(String::new(), |norm| {
            format!(
                " `{norm}`, which takes it, adds its epsilon (1e-5 unless it was set) to a variance of about {} and hands on next to nothing, in FP32 as well.",
                power_of_two(self.to * self.to)
            )
        });
        format!(
            "The updates before it were what they always are, and what changed is in forward: the output of `{}` is {how} at step {} (rms {}, and {} before).{norm}",
            self.label,
            self.step,
            number(self.to),
            number(self.from)
        )
    }

    pub(super) fn remedy(&self) -> String {
        let norm = match &self.norm {
            Some(norm) => format!(
                " Bring its output up by {} before `{norm}`, or give that an epsilon far below {}; no precision does it.",
                power_of_two((self.from / self.to).log2().round().exp2()),
                power_of_two(self.to * self.to)
            ),
            None => String::new(),
        };
        format!(
            "Look at what layer `{}` does from step {} on, and at what goes into it: a factor, a switch, inputs of another size.{norm}",
            self.layer, self.step
        )
    }
}
