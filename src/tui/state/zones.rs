//! The zones of a format in which the elements of one tensor lie.

use crate::numerics::Format;
use crate::observation::Site;
use crate::scan::{Dtype, ExponentHistogram};

use super::Zone;

/// The exponents at which the zones of a format begin.
///
/// Exact to one binade: of `[2^-25, 2^-24)` only 2^-25 itself rounds to zero in FP16, so that binade counts as fading; of `[32768, 65536)` only what
/// lies above 65504 overflows, so that binade counts as near overflow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edges {
    /// The format.
    pub format: Format,
    /// Whether the tensor is held in it; else the zones say what it would make of the tensor.
    pub held: bool,
}

impl Edges {
    /// Octaves below the end of a format that are near overflow.
    const NEAR: i32 = 3;

    /// The zones that matter to a tensor: those of the format that holds it; to an FP32 gradient those of FP16, for it carries the loss scale, and
    /// casts to FP16 before or after it are what the scale is for. `None` for FP64.
    pub fn of(site: &Site) -> Option<Self> {
        if site.probe.is_gradient() && site.dtype == Dtype::F32 {
            return Some(Self { format: Format::F16, held: false });
        }
        Format::of(site.dtype).map(|format| Self { format, held: true })
    }

    /// The lowest exponent of fading, safe, near overflow and beyond.
    pub fn exponents(&self) -> [i32; 4] {
        let lowest_held = self.format.min_subnormal_exponent() - 1;
        let end = self.format.max_exponent() + 1;
        [lowest_held, self.format.min_normal_exponent, end - Self::NEAR, end]
    }

    /// What stands at each edge.
    pub fn labels(&self) -> [String; 4] {
        let [fading, normal, near, end] = self.exponents();
        let power = |exponent: i32| format!("2^{exponent}");
        let end = if self.format == Format::F16 { "65504".into() } else { power(end) };
        [power(fading), power(normal), power(near), end]
    }

    /// The zone of numbers with this binary exponent.
    pub fn zone(&self, exponent: i32) -> Zone {
        let zones = [Zone::Subnormal, Zone::Normal, Zone::NearOverflow, Zone::Overflow];
        let reached = self.exponents().into_iter().zip(zones).rfind(|&(edge, _)| exponent >= edge);
        reached.map_or(Zone::Lost, |(_, zone)| zone)
    }
}

/// The elements of one tensor over some scans.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    /// Exponents of the finite non-zero elements.
    pub exponents: ExponentHistogram,
    /// All elements.
    pub count: u64,
    /// Zeros among them.
    pub zeros: u64,
    /// NaN among them.
    pub nan: u64,
    /// Infinities among them, of either sign, but for those of masks.
    pub inf: u64,
    /// -inf that a mask put there: of no zone.
    pub masked: u64,
    /// Scans.
    pub scans: u64,
}

impl Spread {
    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.exponents.merge(&other.exponents);
        self.count = self.count.saturating_add(other.count);
        self.zeros = self.zeros.saturating_add(other.zeros);
        self.nan = self.nan.saturating_add(other.nan);
        self.inf = self.inf.saturating_add(other.inf);
        self.masked = self.masked.saturating_add(other.masked);
        self.scans = self.scans.saturating_add(other.scans);
    }

    /// `part` as a share of all elements; 0 when there is none.
    pub fn share(&self, part: u64) -> f64 {
        if self.count == 0 { 0.0 } else { part as f64 / self.count as f64 }
    }

    /// Elements that are neither zero nor NaN nor of a mask: what the shares of the zones are taken of.
    pub fn total(&self) -> u64 {
        self.exponents.total().saturating_add(self.inf)
    }

    /// The share of [`Spread::total`] in each zone, lowest zone first, infinities beyond; `None` when there is no such element.
    pub fn zones(&self, edges: &Edges) -> Option<[(Zone, f64); 5]> {
        let all = self.total();
        let share = |zone| {
            let inside = self.exponents.iter().filter(|&(e, _)| edges.zone(e) == zone);
            let infinite = if zone == Zone::Overflow { self.inf } else { 0 };
            (zone, (inside.map(|(_, n)| n).sum::<u64>() + infinite) as f64 / all as f64)
        };
        (all > 0).then(|| Zone::ALL.map(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::Probe;

    fn edges(probe: Probe, dtype: Dtype) -> Option<Edges> {
        let (layer, operator, tensor) = (String::new(), String::new(), String::new());
        Edges::of(&Site { layer, operator, tensor, probe, dtype })
    }

    #[test]
    fn the_zones_of_fp16_begin_where_rounding_puts_them() {
        let edges = edges(Probe::Activation, Dtype::F16).expect("FP16 has zones");
        assert_eq!(edges.exponents(), [-25, -14, 13, 16]);
        assert_eq!(edges.labels(), ["2^-25", "2^-14", "2^13", "65504"]);
        let zones = [(-26, Zone::Lost), (-25, Zone::Subnormal), (-15, Zone::Subnormal), (-14, Zone::Normal)];
        for (exponent, zone) in zones.into_iter().chain([(13, Zone::NearOverflow), (16, Zone::Overflow)]) {
            assert_eq!(edges.zone(exponent), zone, "2^{exponent}");
        }
    }

    #[test]
    fn a_bf16_tensor_has_the_zones_of_bf16() {
        let edges = edges(Probe::ActivationGrad, Dtype::Bf16).expect("BF16 has zones");
        assert_eq!((edges.zone(-100), edges.zone(-130), edges.zone(20)), (Zone::Normal, Zone::Subnormal, Zone::Normal));
        assert!(edges.held);
    }

    #[test]
    fn an_fp32_gradient_is_held_against_fp16_and_an_fp32_weight_is_not() {
        let gradient = edges(Probe::ParamGrad, Dtype::F32).expect("zones");
        assert_eq!((gradient.format.name, gradient.held), ("fp16", false));
        let weight = edges(Probe::Param, Dtype::F32).expect("zones");
        assert_eq!((weight.format.name, weight.zone(-30)), ("fp32", Zone::Normal));
        assert_eq!(edges(Probe::Param, Dtype::F64), None);
    }

    #[test]
    fn shares_add_up_and_nothing_has_none() {
        let edges = edges(Probe::Activation, Dtype::F16).expect("FP16 has zones");
        let exponents = ExponentHistogram::from_counts(-26, [1, 1, 0, 2]);
        let spread = Spread { exponents, count: 9, zeros: 4, inf: 1, ..Spread::default() };
        let zones = spread.zones(&edges).expect("elements");
        assert_eq!(zones.map(|(_, share)| share), [0.2, 0.6, 0.0, 0.0, 0.2]);
        assert_eq!(spread.share(spread.zeros), 4.0 / 9.0);
        assert_eq!(Spread::default().zones(&edges), None);
    }
}
