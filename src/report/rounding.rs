//! What low precision left of the optimizer's steps, tensor by tensor, all ranks together.

use super::layout::Layout;
use super::number::{percent, readable};
use super::{Rank, Run};
use crate::observation::{Probe, Rounding, Site};
use crate::scan::Fidelity;

/// What low precision did to the steps of one parameter over the run.
#[derive(Clone, Copy, Debug)]
pub struct TensorRounding<'a> {
    /// The update, or the parameter that is written back from an FP32 copy.
    pub site: &'a Site,
    /// Summed over all scanned steps of all ranks.
    pub rounding: Rounding,
    /// Elements of all scans, which `unlike_master` is a part of.
    pub elements: u64,
}

impl<'a> TensorRounding<'a> {
    /// The tensors of this layer about whose steps there is something to say, in the order in which they were first seen.
    pub(super) fn of_layer(run: &Run<'a>, layer: &str) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        let sites = run.ranks.iter().flat_map(|rank| &rank.aggregate.sites).filter(|s| s.site.layer == layer);
        for (summary, rounding) in sites.filter_map(|s| Some((s, s.rounding.as_deref()?))) {
            match all.iter_mut().find(|known| *known.site == summary.site) {
                Some(known) => {
                    known.rounding.merge(rounding);
                    known.elements = known.elements.saturating_add(summary.count);
                }
                None => all.push(Self { site: &summary.site, rounding: *rounding, elements: summary.count }),
            }
        }
        all
    }

    /// The share of the elements that were not what their FP32 copy rounds to when forward read them; `None` without a copy.
    pub fn unlike_master_share(&self) -> Option<f64> {
        self.rounding.unlike_master.map(|unlike| unlike as f64 / self.elements.max(1) as f64)
    }

    /// Sentences for people.
    pub(super) fn text(&self) -> Vec<String> {
        let Rounding { stepped, without_masters, decay, .. } = self.rounding;
        let format = self.site.dtype.name();
        let name = &self.site.tensor;
        let what = if self.site.probe == Probe::Average { "the steps of its moving average" } else { "its updates" };
        let mut lines = Vec::new();
        lines.extend(stepped.and_then(|f| kept(&f)).map(|k| format!("{name}: what {format} kept of {what}: {k}")));
        lines.extend(
            decay.and_then(|f| kept(&f)).map(|k| format!("{name}: what {format} kept of its weight decay: {k}")),
        );
        let lost = without_masters.and_then(|f| kept(&f));
        lines.extend(lost.map(|k| format!("{name}: what would be left of its updates without FP32 copies: {k}")));
        let unlike = self.unlike_master_share().filter(|&share| share > 0.0);
        lines.extend(unlike.map(|s| format!("{name}: {} of it was not what its FP32 copy rounds to", percent(s))));
        lines
    }
}

/// `phi 0.36, 69.7 % dead`; `None` where no change was intended.
fn kept(fidelity: &Fidelity) -> Option<String> {
    let (phi, dead) = (fidelity.phi()?, fidelity.dead_share()?);
    Some(format!("phi {}, {} dead", readable(phi), percent(dead)))
}

/// One line on the updates of the latest scanned steps, where a format may lose some.
pub(super) fn recent(rank: &Rank<'_>, layout: &Layout) -> Option<String> {
    let weights = &rank.aggregate.weights;
    let steps = weights.steps.len();
    let stepped =
        kept(&weights.fidelity(|s| s.stepped)).map(|k| format!("16-bit parameters kept of their updates: {k}"));
    let without = kept(&weights.fidelity(|s| s.without_masters))
        .map(|k| format!("without FP32 copies of the weights this would be left of the updates: {k}"));
    let said = stepped.or(without)?;
    let over =
        if steps == 1 { "at the one scanned step".into() } else { format!("over the last {steps} scanned steps") };
    Some(layout.wrap("  ", "    ", &format!("{over} {said}")))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Fixture;
    use super::*;

    #[test]
    fn ranks_are_added_up_tensor_by_tensor() {
        let fixture = Fixture::sick();
        let (one, both) = (fixture.run(), fixture.three_ranks());
        let (one, both) = (TensorRounding::of_layer(&one, "fc"), TensorRounding::of_layer(&both, "fc"));
        assert_eq!((one.len(), both.len()), (2, 2));
        let intended = |of: &TensorRounding<'_>| of.rounding.stepped.map(|f| f.intended);
        assert_eq!((intended(&one[0]), intended(&both[0])), (Some(4), Some(8)));
        assert_eq!(one[1].unlike_master_share(), Some(0.25));
        assert_eq!(both[1].unlike_master_share(), Some(0.25));
        assert!(TensorRounding::of_layer(&fixture.run(), "other").is_empty());
    }

    #[test]
    fn it_is_said_in_words_with_phi_and_the_dead_share() {
        let fixture = Fixture::sick();
        let lines: Vec<String> =
            TensorRounding::of_layer(&fixture.run(), "fc").iter().flat_map(TensorRounding::text).collect();
        insta::assert_snapshot!(lines.join("\n"));
        insta::assert_snapshot!(recent(&fixture.run().ranks[0], &Layout::default()).unwrap());
    }

    #[test]
    fn a_run_in_fp32_has_nothing_to_say() {
        assert_eq!(kept(&Fidelity::default()), None);
        let diagnosis = crate::rules::Diagnosis::new();
        assert_eq!(recent(&Rank::of(&diagnosis), &Layout::default()), None);
    }
}
