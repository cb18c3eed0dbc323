//! What the run has shown of each loss scale that was in force: at every step, scanned or not.

use std::collections::BTreeMap;

/// The scales, by exponent, at which steps were taken or skipped. A scale has one of some 300 exponents, so that its memory does not depend on the steps.
///
/// A skip counts where the loss was finite: one whose forward failed says nothing of the scale.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScalesTried {
    by_exponent: BTreeMap<i32, Tried>,
    /// The exponents of the skips in a row up to now, each once, in the order in which they came.
    row: Vec<i32>,
    /// Steps taken at any scale.
    taken: u64,
    /// Steps taken since the latest skip.
    taken_since_skip: u64,
}

/// Steps taken at one scale since the latest skip at it or below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The first of them.
    pub since: u64,
    /// How many.
    pub steps: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tried {
    taken: Option<Taken>,
    /// Skipped there, and no step taken there or above since.
    refused: bool,
}

impl ScalesTried {
    /// Skips in a row, at least, from which the first steps of a run say that the scale was too high, and not that one batch was bad.
    const IN_A_ROW: usize = 2;
    /// Steps taken after a skip, at least, from which the gradients count as such that fit.
    const SETTLED: u64 = 3;

    /// Adds a step of the scaler at `scale`; a scale that is no positive number tells nothing.
    pub(super) fn push(&mut self, step: u64, scale: f64, refused: bool, loss_is_finite: bool) {
        if !(scale > 0.0 && scale.is_finite()) {
            return;
        }
        let exponent = scale.log2().floor() as i32;
        match (refused, loss_is_finite) {
            (true, false) => self.taken_since_skip = 0,
            (true, true) => self.skip(exponent),
            (false, _) => self.take(step, exponent),
        }
    }

    fn skip(&mut self, exponent: i32) {
        self.taken_since_skip = 0;
        for (_, tried) in self.by_exponent.range_mut(exponent..) {
            tried.taken = None;
        }
        // Each once: at a floor a scale is skipped again and again, and one that somebody moves to and fro comes back.
        if !self.row.contains(&exponent) {
            self.row.push(exponent);
        }
    }

    fn take(&mut self, step: u64, exponent: i32) {
        let row = std::mem::take(&mut self.row);
        // At the start a single skip may be of a bad batch; one at a scale that no step was ever taken at, after all before fitted, is the scaler's probing.
        if row.len() >= Self::IN_A_ROW && self.taken == 0 || self.is_probe(&row) {
            for skipped in row {
                self.by_exponent.entry(skipped).or_default().refused = true;
            }
        }
        for (_, tried) in self.by_exponent.range_mut(..=exponent) {
            tried.refused = false;
        }
        let tried = self.by_exponent.entry(exponent).or_default();
        tried.taken.get_or_insert(Taken { since: step, steps: 0 }).steps += 1;
        self.taken += 1;
        self.taken_since_skip += 1;
    }

    /// Whether the scaler had grown to a scale beyond all at which it had ever taken a step.
    fn is_probe(&self, row: &[i32]) -> bool {
        let Some(first) = row.first().filter(|_| self.taken > 0) else { return false };
        self.by_exponent.range(first..).next().is_none()
    }

    /// The highest scale up to `2^exponent` at which steps were taken since the latest skip at it or a lower one, and these steps.
    pub fn taken_up_to(&self, exponent: i32) -> Option<(i32, Taken)> {
        self.by_exponent.range(..=exponent).rev().find_map(|(exponent, tried)| Some((*exponent, tried.taken?)))
    }

    /// The lowest scale, as an exponent, at which gradients overflowed and no step was taken since, there or above: they overflowed in the first steps,
    /// several in a row, or where the scale had just grown. `None` below 1, where it is not the scale that is too high, and while skips go on.
    pub fn refused_from(&self) -> Option<i32> {
        let lowest = self.by_exponent.iter().find(|(_, tried)| tried.refused).map(|(exponent, _)| *exponent);
        lowest.filter(|&exponent| exponent > 0 && self.taken_since_skip >= Self::SETTLED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps at these exponents, taken or skipped.
    fn tried(steps: &[(i32, bool)]) -> ScalesTried {
        let mut tried = ScalesTried::default();
        for (step, &(exponent, refused)) in steps.iter().enumerate() {
            tried.push(step as u64, f64::from(exponent).exp2(), refused, true);
        }
        tried
    }

    const TAKEN: bool = false;
    const SKIPPED: bool = true;

    fn calibrated_to_14() -> Vec<(i32, bool)> {
        [(16, SKIPPED), (15, SKIPPED)].into_iter().chain([(14, TAKEN); 5]).collect()
    }

    #[test]
    fn a_calibration_refuses_the_scales_that_it_came_down() {
        let tried = tried(&calibrated_to_14());
        assert_eq!(tried.refused_from(), Some(15));
        assert_eq!(tried.taken_up_to(16), Some((14, Taken { since: 2, steps: 5 })));
        assert_eq!(tried.taken_up_to(13), None);
    }

    #[test]
    fn a_scale_that_is_held_later_is_refused_no_longer() {
        let mut steps = calibrated_to_14();
        steps.push((16, TAKEN));
        assert_eq!(tried(&steps).refused_from(), None);
    }

    #[test]
    fn skips_that_never_end_take_no_more_memory_however_the_scale_moves() {
        let steps: Vec<_> = (0..10_000).map(|n| (9 + n % 2, SKIPPED)).collect();
        assert_eq!(tried(&steps).row, [9, 10]);
    }

    #[test]
    fn a_single_bad_batch_refuses_no_scale() {
        let at_the_start: Vec<_> = [(16, SKIPPED)].into_iter().chain([(15, TAKEN); 5]).collect();
        assert_eq!(tried(&at_the_start).refused_from(), None);
        let later: Vec<_> = [(16, TAKEN), (16, SKIPPED)].into_iter().chain([(15, TAKEN); 5]).collect();
        assert_eq!(tried(&later).refused_from(), None);
    }

    #[test]
    fn a_skip_right_after_a_growth_to_a_new_height_refuses_it() {
        let grown: Vec<_> = [(8, TAKEN), (9, TAKEN), (10, SKIPPED)].into_iter().chain([(9, TAKEN); 3]).collect();
        assert_eq!(tried(&grown).refused_from(), Some(10));
    }

    #[test]
    fn skips_that_go_on_and_scales_below_one_say_nothing() {
        assert_eq!(tried(&[(16, SKIPPED), (15, SKIPPED), (14, TAKEN), (14, SKIPPED)]).refused_from(), None);
        let down: Vec<_> = (0..20).map(|n| (16 - n, SKIPPED)).chain([(-4, TAKEN); 5]).collect();
        assert_eq!(tried(&down).refused_from(), None);
    }

    #[test]
    fn a_skip_takes_back_what_was_taken_at_its_scale_and_above_and_not_below() {
        let tried = tried(&[(8, TAKEN), (9, TAKEN), (10, TAKEN), (9, SKIPPED)]);
        assert_eq!(tried.taken_up_to(10).map(|(exponent, _)| exponent), Some(8));
    }

    #[test]
    fn skips_with_a_loss_that_is_not_finite_say_nothing_of_the_scale() {
        let mut tried = ScalesTried::default();
        (0..3).for_each(|n| tried.push(n, f64::from(16 - n as i32).exp2(), true, false));
        (3..9).for_each(|n| tried.push(n, 8192.0, false, true));
        assert_eq!(tried.refused_from(), None);
    }
}
