//! Integers in formats that cannot hold them: FP16 holds every integer up to 2048, BF16 up to 256.

use ampdoctor::scan::{Dtype, Stats, elements_like};

use super::border::{Integers, RawTensor};

/// Elements that are not what they were, once they are held in FP16 or BF16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Inexact {
    f16: u64,
    bf16: u64,
}

impl Inexact {
    /// What becomes of the elements of a tensor of integers; `None` where it holds other numbers too, or cannot be read.
    pub(super) fn of(t: &RawTensor) -> Option<Self> {
        let mut found = Self::default();
        match t.integers() {
            Some(Integers::I64(all)) => all.iter().for_each(|x| found.add(x.unsigned_abs())),
            Some(Integers::I32(all)) => all.iter().for_each(|x| found.add(u64::from(x.unsigned_abs()))),
            None => {
                for x in floats(t).filter(|_| t.dtype() == Some(Dtype::F32))? {
                    if x.fract() != 0.0 || !x.is_finite() || x.abs() > 1e15 {
                        return None;
                    }
                    found.add(x.abs() as u64);
                }
            }
        }
        Some(found)
    }

    fn add(&mut self, magnitude: u64) {
        self.f16 += u64::from(magnitude > 2048 && (!fits(magnitude, 11) || magnitude > 65504));
        self.bf16 += u64::from(!fits(magnitude, 8));
    }

    /// Those in this format; `None` where it is none of the two.
    pub(super) fn within(self, dtype: Dtype) -> Option<u64> {
        match dtype {
            Dtype::F16 => Some(self.f16),
            Dtype::Bf16 => Some(self.bf16),
            Dtype::F32 | Dtype::F64 => None,
        }
    }
}

/// Whether an integer has at most so many significant bits.
fn fits(magnitude: u64, bits: u32) -> bool {
    64 - magnitude.leading_zeros() <= bits + magnitude.trailing_zeros()
}

/// Integers that were made in a format which cannot hold them, as by `arange` or `cumsum`: neighbours beyond its reach that are equal,
/// where none are that it can hold. `None` where nothing is wrong, and where the elements are no integers.
pub(super) fn repeated(t: &RawTensor, stats: &Stats) -> Option<u64> {
    let reach = reach(t.dtype()?)?;
    // Nearly every tensor is done with here: nothing is read again.
    if !were_repeated(stats, reach) {
        return None;
    }
    let all = floats(t)?;
    if all.iter().any(|x| x.fract() != 0.0) {
        return None;
    }
    let pairs = || all.windows(2).filter(|pair| pair[0] == pair[1]);
    let within = pairs().filter(|pair| f64::from(pair[0].abs()) < reach).count();
    let beyond = pairs().filter(|pair| f64::from(pair[0].abs()) >= reach).count();
    (within == 0 && beyond > 0).then_some(beyond as u64)
}

/// The largest integer up to which a format in 16 bits holds all; `None` of any other format.
pub(super) fn reach(dtype: Dtype) -> Option<f64> {
    match dtype {
        Dtype::F16 => Some(2048.0),
        Dtype::Bf16 => Some(256.0),
        Dtype::F32 | Dtype::F64 => None,
    }
}

/// Whether a tensor may consist of integers some of which are beyond this reach.
pub(super) fn were_repeated(stats: &Stats, reach: f64) -> bool {
    stats.max_abs > reach && stats.min_abs >= 1.0 && stats.non_finite() == 0
}

/// The elements in the order in which they lie in memory.
fn floats(t: &RawTensor) -> Option<Vec<f32>> {
    let view = t.view()?;
    let mut all = Vec::new();
    // SAFETY: the shim describes live memory for the length of its call.
    unsafe { elements_like(&view, &view, &mut all) }.then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn an_integer_fits_exactly_where_the_format_gives_it_back() {
        for x in (0..70_000u64).chain([1 << 20, (1 << 20) + 1]) {
            let mut found = Inexact::default();
            found.add(x);
            assert_eq!(found.f16 == 0, f16::from_f64(x as f64).to_f64() == x as f64, "{x}");
            assert_eq!(found.bf16 == 0, bf16::from_f64(x as f64).to_f64() == x as f64, "{x}");
        }
    }
}
