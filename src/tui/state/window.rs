//! Where the exponents of some tensors lie against the range of FP16.

use crate::scan::Stats;

/// A part of the range of FP16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Zone {
    /// Below 2^-24, the smallest subnormal: FP16 rounds it to zero, or up to 2^-24.
    Lost,
    /// From 2^-24 to 2^-14: held with fewer and fewer bits.
    Subnormal,
    /// From 2^-14 to 2^13: held in full.
    Normal,
    /// From 2^13 to 65504: three bits of headroom or fewer.
    NearOverflow,
    /// Above 65504: infinite.
    Overflow,
}

impl Zone {
    /// All zones, lowest first.
    pub const ALL: [Zone; 5] = [Zone::Lost, Zone::Subnormal, Zone::Normal, Zone::NearOverflow, Zone::Overflow];

    /// The name of the zone.
    pub fn name(self) -> &'static str {
        match self {
            Zone::Lost => "lost",
            Zone::Subnormal => "fading",
            Zone::Normal => "safe",
            Zone::NearOverflow => "near overflow",
            Zone::Overflow => "beyond",
        }
    }

    /// The zone of numbers with this binary exponent. 65504..65536 counts as near overflow: FP16 rounds half of it down.
    pub fn of(exponent: i32) -> Self {
        match exponent {
            i32::MIN..-24 => Zone::Lost,
            -24..-14 => Zone::Subnormal,
            -14..13 => Zone::Normal,
            13..16 => Zone::NearOverflow,
            16.. => Zone::Overflow,
        }
    }
}

/// Counts of elements by binary exponent, from 2^-30 to 2^16, with what lies outside added to the ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    counts: [u64; Window::LEN],
    infinite: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self { counts: [0; Window::LEN], infinite: 0 }
    }
}

impl Window {
    /// The lowest exponent that is told apart.
    pub const FIRST: i32 = -30;
    /// The highest exponent that is told apart: all of it is above 65504.
    pub const LAST: i32 = 16;
    const LEN: usize = (Self::LAST - Self::FIRST + 1) as usize;

    /// Adds the elements of one scan, but for -inf where a mask put it there.
    pub fn add(&mut self, stats: &Stats, by_mask: bool) {
        for (exponent, n) in stats.exponents.iter() {
            let at = (exponent.clamp(Self::FIRST, Self::LAST) - Self::FIRST) as usize;
            self.counts[at] += n;
        }
        self.infinite += stats.pos_inf + if by_mask { 0 } else { stats.neg_inf };
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.infinite += other.infinite;
    }

    /// Finite non-zero elements.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The share of the non-zero elements, infinities included, whose exponent lies in `from..to`; 0 when there are none.
    /// Infinities lie above every exponent.
    pub fn share(&self, from: i32, to: i32) -> f64 {
        let all = self.total() + self.infinite;
        if all == 0 {
            return 0.0;
        }
        let finite =
            (Self::FIRST..).zip(&self.counts).filter(|(e, _)| (from..to).contains(e)).map(|(_, n)| n).sum::<u64>();
        let infinite = if to > Self::LAST { self.infinite } else { 0 };
        (finite + infinite) as f64 / all as f64
    }

    /// The share of the finite non-zero elements in `zone`, or `None` when there are none.
    pub fn zone_share(&self, zone: Zone) -> Option<f64> {
        let all = self.total();
        let inside =
            (Self::FIRST..).zip(&self.counts).filter(|&(e, _)| Zone::of(e) == zone).map(|(_, n)| n).sum::<u64>();
        (all > 0).then(|| inside as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::ExponentHistogram;

    fn window(exponents: &[(i32, u64)], infinite: u64) -> Window {
        let mut histogram = ExponentHistogram::default();
        for &(e, n) in exponents {
            histogram.add(e, n);
        }
        let mut window = Window::default();
        window.add(&Stats { exponents: histogram, pos_inf: infinite, ..Stats::default() }, false);
        window
    }

    #[test]
    fn the_edges_of_fp16_separate_the_zones() {
        let edges = [(-25, Zone::Lost), (-24, Zone::Subnormal), (-15, Zone::Subnormal), (-14, Zone::Normal)];
        for (exponent, zone) in
            edges.into_iter().chain([(12, Zone::Normal), (15, Zone::NearOverflow), (16, Zone::Overflow)])
        {
            assert_eq!(Zone::of(exponent), zone, "2^{exponent}");
        }
    }

    #[test]
    fn what_lies_outside_is_counted_at_the_ends() {
        let window = window(&[(-149, 1), (0, 2), (127, 1)], 0);
        assert_eq!(window.share(Window::FIRST, Window::FIRST + 1), 0.25);
        assert_eq!(window.share(Window::LAST, Window::LAST + 1), 0.25);
    }

    #[test]
    fn infinities_count_as_overflow_and_not_as_finite() {
        let window = window(&[(-20, 3)], 1);
        assert_eq!(window.share(16, 17), 0.25);
        assert_eq!(window.zone_share(Zone::Subnormal), Some(1.0));
    }

    #[test]
    fn an_empty_window_has_no_shares() {
        assert_eq!(Window::default().zone_share(Zone::Subnormal), None);
        assert_eq!(Window::default().share(-30, 17), 0.0);
    }
}
