//! What rounding leaves of an update that is added to a weight.
//!
//! `applied` is the change that the weight really made, `intended` the one that the optimizer computed. Their scalar product over the
//! square of the intended one, *phi*, is 1 where rounding makes no difference on the whole, 0 where nothing arrives, and above 1 where
//! rounding up amplifies. The share of weights that did not move says less: those that did move make up for them.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::Dtype;
use super::elements::{BLOCK, widen};

/// What rounding left of an update, summed over the elements of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fidelity {
    /// Elements whose intended change was finite and not zero.
    pub intended: u64,
    /// Those among them that did not change.
    pub dead: u64,
    /// Elements whose intended change was a NaN or an infinity; they are in none of the sums.
    pub non_finite: u64,
    /// Sum of applied times intended.
    pub dot: f64,
    /// Sum of the squares of intended.
    pub energy: f64,
}

impl Fidelity {
    /// `<applied, intended> / <intended, intended>`; `None` where no change was intended.
    pub fn phi(&self) -> Option<f64> {
        (self.energy > 0.0).then(|| self.dot / self.energy)
    }

    /// The share of the elements with an intended change that did not change, 0 to 1; `None` where no change was intended.
    pub fn dead_share(&self) -> Option<f64> {
        (self.intended > 0).then(|| self.dead as f64 / self.intended as f64)
    }

    /// Adds another tensor's, or another step's.
    pub fn merge(&mut self, other: &Self) {
        self.intended = self.intended.saturating_add(other.intended);
        self.dead = self.dead.saturating_add(other.dead);
        self.non_finite = self.non_finite.saturating_add(other.non_finite);
        self.dot += other.dot;
        self.energy += other.energy;
    }

    /// Adds a block of elements.
    fn add(&mut self, before: &[f32], after: &[f32], intended: &[f32]) {
        let lanes = add_lanes(before, after, intended);
        let total = |counts: [u32; LANES]| counts.iter().map(|&n| u64::from(n)).sum::<u64>();
        self.intended += total(lanes.intended);
        self.dead += total(lanes.dead);
        self.non_finite += total(lanes.non_finite);
        self.dot += lanes.dot.iter().sum::<f64>();
        self.energy += lanes.energy.iter().sum::<f64>();
    }
}

/// Sums that are taken side by side, so that a processor adds several at a time.
const LANES: usize = 8;

/// The sums of one block.
#[derive(Default)]
struct Lanes {
    intended: [u32; LANES],
    dead: [u32; LANES],
    non_finite: [u32; LANES],
    dot: [f64; LANES],
    energy: [f64; LANES],
}

impl Lanes {
    #[inline(always)]
    fn add(&mut self, lane: usize, before: f32, after: f32, intended: f32) {
        let finite = intended.abs() < f32::INFINITY;
        let counts = finite & (intended != 0.0);
        let applied = after - before;
        // A weight that was not finite before or after has no change to speak of.
        let applied = if applied.abs() < f32::INFINITY { applied } else { 0.0 };
        let wanted = f64::from(if counts { intended } else { 0.0 });
        self.non_finite[lane] += u32::from(!finite);
        self.intended[lane] += u32::from(counts);
        self.dead[lane] += u32::from(counts & (after == before));
        self.dot[lane] += f64::from(applied) * wanted;
        self.energy[lane] += wanted * wanted;
    }

    /// The same sums in the same order, whatever instructions it is compiled for.
    #[inline(always)]
    fn of(before: &[f32], after: &[f32], intended: &[f32]) -> Self {
        let mut lanes = Self::default();
        let (before, last_before) = before.as_chunks::<LANES>();
        let (after, last_after) = after.as_chunks::<LANES>();
        let (intended, last_intended) = intended.as_chunks::<LANES>();
        for ((before, after), intended) in before.iter().zip(after).zip(intended) {
            for lane in 0..LANES {
                lanes.add(lane, before[lane], after[lane], intended[lane]);
            }
        }
        for (lane, ((before, after), intended)) in last_before.iter().zip(last_after).zip(last_intended).enumerate() {
            lanes.add(lane, *before, *after, *intended);
        }
        lanes
    }
}

fn add_lanes(before: &[f32], after: &[f32], intended: &[f32]) -> Lanes {
    let n = before.len().min(after.len()).min(intended.len());
    let (before, after, intended) = (&before[..n], &after[..n], &intended[..n]);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { add_lanes_avx2(before, after, intended) };
    }
    Lanes::of(before, after, intended)
}

/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn add_lanes_avx2(before: &[f32], after: &[f32], intended: &[f32]) -> Lanes {
    Lanes::of(before, after, intended)
}

/// What a tensor's format left of the change `intended`: `before` and `after` are its memory (as [`super::TensorView::dense_bytes`] gives it)
/// before and after the change, `intended` stands in the same order. Differences are taken in `f32`.
///
/// # Panics
/// If the three do not have the same number of elements.
pub fn fidelity(dtype: Dtype, before: &[u8], after: &[u8], intended: &[f32]) -> Fidelity {
    assert_eq!(before.len(), after.len(), "the memory before and after a change has one length");
    assert_eq!(before.len(), intended.len() * dtype.size(), "one intended change for each element");
    let mut sum = Fidelity::default();
    let block = BLOCK * dtype.size();
    let (mut old, mut new) = ([0.0; BLOCK], [0.0; BLOCK]);
    for ((before, after), intended) in before.chunks(block).zip(after.chunks(block)).zip(intended.chunks(BLOCK)) {
        widen(dtype, before, &mut old);
        widen(dtype, after, &mut new);
        sum.add(&old, &new, intended);
    }
    sum
}

/// The part of the energy of `intended`, the sum of its squares, that was meant for elements that did not change; of the finite ones. The arguments are those
/// of [`fidelity`].
///
/// # Panics
/// If the three do not have the same number of elements.
pub fn unmoved_energy(dtype: Dtype, before: &[u8], after: &[u8], intended: &[f32]) -> f64 {
    assert_eq!(before.len(), after.len(), "the memory before and after a change has one length");
    assert_eq!(before.len(), intended.len() * dtype.size(), "one intended change for each element");
    let elements = before.chunks(dtype.size()).zip(after.chunks(dtype.size())).zip(intended);
    let unmoved = elements.filter(|((before, after), intended)| before == after && intended.is_finite());
    unmoved.map(|(_, intended)| f64::from(*intended) * f64::from(*intended)).sum()
}

/// What `weights`' format would have left of the change from `before` to `after`, both memory of an `f32` tensor, had the optimizer
/// stepped weights of that format: `round(round(before) + change) - round(before)` in place of the change.
///
/// # Panics
/// If the two do not have the same number of elements.
pub fn fidelity_in(weights: Dtype, before: &[u8], after: &[u8]) -> Fidelity {
    assert_eq!(before.len(), after.len(), "the memory before and after a change has one length");
    let mut sum = Fidelity::default();
    let block = BLOCK * Dtype::F32.size();
    let (mut held, mut stepped, mut change) = ([0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
    for (before, after) in before.chunks(block).zip(after.chunks(block)) {
        let n = widen(Dtype::F32, before, &mut held);
        widen(Dtype::F32, after, &mut change);
        change.iter_mut().zip(&held).for_each(|(new, old)| *new -= old);
        round(weights, &mut held);
        stepped.iter_mut().zip(held.iter().zip(&change)).for_each(|(to, (held, change))| *to = held + change);
        round(weights, &mut stepped);
        sum.add(&held[..n], &stepped, &change);
    }
    sum
}

/// Elements of `copy` in a coarser format that are not what `master`, in `f32`, rounds to; a NaN is like a NaN.
///
/// # Panics
/// If the two do not have the same number of elements.
pub fn unlike_rounded(copy_dtype: Dtype, copy: &[u8], master: &[u8]) -> u64 {
    let (size, wide) = (copy_dtype.size(), Dtype::F32.size());
    assert_eq!(copy.len() / size, master.len() / wide, "a copy has as many elements as its master");
    let (mut held, mut exact) = ([0.0; BLOCK], [0.0; BLOCK]);
    let blocks = copy.chunks(BLOCK * size).zip(master.chunks(BLOCK * wide));
    let unlike = |(copy, master): (&[u8], &[u8])| {
        let n = widen(copy_dtype, copy, &mut held);
        widen(Dtype::F32, master, &mut exact);
        round(copy_dtype, &mut exact);
        held[..n].iter().zip(&exact).filter(|&(a, b)| a != b && !(a.is_nan() && b.is_nan())).count() as u64
    };
    blocks.map(unlike).sum()
}

/// Each to the nearest number of the format, ties to even; beyond its range an infinity.
fn round(dtype: Dtype, values: &mut [f32; BLOCK]) {
    match dtype {
        Dtype::F16 => {
            let mut halves = [f16::ZERO; BLOCK];
            halves.convert_from_f32_slice(values);
            halves.convert_to_f32_slice(values);
        }
        Dtype::Bf16 => {
            let mut halves = [bf16::ZERO; BLOCK];
            halves.convert_from_f32_slice(values);
            halves.convert_to_f32_slice(values);
        }
        Dtype::F32 | Dtype::F64 => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// To the nearest number of FP16.
    fn half(x: f64) -> f64 {
        f64::from(f16::from_f64(x))
    }

    /// Weights as N(0, 0.02), and the signs of updates.
    fn weights(n: usize) -> (Vec<f64>, Vec<f64>) {
        let mut state = 7u64;
        let mut uniform = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        };
        let mut normal = || (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
        let weights = (0..n).map(|_| 0.02 * normal()).collect();
        (weights, (0..n).map(|_| normal().signum()).collect())
    }

    fn bytes(dtype: Dtype, values: impl Iterator<Item = f64>) -> Vec<u8> {
        values
            .flat_map(|x| match dtype {
                Dtype::F16 => f16::from_f64(x).to_ne_bytes().to_vec(),
                Dtype::Bf16 => bf16::from_f64(x).to_ne_bytes().to_vec(),
                Dtype::F32 => (x as f32).to_ne_bytes().to_vec(),
                Dtype::F64 => x.to_ne_bytes().to_vec(),
            })
            .collect()
    }

    /// One step of `size` on FP16 weights, as an optimizer takes it.
    fn step_in_fp16(size: f64) -> Fidelity {
        let (w, signs) = weights(200_000);
        let held: Vec<f64> = w.iter().map(|&x| half(x)).collect();
        let intended: Vec<f32> = signs.iter().map(|s| (s * size) as f32).collect();
        let before = bytes(Dtype::F16, held.iter().copied());
        let after = bytes(Dtype::F16, held.iter().zip(&intended).map(|(w, u)| w + f64::from(*u)));
        fidelity(Dtype::F16, &before, &after, &intended)
    }

    #[test]
    fn the_known_figures_of_fp16_come_out() {
        for (size, dead, phi) in [(1e-5, 0.118, 1.00), (3e-6, 0.697, 0.36), (1e-6, 0.845, 0.22), (1e-7, 0.99, 0.012)] {
            let f = step_in_fp16(size);
            let (d, p) = (f.dead_share().unwrap(), f.phi().unwrap());
            assert!((d - dead).abs() < 0.006, "{size:e}: {d:.4} dead, not {dead}");
            assert!((p - phi).abs() < 0.006 && (p / phi - 1.0).abs() < 0.06, "{size:e}: phi {p:.4}, not {phi}");
        }
    }

    #[test]
    fn what_moves_too_far_makes_up_for_nothing_in_what_does_not_move() {
        let before = bytes(Dtype::F16, [1.0, 1.0, 1.0].into_iter());
        let intended = [2e-4, 6e-4, f32::INFINITY];
        let after = bytes(Dtype::F16, [1.0 + 2e-4, 1.0 + 6e-4, 1.0].into_iter());
        let f = fidelity(Dtype::F16, &before, &after, &intended);
        assert!(f.phi().unwrap() > 1.4 && f.dead == 1, "{f:?}");
        let unmoved = unmoved_energy(Dtype::F16, &before, &after, &intended);
        assert!((unmoved - 4e-8).abs() < 1e-14, "{unmoved}");
    }

    #[test]
    fn rounding_can_amplify() {
        let u = -2.5e-4f32;
        let (mut w, mut sum) = (1.0, Fidelity::default());
        for _ in 0..1000 {
            let next = half(w + f64::from(u));
            let at = |x: f64| bytes(Dtype::F16, std::iter::once(x));
            sum.merge(&fidelity(Dtype::F16, &at(w), &at(next), &[u]));
            w = next;
        }
        assert!((w - 0.512).abs() < 5e-4, "{w}");
        assert!((sum.phi().unwrap() - 1.95).abs() < 5e-3, "{sum:?}");
    }

    #[test]
    fn what_would_be_lost_is_what_is_lost() {
        let (w, signs) = weights(50_000);
        let held: Vec<f64> = w.iter().map(|&x| half(x)).collect();
        let before = bytes(Dtype::F32, held.iter().copied());
        let after = bytes(Dtype::F32, held.iter().zip(&signs).map(|(w, s)| w + s * 3e-6));
        let f = fidelity_in(Dtype::F16, &before, &after);
        assert!((f.phi().unwrap() - 0.36).abs() < 0.01, "{f:?}");
        assert!(fidelity_in(Dtype::F32, &before, &after).phi().unwrap() > 0.9999);
        let coarser = fidelity_in(Dtype::Bf16, &before, &after);
        assert!(coarser.phi().unwrap() < f.phi().unwrap(), "{coarser:?}");
    }

    #[test]
    fn nothing_intended_is_no_fidelity() {
        let zero = bytes(Dtype::F16, [1.0, 2.0].into_iter());
        let f = fidelity(Dtype::F16, &zero, &zero, &[0.0, 0.0]);
        assert_eq!((f, f.phi(), f.dead_share()), (Fidelity::default(), None, None));
        let f = fidelity(Dtype::F16, &zero, &zero, &[f32::NAN, f32::INFINITY]);
        assert_eq!((f.non_finite, f.intended, f.phi()), (2, 0, None));
    }

    #[test]
    fn a_copy_is_compared_with_what_its_master_rounds_to() {
        let values = || (0..3000).map(|i| f64::from(i) * 1.2345e-3);
        let master = bytes(Dtype::F32, values());
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let mut copy = bytes(dtype, values().map(|x| f64::from(x as f32)));
            assert_eq!(unlike_rounded(dtype, &copy, &master), 0);
            copy[2 * 2500] ^= 1;
            assert_eq!(unlike_rounded(dtype, &copy, &master), 1);
        }
        let nan = |dtype| bytes(dtype, std::iter::once(f64::NAN));
        assert_eq!(unlike_rounded(Dtype::F16, &nan(Dtype::F16), &nan(Dtype::F32)), 0);
        let big = bytes(Dtype::F32, std::iter::once(1e6));
        assert_eq!(unlike_rounded(Dtype::F16, &bytes(Dtype::F16, std::iter::once(f64::INFINITY)), &big), 0);
    }
}
