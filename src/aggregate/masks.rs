//! Infinities that are there on purpose: which -inf a mask put into scores.

use super::SiteSummary;
use crate::numerics::Format;
use crate::observation::{INPUT, Observation, Probe, Site, Step};
use crate::scan::{Dtype, Stats};

/// Operators by which a mask of 0 and -1e9, or of 0 and 1, becomes one of 0 and -inf in a format that ends before.
const SCALING_OPERATORS: [&str; 7] = ["to", "_to_copy", "copy_", "mul", "mul_", "sub", "rsub"];

/// Operators that write infinities on purpose: masks, and constants to build them from.
const MASK_OPERATORS: [&str; 14] = [
    "masked_fill",
    "masked_fill_",
    "where",
    "full",
    "full_like",
    "fill",
    "fill_",
    "triu",
    "tril",
    "new_full",
    "masked_scatter",
    "constant_pad_nd",
    "scatter",
    "scatter_",
];

/// Operators that add a mask to scores. Their sum of finite numbers is infinite only where one of them is above half of the format's largest: where
/// no such number was seen, -inf came from a mask, a constant that was not observed itself.
const ADDING_OPERATORS: [&str; 4] = ["add", "add_", "sub", "sub_"];

/// What the activations of a step up to a certain one tell of masks.
#[derive(Default)]
pub(super) struct Masks {
    fp16_floor: bool,
    above_half_of_fp16: bool,
    above_half_of_fp32: bool,
    /// A constant that is a mask has met the model.
    constant: bool,
}

impl Masks {
    /// Notes an activation, after it was judged.
    pub(super) fn see(&mut self, site: &Site, stats: &Stats) {
        self.fp16_floor |= stats.max_abs == Format::F16.max;
        self.above_half_of_fp16 |= stats.max_abs >= Format::F16.max / 2.0;
        self.above_half_of_fp32 |= stats.max_abs >= f64::from(f32::MAX) / 4.0;
        self.constant |= is_data(site) && is_mask_constant(site.dtype, stats);
    }

    /// Whether all that is not finite in an activation is -inf that a mask put there; `masked` says whether one was seen to do so earlier in the step.
    pub(super) fn wrote(
        &self,
        observation: &Observation,
        site: &Site,
        masked: bool,
        step: &Step,
        sites: &[SiteSummary],
    ) -> bool {
        let stats = &observation.stats;
        if stats.nan > 0 || stats.pos_inf > 0 {
            return false;
        }
        (masked || self.constant) && observation.inherited
            || is_mask_operator(&site.operator)
            || is_operator(&site.operator, &SCALING_OPERATORS) && is_plain_mask(stats)
            || is_operator(&site.operator, &ADDING_OPERATORS) && self.cannot_sum_to_infinity(site)
            || is_data(site) && is_mask_constant(site.dtype, stats)
            || took_mask_buffer(observation, step, sites)
    }

    /// Whether a sum in this site's format cannot be infinite unless a mask made it so.
    fn cannot_sum_to_infinity(&self, site: &Site) -> bool {
        match site.dtype {
            Dtype::F16 => !self.above_half_of_fp16 || self.fp16_floor,
            _ => !self.above_half_of_fp32,
        }
    }
}

/// A tensor that no observed operator made.
pub(super) fn is_data(site: &Site) -> bool {
    site.layer == INPUT && site.operator == "data"
}

/// Whether a tensor looks like a mask that is added to scores: nothing but 0 and -inf, and some of each. So does the logarithm of what has saturated.
fn is_plain_mask(stats: &Stats) -> bool {
    stats.neg_inf > 0 && stats.zeros > 0 && stats.neg_inf + stats.zeros == stats.count
}

/// Whether a constant, which nothing was learned in, is a mask: 0, -inf, and the lowest number of its format, two of which together are -inf.
pub(super) fn is_mask_constant(dtype: Dtype, stats: &Stats) -> bool {
    let lowest = Format::of(dtype).map_or(f64::MAX, |format| format.max);
    let all_lowest = stats.min_abs == lowest && stats.max_abs == lowest && stats.sum.value < 0.0;
    let of_mask = stats.neg_inf > 0 && stats.zeros > 0 && stats.nan == 0 && stats.pos_inf == 0;
    of_mask && (stats.max_abs == 0.0 || all_lowest)
}

/// Whether an operator took a buffer that is a mask.
fn took_mask_buffer(observation: &Observation, step: &Step, sites: &[SiteSummary]) -> bool {
    let Some(provenance) = &observation.provenance else { return false };
    let taken = provenance.inputs.iter().flatten().filter_map(|id| sites.get(id.0 as usize)).map(|s| &s.site);
    let is_buffer = |site: &Site, input: &Site| {
        site.probe == Probe::Buffer && (&site.layer, &site.tensor) == (&input.layer, &input.tensor)
    };
    // What a buffer holds is recorded where it changed: in this step, behind the activations, or in an earlier one.
    let is_mask = |place: usize, summary: &SiteSummary| {
        let now = step.observations.iter().rev().find(|o| o.site.0 as usize == place).map(|o| &o.stats);
        let known = now.or_else(|| summary.latest().map(|sample| &sample.stats));
        known.is_some_and(|stats| is_mask_constant(summary.site.dtype, stats))
    };
    let mut parameters = taken.filter(|input| input.probe == Probe::Param);
    parameters.any(|input| sites.iter().enumerate().any(|(place, s)| is_buffer(&s.site, input) && is_mask(place, s)))
}

/// Whether an operator, as a site names it (`where`, `where#2`), writes masks or the constants they are built from.
pub fn is_mask_operator(operator: &str) -> bool {
    is_operator(operator, &MASK_OPERATORS)
}

fn is_operator(operator: &str, names: &[&str]) -> bool {
    names.contains(&operator.split('#').next().unwrap_or(operator))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::scan_slice;

    const INF: f32 = f32::INFINITY;

    #[test]
    fn a_constant_of_zeros_infinities_and_the_lowest_number_is_a_mask() {
        let is_mask = |values: &[f32]| is_mask_constant(Dtype::F32, &scan_slice(values));
        assert!(is_mask(&[0.0, -INF]) && is_mask(&[0.0, f32::MIN, -INF]));
        assert!(!is_mask(&[0.0, f32::MIN]), "it is finite");
        assert!(!is_mask(&[-INF; 3]) && !is_mask(&[f32::MIN, -INF]), "nothing is let through");
        assert!(!is_mask(&[0.0, -0.7, -INF]), "the logarithm of frequencies");
        assert!(!is_mask(&[0.0, f32::MAX, -INF]) && !is_mask(&[0.0, INF, -INF]) && !is_mask(&[0.0, f32::NAN, -INF]));
    }

    #[test]
    fn the_lowest_number_is_that_of_the_format() {
        let planes = scan_slice(&[0.0f64, -65504.0, f64::NEG_INFINITY]);
        assert!(is_mask_constant(Dtype::F16, &planes) && !is_mask_constant(Dtype::F32, &planes));
        assert!(is_mask_constant(Dtype::F64, &scan_slice(&[0.0, f64::MIN, f64::NEG_INFINITY])));
    }
}
