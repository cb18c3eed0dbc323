//! How like a gradient is to the one that FP32 gives for the same batch.
//!
//! Both are read once, element by element. Cosine and norms tell whether the direction and the length of the step are right; which elements are
//! zero in one alone tells why. The sums of signed values tell what neither sees: elements lost at a classifier's output all have one sign, and move
//! the mean although the cosine stays at 0.999.

use super::Dtype;
use super::elements::{BLOCK, widen};

/// 2^-14: below it FP16 loses precision.
const SMALLEST_NORMAL: f32 = 6.103_515_6e-5;

/// A gradient beside the one that FP32 gives, summed over the elements of a tensor.
///
/// An element that is not finite in one of the two is counted, and is in none of the sums. Both sides are without a loss scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Likeness {
    /// Elements.
    pub count: u64,
    /// Elements that are finite and not zero in FP32.
    pub nonzero: u64,
    /// Those of them that are zero in the mixed-precision gradient.
    pub lost: u64,
    /// Elements of the mixed-precision gradient that are not zero.
    pub kept: u64,
    /// Those of them whose magnitude, times the loss scale, lies below 2^-14: FP16 held them in fading precision.
    pub fading: u64,
    /// Elements that are not finite in the mixed-precision gradient alone.
    pub non_finite: u64,
    /// Elements that are not finite in FP32, whatever the other holds.
    pub non_finite_in_fp32: u64,
    /// Sum of the products.
    pub dot: f64,
    /// Sum of the squares of the mixed-precision gradient.
    pub energy: f64,
    /// Sum of the squares in FP32.
    pub fp32_energy: f64,
    /// The part of it that stands in lost elements.
    pub lost_energy: f64,
    /// Sum of the mixed-precision gradient.
    pub sum: f64,
    /// Sum of its magnitudes.
    pub magnitude: f64,
    /// Sum in FP32.
    pub fp32_sum: f64,
    /// Sum of the magnitudes in FP32.
    pub fp32_magnitude: f64,
}

impl Likeness {
    /// Cosine of the angle between the two, -1 to 1; `None` where one of them is zero.
    pub fn cosine(&self) -> Option<f64> {
        let norms = self.energy.sqrt() * self.fp32_energy.sqrt();
        (norms > 0.0).then(|| (self.dot / norms).clamp(-1.0, 1.0))
    }

    /// The norm over FP32's; `None` where FP32's is zero.
    pub fn norm_ratio(&self) -> Option<f64> {
        (self.fp32_energy > 0.0).then(|| (self.energy / self.fp32_energy).sqrt())
    }

    /// The share of the elements that FP32 has and mixed precision rounded to zero, 0 to 1; `None` where FP32 has none.
    pub fn lost_share(&self) -> Option<f64> {
        (self.nonzero > 0).then(|| self.lost as f64 / self.nonzero as f64)
    }

    /// The share of the energy (the square of the norm) that stands in lost elements, 0 to 1; `None` where there is none.
    pub fn lost_energy_share(&self) -> Option<f64> {
        (self.fp32_energy > 0.0).then(|| self.lost_energy / self.fp32_energy)
    }

    /// The share of the elements of the mixed-precision gradient that lay below 2^-14 as FP16 held them, 0 to 1; `None` where none is left.
    pub fn fading_share(&self) -> Option<f64> {
        (self.kept > 0).then(|| self.fading as f64 / self.kept as f64)
    }

    /// How one-sided the signs are, -1 to 1: the sum over the sum of magnitudes, in mixed precision and in FP32; `None` where one is zero.
    pub fn sign_bias(&self) -> Option<(f64, f64)> {
        let sides = self.magnitude > 0.0 && self.fp32_magnitude > 0.0;
        sides.then(|| (self.sum / self.magnitude, self.fp32_sum / self.fp32_magnitude))
    }

    /// The same with the mixed-precision gradient divided by `factor`.
    pub fn unscaled(mut self, factor: f64) -> Self {
        self.dot /= factor;
        self.energy /= factor * factor;
        self.sum /= factor;
        self.magnitude /= factor.abs();
        self
    }

    /// Adds another tensor's, or another step's.
    pub fn merge(&mut self, other: &Self) {
        for (mine, other) in [
            (&mut self.count, other.count),
            (&mut self.nonzero, other.nonzero),
            (&mut self.lost, other.lost),
            (&mut self.kept, other.kept),
            (&mut self.fading, other.fading),
            (&mut self.non_finite, other.non_finite),
            (&mut self.non_finite_in_fp32, other.non_finite_in_fp32),
        ] {
            *mine = mine.saturating_add(other);
        }
        for (mine, other) in [
            (&mut self.dot, other.dot),
            (&mut self.energy, other.energy),
            (&mut self.fp32_energy, other.fp32_energy),
            (&mut self.lost_energy, other.lost_energy),
            (&mut self.sum, other.sum),
            (&mut self.magnitude, other.magnitude),
            (&mut self.fp32_sum, other.fp32_sum),
            (&mut self.fp32_magnitude, other.fp32_magnitude),
        ] {
            *mine += other;
        }
    }

    fn add(&mut self, held: f32, fp32: f32, scale: f64) {
        self.count += 1;
        if !fp32.is_finite() {
            self.non_finite_in_fp32 += 1;
            return;
        }
        self.nonzero += u64::from(fp32 != 0.0);
        if !held.is_finite() {
            self.non_finite += 1;
            return;
        }
        let (mixed, exact) = (f64::from(held) / scale, f64::from(fp32));
        self.kept += u64::from(held != 0.0);
        self.fading += u64::from(held != 0.0 && held.abs() < SMALLEST_NORMAL);
        if held == 0.0 && fp32 != 0.0 {
            self.lost += 1;
            self.lost_energy += exact * exact;
        }
        self.dot += mixed * exact;
        self.energy += mixed * mixed;
        self.fp32_energy += exact * exact;
        self.sum += mixed;
        self.magnitude += mixed.abs();
        self.fp32_sum += exact;
        self.fp32_magnitude += exact.abs();
    }
}

/// A gradient beside FP32's: `held` is the memory of the mixed-precision one, of type `dtype`, which still carries `scale`; `fp32` stands in the same
/// order. A `held` without a byte is a gradient that never came: all zero.
///
/// # Panics
/// If the two do not have the same number of elements.
pub fn likeness(dtype: Dtype, held: &[u8], scale: f64, fp32: &[f32]) -> Likeness {
    let mut sum = Likeness::default();
    if held.is_empty() {
        fp32.iter().for_each(|&exact| sum.add(0.0, exact, scale));
        return sum;
    }
    assert_eq!(held.len(), fp32.len() * dtype.size(), "one element of the gradient for each of FP32's");
    let mut block = [0.0; BLOCK];
    for (held, fp32) in held.chunks(BLOCK * dtype.size()).zip(fp32.chunks(BLOCK)) {
        widen(dtype, held, &mut block);
        block.iter().zip(fp32).for_each(|(&held, &exact)| sum.add(held, exact, scale));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    fn of(held: &[f32], scale: f64, fp32: &[f32]) -> Likeness {
        let bytes: Vec<u8> = held.iter().flat_map(|&x| f16::from_f32(x).to_ne_bytes()).collect();
        likeness(Dtype::F16, &bytes, scale, fp32)
    }

    #[test]
    fn the_same_gradient_times_the_scale_is_alike_in_all() {
        let exact: Vec<f32> = (1..2000).map(|i| i as f32).collect();
        let held: Vec<f32> = exact.iter().map(|x| x * 4.0).collect();
        let like = of(&held, 4.0, &exact);
        assert_eq!((like.count, like.nonzero, like.lost, like.fading), (1999, 1999, 0, 0));
        assert!((like.cosine().unwrap() - 1.0).abs() < 1e-6, "FP16 has 11 bits");
        assert!((like.norm_ratio().unwrap() - 1.0).abs() < 1e-3);
        assert_eq!(like.sign_bias().map(|(a, b)| (a.round(), b)), Some((1.0, 1.0)));
    }

    #[test]
    fn lost_and_fading_are_told_apart_and_zeros_of_both_are_neither() {
        let like = of(&[0.0, 0.0, 1e-6, 1.0], 1.0, &[0.0, 1e-8, 1e-6, 1.0]);
        assert_eq!((like.nonzero, like.lost, like.kept, like.fading), (3, 1, 2, 1));
        assert_eq!((like.lost_share(), like.fading_share()), (Some(1.0 / 3.0), Some(0.5)));
        assert!(like.lost_energy_share().unwrap() < 1e-15, "what was lost had no weight");
    }

    #[test]
    fn what_is_not_finite_on_one_side_is_counted_and_in_no_sum() {
        let like = of(&[f32::INFINITY, 1.0, 1.0], 1.0, &[2.0, f32::NAN, 1.0]);
        assert_eq!((like.non_finite, like.non_finite_in_fp32, like.nonzero), (1, 1, 2));
        assert_eq!((like.dot, like.energy, like.fp32_energy), (1.0, 1.0, 1.0));
    }

    #[test]
    fn one_sided_loss_shows_in_the_signs_and_not_in_the_cosine() {
        // A softmax row in small: one wrong class far below, all others a little above.
        let mut exact = vec![1e-8_f32; 1000];
        exact[0] = -1e-5;
        let held: Vec<f32> = exact.iter().map(|&x| f16::from_f32(x).to_f32()).collect();
        let like = of(&held, 1.0, &exact);
        let (mixed, fp32) = like.sign_bias().unwrap();
        assert!(like.cosine().unwrap() > 0.999 && mixed == -1.0 && fp32.abs() < 1e-3, "{like:?}");
    }

    #[test]
    fn a_gradient_that_never_came_is_lost_whole() {
        let like = likeness(Dtype::F32, &[], 1.0, &[1.0, 0.0, 2.0]);
        assert_eq!((like.lost_share(), like.norm_ratio(), like.cosine()), (Some(1.0), Some(0.0), None));
        assert_eq!(Likeness::default().lost_share(), None);
    }

    #[test]
    fn two_halves_merged_are_the_whole() {
        let (exact, held) = ([1.0, 2.0, 3.0, 1e-8], [1.0, 2.0, 3.0, 0.0]);
        let mut halves = of(&held[..2], 1.0, &exact[..2]);
        halves.merge(&of(&held[2..], 1.0, &exact[2..]));
        assert_eq!(halves, of(&held, 1.0, &exact));
    }
}
