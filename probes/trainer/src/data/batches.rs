//! The order in which examples are shown.

use crate::random::SplitMix64;

/// Batches without end: every example once an epoch, in an order that only the seed decides; an incomplete last batch is left out.
#[derive(Debug)]
pub struct Batches {
    order: Vec<i64>,
    next: usize,
    batch: usize,
    random: SplitMix64,
}

impl Batches {
    /// Batches of `batch` out of `examples`; at least one example, at most all of them.
    pub fn new(examples: usize, batch: usize, seed: u64) -> Self {
        let order = (0..examples as i64).collect();
        // Full, so that the first call shuffles.
        Self { order, next: examples, batch: batch.clamp(1, examples), random: SplitMix64::new(seed) }
    }

    /// The indices of the next batch.
    pub fn next_indices(&mut self) -> &[i64] {
        if self.next + self.batch > self.order.len() {
            self.random.shuffle(&mut self.order);
            self.next = 0;
        }
        let begin = self.next;
        self.next += self.batch;
        &self.order[begin..self.next]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_shows_each_example_at_most_once() {
        let mut batches = Batches::new(10, 3, 1);
        let mut seen: Vec<i64> = (0..3).flat_map(|_| batches.next_indices().to_vec()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 9);
    }

    #[test]
    fn a_batch_larger_than_the_set_is_the_set() {
        let mut batches = Batches::new(4, 100, 1);
        assert_eq!(batches.next_indices().len(), 4);
        assert_eq!(batches.next_indices().len(), 4);
    }

    #[test]
    fn the_seed_decides_the_order() {
        let order = |seed| Batches::new(50, 50, seed).next_indices().to_vec();
        assert_eq!(order(3), order(3));
        assert_ne!(order(3), order(4));
    }
}
