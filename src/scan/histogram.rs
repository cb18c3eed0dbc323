//! The exact histogram of binary exponents.

/// How many finite non-zero elements have each binary exponent `floor(log2 |x|)`, subnormals included.
///
/// Exponents range from -1074 to 1023 (`f64`). Stored densely between the lowest and the highest exponent met.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ExponentHistogram {
    first: i32,
    counts: Vec<u64>,
}

impl Clone for ExponentHistogram {
    fn clone(&self) -> Self {
        Self { first: self.first, counts: self.counts.clone() }
    }

    /// In the memory that is there: windows of samples take in one scan after the other.
    fn clone_from(&mut self, other: &Self) {
        self.first = other.first;
        self.counts.clone_from(&other.counts);
    }
}

impl ExponentHistogram {
    /// A histogram whose `counts[i]` elements have exponent `first + i`; empty ends are trimmed.
    pub fn from_counts(first: i32, counts: impl Into<Vec<u64>>) -> Self {
        let mut counts = counts.into();
        let Some(start) = counts.iter().position(|&n| n > 0) else {
            return Self::default();
        };
        let end = counts.iter().rposition(|&n| n > 0).unwrap_or(start);
        counts.truncate(end + 1);
        counts.drain(..start);
        Self { first: first + start as i32, counts }
    }

    /// Adds `n` elements of exponent `exponent`.
    pub fn add(&mut self, exponent: i32, n: u64) {
        if n == 0 {
            return;
        }
        self.cover(exponent, exponent);
        let at = (exponent - self.first) as usize;
        self.counts[at] = self.counts[at].saturating_add(n);
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.merge_shifted(other, 0);
    }

    /// Adds all of `other`, each element times `2^by`.
    pub fn merge_shifted(&mut self, other: &Self, by: i32) {
        let Some(highest) = other.highest() else { return };
        self.cover(other.first + by, highest + by);
        let at = (other.first + by - self.first) as usize;
        for (sum, &n) in self.counts[at..].iter_mut().zip(&other.counts) {
            *sum = sum.saturating_add(n);
        }
    }

    /// Adds `counts[i]` elements of exponent `first + i`. The scan's blocks end here: no allocation once the range is known.
    pub(super) fn add_counts(&mut self, first: i32, counts: &[u32]) {
        let Some(start) = counts.iter().position(|&n| n > 0) else {
            return;
        };
        let end = counts.iter().rposition(|&n| n > 0).unwrap_or(start);
        let (first, counts) = (first + start as i32, &counts[start..=end]);
        self.cover(first, first + counts.len() as i32 - 1);
        let at = (first - self.first) as usize;
        for (sum, &n) in self.counts[at..].iter_mut().zip(counts) {
            *sum = sum.saturating_add(u64::from(n));
        }
    }

    /// Makes room for the exponents `low..=high`.
    fn cover(&mut self, low: i32, high: i32) {
        if self.counts.is_empty() {
            self.first = low;
        }
        if low < self.first {
            self.counts.splice(0..0, std::iter::repeat_n(0, (self.first - low) as usize));
            self.first = low;
        }
        let length = (high - self.first + 1) as usize;
        if length > self.counts.len() {
            self.counts.resize(length, 0);
        }
    }

    /// The histogram with every count times `times`; counts stop at `u64::MAX`.
    pub fn repeated(mut self, times: u64) -> Self {
        for n in &mut self.counts {
            *n = n.saturating_mul(times);
        }
        Self::from_counts(self.first, self.counts)
    }

    /// Elements of exponent `exponent`.
    pub fn count(&self, exponent: i32) -> u64 {
        usize::try_from(exponent - self.first).ok().and_then(|i| self.counts.get(i)).copied().unwrap_or(0)
    }

    /// Pairs of exponent and count, rising, without the empty ones.
    pub fn iter(&self) -> impl Iterator<Item = (i32, u64)> + '_ {
        self.counts.iter().enumerate().filter(|&(_, &n)| n > 0).map(|(i, &n)| (self.first + i as i32, n))
    }

    /// All elements counted.
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, &n| sum.saturating_add(n))
    }

    /// Elements whose exponent is below `exponent`.
    pub fn below(&self, exponent: i32) -> u64 {
        self.iter().take_while(|&(e, _)| e < exponent).fold(0, |sum, (_, n)| sum.saturating_add(n))
    }

    /// The lowest exponent that occurs.
    pub fn lowest(&self) -> Option<i32> {
        self.iter().next().map(|(e, _)| e)
    }

    /// The highest exponent that occurs.
    pub fn highest(&self) -> Option<i32> {
        (!self.counts.is_empty()).then(|| self.first + self.counts.len() as i32 - 1)
    }

    /// The histogram of the same elements times `2^by`.
    pub fn shifted(&self, by: i32) -> Self {
        Self { first: self.first + by, counts: self.counts.clone() }
    }

    /// The first stored exponent and the counts from there on, for storing.
    pub fn parts(&self) -> (i32, &[u64]) {
        (self.first, &self.counts)
    }
}
