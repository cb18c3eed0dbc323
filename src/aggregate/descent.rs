//! Whose overflow a streak of skips is.
//!
//! While the scale falls, the first non-finite gradient in the order of backward moves from the loss towards the input: at each scale the tensors nearer
//! the loss fit, and the first that does not is the next one. How many octaves a tensor stays the first is by how much it stands above all that backward met before it. Ordinary
//! layers differ by one or two octaves; one that inflates its gradient stands far above what came in, and what lies behind it only inherits that.

use super::Origin;
use crate::observation::SiteId;

/// The tensors at which the gradients of one streak became non-finite, in the order in which they were first met.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Descent {
    held: Vec<Held>,
}

/// A tensor that was the first non-finite one in backward.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Held {
    latest: Origin,
    highest_scale: f64,
    lowest_scale: f64,
    times: u64,
}

impl Descent {
    /// Adds the first non-finite gradient of a step.
    pub fn push(&mut self, origin: Origin) {
        let scale = origin.loss_scale.unwrap_or(1.0);
        match self.held.iter_mut().find(|held| held.site() == origin.site) {
            Some(held) => held.renew(origin, scale),
            None => {
                self.held.push(Held { latest: origin, highest_scale: scale, lowest_scale: scale, times: 1 });
            }
        }
    }

    /// The tensor that was the first over most octaves of the scale, as it was last; of equals the more frequent, then the earlier. `None` where no step
    /// was scanned.
    pub fn widest(&self) -> Option<Origin> {
        let by_width = |a: &&Held, b: &&Held| a.octaves().total_cmp(&b.octaves()).then_with(|| a.times.cmp(&b.times));
        // Of equals `max_by` takes the last.
        self.held.iter().rev().max_by(by_width).map(|held| held.latest)
    }
}

impl Held {
    fn site(&self) -> SiteId {
        self.latest.site
    }

    fn renew(&mut self, origin: Origin, scale: f64) {
        self.latest = origin;
        self.times += 1;
        self.highest_scale = self.highest_scale.max(scale);
        self.lowest_scale = self.lowest_scale.min(scale);
    }

    fn octaves(&self) -> f64 {
        (self.highest_scale / self.lowest_scale.max(f64::MIN_POSITIVE)).log2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The widest of a descent: each a site and the exponent of the scale.
    fn widest(origins: &[(u32, i32)]) -> Option<u32> {
        let mut descent = Descent::default();
        for (step, &(site, exponent)) in origins.iter().enumerate() {
            descent.push(Origin {
                step: step as u64,
                site: SiteId(site),
                via: None,
                loss_scale: Some(f64::from(exponent).exp2()),
                nan: 0,
                inf: 1,
                count: 8,
                after_mask: false,
            });
        }
        descent.widest().map(|origin| origin.site.0)
    }

    #[test]
    fn the_first_over_most_octaves_is_it_wherever_in_the_streak_it_stands() {
        assert_eq!(widest(&[]), None);
        assert_eq!(widest(&[(1, 4), (1, 3), (1, 2), (2, 1), (3, 0)]), Some(1));
        assert_eq!(widest(&[(1, 16), (1, 15), (2, 14), (2, 10), (2, 6), (3, 5)]), Some(2));
    }

    #[test]
    fn a_scale_at_its_floor_adds_steps_and_no_octaves() {
        assert_eq!(widest(&[(1, 4), (1, 3), (1, 1), (2, 0), (2, 0), (2, 0), (2, 0)]), Some(1));
    }

    #[test]
    fn one_batch_that_is_different_does_not_part_what_belongs_together() {
        assert_eq!(widest(&[(1, 9), (1, 7), (2, 6), (1, 5), (1, 3), (2, 2), (2, 0)]), Some(1));
    }

    #[test]
    fn at_a_scale_that_stands_still_the_more_frequent_is_it_and_then_the_earlier() {
        assert_eq!(widest(&[(1, 0), (2, 0), (2, 0)]), Some(2));
        assert_eq!(widest(&[(1, 0), (2, 0)]), Some(1));
    }
}
