//! What comparisons with FP32 showed, layer by layer, all ranks together.

use super::layout::Layout;
use super::number::{percent, readable};
use super::{Rank, Run};
use crate::scan::Likeness;

/// The gradient of a layer beside FP32's, over the comparisons of all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerShadow {
    /// Comparisons of the layer, the most that one of its parameters had.
    pub shadows: u64,
    /// All its parameters in all of them, summed.
    pub likeness: Likeness,
}

impl LayerShadow {
    /// What is known of this layer; `None` where it was never compared.
    pub(super) fn of_layer(run: &Run<'_>, layer: &str) -> Option<Self> {
        let layers = run.ranks.iter().flat_map(|rank| rank.aggregate.shadows.layers(&rank.aggregate.sites));
        let here = layers.filter(|(name, _)| *name == layer).map(|(_, of)| of);
        here.reduce(|mut sum, of| {
            sum.shadows += of.shadows;
            sum.likeness.merge(&of.likeness);
            sum
        })
        .map(|of| Self { shadows: of.shadows, likeness: of.likeness })
    }

    /// A sentence for people.
    pub(super) fn text(&self) -> String {
        let n = self.shadows;
        format!("against FP32, {n} comparison{}: {}", if n == 1 { "" } else { "s" }, in_words(&self.likeness))
    }
}

/// `cosine 0.9999, norm 1.00 of FP32's, 3.1 % lost, 12 % fading`.
pub fn in_words(likeness: &Likeness) -> String {
    let mut parts = match likeness.cosine() {
        Some(cosine) => vec![format!("cosine {}", near_one(cosine))],
        None if likeness.fp32_energy > 0.0 => vec!["nothing left of it".into()],
        None => vec!["zero in FP32".into()],
    };
    parts.extend(likeness.norm_ratio().map(|ratio| format!("norm {} of FP32's", readable(ratio))));
    parts.extend(likeness.lost_share().map(|share| format!("{} lost", percent(share))));
    parts.extend(likeness.fading_share().map(|share| format!("{} below 2^-14 as held", percent(share))));
    if likeness.non_finite > 0 {
        parts.push(format!("{} elements not finite that are finite in FP32", likeness.non_finite));
    }
    parts.join(", ")
}

/// A cosine with as many digits as show how far it is from 1.
fn near_one(cosine: f64) -> String {
    match 1.0 - cosine {
        off if off < 1e-6 => "1 - 1e-6 or nearer".into(),
        off if off < 1e-3 => format!("1 - {off:.0e}"),
        _ => format!("{cosine:.3}"),
    }
}

/// One line on the comparisons of a rank; `None` where none was asked for.
pub(super) fn summary(rank: &Rank<'_>, layout: &Layout) -> Option<String> {
    let shadows = &rank.aggregate.shadows;
    if shadows.taken + shadows.failed == 0 {
        return None;
    }
    let n = shadows.taken;
    let mut said = format!("against FP32: {n} comparison{}", if n == 1 { "" } else { "s" });
    if let Some(latest) = shadows.recent.back() {
        said += &format!(", the latest at step {}: {}", latest.step, in_words(&latest.likeness));
    }
    let each = shadows.time_ns as f64 / (shadows.taken + shadows.failed) as f64;
    let step_ns = rank.aggregate.instrument.step_ns;
    let more = if step_ns > 0 {
        format!(", {} on top of the time of the steps", percent(shadows.time_ns as f64 / step_ns as f64))
    } else {
        String::new()
    };
    said += &format!("; they took {:.1} ms each{more}", each / 1e6);
    if let Some((step, why)) = &shadows.last_failure {
        said += &format!("; {} failed, the last at step {step}: {why}", shadows.failed);
    }
    Some(layout.wrap("  ", "    ", &said))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Fixture;
    use super::*;

    #[test]
    fn a_layer_of_several_ranks_is_added_up() {
        let fixture = Fixture::sick();
        let one = LayerShadow::of_layer(&fixture.run(), "fc").expect("fc was compared");
        let both = LayerShadow::of_layer(&fixture.three_ranks(), "fc").expect("fc was compared");
        assert_eq!((one.shadows, both.shadows), (1, 2));
        assert_eq!(2 * one.likeness.nonzero, both.likeness.nonzero);
        assert!(LayerShadow::of_layer(&fixture.run(), "other").is_none());
    }

    #[test]
    fn it_is_said_in_words_with_what_it_cost_and_what_failed() {
        let fixture = Fixture::sick();
        let layer = LayerShadow::of_layer(&fixture.run(), "fc").expect("fc was compared").text();
        let summary = summary(&fixture.run().ranks[0], &Layout::default()).expect("there is one");
        insta::assert_snapshot!(format!("{layer}\n{summary}"));
    }

    #[test]
    fn a_run_without_one_says_nothing() {
        let diagnosis = crate::rules::Diagnosis::new();
        assert_eq!(summary(&Rank::of(&diagnosis), &Layout::default()), None);
    }

    #[test]
    fn what_is_no_number_is_said_in_words() {
        assert_eq!(in_words(&Likeness::default()), "zero in FP32");
        let lost = Likeness { nonzero: 4, lost: 4, fp32_energy: 1.0, non_finite: 2, ..Likeness::default() };
        let said = in_words(&lost);
        assert!(
            said.starts_with("nothing left of it, norm 0 of FP32's, 100 % lost") && said.contains("2 elements"),
            "{said}"
        );
        assert_eq!(
            (near_one(1.0), near_one(0.99995), near_one(0.5)),
            ("1 - 1e-6 or nearer".into(), "1 - 5e-5".into(), "0.500".into())
        );
    }
}
