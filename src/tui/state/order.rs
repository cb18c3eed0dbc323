//! Which layers the table shows, and in which order.

use std::cmp::Ordering;

use super::Layer;

/// How the table of layers is sorted. Layers alike keep the order of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Layers with findings first, then those that make a NaN or an infinity, then those that hold one, then those whose gradients fade most.
    #[default]
    Trouble,
    /// As the forward pass meets them.
    Model,
    /// The share of its worst gradient that FP16 loses or fades, largest first.
    Fading,
    /// The largest gradient as it is held, largest first.
    Gradient,
    /// What is left to FP16's end, least first.
    Headroom,
    /// By path.
    Name,
}

impl Sort {
    /// All orders, as a key cycles through them.
    pub const ALL: [Sort; 6] = [Sort::Trouble, Sort::Model, Sort::Fading, Sort::Gradient, Sort::Headroom, Sort::Name];

    /// The order `by` places further on, in a circle.
    pub fn moved(self, by: isize) -> Self {
        let at = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0) as isize;
        let next = (at + by).rem_euclid(Self::ALL.len() as isize);
        Self::ALL.get(next as usize).copied().unwrap_or_default()
    }

    /// The name shown in the table's title.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Trouble => "trouble",
            Sort::Model => "model order",
            Sort::Fading => "share lost or fading",
            Sort::Gradient => "largest gradient",
            Sort::Headroom => "least headroom",
            Sort::Name => "name",
        }
    }

    fn compare(self, a: &Layer, b: &Layer) -> Ordering {
        match self {
            Sort::Trouble => a.trouble(b),
            Sort::Model => Ordering::Equal,
            Sort::Fading => largest_first(a.fading, b.fading),
            Sort::Gradient => largest_first(a.gradient_max, b.gradient_max),
            Sort::Headroom => largest_first(a.headroom.map(|x| -x), b.headroom.map(|x| -x)),
            Sort::Name => a.path.cmp(&b.path),
        }
    }
}

/// The larger sorts first, what is not known last.
fn largest_first(a: Option<f64>, b: Option<f64>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

/// Which layers are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Part of the path, in any case; all layers where it is empty.
    pub text: String,
    /// Only layers with findings.
    pub with_findings: bool,
}

impl Filter {
    fn shows(&self, layer: &Layer) -> bool {
        let found = layer.path.to_lowercase().contains(&self.text.to_lowercase());
        found && (layer.severity.is_some() || !self.with_findings)
    }

    /// The layers that are shown, in this order.
    pub fn apply<'a>(&self, sort: Sort, layers: &'a [Layer]) -> Vec<&'a Layer> {
        let mut shown: Vec<&Layer> = layers.iter().filter(|layer| self.shows(layer)).collect();
        shown.sort_by(|a, b| sort.compare(a, b));
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::super::layers;
    use super::*;
    use crate::aggregate::Aggregate;
    use crate::rules::Finding;
    use crate::tui::testing::scenario::{Fault, records};
    use crate::tui::testing::underflow;

    fn of(fault: Fault, findings: &[Finding]) -> Vec<Layer> {
        let mut aggregate = Aggregate::default();
        records("r", fault, 100, false).into_iter().for_each(|record| aggregate.apply(record));
        layers(&aggregate, findings)
    }

    fn sorted(sort: Sort, layers: &[Layer]) -> Vec<&str> {
        Filter::default().apply(sort, layers).into_iter().map(|l| l.path.as_str()).collect()
    }

    #[test]
    fn layers_with_findings_come_first_and_errors_before_warnings() {
        assert_eq!(sorted(Sort::Trouble, &of(Fault::None, &underflow()))[..2], ["block.0.attn.qk", "conv1"]);
    }

    #[test]
    fn the_layer_that_makes_a_nan_comes_before_those_that_inherit_it() {
        let layers = of(Fault::Nan("block.0.attn.out"), &[]);
        assert_eq!(sorted(Sort::Trouble, &layers)[0], "block.0.attn.out");
    }

    #[test]
    fn the_layer_that_fades_most_comes_first_without_findings_and_by_that_order() {
        let layers = of(Fault::Underflow("block.0.fc"), &[]);
        assert_eq!(sorted(Sort::Trouble, &layers)[0], "block.0.fc");
        assert_eq!(sorted(Sort::Fading, &layers)[0], "block.0.fc");
        assert_eq!(sorted(Sort::Gradient, &layers).last(), Some(&"block.0.fc"));
    }

    #[test]
    fn the_largest_gradient_and_the_least_headroom_are_those_of_the_head() {
        let layers = of(Fault::None, &[]);
        let head = layers.last().expect("six layers");
        assert_eq!(head.headroom, Some((65504.0f64 / 1536.0).log2()), "its activation is larger than its gradient");
        for sort in [Sort::Gradient, Sort::Headroom] {
            assert_eq!(sorted(sort, &layers)[0], "head", "{sort:?}");
        }
    }

    #[test]
    fn what_is_not_known_sorts_last() {
        let mut layers = of(Fault::None, &[]);
        layers[0].gradient_max = None;
        layers[2].headroom = None;
        assert_eq!(sorted(Sort::Gradient, &layers).last(), Some(&"conv1"));
        assert_eq!(sorted(Sort::Headroom, &layers).last(), Some(&"block.0.attn.qk"));
    }

    #[test]
    fn the_orders_go_round_in_both_directions() {
        assert_eq!(Sort::Name.moved(1), Sort::Trouble);
        assert_eq!(Sort::Trouble.moved(-1), Sort::Name);
    }

    #[test]
    fn a_filter_takes_part_of_a_path_in_any_case_and_layers_with_findings() {
        let layers = of(Fault::None, &underflow());
        let shown = |text: &str, with_findings| {
            let filter = Filter { text: text.into(), with_findings };
            filter.apply(Sort::Model, &layers).into_iter().map(|l| l.path.clone()).collect::<Vec<_>>()
        };
        assert_eq!(shown("ATTN", false), ["block.0.attn.qk", "block.0.attn.out"]);
        assert_eq!(shown("", true), ["conv1", "block.0.attn.qk"]);
        assert_eq!(shown("conv", true), ["conv1"]);
        assert!(shown("nothing", false).is_empty());
    }
}
