//! The largest magnitude of a tensor, step by step, over the whole run, thinned as it grows.

/// A stretch of steps: the range of the largest magnitudes of its scans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    low: f32,
    high: f32,
    /// Scans with a non-finite element; their finite elements are not in the range.
    pub non_finite: u32,
}

impl Stretch {
    const EMPTY: Self = Self { low: f32::INFINITY, high: 0.0, non_finite: 0 };

    /// The lowest and the highest of the largest magnitudes; 0 for a tensor that was all zero, `None` when no finite scan lies in the stretch.
    pub fn range(&self) -> Option<(f64, f64)> {
        (self.low <= self.high).then_some((f64::from(self.low), f64::from(self.high)))
    }

    fn add(&mut self, magnitude: f64, has_non_finite: bool) {
        if has_non_finite || !magnitude.is_finite() {
            self.non_finite = self.non_finite.saturating_add(1);
            return;
        }
        let held = narrow(magnitude);
        (self.low, self.high) = (self.low.min(held), self.high.max(held));
    }

    /// The range of the larger of two tensors that were scanned at the same steps; its low end is the most that is known of it.
    fn raise(&mut self, other: Self) {
        // What is not finite in every scan is the larger, however large the other is.
        let never_finite = |of: &Self| of.range().is_none() && of.non_finite > 0;
        match (self.range(), other.range()) {
            _ if never_finite(self) || never_finite(&other) => {
                (self.low, self.high) = (Self::EMPTY.low, Self::EMPTY.high);
            }
            (_, None) => {}
            (None, Some(_)) => (self.low, self.high) = (other.low, other.high),
            (Some(_), Some(_)) => (self.low, self.high) = (self.low.max(other.low), self.high.max(other.high)),
        }
        self.non_finite = self.non_finite.max(other.non_finite);
    }

    fn merge(&mut self, other: Self) {
        (self.low, self.high) = (self.low.min(other.low), self.high.max(other.high));
        self.non_finite = self.non_finite.saturating_add(other.non_finite);
    }
}

/// The nearest `f32` that is neither infinite nor, for a magnitude that is not, zero.
fn narrow(magnitude: f64) -> f32 {
    let smallest = if magnitude > 0.0 { f32::from_bits(1) } else { 0.0 };
    (magnitude as f32).clamp(smallest, f32::MAX)
}

/// At most [`Maxima::CAPACITY`] stretches of equal length that cover the steps at which a tensor was scanned. When they are full, neighbours are
/// joined; the lowest and the highest value of each survive, so that a peak of one step is seen however long the run becomes.
#[derive(Clone, Debug, PartialEq)]
pub struct Maxima {
    /// Steps in each stretch: a power of two.
    stride: u64,
    /// The place of the first stretch, counted in strides from step 0.
    first: u64,
    stretches: Vec<Stretch>,
}

impl Default for Maxima {
    fn default() -> Self {
        Self { stride: 1, first: 0, stretches: Vec::new() }
    }
}

impl Maxima {
    /// Stretches kept: twice the dots of a wide chart, in 3 KB.
    pub const CAPACITY: usize = 256;

    /// Adds one scan. Of a scan with a non-finite element only that is kept.
    pub fn push(&mut self, step: u64, magnitude: f64, has_non_finite: bool) {
        if let Some(stretch) = self.stretch(step) {
            stretch.add(magnitude, has_non_finite);
        }
    }

    /// Adds all of `other`: the same tensor on another rank.
    pub fn merge(&mut self, other: &Self) {
        while self.stride < other.stride {
            self.halve();
        }
        for (step, theirs) in other.iter() {
            if let Some(stretch) = self.stretch(step) {
                stretch.merge(theirs);
            }
        }
    }

    /// The larger of both at each step: of two tensors of one layer.
    pub fn raise(&mut self, other: &Self) {
        let Some((first, last)) = other.steps() else { return };
        self.stretch(first);
        self.stretch(last);
        let mut other = other.clone();
        while self.stride < other.stride {
            self.halve();
        }
        while other.stride < self.stride {
            other.halve();
        }
        for (step, theirs) in other.iter() {
            if let Some(stretch) = self.stretch(step) {
                stretch.raise(theirs);
            }
        }
    }

    /// The same maxima of the stretches in which no scan was finite, and no others.
    pub fn never_finite(&self) -> Self {
        let keep = |stretch: &Stretch| if stretch.range().is_none() { *stretch } else { Stretch::EMPTY };
        Self { stretches: self.stretches.iter().map(keep).collect(), ..*self }
    }

    /// Steps in each stretch.
    pub fn stride(&self) -> u64 {
        self.stride
    }

    /// First and last step covered; `None` when nothing was added.
    pub fn steps(&self) -> Option<(u64, u64)> {
        let last = self.first + (self.stretches.len() as u64).checked_sub(1)?;
        Some((self.first * self.stride, last.saturating_mul(self.stride).saturating_add(self.stride - 1)))
    }

    /// The stretches that hold a scan, each with its first step, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Stretch)> + '_ {
        let places = (self.first..).map(|place| place * self.stride);
        places.zip(self.stretches.iter().copied()).filter(|(_, stretch)| *stretch != Stretch::EMPTY)
    }

    /// The stretch that holds a step; `None` where no scan lies in it.
    pub fn at(&self, step: u64) -> Option<Stretch> {
        let at = (step / self.stride).checked_sub(self.first).and_then(|at| usize::try_from(at).ok())?;
        self.stretches.get(at).copied().filter(|stretch| *stretch != Stretch::EMPTY)
    }

    /// The stretch of a step, made when it is not there; always some.
    fn stretch(&mut self, step: u64) -> Option<&mut Stretch> {
        if self.stretches.is_empty() {
            self.first = step / self.stride;
        }
        while self.span_with(step) > Self::CAPACITY as u64 {
            self.halve();
        }
        let place = step / self.stride;
        if place < self.first {
            let missing = (self.first - place) as usize;
            self.stretches.splice(0..0, std::iter::repeat_n(Stretch::EMPTY, missing));
            self.first = place;
        }
        let at = (place - self.first) as usize;
        if at >= self.stretches.len() {
            self.stretches.resize(at + 1, Stretch::EMPTY);
        }
        self.stretches.get_mut(at)
    }

    /// How many stretches it takes to cover `step` too.
    fn span_with(&self, step: u64) -> u64 {
        let place = step / self.stride;
        let last = self.first + (self.stretches.len() as u64).saturating_sub(1);
        (last.max(place) - self.first.min(place)).saturating_add(1)
    }

    fn halve(&mut self) {
        let joined_first = self.first / 2;
        let mut joined = Vec::with_capacity(self.stretches.len() / 2 + 1);
        for (place, stretch) in (self.first..).zip(self.stretches.drain(..)) {
            let at = (place / 2 - joined_first) as usize;
            joined.resize(at + 1, Stretch::EMPTY);
            if let Some(last) = joined.last_mut() {
                last.merge(stretch);
            }
        }
        (self.stride, self.first, self.stretches) = (self.stride * 2, joined_first, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = (u64, f64)>) -> Maxima {
        let mut maxima = Maxima::default();
        values.into_iter().for_each(|(step, value)| maxima.push(step, value, false));
        maxima
    }

    #[test]
    fn a_peak_of_one_step_survives_any_length() {
        let mut maxima = of((0..100_000).map(|step| (step, if step == 31_234 { 60_000.0 } else { 0.125 })));
        maxima.push(99_999, 1.0, true);
        assert!(maxima.stretches.len() <= Maxima::CAPACITY);
        let peak: Vec<_> = maxima.iter().filter(|(_, s)| s.range() == Some((0.125, 60_000.0))).collect();
        assert_eq!(peak.len(), 1);
        assert!((peak[0].0..peak[0].0 + maxima.stride()).contains(&31_234), "{peak:?}");
        assert_eq!(maxima.iter().map(|(_, s)| s.non_finite).sum::<u32>(), 1);
    }

    #[test]
    fn steps_that_were_not_scanned_are_no_stretch() {
        let maxima = of([(10, 1.0), (14, 2.0)]);
        let found: Vec<_> = maxima.iter().map(|(step, s)| (step, s.range())).collect();
        assert_eq!(found, [(10, Some((1.0, 1.0))), (14, Some((2.0, 2.0)))]);
        assert_eq!(maxima.steps(), Some((10, 14)));
        let high = |step| maxima.at(step).and_then(|stretch| stretch.range()).map(|(_, high)| high);
        assert_eq!([9, 10, 11, 14, u64::MAX].map(high), [None, Some(1.0), None, Some(2.0), None]);
        assert_eq!(Maxima::default().steps(), None);
    }

    #[test]
    fn a_scan_with_a_non_finite_element_leaves_no_magnitude() {
        let mut maxima = Maxima::default();
        maxima.push(3, 5.0, true);
        maxima.push(3, f64::NAN, false);
        assert_eq!(maxima.iter().map(|(_, s)| (s.range(), s.non_finite)).collect::<Vec<_>>(), [(None, 2)]);
    }

    #[test]
    fn zero_and_what_f32_cannot_hold_stay_apart() {
        let maxima = of([(0, 0.0), (1, 1e-300), (2, 1e300)]);
        let found: Vec<_> = maxima.iter().filter_map(|(_, s)| s.range()).map(|(low, _)| low).collect();
        assert_eq!(found[0], 0.0);
        assert!(found[1] > 0.0 && found[2].is_finite(), "{found:?}");
    }

    #[test]
    fn a_step_back_and_a_wild_jump_are_taken() {
        let maxima = of([(1_000, 1.0), (900, 2.0), (u64::MAX, 4.0)]);
        let highs: Vec<f64> = maxima.iter().filter_map(|(_, s)| s.range()).map(|(_, high)| high).collect();
        assert_eq!(highs, [2.0, 4.0]);
        assert!(maxima.steps().is_some_and(|(first, last)| first <= 900 && last == u64::MAX));
    }

    #[test]
    fn the_larger_of_two_tensors_is_taken_step_by_step() {
        let (a, b) = (of([(0, 1.0), (1, 8.0), (3, 2.0)]), of([(0, 4.0), (1, 2.0), (2, 1.0)]));
        let mut larger = a.clone();
        larger.raise(&b);
        let found: Vec<_> = larger.iter().filter_map(|(step, s)| Some((step, s.range()?))).collect();
        assert_eq!(found, [(0, (4.0, 4.0)), (1, (8.0, 8.0)), (2, (1.0, 1.0)), (3, (2.0, 2.0))]);
        larger.raise(&Maxima::default());
        let mut from_nothing = Maxima::default();
        from_nothing.raise(&larger);
        assert_eq!(from_nothing.iter().collect::<Vec<_>>(), larger.iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_tensor_scanned_for_longer_is_not_lowered_by_one_scanned_briefly() {
        let mut long = of((0..5_000).map(|step| (step, 4.0)));
        long.raise(&of([(10, 1.0), (11, 16.0)]));
        let high = long.iter().filter_map(|(_, s)| s.range()).map(|(_, high)| high).fold(0.0, f64::max);
        let low = long.iter().filter_map(|(_, s)| s.range()).map(|(low, _)| low).fold(f64::INFINITY, f64::min);
        assert_eq!((low, high), (4.0, 16.0));
    }

    #[test]
    fn merged_maxima_are_those_of_all_scans_whatever_the_order() {
        let value = |step: u64| f64::from((step * 2_654_435_761 % 97) as u32 + 1);
        let all = of((0..3_000).map(|step| (step, value(step))));
        let (even, odd) = ((0..3_000).filter(|s| s % 2 == 0), (1..700).filter(|s| s % 2 == 1));
        let late = of((701..3_000).filter(|s| s % 2 == 1).map(|step| (step, value(step))));
        let mut merged = late;
        merged.merge(&of(even.map(|step| (step, value(step)))));
        merged.merge(&of(odd.map(|step| (step, value(step)))));
        assert_eq!(merged.iter().collect::<Vec<_>>(), all.iter().collect::<Vec<_>>());
    }
}
