//! A share of a tensor that its histogram tells, or bounds.

use super::cut::Cut;

/// A share of the elements of a tensor, known from its histogram: to half a point, or between two bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The likely share.
    pub likely: f64,
    /// No tensor with this histogram has less.
    pub low: f64,
    /// No tensor with this histogram has more.
    pub high: f64,
    /// Whether `likely` is right to [`TOLERANCE`](Self::TOLERANCE), as far as magnitudes rise and fall smoothly; else only that it lies between the bounds is known.
    pub told: bool,
}

impl Default for Share {
    /// None of the elements.
    fn default() -> Self {
        Self::exact(0.0)
    }
}

impl Share {
    /// What a share that is told is right to: half a point.
    pub const TOLERANCE: f64 = 0.005;

    /// A share that no edge cuts.
    pub fn exact(share: f64) -> Self {
        Self { likely: share, low: share, high: share, told: true }
    }

    /// `whole` elements of `all`, and those of a cut binade.
    pub(super) fn of(whole: f64, cut: Cut, all: f64) -> Self {
        let [low, likely, high] = [cut.least, cut.likely, cut.most].map(|part| (whole + part) / all);
        let bounded = (likely - low).max(high - likely) <= Self::TOLERANCE;
        Self { likely, low, high, told: bounded || cut.error / all <= Self::TOLERANCE }
    }

    /// The one of both that is more to worry about.
    pub fn larger(self, other: Self) -> Self {
        if other.likely > self.likely { other } else { self }
    }
}
